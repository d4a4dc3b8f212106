//! Names and files of cgroups. Linux, Documentation/admin-guide/cgroup-v2.rst.

use super::usage::{Cpu, DeviceIo, Memory, Swap, Throttling, Usage, psi};
use crate::time::Wall;

/// The UID that a pod's cgroup is named after, with `_` for `-` as systemd's names have it; `None` if it is no pod's.
/// `kubepods-burstable-pod12_ab.slice`, `pod12-ab`.
#[must_use]
pub fn pod_of(directory: &str) -> Option<String> {
    let name = directory.strip_suffix(".slice").unwrap_or(directory);
    // A dash inside a component would be a level of its own, so the last one begins the pod's.
    let last = if name == directory { name } else { name.rsplit('-').next()? };
    let uid = last.strip_prefix("pod").filter(|uid| !uid.is_empty())?;
    Some(key(uid))
}

/// What [`pod_of`] answers for a pod of this UID.
#[must_use]
pub fn key(uid: &str) -> String {
    uid.replace('-', "_")
}

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

/// A file of one number; `max` is no number.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// How much of a cgroup is read: every file costs an open, a read and the kernel's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// What `/metrics/resource` tells.
    Resource,
    /// What `/stats/summary?only_cpu_and_memory=true` tells.
    CpuAndMemory,
    /// What `/stats/summary` tells.
    Summary,
    /// What `/metrics/cadvisor` tells.
    Cadvisor,
}

/// What a cgroup's files say; `read` answers with the text of one, `None` if it cannot be read.
#[must_use]
pub fn usage(extent: Extent, at: Wall, read: impl Fn(&str) -> Option<String>) -> Usage {
    let number = |name: &str| number(&read(name)?);
    let mut usage = Usage { at, ..Usage::default() };
    if let Some(text) = read("cpu.stat") {
        usage.cpu = cpu(&text);
    }
    if let Some(text) = read("memory.stat") {
        usage.memory = memory(&text);
    }
    usage.memory.usage = number("memory.current");
    usage.swap = Swap { usage: number("memory.swap.current"), limit: number("memory.swap.max") };
    if extent >= Extent::CpuAndMemory {
        let pressure = |name: &str| psi(&read(name)?);
        usage.memory.limit = number("memory.max");
        usage.cpu.psi = pressure("cpu.pressure");
        usage.memory.psi = pressure("memory.pressure");
        usage.io.psi = pressure("io.pressure");
    }
    if extent >= Extent::Summary
        && let Some(text) = read("cgroup.procs")
    {
        usage.tasks.processes = u64::try_from(text.lines().count()).ok();
        usage.tasks.first = text.lines().next().and_then(|pid| pid.parse().ok());
    }
    if extent >= Extent::Cadvisor {
        let counted = |file: &str, name: &str| field(&read(file)?, name);
        usage.memory.peak = number("memory.peak");
        usage.memory.reservation = number("memory.min");
        usage.memory.limit_hits = counted("memory.events", "max");
        usage.memory.oom_kills = counted("memory.events", "oom_kill");
        usage.io.devices = read("io.stat").map(|text| devices(&text)).unwrap_or_default();
        usage.tasks.threads = number("pids.current");
        usage.tasks.threads_max = number("pids.max");
        if let Some((quota, period)) = read("cpu.max").as_deref().and_then(|text| text.trim().split_once(' '))
        {
            usage.cpu.quota_us = quota.parse().ok();
            usage.cpu.period_us = period.parse().ok();
        }
        usage.cpu.shares = number("cpu.weight").map(shares);
    }
    usage.memory.derive();
    usage
}

fn cpu(text: &str) -> Cpu {
    let ns = |name| Some(field(text, name)?.saturating_mul(1000));
    let or_none = |name| field(text, name).unwrap_or_default();
    // Groups without the controller have times and no periods.
    let throttling = field(text, "nr_periods").map(|periods| Throttling {
        periods,
        throttled_periods: or_none("nr_throttled"),
        throttled_ns: ns("throttled_usec").unwrap_or_default(),
        burst_periods: or_none("nr_bursts"),
        burst_ns: ns("burst_usec").unwrap_or_default(),
    });
    Cpu {
        total_ns: ns("usage_usec"),
        user_ns: ns("user_usec"),
        system_ns: ns("system_usec"),
        throttling,
        ..Cpu::default()
    }
}

fn memory(text: &str) -> Memory {
    Memory {
        rss: field(text, "anon"),
        cache: field(text, "file"),
        mapped_file: field(text, "file_mapped"),
        active_file: field(text, "active_file"),
        inactive_file: field(text, "inactive_file"),
        kernel: field(text, "kernel"),
        page_faults: field(text, "pgfault"),
        major_page_faults: field(text, "pgmajfault"),
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
