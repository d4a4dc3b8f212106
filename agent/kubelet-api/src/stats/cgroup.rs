//! Names and files of cgroups. Linux, Documentation/admin-guide/cgroup-v2.rst.

use agent_types::time::Wall;

use super::usage::{Cpu, DeviceIo, Memory, Psi, Swap, Throttling, Usage, psi};

/// The CRI id that a container's cgroup is named after: `cri-containerd-<id>.scope`, or the id alone.
#[must_use]
pub fn container_of(directory: &str) -> Option<&str> {
    let id = match directory.strip_suffix(".scope") {
        Some(scope) => scope.rsplit('-').next()?,
        None => directory,
    };
    (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(id)
}

/// The number of a line `<name> <number>`, as in cpu.stat and memory.stat.
#[must_use]
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Parses a file with one number; `max` is not a number.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// How much of a cgroup is read: every file costs an open, a read and the kernel's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Values for `/metrics/resource`.
    Resource,
    /// Values for `/stats/summary?only_cpu_and_memory=true`.
    CpuAndMemory,
    /// Values for `/stats/summary`.
    Summary,
    /// Values for `/metrics/cadvisor`.
    Cadvisor,
}

/// The files of one cgroup.
pub trait Files {
    /// The text of a file; `None` if it cannot be read. Valid until the next call.
    fn read(&mut self, name: &str) -> Option<&str>;
}

/// Reads the usage of a cgroup from its files. Each file is read at most once.
#[must_use]
pub fn usage(extent: Extent, at: Wall, files: &mut impl Files) -> Usage {
    fn one(files: &mut impl Files, name: &str) -> Option<u64> {
        number(files.read(name)?)
    }
    fn pressure(files: &mut impl Files, name: &str) -> Option<Psi> {
        psi(files.read(name)?)
    }
    let mut usage = Usage { at, ..Usage::default() };
    usage.cpu = files.read("cpu.stat").map(cpu).unwrap_or_default();
    usage.memory = files.read("memory.stat").map(memory).unwrap_or_default();
    usage.memory.usage = one(files, "memory.current");
    usage.swap = Swap { usage: one(files, "memory.swap.current"), limit: one(files, "memory.swap.max") };
    if extent >= Extent::CpuAndMemory {
        usage.memory.limit = one(files, "memory.max");
        usage.cpu.psi = pressure(files, "cpu.pressure");
        usage.memory.psi = pressure(files, "memory.pressure");
        usage.io.psi = pressure(files, "io.pressure");
    }
    if extent >= Extent::Summary
        && let Some(text) = files.read("cgroup.procs")
    {
        usage.tasks.processes = u64::try_from(text.lines().count()).ok();
        usage.tasks.first = text.lines().next().and_then(|pid| pid.parse().ok());
    }
    if extent >= Extent::Cadvisor {
        usage.memory.peak = one(files, "memory.peak");
        usage.memory.reservation = one(files, "memory.min");
        if let Some(text) = files.read("memory.events") {
            [usage.memory.limit_hits, usage.memory.oom_kills] = fields(text, ["max", "oom_kill"]);
        }
        usage.io.devices = files.read("io.stat").map(devices).unwrap_or_default();
        usage.tasks.threads = one(files, "pids.current");
        usage.tasks.threads_max = one(files, "pids.max");
        if let Some((quota, period)) = files.read("cpu.max").and_then(|text| text.trim().split_once(' ')) {
            usage.cpu.quota_us = quota.parse().ok();
            usage.cpu.period_us = period.parse().ok();
        }
        usage.cpu.shares = one(files, "cpu.weight").map(shares);
    }
    usage.memory.derive();
    usage
}

/// The numbers of lines `<name> <number>`, all in one pass: these texts have up to sixty lines.
fn fields<const N: usize>(text: &str, names: [&str; N]) -> [Option<u64>; N] {
    let mut found = [None; N];
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        if let Some(at) = names.iter().position(|wanted| *wanted == name) {
            found[at] = value.trim().parse().ok();
        }
    }
    found
}

fn cpu(text: &str) -> Cpu {
    let names = ["usage_usec", "user_usec", "system_usec", "throttled_usec", "burst_usec"];
    let [total_ns, user_ns, system_ns, throttled_ns, burst_ns] =
        fields(text, names).map(|us| us.map(|us| us.saturating_mul(1000)));
    let [periods, throttled_periods, burst_periods] =
        fields(text, ["nr_periods", "nr_throttled", "nr_bursts"]);
    // Groups without the controller have times and no periods.
    let throttling = periods.map(|periods| Throttling {
        periods,
        throttled_periods: throttled_periods.unwrap_or_default(),
        throttled_ns: throttled_ns.unwrap_or_default(),
        burst_periods: burst_periods.unwrap_or_default(),
        burst_ns: burst_ns.unwrap_or_default(),
    });
    Cpu { total_ns, user_ns, system_ns, throttling, ..Cpu::default() }
}

fn memory(text: &str) -> Memory {
    let names =
        ["anon", "file", "file_mapped", "active_file", "inactive_file", "kernel", "pgfault", "pgmajfault"];
    let [rss, cache, mapped_file, active_file, inactive_file, kernel, page_faults, major_page_faults] =
        fields(text, names);
    Memory {
        rss,
        cache,
        mapped_file,
        active_file,
        inactive_file,
        kernel,
        page_faults,
        major_page_faults,
        ..Memory::default()
    }
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`; a device without figures is left out.
fn devices(text: &str) -> Vec<DeviceIo> {
    let device = |line: &str| {
        let (numbers, rest) = line.split_once(' ')?;
        let (major, minor) = numbers.split_once(':')?;
        let value = |name: &str| {
            rest.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        Some(DeviceIo {
            name: String::new(),
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            read_bytes: value("rbytes")?,
            written_bytes: value("wbytes")?,
            reads: value("rios")?,
            writes: value("wios")?,
        })
    };
    text.lines().filter_map(device).collect()
}

/// The shares that a weight (1 to 10000) stands for: cadvisor's, and the kubelet's of old, way back.
fn shares(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9999
}
