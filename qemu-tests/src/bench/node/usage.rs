//! What a node uses besides its pods: memory of each program and of the kernel now, processor time and writes between two
//! samples.
//!
//! In: two [`NodeSample`]s. Out: [`NodeUsage`]. Pure. A process belongs to a pod if its cgroup does. Processor time of a
//! program that ended between the samples counts for the program that reaped it; that of a container that ended counts
//! for nobody, nor does that of an OCI runtime, which a shim reaps, and of a thread of the kernel. What a container
//! wrote that ended counts for its shim: the kernel keeps one number for a process and the children that it has reaped.
//! Memory that a process maps counts for the process, and not again as the kernel's.

use std::collections::BTreeMap;

use super::sample::{MachineClock, NodeSample, ProcessSample};

/// Units in which this benchmark itself runs in a guest.
const OWN_UNITS: [&str; 2] = ["orlop-debug-shell.service", "e2e-report.service"];
/// Parts of the paths of pods' cgroups: with the kubelet's groups, and containerd's group on a native node.
const POD_GROUPS: [&str; 2] = ["kubepods", "/k8s.io/"];
/// Parent of all threads of the kernel.
const KTHREADD: i32 = 2;
/// The containers' shims, whatever their program.
const SHIMS: &str = "shims";
/// Parts of the kernel's memory that belongs to no process, with their names in `meminfo`. Stacks of threads and modules
/// are most of vmalloc; what is per processor are counters, above all those of cgroups.
const KERNEL: [(&str, &[&str]); 6] = [
    ("unreclaimable slab", &["SUnreclaim"]),
    ("stacks and modules", &["VmallocUsed"]),
    ("page tables", &["PageTables", "SecPageTables"]),
    ("per processor", &["Percpu"]),
    ("huge pages", &["Hugetlb"]),
    (TMPFS, &["Shmem"]),
];
/// Files in memory, without what processes map of them.
const TMPFS: &str = "tmpfs, pods' too";
/// Names of disks begin like this; other block devices are made of them.
const DISKS: [&str; 4] = ["vd", "sd", "nvme", "mmcblk"];
/// Bytes of a sector, whatever the disk's blocks.
const SECTOR: u64 = 512;
/// Hundredths of a second, on every Linux that there is an image for.
const TICKS_PER_S: f64 = 100.0;

/// All processes of one program.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProgramUsage {
    /// Processes at the second sample.
    pub(super) processes: u32,
    /// Their memory, shared pages by their share, KiB.
    pub(super) pss_kib: u64,
    /// Their processor time between the samples, clock ticks.
    pub(super) ticks: u64,
    /// Bytes that they made the kernel write to disks between the samples.
    pub(super) written_bytes: u64,
}

/// A node, or a machine without pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeUsage {
    /// Time between the samples, seconds.
    pub(super) window_s: Option<f64>,
    /// The programs that are not pods'.
    pub(super) programs: BTreeMap<String, ProgramUsage>,
    /// Those of pods: pause containers and the others.
    pub(super) pods: BTreeMap<String, ProgramUsage>,
    /// Parts of the kernel's own memory, KiB. Empty if the samples are not of a whole machine.
    pub(super) kernel: Vec<(&'static str, u64)>,
    /// Memory that is not available to further programs, KiB.
    pub(super) in_use_kib: Option<u64>,
    /// Cgroups, and removed ones that still hold memory.
    pub(super) cgroups: Option<(u64, u64)>,
    /// Processor time of the whole machine between the samples, without theirs, milliseconds of a minute.
    pub(super) busy_ms_per_minute: Option<f64>,
    /// Bytes written to the machine's disks between the samples.
    pub(super) written_bytes: Option<u64>,
}

