//! The document against the one that upstream's types give for the same amounts (`golden.json`).

use serde_json::Value;

use super::super::ShownVolume;
use super::super::disk::{Filesystem, Layer, TreeUsage, VolumeUse};
use super::super::host::Traffic;
use super::super::usage::{Cpu, Memory, Swap, Tasks};
use super::*;

const AT: Wall = Wall(1_795_262_400_000_000_000);

fn usage(factor: u64) -> Usage {
    let pressure = Pressure { total_us: factor, avg: [5, 125, 0] };
    let psi = Some(Psi { full: Pressure::default(), some: pressure });
    let mut usage = Usage { at: AT, ..Usage::default() };
    usage.cpu = Cpu { total_ns: Some(1_000 * factor), nano_cores: Some(7 * factor), psi, ..Cpu::default() };
    usage.memory = Memory {
        usage: Some(900 * factor),
        inactive_file: Some(400 * factor),
        limit: Some(2_000 * factor),
        rss: Some(300 * factor),
        page_faults: Some(20),
        major_page_faults: Some(0),
        psi,
        ..Memory::default()
    };
    usage.memory.derive();
    usage.swap = Swap { usage: Some(0), limit: Some(10) };
    usage.io.psi = psi;
    usage.tasks = Tasks {
        processes: Some(factor),
        threads: Some(3 * factor),
        threads_max: Some(100),
        ..Tasks::default()
    };
    usage
}

fn network() -> Network {
    let traffic = |bytes| Traffic { bytes, packets: 1, errors: 0, dropped: 0 };
    let interface =
        |name: &str| Interface { name: name.to_owned(), received: traffic(11), sent: traffic(12) };
    let interfaces = ["eth0", "eth1"].map(interface).into();
    Network { at: AT, default: "eth0".to_owned(), interfaces }
}

fn shown() -> ShownPod {
    let container = ShownContainer {
        name: "c".to_owned(),
        id: "c1".to_owned(),
        image: "i".to_owned(),
        started: Some(Wall(AT.0 - 1_000_000_000)),
    };
    let volume =
        |name: &str, ephemeral| ShownVolume { name: name.to_owned(), ephemeral, ..ShownVolume::default() };
    ShownPod {
        namespace: "ns".to_owned(),
        name: "web".to_owned(),
        uid: "1-a".to_owned(),
        started: Some(Wall(AT.0 - 2_000_000_000)),
        containers: vec![container.clone(), ShownContainer { id: "not there".to_owned(), ..container }],
        volumes: vec![volume("disk", true), volume("memory", false), volume("not measured", true)],
    }
}

fn snapshot() -> Snapshot {
    let pod = PodUsage {
        pod: "1_a".to_owned(),
        usage: Some(usage(3)),
        containers: vec![("c1".to_owned(), usage(2)), ("sandbox".to_owned(), usage(1))],
        network: Some(network()),
    };
    Snapshot {
        node: usage(10),
        network: Some(Network { default: "ens3".to_owned(), ..network() }),
        system: vec![
            ("kubelet", usage(1)),
            ("pods", Usage { created: Some(Wall(AT.0 - 3_000_000_000)), ..usage(3) }),
        ],
        pods: vec![pod],
        ..Snapshot::default()
    }
}

fn measured() -> NodeDiskUsage {
    let fs = Filesystem {
        at: AT,
        available_bytes: 800,
        capacity_bytes: 1_000,
        used_bytes: 150,
        inodes: Some(64),
        inodes_free: Some(60),
    };
    let taken = |bytes| TreeUsage { at: AT, bytes, inodes: 2, ..TreeUsage::default() };
    let uid = || "1-a".to_owned();
    let layer = |used| Layer {
        at: AT,
        mountpoint: "/layers".to_owned(),
        used_bytes: Some(used),
        inodes_used: Some(9),
    };
    let volume = |bytes| VolumeUse {
        filesystem: Some(fs),
        taken: Some(taken(bytes)),
        abnormal: (bytes == 16).then_some(true),
    };
    NodeDiskUsage {
        root: Some(fs),
        images: Some(layer(77)),
        layers: [("c1".to_owned(), layer(40))].into(),
        filesystems: [("/layers".to_owned(), Filesystem { inodes: None, inodes_free: None, ..fs })].into(),
        logs: [((uid(), "c".to_owned()), taken(4))].into(),
        own_files: [(uid(), taken(1))].into(),
        volumes: [((uid(), "disk".to_owned()), volume(16)), ((uid(), "memory".to_owned()), volume(32))]
            .into(),
    }
}

fn document(measured: Option<&NodeDiskUsage>) -> Value {
    let (snapshot, shown) = (snapshot(), [shown()]);
    let inputs = Inputs {
        node_name: "first",
        booted: Some(Wall(0)),
        started: Some(Wall(5_000_000_000)),
        snapshot: &snapshot,
        shown: &shown,
        measured,
    };
    serde_json::from_str(&json(inputs)).unwrap()
}

#[test]
fn the_whole_document() {
    let expected: Value = serde_json::from_str(include_str!("golden.json")).unwrap();
    let found = document(Some(&measured()));
    assert_eq!(found, expected, "{found:#}");
}

#[test]
fn processor_and_memory_only() {
    let mut expected: Value = serde_json::from_str(include_str!("golden.json")).unwrap();
    let remove = |of: &mut Value, names: &[&str]| {
        for name in names {
            assert!(of.as_object_mut().unwrap().remove(*name).is_some(), "{name}");
        }
    };
    let node = expected.get_mut("node").unwrap();
    remove(node, &["network", "fs", "runtime", "rlimit", "io"]);
    for part in node["systemContainers"].as_array_mut().unwrap() {
        remove(part, &["io"]);
    }
    let pod = &mut expected["pods"][0];
    remove(pod, &["network", "volume", "ephemeral-storage", "process_stats", "io"]);
    remove(&mut pod["containers"][0], &["rootfs", "logs", "io"]);
    assert_eq!(document(None), expected);
}

#[test]
fn nothing_is_made_up() {
    let shown = [shown()];
    let pods = vec![PodUsage {
        pod: "1_a".to_owned(),
        containers: vec![("c1".to_owned(), Usage::default())],
        ..PodUsage::default()
    }];
    let snapshot = Snapshot { pods, ..Snapshot::default() };
    let measured = NodeDiskUsage::default();
    let inputs = Inputs {
        node_name: "n",
        booted: None,
        started: None,
        snapshot: &snapshot,
        shown: &shown,
        measured: Some(&measured),
    };
    let found: Value = serde_json::from_str(&json(inputs)).unwrap();
    let expected = serde_json::json!({
        "node": {"nodeName": "n", "startTime": null, "rlimit": {"time": "1970-01-01T00:00:00Z"}},
        "pods": [{
            "podRef": {"name": "web", "namespace": "ns", "uid": "1-a"},
            "startTime": "2026-11-21T11:59:58Z",
            "containers": [{"name": "c", "startTime": "2026-11-21T11:59:59Z"}],
        }],
    });
    assert_eq!(found, expected);
}
