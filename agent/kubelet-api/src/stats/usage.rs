//! What one cgroup, a container as its runtime tells of it, or the machine uses. Linux,
//! Documentation/admin-guide/cgroup-v2.rst and accounting/psi.rst.
//!
//! Invariant: an amount is `None` where nobody measured it, and only there.

use agent_types::time::Wall;

/// Amounts of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// When they were read.
    pub at: Wall,
    /// The cgroup, a path inside the hierarchy; empty if it is not known.
    pub path: String,
    /// When the cgroup was made; `None` without one.
    pub created: Option<Wall>,
    /// Processor.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Swap.
    pub swap: Swap,
    /// Block devices.
    pub io: Io,
    /// Processes and threads.
    pub tasks: Tasks,
}

/// Processor.
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
    /// What a limit did; only cgroups that have one are asked.
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
    /// What is left of the limit; `None` without one.
    pub available: Option<u64>,
    /// The limit; `None` without one.
    pub limit: Option<u64>,
    /// memory.min, what is never reclaimed.
    pub reservation: Option<u64>,
    /// Anonymous pages.
    pub rss: Option<u64>,
    /// Page cache.
    pub cache: Option<u64>,
    /// Of it what is mapped into a process.
    pub mapped_file: Option<u64>,
    /// Of it what was used of late.
    pub active_file: Option<u64>,
    /// Of it what was not.
    pub inactive_file: Option<u64>,
    /// The kernel's own, for it.
    pub kernel: Option<u64>,
    /// The most that was ever used.
    pub peak: Option<u64>,
    /// How often the limit was hit.
    pub limit_hits: Option<u64>,
    /// Processes that were killed because memory was short.
    pub oom_kills: Option<u64>,
    /// Page faults.
    pub page_faults: Option<u64>,
    /// Of them those that had to be read from a device.
    pub major_page_faults: Option<u64>,
    /// Waiting for memory.
    pub psi: Option<Psi>,
}

/// Swap, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    /// In use.
    pub usage: Option<u64>,
    /// How much may be used; `None` also for any amount.
    pub limit: Option<u64>,
}

/// Block devices.
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
    /// `/dev/vda`; empty if it is not known.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
}

/// Processes and threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Processes.
    pub processes: Option<u64>,
    /// One of them.
    pub first: Option<u32>,
    /// Threads.
    pub threads: Option<u64>,
    /// How many threads there may be; `None` without a limit.
    pub threads_max: Option<u64>,
    /// Open files.
    pub files: Option<u64>,
    /// Of them sockets.
    pub sockets: Option<u64>,
    /// How many files the first process may open; -1 for any number.
    pub files_max: Option<i64>,
}

/// Pressure stall information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psi {
    /// Everything waited.
    pub full: Pressure,
    /// Something waited.
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

/// Names what there is to know of a pressure file; `None` if it has no line `some`.
/// `some avg10=0.00 avg60=1.25 avg300=0.07 total=1234`.
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
    /// Fills in what follows from the rest: the working set, and what is left of the limit.
    pub fn derive(&mut self) {
        self.working_set =
            self.usage.map(|usage| usage.saturating_sub(self.inactive_file.unwrap_or_default()));
        self.available = Some(self.limit).flatten().zip(self.working_set).map(|(l, w)| l.saturating_sub(w));
    }
}

/// Sum of what each has; `None` unless each has it, and if there is none.
#[must_use]
pub fn sum<'a>(all: impl Iterator<Item = &'a Usage>, amount: impl Fn(&Usage) -> Option<u64>) -> Option<u64> {
    let mut all = all.map(amount);
    let first = all.next()??;
    all.try_fold(first, |sum, next| Some(sum.saturating_add(next?)))
}
