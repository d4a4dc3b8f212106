//! What a node uses besides its pods: memory of each program and of the kernel now, processor time and writes between two
//! samples.
//!
//! In: two [`NodeSample`]s. Out: [`NodeUsage`]. Pure. A process belongs to a pod if its cgroup does. Processor time of a
//! program that ended between the samples counts for the program that started it; that of a container that ended counts
//! for nobody.

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
const KERNEL: [(&str, &[&str]); 5] = [
    ("unreclaimable slab", &["SUnreclaim"]),
    ("stacks and modules", &["VmallocUsed"]),
    ("page tables", &["PageTables", "SecPageTables"]),
    ("per processor", &["Percpu"]),
    ("tmpfs, pods' too", &["Shmem"]),
];
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
    Benchmark,
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
    // What a process had spent at the first sample is part of its parent's time once the parent has reaped it.
    let mut ended: BTreeMap<i32, u64> = BTreeMap::new();
    for (pid, then) in &before.processes {
        if after.processes.get(pid).is_none_or(|now| now.started_ticks != then.started_ticks) {
            *ended.entry(then.parent).or_default() += then.ticks.saturating_add(then.reaped_ticks);
        }
    }
    for (pid, now) in &after.processes {
        let usage = match owner(*pid, now) {
            ProcessOwner::Node(name) => nodes.entry(name.to_owned()).or_default(),
            ProcessOwner::Pod(name) => pods.entry(name.to_owned()).or_default(),
            ProcessOwner::Benchmark => continue,
        };
        // A process that is new has spent all of its time since the first sample.
        let then = before.processes.get(pid).filter(|then| then.started_ticks == now.started_ticks);
        let written = |process: &ProcessSample| process.written_bytes.unwrap_or(0);
        usage.processes += 1;
        usage.pss_kib += now.pss_kib.unwrap_or(0);
        let reaped = if is_shim(&now.name) { None } else { ended.get(pid) };
        let earlier = then.map_or(0, |then| spent(then).saturating_add(reaped.copied().unwrap_or(0)));
        usage.ticks += spent(now).saturating_sub(earlier);
        usage.written_bytes += written(now).saturating_sub(then.map_or(0, written));
    }
    (nodes, pods)
}

