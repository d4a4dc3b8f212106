//! Names and files of cgroups, and the text, against the expectations of upstream's readers.

use proptest::prelude::*;

use super::*;

#[test]
fn names_of_cgroups() {
    let table = [
        ("kubepods-burstable-pod12_ab.slice", Some("12_ab")),
        ("kubepods-pod12_ab.slice", Some("12_ab")),
        ("a-b-kubepods-besteffort-pod1.slice", Some("1")),
        ("pod12-ab", Some("12_ab")),
        ("kubepods-burstable.slice", None),
        ("kubepods.slice", None),
        ("pod", None),
        ("kubepods-pod.slice", None),
    ];
    for (directory, expected) in table {
        assert_eq!(name::pod_of(directory).as_deref(), expected, "{directory}");
    }
    let id = "0123456789abcdef".repeat(4);
    assert_eq!(cgroup::container_of(&format!("cri-containerd-{id}.scope")), Some(&*id));
    assert_eq!(cgroup::container_of(&id), Some(&*id));
    assert_eq!(cgroup::container_of("init.scope"), None);
    assert_eq!(cgroup::container_of("cgroup.procs"), None);
}

#[test]
fn what_a_disk_has_done() {
    let whole = disk::DiskIo::of_stat("1 2 3 4 5 6 7 8 9 10 11\n").unwrap();
    assert_eq!((whole.reads_merged, whole.in_flight, whole.waited_ms), (2, 9, 11));
    for text in ["", "\n", "1 2 3 4 5 6 7 8 9 10", "1 2 3 x 5 6 7 8 9 10 11", "-1 2 3 4 5 6 7 8 9 10 11"] {
        assert_eq!(disk::DiskIo::of_stat(text), None, "{text:?}");
    }
}

#[test]
fn files_of_cgroups() {
    let stat = "usage_usec 12\nuser_usec 5\nsystem_usec 7\n";
    assert_eq!(cgroup::field(stat, "usage_usec"), Some(12));
    assert_eq!(cgroup::field(stat, "usage"), None);
    assert_eq!(cgroup::field("inactive_file x\n", "inactive_file"), None);
    assert_eq!((cgroup::number("42\n"), cgroup::number("max\n")), (Some(42), None));
}

fn usage(cpu_ns: u64, bytes: u64) -> Usage {
    let mut usage = Usage { at: Wall(7_000_000_000), ..Usage::default() };
    usage.cpu.total_ns = Some(cpu_ns);
    usage.memory.working_set = Some(bytes);
    usage.swap.usage = Some(0);
    usage
}

fn pod(name: &str, uid: &str, containers: &[(&str, &str)]) -> ShownPod {
    let container = |(name, id): &(&str, &str)| ShownContainer {
        name: (*name).to_owned(),
        id: (*id).to_owned(),
        started: Some(Wall(1_500_000_000)),
        ..ShownContainer::default()
    };
    ShownPod {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        containers: containers.iter().map(container).collect(),
        ..ShownPod::default()
    }
}

fn pod_usage(pod: &str, usage: Option<Usage>, containers: &[(&str, Usage)]) -> PodUsage {
    let containers = containers.iter().map(|(id, usage)| ((*id).to_owned(), usage.clone()));
    PodUsage { pod: pod.to_owned(), usage, containers: containers.collect(), ..PodUsage::default() }
}

#[test]
fn the_text() {
    let containers = [("sandbox", usage(1_000, 1)), ("c1", usage(2_000_000_000, 200))];
    let snapshot = Snapshot {
        node: usage(9_000_000_000, 4096),
        pods: vec![pod_usage("1_a", Some(usage(2_500_000_000, 300)), &containers)],
        ..Snapshot::default()
    };
    let shown = [pod("web", "1-a", &[("c", "c1"), ("gone", "c0")]), pod("no-cgroup", "2-b", &[("c", "c2")])];
    let text = resource::text(Some(&snapshot), &shown);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        lines,
        [
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"web\"} 2 7000",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"web\"} 200 7000",
            "container_swap_usage_bytes{container=\"c\",namespace=\"ns\",pod=\"web\"} 0 7000",
            "container_start_time_seconds{container=\"c\",namespace=\"ns\",pod=\"web\"} 1.5",
            "node_cpu_usage_seconds_total 9 7000",
            "node_memory_working_set_bytes 4096 7000",
            "node_swap_usage_bytes 0 7000",
            "pod_cpu_usage_seconds_total{namespace=\"ns\",pod=\"web\"} 2.5 7000",
            "pod_memory_working_set_bytes{namespace=\"ns\",pod=\"web\"} 300 7000",
            "pod_swap_usage_bytes{namespace=\"ns\",pod=\"web\"} 0 7000",
            "resource_scrape_error 0",
        ]
    );
    let kinds = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(kinds, lines.len(), "each family is told once, and none that is empty");
}

