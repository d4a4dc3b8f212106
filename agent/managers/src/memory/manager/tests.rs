//! Admissions one after the other on two and four nodes.

use super::*;
use crate::memory::start::{MEMORY, NodeMemory, Reserved};

const GIB: u64 = 1 << 30;

/// Nodes of 4 GiB; 1 GiB of node 0 is reserved.
fn manager(nodes: u32) -> MemoryManager {
    let of_node = NodeMemory { total: 4 * GIB, huge_pages: BTreeMap::new() };
    let nodes = (0..nodes).map(|id| (id, of_node.clone())).collect();
    let memory = |bytes| BTreeMap::from([(MEMORY.to_owned(), bytes)]);
    MemoryManager::start(&nodes, &Reserved::from([(0, memory(GIB))]), &memory(GIB), None).unwrap()
}

fn pod(uid: &str, containers: &[(&str, Kind, u64)]) -> PodRequest {
    let container = |(name, kind, gib): &(&str, Kind, u64)| ContainerRequest {
        name: (*name).to_owned(),
        kind: *kind,
        cpu_milli: 500,
        memory: BTreeMap::from([(MEMORY.to_owned(), gib * GIB)]),
        devices: crate::request::DeviceLimits::default(),
    };
    PodRequest {
        uid: uid.to_owned(),
        guaranteed: true,
        pod_level: false,
        containers: containers.iter().map(container).collect(),
    }
}

fn admit(manager: &mut MemoryManager, pod: &PodRequest) -> Result<Vec<String>, AllocateError> {
    for container in &pod.containers {
        manager.allocate(pod, container, Hint::NONE)?;
    }
    let nodes = |name: &str| manager.nodes_of(&pod.uid, name).nodes().map(|node| node.to_string()).collect();
    Ok(pod.containers.iter().map(|container| nodes(&container.name)).collect())
}

fn free(manager: &MemoryManager) -> Vec<u64> {
    manager.state().machine.values().map(|node| node.memory[MEMORY].free / GIB).collect()
}

#[test]
fn one_node_where_it_fits_and_groups_that_others_do_not_break() {
    let mut manager = manager(4);
    assert_eq!(admit(&mut manager, &pod("a", &[("c", Kind::App, 3)])).unwrap(), ["0"]);
    assert_eq!(admit(&mut manager, &pod("b", &[("c", Kind::App, 6)])).unwrap(), ["12"]);
    assert_eq!(free(&manager), [0, 0, 2, 4]);
    // 2 GiB of node 2 are free, but the node belongs to a group of two.
    assert_eq!(admit(&mut manager, &pod("c", &[("c", Kind::App, 2)])).unwrap(), ["3"]);
    assert_eq!(admit(&mut manager, &pod("d", &[("c", Kind::App, 5)])), Err(AllocateError::NoNodes));
    manager.keep_only(|uid, _| uid == "a");
    assert_eq!(free(&manager), [0, 4, 4, 4]);
    assert!(manager.state().machine.values().all(|node| node.group.count() == 1));
}

#[test]
fn memory_of_an_init_container_serves_later_ones() {
    let mut manager = manager(2);
    let pod = pod("p", &[("i", Kind::Init, 2), ("s", Kind::Sidecar, 1), ("a", Kind::App, 2)]);
    assert_eq!(admit(&mut manager, &pod).unwrap(), ["0", "0", "0"]);
    assert_eq!(free(&manager), [0, 4], "3 GiB are charged, not 5");
    let sizes: Vec<u64> = ["i", "s", "a"]
        .iter()
        .map(|name| manager.state().own("p", name).unwrap().iter().map(|block| block.bytes / GIB).sum())
        .collect();
    assert_eq!(sizes, [0, 1, 2], "blocks add up to the charge");
    assert!(manager.release_earlier(&pod, "a"));
    assert_eq!(manager.state().own("p", "i"), None);
    assert_eq!(free(&manager), [0, 4]);
    manager.keep_only(|_, _| false);
    assert_eq!(free(&manager), [3, 4]);
}

#[test]
fn a_preferred_hint_is_not_widened_to_one_that_is_not() {
    let mut manager = manager(2);
    admit(&mut manager, &pod("a", &[("c", Kind::App, 3)])).unwrap();
    let next = pod("b", &[("c", Kind::App, 2)]);
    let on = |node| Hint { nodes: Some(NodeMask::of([node])), preferred: true };
    assert_eq!(manager.allocate(&next, &next.containers[0], on(0)), Err(AllocateError::CannotExtend));
    assert_eq!(manager.allocate(&next, &next.containers[0], on(1)), Ok(()));
}
