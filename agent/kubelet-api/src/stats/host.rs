//! Usage of the machine, from texts of /proc. Linux: Documentation/filesystems/proc.rst.
//!
//! In: texts. Out: amounts, network counters. Invariant: total; a value that a text lacks is `None`.

use agent_types::time::Wall;
use orlop_config::procfs::kilobytes;

use super::cgroup::field;
use super::usage::{Cpu, Memory, Psi, Swap, Tasks, Usage, psi};

/// Ticks of /proc/stat in a second (USER_HZ); the same on every architecture that there is an image for.
const TICKS_PER_SECOND: u64 = 100;
const NS_PER_TICK: u64 = 1_000_000_000 / TICKS_PER_SECOND;
/// Interfaces that are left out: the loopback, and those that lead into pods, which have their own counters.
/// Upstream: cadvisor's list.
const NOT_TOLD: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// What the machine uses; `read` answers with the text of a file of /proc, `None` if it cannot be read.
#[must_use]
pub fn usage(at: Wall, read: impl Fn(&str) -> Option<String>) -> Usage {
    let meminfo = read("meminfo").unwrap_or_default();
    let vmstat = read("vmstat").unwrap_or_default();
    let kb = |name: &str| kilobytes(&meminfo, name);
    let pressure = |name: &str| -> Option<Psi> { psi(&read(name)?) };
    let less = |all: &str, rest: &str| Some(kb(all)?.saturating_sub(kb(rest)?));
    let rss = kb("AnonPages");
    // What the root cgroup's memory.stat calls `file`, without the kernel's sums over all cgroups.
    let cache = kb("Cached")
        .map(|cached| ["Buffers", "SwapCached"].into_iter().filter_map(kb).fold(cached, u64::saturating_add));
    let mut memory = Memory {
        // As upstream: without the kernel's own memory.
        usage: rss.zip(cache).map(|(rss, cache)| rss.saturating_add(cache)),
        limit: kb("MemTotal"),
        rss,
        cache,
        mapped_file: kb("Mapped"),
        active_file: kb("Active(file)"),
        inactive_file: kb("Inactive(file)"),
        page_faults: field(&vmstat, "pgfault"),
        major_page_faults: field(&vmstat, "pgmajfault"),
        oom_kills: field(&vmstat, "oom_kill"),
        psi: pressure("pressure/memory"),
        ..Memory::default()
    };
    memory.derive();
    let mut cpu = read("stat").map(|text| cpu(&text)).unwrap_or_default();
    cpu.psi = pressure("pressure/cpu");
    let mut usage = Usage { at, cpu, memory, ..Usage::default() };
    usage.swap = Swap { usage: less("SwapTotal", "SwapFree"), limit: kb("SwapTotal") };
    usage.io.psi = pressure("pressure/io");
    usage.tasks = tasks(&read);
    usage
}

/// Memory that the machine can still give without reclaiming a page in use: free pages, file pages that were
/// not used recently, caches of the kernel. At most its memory without the working set; the working set
/// excludes the kernel's own memory and huge pages.
#[must_use]
pub fn left(meminfo: &str) -> Option<u64> {
    ["MemFree", "Inactive(file)", "SReclaimable"]
        .into_iter()
        .try_fold(0, |sum: u64, name| sum.checked_add(kilobytes(meminfo, name)?))
}

/// Threads of the whole machine and how many there may be.
fn tasks(read: &impl Fn(&str) -> Option<String>) -> Tasks {
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let max = [number("sys/kernel/pid_max"), number("sys/kernel/threads-max")].into_iter().flatten().min();
    let threads = read("loadavg").and_then(|text| threads(&text));
    Tasks { threads, threads_max: max, ..Tasks::default() }
}

/// `1.36 3.49 4.53 2/3518 3715089` are 3518 threads.
fn threads(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// The line of all processors: user, nice, system, idle, iowait, irq, softirq, steal, and guests, whose time
/// user and nice contain already.
fn cpu(stat: &str) -> Cpu {
    let numbers = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let numbers: Vec<u64> =
        numbers.into_iter().flat_map(str::split_whitespace).map_while(|n| n.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = numbers[..] else { return Cpu::default() };
    let (user, system) = (user.saturating_add(nice), system.saturating_add(irq).saturating_add(softirq));
    let ns = |ticks: u64| Some(ticks.saturating_mul(NS_PER_TICK));
    Cpu {
        total_ns: ns(user.saturating_add(system)),
        user_ns: ns(user),
        system_ns: ns(system),
        ..Cpu::default()
    }
}

/// When the machine started: `btime` of /proc/stat.
#[must_use]
pub fn boot_time(stat: &str) -> Option<Wall> {
    let seconds = i64::try_from(field(stat, "btime")?).ok()?;
    Some(Wall(seconds.checked_mul(1_000_000_000)?))
}

/// What went through a network namespace, by interface, and when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Time of the measurement.
    pub at: Wall,
    /// Name of the interface that leads out; empty if that is not known.
    pub default: String,
    /// In the kernel's order.
    pub interfaces: Vec<Interface>,
}

/// One interface's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Received traffic.
    pub received: Traffic,
    /// Sent traffic.
    pub sent: Traffic,
}

/// Traffic of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of bytes.
    pub bytes: u64,
    /// Number of packets.
    pub packets: u64,
    /// Number of errors.
    pub errors: u64,
    /// Number of dropped packets.
    pub dropped: u64,
}

/// Counters of `/proc/<pid>/net/dev`.
#[must_use]
pub fn interfaces(net_dev: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let name = name.trim();
        if NOT_TOLD.iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        let n: Vec<u64> = counters.split_whitespace().map_while(|n| n.parse().ok()).collect();
        let traffic = |at: usize| {
            let [bytes, packets, errors, dropped] = *n.get(at..at + 4)?.first_chunk()?;
            Some(Traffic { bytes, packets, errors, dropped })
        };
        Some(Interface { name: name.to_owned(), received: traffic(0)?, sent: traffic(8)? })
    };
    net_dev.lines().filter_map(interface).collect()
}