#[test]
fn what_cannot_be_read_is_said() {
    let text = resource::text(None, &[pod("web", "1", &[])]);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, ["resource_scrape_error 1"]);
}

#[test]
fn a_pod_without_a_cgroup_is_the_sum_of_its_containers() {
    let shown = [pod("web", "1", &[("a", "c1"), ("b", "c2")]), pod("later", "2", &[("a", "c3")])];
    let figure =
        |id: &str, cpu, bytes| RuntimeUsage { id: id.to_owned(), usage: usage(cpu, bytes), layer: None };
    let figures = [figure("c1", 10, 100), figure("c2", 20, 200), figure("another's", 1, 1)];
    let snapshot = Snapshot::of_runtime(usage(1, 1), &shown, &figures);
    let [only] = &snapshot.pods[..] else { panic!("{:?}", snapshot.pods) };
    let whole = only.whole(&shown[0]);
    assert_eq!(
        (whole.cpu.total_ns, whole.memory.working_set, whole.at),
        (Some(30), Some(300), usage(0, 0).at)
    );
    assert_eq!(whole.memory.page_faults, None, "nobody counted them");
}

/// Files whose texts a function has.
struct Texts<F>(F, String);

impl<F: Fn(&str) -> Option<String>> cgroup::Files for Texts<F> {
    fn read(&mut self, name: &str) -> Option<&str> {
        self.1 = self.0(name)?;
        Some(&self.1)
    }
}

fn texts<F: Fn(&str) -> Option<String>>(read: F) -> Texts<F> {
    Texts(read, String::new())
}

#[test]
fn whole_cgroups() {
    let files = [
        (
            "cpu.stat",
            "usage_usec 9\nuser_usec 4\nsystem_usec 5\nnr_periods 3\nnr_throttled 1\nthrottled_usec 2\n",
        ),
        (
            "cpu.pressure",
            "some avg10=1.05 avg60=0.00 avg300=99.99 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
        ),
        ("cpu.max", "50000 100000\n"),
        ("cpu.weight", "39\n"),
        ("memory.current", "1000\n"),
        ("memory.max", "1500\n"),
        ("memory.stat", "anon 600\nfile 400\nkernel 50\ninactive_file 300\npgfault 8\n"),
        ("memory.swap.current", "0\n"),
        ("memory.swap.max", "max\n"),
        ("memory.events", "low 0\nhigh 0\nmax 4\noom 2\noom_kill 1\n"),
        ("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n7:0 \n"),
        ("io.pressure", "damaged\n"),
        ("cgroup.procs", "12\n13\n"),
        ("pids.current", "5\n"),
        ("pids.max", "max\n"),
    ];
    let read = |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned());
    let all = cgroup::usage(cgroup::Extent::Cadvisor, Wall(1), &mut texts(read));
    assert_eq!((all.cpu.total_ns, all.cpu.user_ns, all.cpu.system_ns), (Some(9000), Some(4000), Some(5000)));
    let throttling = all.cpu.throttling.unwrap();
    assert_eq!((throttling.periods, throttling.throttled_periods, throttling.throttled_ns), (3, 1, 2000));
    assert_eq!(
        (all.cpu.quota_us, all.cpu.period_us, all.cpu.shares),
        (Some(50_000), Some(100_000), Some(998))
    );
    let pressure = usage::Pressure { total_us: 7, avg: [105, 0, 9999] };
    assert_eq!((all.cpu.psi.unwrap().some, all.io.psi), (pressure, None));
    assert_eq!((all.memory.working_set, all.memory.available), (Some(700), Some(800)));
    assert_eq!((all.memory.limit_hits, all.memory.oom_kills, all.memory.peak), (Some(4), Some(1), None));
    assert_eq!((all.swap.usage, all.swap.limit), (Some(0), None));
    let device = usage::DeviceIo {
        name: String::new(),
        major: 8,
        minor: 0,
        read_bytes: 1,
        written_bytes: 2,
        reads: 3,
        writes: 4,
    };
    assert_eq!(all.io.devices, [device]);
    let tasks = (all.tasks.processes, all.tasks.threads, all.tasks.threads_max);
    assert_eq!(tasks, (Some(2), Some(5), None));
    let mut few = texts(|name| {
        assert!(!name.ends_with("pressure") && !name.starts_with("io."), "{name} is not asked for");
        read(name)
    });
    let resource = cgroup::usage(cgroup::Extent::Resource, Wall(1), &mut few);
    assert_eq!((resource.memory.working_set, resource.cpu.psi), (Some(700), None));
}

