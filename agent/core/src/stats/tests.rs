//! Names and files of cgroups, and the text, against what upstream's readers expect.

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
        assert_eq!(cgroup::pod_of(directory).as_deref(), expected, "{directory}");
    }
    let id = "0123456789abcdef".repeat(4);
    assert_eq!(cgroup::container_of(&format!("cri-containerd-{id}.scope")), Some(&*id));
    assert_eq!(cgroup::container_of(&id), Some(&*id));
    assert_eq!(cgroup::container_of("init.scope"), None);
    assert_eq!(cgroup::container_of("cgroup.procs"), None);
}

#[test]
fn files_of_cgroups() {
    let stat = "usage_usec 12\nuser_usec 5\nsystem_usec 7\n";
    assert_eq!(cgroup::field(stat, "usage_usec"), Some(12));
    assert_eq!(cgroup::field(stat, "usage"), None);
    assert_eq!(cgroup::field("inactive_file x\n", "inactive_file"), None);
    assert_eq!((cgroup::number("42\n"), cgroup::number("max\n")), (Some(42), None));
}

fn usage(cpu_usec: u64, bytes: u64) -> Usage {
    Usage {
        cpu_usec: Some(cpu_usec),
        working_set_bytes: Some(bytes),
        swap_bytes: Some(0),
        swap_limit_bytes: None,
    }
}

fn pod(name: &str, uid: &str, containers: &[(&str, &str)]) -> Shown {
    let container = |(name, id): &(&str, &str)| ShownContainer {
        name: (*name).to_owned(),
        id: (*id).to_owned(),
        started: Some(Wall(1_500_000_000)),
    };
    Shown {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        containers: containers.iter().map(container).collect(),
    }
}

#[test]
fn the_text() {
    let snapshot = Snapshot {
        node: usage(9_000_000, 4096),
        pods: vec![PodUsage {
            pod: "1_a".to_owned(),
            usage: usage(2_500_000, 300),
            containers: vec![("sandbox".to_owned(), usage(1, 1)), ("c1".to_owned(), usage(2_000_000, 200))],
        }],
    };
    let shown = [pod("web", "1-a", &[("c", "c1"), ("gone", "c0")]), pod("no-cgroup", "2-b", &[("c", "c2")])];
    let text = resource::text(Some(&snapshot), &shown, Wall(7_000_000_000));
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        lines,
        [
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"web\"} 2 7000",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"web\"} 200 7000",
            "container_swap_usage_bytes{container=\"c\",namespace=\"ns\",pod=\"web\"} 0 7000",
            "container_start_time_seconds{container=\"c\",namespace=\"ns\",pod=\"web\"} 1.5 7000",
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
    let text = resource::text(None, &[pod("web", "1", &[])], Wall(0));
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, ["resource_scrape_error 1"]);
}

proptest! {
    #[test]
    fn any_name_stays_in_its_label(name in ".*") {
        let shown = [pod(&name, "1", &[])];
        let pods = vec![PodUsage { pod: "1".to_owned(), usage: usage(1, 1), containers: vec![] }];
        let text = resource::text(Some(&Snapshot { node: Usage::default(), pods }), &shown, Wall(0));
        let lines: Vec<&str> = text.split('\n').filter(|line| line.starts_with("pod_cpu")).collect();
        prop_assert_eq!(lines.len(), 1);
        prop_assert!(lines[0].ends_with("\"} 0.000001 0"), "{}", lines[0]);
    }
}
