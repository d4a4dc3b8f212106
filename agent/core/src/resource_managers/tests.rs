//! Pods as requests, and the view for the pod resources API and metrics.

use std::collections::BTreeMap;

use agent_managers::cpus::manager::CpuManager;
use agent_managers::cpus::options::CpuOptions;
use agent_managers::cpus::start::Reservation;
use agent_managers::memory::manager::MemoryManager;
use agent_managers::memory::start::NodeMemory;
use agent_managers::request::Kind;
use agent_managers::topology::{Cpu, CpuTopology};
use serde_json::json;

use super::*;

fn pod(cpus: &str) -> Pod {
    let amounts = json!({"cpu": cpus, "memory": "64Mi", "hugepages-2Mi": "4Mi"});
    let container = |name: &str, more: serde_json::Value| {
        let mut c = json!({"name": name, "resources": {"requests": amounts, "limits": amounts}});
        c.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        c
    };
    let value = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {
        "initContainers": [container("i", json!({})), container("s", json!({"restartPolicy": "Always"}))],
        "containers": [container("c", json!({}))]}});
    serde_json::from_value(value).unwrap()
}

/// Two nodes of two processors; 0 and 128 MiB of node 0 are reserved.
fn managers() -> ResourceManagers {
    let cpu = |n: u32| (n, Cpu { core: n, socket: n / 2, node: n / 2, uncore: n / 2 });
    let topology = CpuTopology::new((0..6).map(cpu).collect(), 3);
    let reservation = Reservation { milli: 1000, cpus: CpuSet::new() };
    let huge_pages = BTreeMap::from([("hugepages-2Mi".to_owned(), 64 << 20)]);
    let nodes =
        (0..3).map(|id| (id, NodeMemory { total: 1 << 30, huge_pages: huge_pages.clone() })).collect();
    let amount = BTreeMap::from([("memory".to_owned(), 128 << 20)]);
    let reserved = BTreeMap::from([(0, amount.clone())]);
    Managers {
        cpus: Some(CpuManager::start(topology, CpuOptions::default(), &reservation, None).unwrap()),
        memory: Some(MemoryManager::start(&nodes, &reserved, &amount, None).unwrap()),
        ..Managers::default()
    }
    .into()
}

#[test]
fn a_pod_as_the_managers_see_it() {
    let request = pod_request(&pod("2"));
    assert!(request.is_eligible());
    let kinds: Vec<_> = request.containers.iter().map(|c| (c.name.as_str(), c.kind)).collect();
    assert_eq!(kinds, [("i", Kind::Init), ("s", Kind::Sidecar), ("c", Kind::App)]);
    let c = &request.containers[2];
    assert_eq!((c.cpu_milli, c.memory["memory"], c.memory["hugepages-2Mi"]), (2000, 64 << 20, 4 << 20));
}

#[test]
fn placements_are_texts_of_the_kernel() {
    let mut all = managers();
    assert_eq!(all.give(&pod("1"), false).unwrap(), GiveOutcome::Parts { changed: true });
    assert_eq!(
        all.give(&pod("1"), false).unwrap(),
        GiveOutcome::Parts { changed: false },
        "the pod has its parts"
    );
    let placement = all.placement("u", None);
    // The init container has ended when the others run, so the sidecar may get its processor.
    assert_eq!((placement.cpus_of("i"), placement.cpus_of("s"), placement.cpus_of("c")), ("1", "1", "2"));
    assert_eq!((placement.cpus_of("ephemeral"), placement.mems_of("c")), ("0,3-5", "0"));
    assert_eq!(all.placement("other", None).cpus_of("c"), "0,3-5");
}

#[test]
fn the_view_has_what_others_read() {
    let mut all = managers();
    all.give(&pod("1"), false).unwrap();
    let view = all.view();
    assert_eq!(
        (view.allocatable_cpus.to_string(), view.available_cpus.to_string()),
        ("1-5".to_owned(), "3-5".to_owned())
    );
    assert_eq!(view.cpus["u"]["c"].to_string(), "2");
    assert_eq!(view.exclusive_cpus_by_node, BTreeMap::from([(0, 1), (1, 1)]));
    assert_eq!(view.memory["u"]["c"].len(), 2);
    // 1 GiB without the huge pages, and without the reservation on node 0.
    let memory: Vec<u64> = view
        .allocatable_memory
        .iter()
        .filter(|part| part.resource == "memory")
        .map(|part| part.bytes >> 20)
        .collect();
    assert_eq!(memory, [832, 960, 960]);
    assert_eq!(view.counts.memory.all, 3);
}

#[test]
fn records_are_written_when_they_changed() {
    let mut all = managers();
    let before = all.records();
    assert_eq!(before.since(&ManagerRecords::default()), before);
    all.give(&pod("1"), false).unwrap();
    let after = all.records();
    assert_eq!(after.since(&before), after);
    assert_eq!(after.since(&after), ManagerRecords::default());
    assert!(all.keep_only(|_, _| false));
    assert_eq!(all.records(), before);
}