#[test]
fn texts_of_proc() {
    let files = [
        (
            "meminfo",
            "MemTotal: 10 kB\nMemFree: 2 kB\nBuffers: 1 kB\nCached: 2 kB\nSwapCached: 1 kB\nInactive(file): 1 kB\n\
             SwapTotal: 8 kB\nSwapFree: 5 kB\nAnonPages: 2 kB\nSReclaimable: 1 kB\n",
        ),
        ("stat", "cpu  10 2 3 400 5 1 1 9 0 0\ncpu0 1 1 1 1\nbtime 1700000000\n"),
        ("vmstat", "pgfault 7\npgmajfault 3\noom_kill 0\n"),
        ("loadavg", "1.36 3.49 4.53 2/3518 3715089\n"),
        ("sys/kernel/pid_max", "4194304\n"),
        ("sys/kernel/threads-max", "1000\n"),
    ];
    let read = |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned());
    let node = host::usage(Wall(1), read);
    assert_eq!((node.cpu.user_ns, node.cpu.total_ns), (Some(120_000_000), Some(170_000_000)));
    assert_eq!((node.memory.usage, node.memory.working_set), (Some(6 << 10), Some(5 << 10)));
    assert_eq!((node.memory.available, node.memory.major_page_faults), (Some(5 << 10), Some(3)));
    assert_eq!((node.memory.rss, node.memory.cache), (Some(2 << 10), Some(4 << 10)));
    assert_eq!(host::left(files[0].1), Some(4 << 10), "the kernel has a kilobyte that it does not give back");
    assert_eq!(host::left("MemFree: 2 kB\n"), None);
    assert_eq!((node.swap.usage, node.swap.limit), (Some(3 << 10), Some(8 << 10)));
    assert_eq!((node.tasks.threads, node.tasks.threads_max, node.io.psi), (Some(3518), Some(1000), None));
    assert_eq!(host::boot_time(files[1].1), Some(Wall(1_700_000_000_000_000_000)));
    assert_eq!(host::usage(Wall(1), |_| None), Usage { at: Wall(1), ..Usage::default() });
    let net = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop\n\
        lo: 1 1 1 1 0 0 0 0 1 1 1 1 0 0 0 0\n  eth0: 10 2 3 4 0 0 0 0 50 6 7 8 0 0 0 0\nveth1: 1\nbad0: 1 2\n";
    let received = host::Traffic { bytes: 10, packets: 2, errors: 3, dropped: 4 };
    let sent = host::Traffic { bytes: 50, packets: 6, errors: 7, dropped: 8 };
    assert_eq!(host::interfaces(net), [host::Interface { name: "eth0".to_owned(), received, sent }]);
}

fn at_second(second: i64, cpu_ns: u64) -> Snapshot {
    let node = Usage { at: Wall(second * 1_000_000_000), ..usage(cpu_ns, 1) };
    let containers = [("c", node.clone())];
    Snapshot { pods: vec![pod_usage("1", None, &containers)], node, ..Snapshot::default() }
}

#[test]
fn rates_are_measured_over_ten_seconds_and_more() {
    let mut rates = rates::Rates::default();
    let mut ask = |second, cpu_s: u64| {
        let mut snapshot = at_second(second, cpu_s * 1_000_000_000);
        rates.apply(&mut snapshot);
        assert_eq!(snapshot.pods[0].containers[0].1.cpu.nano_cores, snapshot.node.cpu.nano_cores);
        snapshot.node.cpu.nano_cores.map(|n| n / 1_000_000)
    };
    // Second, processor seconds until then, milli cores that are reported.
    let table = [
        (0, 0, None),
        (0, 0, None),
        (2, 2, Some(1000)),
        (10, 2, Some(200)),
        (12, 4, Some(333)),
        (21, 13, Some(1000)),
        (22, 13, Some(916)),
        (81, 13, Some(0)),
        (82, 1, None),
        (84, 2, Some(500)),
        (20, 2, None),
        (22, 3, Some(500)),
    ];
    for (second, cpu, expected) in table {
        assert_eq!(ask(second, cpu), expected, "at {second} s");
    }
    let mut later = at_second(10_000, 1);
    later.pods.clear();
    rates.apply(&mut later);
    assert_eq!(rates.len(), 1, "what is gone is forgotten");
}

proptest! {
    #[test]
    fn any_name_stays_in_its_label(name in ".*") {
        let shown = [pod(&name, "1", &[])];
        let pods = vec![pod_usage("1", Some(usage(1_000, 1)), &[])];
        let text = resource::text(Some(&Snapshot { pods, ..Snapshot::default() }), &shown);
        let lines: Vec<&str> = text.split('\n').filter(|line| line.starts_with("pod_cpu")).collect();
        prop_assert_eq!(lines.len(), 1);
        prop_assert!(lines[0].ends_with("\"} 0.000001 7000"), "{}", lines[0]);
    }

    #[test]
    fn any_text_of_a_file_is_borne(text in "(?s).*|(avg10=|some |cpu |eth0:|[0-9]+| |\n|8:0|rbytes=|\\.)*") {
        let read = |_: &str| Some(text.clone());
        let _ = cgroup::usage(cgroup::Extent::Cadvisor, Wall(0), &mut texts(read));
        let _ = host::usage(Wall(0), read);
        let _ = host::interfaces(&text);
        let _ = host::boot_time(&text);
    }
}
