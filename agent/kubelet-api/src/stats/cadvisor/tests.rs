//! The text of a machine with one pod, whole.

use super::super::ShownContainer;
use super::super::usage::{Cpu, Memory, Pressure, Psi, Swap, Tasks, Throttling};
use super::*;

const AT: Wall = Wall(7_000_500_000_000);

fn usage(path: &str, created_s: i64) -> Usage {
    Usage {
        at: AT,
        path: path.to_owned(),
        created: Some(Wall(created_s * 1_000_000_000)),
        ..Usage::default()
    }
}

fn container() -> Usage {
    let psi = Some(Psi {
        full: Pressure { total_us: 250_000, ..Pressure::default() },
        some: Pressure { total_us: 500_000, ..Pressure::default() },
    });
    let throttling =
        Throttling { periods: 4, throttled_periods: 3, throttled_ns: 1_500_000_000, ..Throttling::default() };
    let mut usage = usage("/kubepods.slice/pod1/c1", 20);
    usage.cpu = Cpu {
        total_ns: Some(2_000_000_000),
        user_ns: Some(1_500_000_000),
        system_ns: Some(500_000_000),
        throttling: Some(throttling),
        quota_us: Some(50_000),
        period_us: Some(100_000),
        shares: Some(998),
        psi,
        ..Cpu::default()
    };
    usage.memory = Memory {
        usage: Some(900),
        inactive_file: Some(400),
        rss: Some(300),
        page_faults: Some(20),
        major_page_faults: Some(1),
        oom_kills: Some(0),
        ..Memory::default()
    };
    usage.memory.derive();
    usage.swap = Swap { usage: Some(0), limit: Some(10) };
    usage.tasks = Tasks { processes: Some(2), threads: Some(3), files_max: Some(-1), ..Tasks::default() };
    let device = |name: &str, minor| DeviceIo {
        name: name.to_owned(),
        major: 253,
        minor,
        read_bytes: 1,
        written_bytes: 2,
        reads: 3,
        writes: 4,
    };
    usage.io.devices = vec![device("/dev/vda", 0), device("/dev/vdb", 16)];
    usage
}

fn snapshot() -> Snapshot {
    let traffic = |bytes| Traffic { bytes, packets: 2, errors: 0, dropped: 0 };
    let interface = Interface { name: "eth0".to_owned(), received: traffic(11), sent: traffic(12) };
    let network = Network { at: AT, default: "eth0".to_owned(), interfaces: vec![interface] };
    let pod = PodUsage {
        pod: "1_a".to_owned(),
        usage: Some(usage("/kubepods.slice/pod1", 9)),
        containers: vec![
            ("starting".to_owned(), usage("/kubepods.slice/pod1/starting", 30)),
            ("c1".to_owned(), container()),
            ("sandbox".to_owned(), usage("/kubepods.slice/pod1/sandbox", 10)),
        ],
        network: Some(network),
    };
    let stranger = PodUsage {
        pod: "2_b".to_owned(),
        usage: Some(usage("/kubepods.slice/pod2", 8)),
        ..PodUsage::default()
    };
    let node = Usage { at: AT, ..Usage::default() };
    let kubepods = usage("/kubepods.slice", 5);
    Snapshot {
        node,
        system: vec![("kubelet", usage("/system.slice/agent", 4)), ("pods", kubepods.clone())],
        groups: vec![kubepods],
        pods: vec![pod, stranger],
        ..Snapshot::default()
    }
}

fn shown() -> ShownPod {
    let container = ShownContainer {
        name: "c".to_owned(),
        id: "c1".to_owned(),
        image: "e2e/busybox:1".to_owned(),
        started: None,
    };
    ShownPod {
        namespace: "ns".to_owned(),
        name: "web".to_owned(),
        uid: "1-a".to_owned(),
        containers: vec![container],
        ..ShownPod::default()
    }
}

fn machine() -> Machine {
    Machine {
        boot_id: "b".to_owned(),
        machine_id: "m".to_owned(),
        system_uuid: "s".to_owned(),
        cpus: 4,
        cores: Some(2),
        sockets: None,
        memory_bytes: 1 << 30,
        swap_bytes: 0,
    }
}

fn exposition_text() -> String {
    let (snapshot, shown, machine) = (snapshot(), [shown()], machine());
    let root = Filesystem {
        at: AT,
        available_bytes: 800,
        capacity_bytes: 1_000,
        used_bytes: 150,
        inodes: None,
        inodes_free: None,
    };
    let disk = DiskIo::of_stat("   10  11  12  13  14  15  16  17  18  19  20  0 0 0 0 5 6\n");
    let root = Root { device: "/dev/vda3".to_owned(), filesystem: root, disk };
    text(Inputs {
        machine: Some(&machine),
        snapshot: Some(&snapshot),
        shown: &shown,
        root: Some(&root),
        at: AT,
    })
}

#[test]
fn the_whole_text() {
    let lines: Vec<String> =
        exposition_text().lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    let expected: Vec<&str> = include_str!("golden.txt").lines().collect();
    assert_eq!(lines, expected, "{}", lines.join("\n"));
}

#[test]
fn families_are_told_once_and_names_are_in_order() {
    let text = exposition_text();
    let mut families: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let count = families.len();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), count);
    let mut of = "";
    for line in text.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(family) => of = family.split(' ').next().unwrap(),
            None if line.starts_with('#') => {}
            None => assert!(
                line.starts_with(&format!("{of}{{")) || line.starts_with(&format!("{of} ")),
                "{of}: {line}"
            ),
        }
    }
    for line in text.lines().filter_map(|line| line.split_once('{')?.1.split_once('}')) {
        let names: Vec<&str> = line.0.split("\",").filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
        assert!(names.is_sorted(), "{names:?}");
    }
}

#[test]
fn what_cannot_be_read_is_said() {
    let text = text(Inputs { machine: None, snapshot: None, shown: &[shown()], root: None, at: AT });
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, ["container_scrape_error 1", "machine_scrape_error 1"]);
}

#[test]
fn a_pod_whose_sandbox_is_not_known_has_no_network() {
    let mut of = snapshot().pods.remove(0);
    of.containers.retain(|(id, _)| id == "c1");
    assert_eq!(of.sandbox(&shown()), None);
}
