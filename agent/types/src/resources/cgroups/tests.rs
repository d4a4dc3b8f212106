//! Names of cgroups, and values as upstream's formulas give them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use orlop_config::kubelet::KubeletConfiguration;
use orlop_config::kubelet::enums::CpuManagerPolicy;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::pod::{PodCgroup, kubepods, of_directory, places, pod_cgroup};
use super::tiers::{self, Classes, Machine as Amounts, MemoryReserve, Sums};
use super::values::{UNBOUNDED, weight_of};
use super::*;
use crate::node_context::CgroupDriver::{Cgroupfs, Systemd};
use crate::node_context::{CgroupContext, MemoryQos, NodeContext};
use crate::resources::QosClass;
use crate::resources::cpu::cpu_shares;
use crate::resources::node_allocatable::{HugePages, MachineAmounts};
use crate::resources::requests::{CPU, pod_request};

fn pod(spec: Value) -> Arc<Pod> {
    let metadata = json!({"name": "p", "uid": "12-ab"});
    Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

fn containers(list: &[(Value, Value)]) -> Value {
    let one = |(n, (requests, limits)): (usize, &(Value, Value))| json!({"name": format!("c{n}"), "resources": {"requests": requests, "limits": limits}});
    Value::Array(list.iter().enumerate().map(one).collect())
}

fn node() -> NodeContext {
    let mut node = NodeContext::new("n");
    node.machine.hugepage_sizes = vec!["2MB".to_owned(), "1GB".to_owned()];
    node
}

fn all_pods() -> CgroupName {
    let CgroupContext { root, driver, .. } = node().cgroup;
    kubepods(&root, driver)
}

fn files(spec: Value, node: &NodeContext) -> String {
    let PodCgroup { values, .. } = pod_cgroup(&pod(spec), node).unwrap();
    let files = values.files();
    files.iter().map(|(file, text)| format!("{file}={text}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn names() {
    for (text, driver, path, unit) in [
        ("/", Systemd, "/", "-.slice"),
        ("", Cgroupfs, "/", "-.slice"),
        ("/system.slice", Systemd, "/system.slice", "system.slice"),
        ("/a.slice/a-b_c.slice", Systemd, "/a.slice/a-b_c.slice", "a-b_c.slice"),
        ("a-b.slice", Systemd, "/a.slice/a-b.slice", "a-b.slice"),
        ("/kube/reserved/", Cgroupfs, "/kube/reserved", "kube-reserved.slice"),
    ] {
        let name = CgroupName::parse(text, driver);
        assert_eq!((name.path(driver).as_str(), name.unit().as_str()), (path, unit), "{text}");
    }
    let pods = all_pods();
    assert_eq!(pods.to_string(), "[\"kubepods\"]");
    assert_eq!(pods.parent(), Some(CgroupName::default()));
    assert_eq!(CgroupName::default().parent(), None);
    let found = places(&pods, "12-ab").map(|name| name.path(Systemd));
    for spec in [
        json!({"containers": [{"name": "c"}]}),
        json!({"containers": containers(&[(json!({"cpu": 1}), json!({}))])}),
    ] {
        let own = pod_cgroup(&pod(spec), &node()).unwrap().name;
        assert!(found.contains(&own.path(Systemd)), "{own}");
    }
    assert_eq!(of_directory("kubepods-burstable-pod12_ab.slice"), Some(("pod12_ab", "12_ab".to_owned())));
    assert_eq!(of_directory("pod12-ab"), Some(("pod12-ab", "12_ab".to_owned())));
    assert_eq!((of_directory("kubepods-burstable.slice"), of_directory("burstable")), (None, None));
    let mut flat = node();
    flat.cgroup.per_qos = false;
    assert_eq!(pod_cgroup(&pod(json!({"containers": [{"name": "c"}]})), &flat), None);
}

#[test]
fn weights_are_a_straight_line_over_shares() {
    // Upstream's values of `kubepods` for 1, 2 and 4 cores, and the ends of the range.
    for (milli, weight) in [(0, 1), (1, 1), (100, 4), (1000, 39), (2000, 79), (4000, 157), (1 << 40, 10_000)]
    {
        assert_eq!(weight_of(milli), weight, "{milli}");
    }
    assert_eq!(
        (cpu_weight(i64::MIN), cpu_weight(2), cpu_weight(262_144), cpu_weight(i64::MAX)),
        (1, 1, 10_000, 10_000)
    );
}

#[test]
fn values_of_pods() {
    let none = || json!({});
    let full = || json!({"cpu": "250m", "memory": "64Mi"});
    let guaranteed = json!({"containers": containers(&[(full(), full())])});
    let pages = json!({"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"});
    let off = "hugetlb.1GB.max=0 hugetlb.2MB.max=0";
    let mut limited = node();
    limited.cgroup.pids_limit = Some(100);
    limited.cgroup.memory_qos = MemoryQos::Tiered;
    let mut free = node();
    free.cgroup.cpu_cfs_quota = false;
    let mut slow = node();
    slow.cgroup.cpu_cfs_quota_period_us = 5_000;
    let mut directories = node();
    directories.cgroup.driver = Cgroupfs;
    let table = [
        (guaranteed.clone(), node(), format!("cpu.weight=10 cpu.max=25000 100000 memory.max=67108864 {off}")),
        (
            guaranteed.clone(),
            limited.clone(),
            format!(
                "cpu.weight=10 cpu.max=25000 100000 memory.max=67108864 memory.min=67108864 pids.max=100 {off}"
            ),
        ),
        (guaranteed.clone(), free, format!("cpu.weight=10 cpu.max=max 100000 memory.max=67108864 {off}")),
        (guaranteed, slow, format!("cpu.weight=10 cpu.max=1250 5000 memory.max=67108864 {off}")),
        // systemd counts hundredths of a processor.
        (
            json!({"containers": containers(&[(json!({"cpu": "25m"}), json!({"cpu": "25m"}))])}),
            node(),
            format!("cpu.weight=1 cpu.max=3000 100000 {off}"),
        ),
        (
            json!({"containers": containers(&[(json!({"cpu": "25m"}), json!({"cpu": "25m"}))])}),
            directories,
            format!("cpu.weight=1 cpu.max=2500 100000 {off}"),
        ),
        (json!({"containers": [{"name": "c"}]}), limited.clone(), format!("cpu.weight=1 pids.max=100 {off}")),
        // One container without a limit: the pod has none.
        (
            json!({"containers": containers(&[(full(), full()), (none(), none())])}),
            node(),
            format!("cpu.weight=10 {off}"),
        ),
        (
            json!({"containers": containers(&[(none(), json!({"memory": "1Mi"})), (json!({"cpu": "1"}), json!({"memory": "2Mi"}))])}),
            limited,
            format!("cpu.weight=39 memory.max=3145728 pids.max=100 {off}"),
        ),
        // Init containers count where they need more; overhead counts with what is asked and limited.
        (
            json!({"overhead": {"cpu": "100m", "memory": "1Mi"}, "containers": containers(&[(json!({"cpu": "100m"}), full())]),
                "initContainers": containers(&[(json!({"cpu": "900m"}), json!({"cpu": "1", "memory": "1Mi"}))])}),
            node(),
            format!("cpu.weight=39 cpu.max=110000 100000 memory.max={} {off}", 65 << 20),
        ),
        (
            json!({"containers": containers(&[(pages.clone(), pages)])}),
            node(),
            format!(
                "cpu.weight=39 cpu.max=100000 100000 memory.max={} hugetlb.1GB.max=0 hugetlb.2MB.max={}",
                1 << 30,
                4 << 20
            ),
        ),
    ];
    for (spec, node, expected) in table {
        assert_eq!(files(spec.clone(), &node), expected, "{spec}");
    }
}

#[test]
fn values_of_classes_and_of_all_pods() {
    let sizes = ["2MB".to_owned()];
    let sums = Sums { burstable_milli: 1000, burstable_memory: 5, guaranteed_memory: 7 };
    let of = |class, memory| {
        let rules = Classes { memory, hugepage_sizes: sizes.to_vec(), ..Classes::default() };
        tiers::tier(class, Some(sums), &rules)
    };
    let burstable = of(QosClass::Burstable, MemoryQos::Off);
    assert_eq!((burstable.cpu_weight, burstable.memory_low), (Some(39), None));
    assert_eq!(burstable.hugetlb["2MB"], UNBOUNDED);
    assert_eq!(of(QosClass::Burstable, MemoryQos::Tiered).memory_low, Some(5));
    assert_eq!(of(QosClass::Guaranteed, MemoryQos::Tiered).memory_min, Some(12));
    assert_eq!(of(QosClass::Guaranteed, MemoryQos::None).memory_min, Some(0));
    assert_eq!(
        of(QosClass::BestEffort, MemoryQos::Tiered).files(),
        [("cpu.weight".to_owned(), "1".to_owned()), ("hugetlb.2MB.max".to_owned(), UNBOUNDED.to_string())]
    );

    let percent_of = |percent, class| {
        let reserve = Some(MemoryReserve { allocatable: 100, percent });
        tiers::tier(class, Some(sums), &Classes { reserve, ..Classes::default() }).memory_max
    };
    for (percent, burstable, best_effort) in [(0, 100, 100), (50, 97, 95), (100, 93, 88)] {
        assert_eq!(percent_of(percent, QosClass::Burstable), Some(burstable), "{percent} %");
        assert_eq!(percent_of(percent, QosClass::BestEffort), Some(best_effort), "{percent} %");
    }
    assert_eq!(percent_of(100, QosClass::Guaranteed), None, "the cgroup of all pods has its own limit");

    let machine = Amounts {
        amounts: MachineAmounts {
            cpus: 2,
            memory_bytes: 1 << 30,
            hugepages: vec![HugePages { page_bytes: 2 << 20, pages: 8 }],
            ephemeral_storage_bytes: Some(1 << 40),
        },
        pids_max: Some(4000),
        hugepage_sizes: sizes.to_vec(),
        cpus: "0-1".to_owned(),
    };
    let mut kubelet: KubeletConfiguration = serde_json::from_value(json!(null)).unwrap_or_default();
    let reserve =
        |list: &[(&str, &str)]| list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    kubelet.system_reserved = reserve(&[("cpu", "500m"), ("memory", "100Mi"), ("pid", "1000")]);
    kubelet.kube_reserved = reserve(&[("cpu", "500m"), ("memory", "24Mi")]);
    kubelet.system_reserved_cgroup = "/system.slice".to_owned();
    kubelet.kube_reserved_cgroup = "/kube.slice".to_owned();
    // The eviction threshold is not subtracted, because eviction begins before the limit.
    let root = tiers::root(&kubelet, &machine);
    assert_eq!((root.cpu_weight, root.memory_max, root.pids_max), (Some(39), Some(900 << 20), Some(3000)));
    assert_eq!((root.cpus.as_deref(), root.hugetlb["2MB"]), (Some("0-1"), 16 << 20));
    let pinned = KubeletConfiguration { cpu_manager_policy: CpuManagerPolicy::Static, ..kubelet.clone() };
    assert_eq!(tiers::root(&pinned, &machine).cpus, None, "the CPU manager sets those of containers");
    assert!(tiers::reserved(&kubelet, &machine, Systemd, MemoryQos::Off).is_empty());
    kubelet.enforce_node_allocatable = ["system-reserved", "kube-reserved-compressible"]
        .map(|k| serde_json::from_value(json!(k)).unwrap())
        .to_vec();
    let root = tiers::root(&kubelet, &machine);
    assert_eq!(
        (root.cpu_weight, root.memory_max, root.pids_max),
        (Some(79), Some(1 << 30), Some(4000)),
        "not enforced"
    );
    let reserved = tiers::reserved(&kubelet, &machine, Systemd, MemoryQos::Off);
    let [system, kube] = reserved.as_slice() else { panic!("{reserved:?}") };
    assert_eq!(system.name.path(Systemd), "/system.slice");
    assert_eq!(
        (system.values.memory_max, system.values.pids_max, system.values.cpu_weight),
        (Some(100 << 20), Some(1000), Some(20))
    );
    assert_eq!((kube.values.memory_max, kube.values.cpu_weight, kube.compressible), (None, Some(20), true));
}

/// Values that depend on pods stay unchanged while the pods are unknown; all other values are set.
#[test]
fn values_before_the_pods_are_known() {
    let reserve = Some(MemoryReserve { allocatable: 100, percent: 100 });
    let rules = |memory| Classes { memory, reserve, hugepage_sizes: vec!["2MB".to_owned()] };
    let hugetlb = ("hugetlb.2MB.max".to_owned(), UNBOUNDED.to_string());
    let of = |class, memory| tiers::tier(class, None, &rules(memory)).files();
    assert_eq!(of(QosClass::Burstable, MemoryQos::Tiered), std::slice::from_ref(&hugetlb));
    assert_eq!(
        of(QosClass::BestEffort, MemoryQos::Tiered),
        [("cpu.weight".to_owned(), "1".to_owned()), hugetlb]
    );
    assert_eq!(of(QosClass::Guaranteed, MemoryQos::Tiered), []);
    let taken_back = tiers::tier(QosClass::Guaranteed, None, &rules(MemoryQos::None));
    assert_eq!(taken_back.memory_min, Some(0));
}

proptest! {
    /// The classes' sums are those of their pods, in any order; weights never fall when more is asked for.
    #[test]
    fn sums_add_up(asks in proptest::collection::vec((0u32..3, 1i64..5000), 0..20)) {
        let make = |(class, milli): &(u32, i64)| {
            let cpu = json!({"cpu": format!("{milli}m"), "memory": "1Mi"});
            let spec = match class {
                0 => containers(&[(cpu.clone(), cpu)]),
                1 => containers(&[(cpu, json!({}))]),
                _ => json!([{"name": "c"}]),
            };
            pod(json!({"containers": spec}))
        };
        let mut pods: Vec<Arc<Pod>> = asks.iter().map(make).collect();
        let sums = Sums::of(&pods);
        let burstable: i64 = pods.iter().zip(&asks).filter(|(_, (class, _))| *class == 1).map(|(p, _)| pod_request(p, CPU).milli_value()).sum();
        let of = |class| asks.iter().filter(|(c, _)| *c == class).count() as u64 * (1 << 20);
        prop_assert_eq!(sums, Sums { burstable_milli: burstable, burstable_memory: of(1), guaranteed_memory: of(0) });
        pods.reverse();
        prop_assert_eq!(Sums::of(&pods), sums);
        let weight = tiers::tier(QosClass::Burstable, Some(sums), &Classes::default()).cpu_weight.unwrap();
        prop_assert!((1..=10_000).contains(&weight));
        prop_assert!(asks.iter().filter(|(c, _)| *c == 1).all(|(_, milli)| weight_of(*milli) <= weight));
    }

    #[test]
    fn weights_rise_with_shares(milli in 0i64..300_000, more in 0i64..300_000) {
        prop_assert!(weight_of(milli) <= weight_of(milli + more));
        prop_assert!(cpu_shares(milli) <= cpu_shares(milli + more));
    }
}