fn owner(pid: i32, process: &ProcessSample) -> ProcessOwner<'_> {
    let is_in = |groups: [&str; 2]| groups.iter().any(|group| process.cgroups.contains(*group));
    if is_in(OWN_UNITS) {
        ProcessOwner::Benchmark
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

/// A shim reaps the processes of its containers: their time is not its own.
fn spent(process: &ProcessSample) -> u64 {
    let reaped = if is_shim(&process.name) { 0 } else { process.reaped_ticks };
    process.ticks.saturating_add(reaped)
}

fn kernel(sample: &NodeSample, given_mib: Option<u32>) -> Vec<(&'static str, u64)> {
    let Some(total) = sample.meminfo.get("MemTotal") else { return Vec::new() };
    let amount = |names: &[&str]| -> u64 { names.iter().filter_map(|name| sample.meminfo.get(*name)).sum() };
    let mut parts: Vec<(&'static str, u64)> =
        KERNEL.iter().map(|(label, names)| (*label, amount(names))).collect();
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
mod tests {
    use super::*;

    fn process(name: &str, cgroups: &str, ticks: u64, pss_kib: u64) -> ProcessSample {
        let (name, cgroups) = (name.to_owned(), cgroups.to_owned());
        ProcessSample { parent: 1, name, cgroups, ticks, pss_kib: Some(pss_kib), ..Default::default() }
    }

    fn usage(processes: u32, pss_kib: u64, ticks: u64) -> ProgramUsage {
        ProgramUsage { processes, pss_kib, ticks, written_bytes: 0 }
    }

    const SYSTEM: &str = "0::/system.slice/x.service\n";

    #[test]
    fn programs_and_pods_are_told_apart() {
        let sample = |processes: Vec<ProcessSample>| NodeSample {
            processes: (10..).zip(processes).collect(),
            ..Default::default()
        };
        let native = "5:memory:/orlop-1/k8s.io/abc\n4:pids:/orlop-1/k8s.io/abc\n";
        let all = |ticks: u64| {
            sample(vec![
                process("orlop-agent", SYSTEM, ticks, 16_000),
                process("containerd-shim", SYSTEM, ticks, 4000),
                process("containerd-shim", SYSTEM, ticks, 5000),
                process("pause", "0::/kubepods.slice/kubepods-pod1.slice/cri-x.scope\n", ticks, 20),
                process("sh", native, ticks, 700),
                process("bash", "0::/system.slice/orlop-debug-shell.service\n", ticks, 900),
            ])
        };
        let found = NodeUsage::between(&all(3), &all(10), None);
        let named = |rows: Vec<(&str, ProgramUsage)>| -> Programs {
            rows.into_iter().map(|(name, usage)| (name.to_owned(), usage)).collect()
        };
        assert_eq!(
            found.programs,
            named(vec![("kubelet", usage(1, 16_000, 7)), ("shims", usage(2, 9000, 14))])
        );
        let pods = vec![("pause containers", usage(1, 20, 7)), ("other containers", usage(1, 700, 7))];
        assert_eq!(found.pods, named(pods));
        assert_eq!(found.processes(), usage(3, 25_000, 21));
        assert_eq!((found.kernel_kib(), found.in_use_kib, found.written_bytes), (None, None, None));
    }

    #[test]
    fn the_time_of_ended_children_counts_except_a_shims() {
        let one = |name: &str, reaped_ticks: u64, started_ticks: u64| {
            let process = ProcessSample { reaped_ticks, started_ticks, ..process(name, SYSTEM, 5, 1) };
            NodeSample { processes: BTreeMap::from([(9, process)]), ..Default::default() }
        };
        let ticks = |before: &NodeSample, after: &NodeSample| {
            NodeUsage::between(before, after, None).processes().ticks
        };
        assert_eq!(ticks(&one("containerd", 100, 1), &one("containerd", 130, 1)), 30);
        assert_eq!(ticks(&one("containerd-shim", 100, 1), &one("containerd-shim", 130, 1)), 0);
        // Another process of the same id, and one that was not there.
        assert_eq!(ticks(&one("containerd", 100, 1), &one("containerd", 2, 8)), 7);
        assert_eq!(ticks(&NodeSample::default(), &one("containerd", 2, 8)), 7);
    }

    #[test]
    fn a_child_that_ended_counts_once() {
        let parent = |reaped_ticks| ProcessSample { reaped_ticks, ..process("systemd", SYSTEM, 5, 1) };
        let child = ProcessSample { parent: 9, ..process("worker", SYSTEM, 100, 1) };
        let sample = |processes: Vec<(i32, ProcessSample)>| NodeSample {
            processes: processes.into_iter().collect(),
            ..Default::default()
        };
        let before = sample(vec![(9, parent(0)), (10, child)]);
        // The child spent seven more ticks before it ended.
        let found = NodeUsage::between(&before, &sample(vec![(9, parent(107))]), None);
        assert_eq!(found.processes(), usage(1, 1, 7));
        // Nobody has reaped it yet.
        let found = NodeUsage::between(&before, &sample(vec![(9, parent(0))]), None);
        assert_eq!(found.processes().ticks, 0);
    }

    #[test]
    fn threads_of_the_kernel_are_one_row() {
        let thread = |parent| ProcessSample { parent, ..process("kworker/0:1", "0::/\n", 0, 0) };
        let processes = BTreeMap::from([(2, thread(0)), (30, thread(2)), (31, thread(1))]);
        let sample = NodeSample { processes, ..Default::default() };
        let found = NodeUsage::between(&sample, &sample, None).programs;
        let count = |name: &str| found.get(name).map(|program| program.processes);
        assert_eq!((count("kernel threads"), count("kworker/0:1")), (Some(2), Some(1)));
    }

    #[test]
    fn the_kernels_parts_are_added_once() {
        let amounts = [
            ("MemTotal", 1_000_000),
            ("MemAvailable", 800_000),
            ("SUnreclaim", 20_000),
            ("SReclaimable", 7),
            ("VmallocUsed", 9000),
            ("KernelStack", 3000),
            ("PageTables", 500),
            ("SecPageTables", 40),
            ("Shmem", 600),
        ];
        let meminfo = amounts.iter().map(|(name, kib)| ((*name).to_owned(), *kib)).collect();
        let sample =
            NodeSample { meminfo, verity_bytes: Some(2048), cgroups: Some(60), ..Default::default() };
        let found = NodeUsage::between(&sample, &sample, Some(1000));
        let image = 1_024_000 - 1_000_000;
        assert_eq!(found.kernel_kib(), Some(20_000 + 9000 + 540 + 600 + 2 + image));
        assert_eq!((found.in_use_kib, found.cgroups), (Some(200_000), Some((60, 0))));
        let without = NodeUsage::between(&sample, &sample, None);
        assert_eq!(without.kernel_kib(), Some(20_000 + 9000 + 540 + 600 + 2));
    }

    #[test]
    fn a_write_counts_for_its_disk_alone() {
        let clock =
            |uptime_s: f64, ticks: u64| MachineClock { uptime_s: Some(uptime_s), busy_ticks: Some(ticks) };
        // A sample takes five seconds and 200 ticks.
        let at = |seconds: f64, vda: u64, ticks: u64| NodeSample {
            begin: clock(seconds, ticks),
            end: clock(seconds + 5.0, ticks + 200),
            written_sectors: [
                ("vda", vda),
                ("vda1", vda),
                ("dm-0", 900),
                ("sr0", 4),
                ("nvme0n1", 7),
                ("nvme0n1p2", 7),
            ]
            .map(|(name, sectors)| (name.to_owned(), sectors))
            .into(),
            ..Default::default()
        };
        let found = NodeUsage::between(&at(10.0, 100, 50), &at(40.0, 160, 350), None);
        assert_eq!(found.written_bytes, Some(60 * 512));
        assert_eq!((found.window_s, found.busy_ms_per_minute), (Some(30.0), Some(2400.0)));
        assert_eq!(found.ms_per_minute(300), Some(6000.0));
        assert_eq!(NodeUsage::between(&at(10.0, 1, 1), &at(10.0, 1, 1), None).ms_per_minute(300), None);
    }
}
