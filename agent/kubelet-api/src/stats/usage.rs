//! Usage of one cgroup, of a container in the runtime's statistics, or of the machine. Linux:
//! Documentation/admin-guide/cgroup-v2.rst and accounting/psi.rst.
//!
//! Invariant: an amount is `None` exactly if it was not measured.

use agent_types::time::Wall;

/// Usage at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// When they were read.
    pub at: Wall,
    /// Path of the cgroup inside the hierarchy; empty if unknown.
    pub path: String,
    /// Creation time of the cgroup; `None` without one.
    pub created: Option<Wall>,
    /// Usage of processors.
    pub cpu: Cpu,
    /// Usage of memory.
    pub memory: Memory,
    /// Usage of swap.
    pub swap: Swap,
    /// Usage of block devices.
    pub io: Io,
    /// Processes and threads.
    pub tasks: Tasks,
}

/// Usage of processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Time used since the beginning, nanoseconds.
    pub total_ns: Option<u64>,
    /// Of it in user mode.
    pub user_ns: Option<u64>,
    /// Of it in the kernel.
    pub system_ns: Option<u64>,
    /// Nanoseconds of processor time in a second of late; [`super::rates`] finds it.
    pub nano_cores: Option<u64>,
    /// Throttling by a limit; `None` without a limit.
    pub throttling: Option<Throttling>,
    /// cpu.weight as the shares that it was made from.
    pub shares: Option<u64>,
    /// Microseconds of processor time in a period; `None` without a limit.
    pub quota_us: Option<u64>,
    /// The period, microseconds.
    pub period_us: Option<u64>,
    /// Waiting for a processor.
    pub psi: Option<Psi>,
}

/// What a limit on processor time did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods that have passed.
    pub periods: u64,
    /// Of them those in which the limit was reached.
    pub throttled_periods: u64,
    /// Time spent waiting for the next period, nanoseconds.
    pub throttled_ns: u64,
    /// Periods in which saved time was used.
    pub burst_periods: u64,
    /// How much of it, nanoseconds.
    pub burst_ns: u64,
}

/// Memory, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All that is charged, page cache included.
    pub usage: Option<u64>,
    /// What is not given back without harm: usage without inactive file pages.
    pub working_set: Option<u64>,
    /// Rest of the limit, bytes; `None` without a limit.
    pub available: Option<u64>,
    /// Limit, bytes; `None` without one.
    pub limit: Option<u64>,
    /// memory.min, bytes that are never reclaimed.
    pub reservation: Option<u64>,
    /// Anonymous pages, bytes.
    pub rss: Option<u64>,
    /// Page cache, bytes.
    pub cache: Option<u64>,
    /// Part of the page cache that is mapped into a process, bytes.
    pub mapped_file: Option<u64>,
    /// Part of the page cache that was used recently, bytes.
    pub active_file: Option<u64>,
    /// Part of the page cache that was not used recently, bytes.
    pub inactive_file: Option<u64>,
    /// The kernel's own, for it.
    pub kernel: Option<u64>,
    /// The most that was ever used.
    pub peak: Option<u64>,
    /// How often the limit was hit.
    pub limit_hits: Option<u64>,
    /// Processes that were killed because memory was short.
    pub oom_kills: Option<u64>,
    /// Number of page faults.
    pub page_faults: Option<u64>,
    /// Of them those that had to be read from a device.
    pub major_page_faults: Option<u64>,
    /// Waiting for memory.
    pub psi: Option<Psi>,
}

/// Swap, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    /// Swap in use, bytes.
    pub usage: Option<u64>,
    /// How much may be used; `None` also for any amount.
    pub limit: Option<u64>,
}

/// Usage of block devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// What was read and written, by device.
    pub devices: Vec<DeviceIo>,
    /// Waiting for a device.
    pub psi: Option<Psi>,
}

/// One device's lines of io.stat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Device file (`/dev/vda`); empty if unknown.
    pub name: String,
    /// Major number of the device.
    pub major: u32,
    /// Minor number of the device.
    pub minor: u32,
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Bytes written to the device.
    pub written_bytes: u64,
    /// Number of read operations.
    pub reads: u64,
    /// Number of write operations.
    pub writes: u64,
}

/// Processes and threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Number of processes.
    pub processes: Option<u64>,
    /// Id of one process of the cgroup.
    pub first: Option<u32>,
    /// Number of threads.
    pub threads: Option<u64>,
    /// How many threads there may be; `None` without a limit.
    pub threads_max: Option<u64>,
    /// Number of open files.
    pub files: Option<u64>,
    /// Of them sockets.
    pub sockets: Option<u64>,
    /// How many files the first process may open; -1 for any number.
    pub files_max: Option<i64>,
}

/// Pressure stall information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psi {
    /// Share of time in which all tasks waited (line `full`).
    pub full: Pressure,
    /// Share of time in which at least one task waited (line `some`).
    pub some: Pressure,
}

/// One line of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Time since the beginning, microseconds.
    pub total_us: u64,
    /// Share of the last 10, 60 and 300 seconds, hundredths of a per cent.
    pub avg: [u32; 3],
}

/// Parses a pressure file; `None` without a line `some`. `some avg10=0.00 avg60=1.25 avg300=0.07 total=1234`.
#[must_use]
pub fn psi(text: &str) -> Option<Psi> {
    let line = |name: &str| text.lines().find_map(|line| pressure(line.strip_prefix(name)?));
    // The machine's file of the processor had no line `full` for a while.
    Some(Psi { some: line("some ")?, full: line("full ").unwrap_or_default() })
}

fn pressure(line: &str) -> Option<Pressure> {
    let value =
        |name: &str| line.split_whitespace().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let avg = |name| hundredths(value(name)?);
    Some(Pressure {
        total_us: value("total")?.parse().ok()?,
        avg: [avg("avg10")?, avg("avg60")?, avg("avg300")?],
    })
}

/// `12.34` is 1234; the kernel writes two digits after the point.
fn hundredths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.')?;
    let part = (part.len() == 2).then_some(part)?;
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(part.parse().ok()?)
}

impl Memory {
    /// Computes the derived values: the working set, and the rest of the limit.
    pub fn derive(&mut self) {
        self.working_set =
            self.usage.map(|usage| usage.saturating_sub(self.inactive_file.unwrap_or_default()));
        self.available = Some(self.limit).flatten().zip(self.working_set).map(|(l, w)| l.saturating_sub(w));
    }
}

/// Sum of the values; `None` unless all are known, and for an empty list.
#[must_use]
pub fn sum<'a>(all: impl Iterator<Item = &'a Usage>, amount: impl Fn(&Usage) -> Option<u64>) -> Option<u64> {
    let mut all = all.map(amount);
    let first = all.next()??;
    all.try_fold(first, |sum, next| Some(sum.saturating_add(next?)))
}