enum ProcessOwner<'a> {
    Node(&'a str),
    Pod(&'static str),
    /// The benchmark's own, or one that ended while it was read.
    Nobody,
}

impl NodeUsage {
    /// Memory at the second sample; processor time and writes since the first one. `given_mib` is the memory of a whole
    /// machine, from which the kernel takes its image and its page structures before it counts.
    pub(super) fn between(before: &NodeSample, after: &NodeSample, given_mib: Option<u32>) -> NodeUsage {
        let (programs, pods) = programs(before, after);
        let since = |then: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(then?));
        let amount = |name: &str| after.meminfo.get(name).copied();
        let written = (!after.written_sectors.is_empty()).then(|| {
            written(&after.written_sectors).saturating_sub(written(&before.written_sectors)) * SECTOR
        });
        NodeUsage {
            window_s: window(before.begin, after.begin),
            programs,
            pods,
            kernel: kernel(after, given_mib),
            in_use_kib: since(amount("MemAvailable"), amount("MemTotal")),
            cgroups: after.cgroups.map(|all| (all, after.dying_cgroups.unwrap_or(0))),
            busy_ms_per_minute: since(before.end.busy_ticks, after.begin.busy_ticks)
                .zip(window(before.end, after.begin))
                .map(|(ticks, window_s)| per_minute(ticks, window_s)),
            written_bytes: written,
        }
    }

    /// Clock ticks as milliseconds of a minute.
    pub(super) fn ms_per_minute(&self, ticks: u64) -> Option<f64> {
        Some(per_minute(ticks, self.window_s?))
    }

    /// All programs that are not pods', together.
    pub(super) fn processes(&self) -> ProgramUsage {
        self.programs.values().fold(ProgramUsage::default(), |sum, program| ProgramUsage {
            processes: sum.processes + program.processes,
            pss_kib: sum.pss_kib + program.pss_kib,
            ticks: sum.ticks + program.ticks,
            written_bytes: sum.written_bytes + program.written_bytes,
        })
    }

    /// The kernel's own memory, KiB; `None` if the samples are not of a whole machine.
    pub(super) fn kernel_kib(&self) -> Option<u64> {
        (!self.kernel.is_empty()).then(|| self.kernel.iter().map(|(_, kib)| kib).sum())
    }
}

/// Seconds between two times, if there are some.
fn window(then: MachineClock, now: MachineClock) -> Option<f64> {
    Some(now.uptime_s? - then.uptime_s?).filter(|seconds| *seconds > 0.0)
}

/// Clock ticks of so many seconds as milliseconds of a minute.
fn per_minute(ticks: u64, window_s: f64) -> f64 {
    ticks as f64 / TICKS_PER_S * 1000.0 * 60.0 / window_s
}

type Programs = BTreeMap<String, ProgramUsage>;

fn programs(before: &NodeSample, after: &NodeSample) -> (Programs, Programs) {
    let (mut nodes, mut pods) = (Programs::new(), Programs::new());
    let ended = ended_children(before, after);
    // A process that is new has spent all of its time since the first sample.
    let new = ProcessSample::default();
    for (pid, now) in &after.processes {
        let usage = match owner(*pid, now) {
            ProcessOwner::Node(name) => nodes.entry(name.to_owned()).or_default(),
            ProcessOwner::Pod(name) => pods.entry(name.to_owned()).or_default(),
            ProcessOwner::Nobody => continue,
        };
        let then = if lives_on(before, after, *pid) { &before.processes[pid] } else { &new };
        let ended = ended.get(pid).copied().unwrap_or_default();
        // A shim reaps the processes of its containers, and who reaps a shim has their time with the shim's.
        let reaped = if is_shim(&now.name) || ended.has_shim {
            0
        } else {
            now.reaped_ticks.saturating_sub(then.reaped_ticks).saturating_sub(ended.ticks)
        };
        let written = |process: &ProcessSample| process.written_bytes.unwrap_or(0);
        usage.processes += 1;
        usage.pss_kib += now.pss_kib.unwrap_or(0);
        usage.ticks += now.ticks.saturating_sub(then.ticks).saturating_add(reaped);
        usage.written_bytes += written(now).saturating_sub(written(then)).saturating_sub(ended.written_bytes);
    }
    (nodes, pods)
}

