//! Tests of the sums: who has what, and that nothing counts twice.

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
    assert_eq!(found.programs, named(vec![("kubelet", usage(1, 16_000, 7)), ("shims", usage(2, 9000, 14))]));
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
    let ticks =
        |before: &NodeSample, after: &NodeSample| NodeUsage::between(before, after, None).processes().ticks;
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
    let sample = NodeSample { meminfo, verity_bytes: Some(2048), cgroups: Some(60), ..Default::default() };
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

fn sample_of(processes: &[(i32, ProcessSample)]) -> NodeSample {
    NodeSample { processes: processes.iter().cloned().collect(), ..Default::default() }
}

#[test]
fn a_parents_own_time_counts_before_it_has_reaped_its_child() {
    let parent = |ticks| (9, ProcessSample { ticks, ..process("systemd", SYSTEM, 0, 1) });
    let child = ProcessSample { parent: 9, ..process("worker", SYSTEM, 100, 1) };
    let found = NodeUsage::between(&sample_of(&[parent(5), (10, child)]), &sample_of(&[parent(25)]), None);
    assert_eq!(found.processes().ticks, 20);
}

#[test]
fn a_child_of_a_child_that_ended_counts_once() {
    let top = |reaped_ticks| (9, ProcessSample { reaped_ticks, ..process("systemd", SYSTEM, 5, 1) });
    let below = |parent, ticks| ProcessSample { parent, ..process("worker", SYSTEM, ticks, 1) };
    let before = sample_of(&[top(50), (10, below(9, 100)), (11, below(10, 1000))]);
    // Both ended, and spent three ticks more.
    let found = NodeUsage::between(&before, &sample_of(&[top(1153)]), None);
    assert_eq!(found.processes().ticks, 3);
    // A circle of parents ends, too.
    let circle = sample_of(&[(4, below(6, 1)), (6, below(4, 1))]);
    assert_eq!(NodeUsage::between(&circle, &sample_of(&[top(0)]), None).processes().ticks, 5);
}

#[test]
fn the_time_of_an_ended_pod_is_nobodys() {
    let top =
        |ticks, reaped_ticks| (1, ProcessSample { reaped_ticks, ..process("systemd", SYSTEM, ticks, 1) });
    let shim = ProcessSample { reaped_ticks: 700, ..process("containerd-shim", SYSTEM, 40, 1) };
    let container = ProcessSample { parent: 10, ..process("sh", "0::/kubepods.slice/x\n", 300, 1) };
    let before = sample_of(&[top(5, 0), (10, shim), (11, container)]);
    // systemd has reaped the shim with all that its containers spent.
    let found = NodeUsage::between(&before, &sample_of(&[top(7, 9000)]), None);
    assert_eq!(found.processes().ticks, 2);
    assert!(found.pods.is_empty());
}

#[test]
fn what_an_ended_child_wrote_counts_once() {
    let of = |written_bytes, process| ProcessSample { written_bytes: Some(written_bytes), ..process };
    let top = |bytes| (9, of(bytes, process("systemd", SYSTEM, 0, 1)));
    let worker = ProcessSample { parent: 9, ..process("worker", SYSTEM, 0, 1) };
    let shim = |bytes| (12, of(bytes, process("containerd-shim", SYSTEM, 0, 1)));
    let container = ProcessSample { parent: 12, ..process("sh", "0::/kubepods.slice/x\n", 0, 1) };
    let before = sample_of(&[top(100), (10, of(4096, worker)), shim(7), (13, of(8192, container))]);
    let found = NodeUsage::between(&before, &sample_of(&[top(100 + 4096 + 512), shim(7 + 8192)]), None);
    assert_eq!(found.processes().written_bytes, 512);
}

#[test]
fn what_ended_while_it_was_read_is_nobodys() {
    let found = NodeUsage::between(&NodeSample::default(), &sample_of(&[(9, process("sh", "", 9, 1))]), None);
    assert!(found.programs.is_empty() && found.pods.is_empty(), "{found:?}");
}

#[test]
fn mapped_files_in_memory_and_huge_pages_count_once() {
    let journal = ProcessSample { pss_shmem_kib: Some(400), ..process("systemd-journal", SYSTEM, 0, 5000) };
    let amounts = [("MemTotal", 1_000_000), ("Shmem", 600), ("Hugetlb", 65_536)];
    let meminfo = amounts.iter().map(|(name, kib)| ((*name).to_owned(), *kib)).collect();
    let sample = NodeSample { meminfo, ..sample_of(&[(9, journal)]) };
    let found = NodeUsage::between(&sample, &sample, None);
    assert_eq!((found.kernel_kib(), found.processes().pss_kib), (Some(200 + 65_536), 5000));
}