/// True if the process is the same one in both samples.
fn lives_on(before: &NodeSample, after: &NodeSample, pid: i32) -> bool {
    let started = |sample: &NodeSample| sample.processes.get(&pid).map(|process| process.started_ticks);
    started(before).is_some() && started(before) == started(after)
}

/// What processes that have ended since had at the first sample.
#[derive(Clone, Copy, Debug, Default)]
struct EndedChildren {
    ticks: u64,
    written_bytes: u64,
    has_shim: bool,
}

/// By the process that has reaped them, or has what their reaper had: the nearest ancestor that lives on.
fn ended_children(before: &NodeSample, after: &NodeSample) -> BTreeMap<i32, EndedChildren> {
    let mut all: BTreeMap<i32, EndedChildren> = BTreeMap::new();
    for (pid, then) in &before.processes {
        if lives_on(before, after, *pid) {
            continue;
        }
        let mut reaper = then.parent;
        // No chain of parents is longer than that, whatever the text says.
        for _ in 0..before.processes.len() {
            match before.processes.get(&reaper) {
                Some(process) if !lives_on(before, after, reaper) => reaper = process.parent,
                _ => break,
            }
        }
        let ended = all.entry(reaper).or_default();
        ended.ticks = ended.ticks.saturating_add(then.ticks).saturating_add(then.reaped_ticks);
        ended.written_bytes = ended.written_bytes.saturating_add(then.written_bytes.unwrap_or(0));
        ended.has_shim |= is_shim(&then.name);
    }
    all
}

fn owner(pid: i32, process: &ProcessSample) -> ProcessOwner<'_> {
    let is_in = |groups: [&str; 2]| groups.iter().any(|group| process.cgroups.contains(*group));
    if is_in(OWN_UNITS) || process.cgroups.is_empty() {
        ProcessOwner::Nobody
    } else if is_in(POD_GROUPS) {
        ProcessOwner::Pod(if process.name == "pause" { "pause containers" } else { "other containers" })
    } else if pid == KTHREADD || process.parent == KTHREADD {
        ProcessOwner::Node("kernel threads")
    } else {
        ProcessOwner::Node(program(&process.name))
    }
}

/// The row of a program. The upstream kubelet has the agent's name on a native node, and a name of the benchmark's in a VM.
fn program(name: &str) -> &str {
    match name {
        "orlop-agent" | "upstream" => "kubelet",
        name if is_shim(name) => SHIMS,
        name => name,
    }
}

fn is_shim(name: &str) -> bool {
    name.starts_with("containerd-shim")
}

fn kernel(sample: &NodeSample, given_mib: Option<u32>) -> Vec<(&'static str, u64)> {
    let Some(total) = sample.meminfo.get("MemTotal") else { return Vec::new() };
    let amount = |names: &[&str]| -> u64 { names.iter().filter_map(|name| sample.meminfo.get(*name)).sum() };
    let mapped: u64 = sample.processes.values().filter_map(|process| process.pss_shmem_kib).sum();
    let own = |label: &str, kib: u64| if label == TMPFS { kib.saturating_sub(mapped) } else { kib };
    let mut parts: Vec<(&'static str, u64)> =
        KERNEL.iter().map(|(label, names)| (*label, own(label, amount(names)))).collect();
    if let Some(bytes) = sample.verity_bytes {
        parts.push(("verity hashes", bytes / 1024));
    }
    if let Some(mib) = given_mib {
        parts.push(("image, page structs", (u64::from(mib) * 1024).saturating_sub(*total)));
    }
    parts
}

/// Sectors written to disks. A partition's name begins with its disk's.
fn written(sectors: &BTreeMap<String, u64>) -> u64 {
    let is_disk = |name: &str| DISKS.iter().any(|disk| name.starts_with(disk));
    let is_part = |name: &str| {
        sectors.keys().any(|disk| name != disk && is_disk(disk) && name.starts_with(disk.as_str()))
    };
    sectors.iter().filter(|(name, _)| is_disk(name) && !is_part(name)).map(|(_, written)| written).sum()
}

#[cfg(test)]
mod tests;
