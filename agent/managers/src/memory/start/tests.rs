//! Reservations and states of other machines.

use super::*;
use crate::memory::state::Block;

fn memory(bytes: u64) -> BTreeMap<ResourceName, u64> {
    BTreeMap::from([(MEMORY.to_owned(), bytes)])
}

fn nodes() -> BTreeMap<u32, NodeMemory> {
    let huge_pages = BTreeMap::from([("hugepages-2Mi".to_owned(), 300)]);
    BTreeMap::from([
        (0, NodeMemory { total: 1000, huge_pages }),
        (1, NodeMemory { total: 1000, ..NodeMemory::default() }),
    ])
}

fn start(reserved: &Reserved, wanted: u64, state: Option<MemoryState>) -> Result<MemoryManager, String> {
    MemoryManager::start(&nodes(), reserved, &memory(wanted), state).map_err(|error| error.to_string())
}

#[test]
fn huge_pages_and_reservations_are_no_memory_for_pods() {
    let manager = start(&Reserved::from([(0, memory(100))]), 100, None).unwrap();
    let allocatable =
        |node, resource: &str| manager.state().machine[&node].memory.get(resource).map(|of| of.allocatable);
    assert_eq!(
        [allocatable(0, MEMORY), allocatable(0, "hugepages-2Mi"), allocatable(1, MEMORY)],
        [Some(600), Some(300), Some(1000)]
    );
    assert_eq!(allocatable(1, "hugepages-2Mi"), None);
    let over = start(&Reserved::from([(0, memory(900))]), 900, None).unwrap();
    assert_eq!(over.state().machine[&0].memory[MEMORY].allocatable, 0);
}

#[test]
fn a_start_that_fails_says_why() {
    let reserved = Reserved::from([(0, memory(100))]);
    let other = "[memorymanager] the expected machine state is different from the real one";
    let good = start(&reserved, 100, None).unwrap().state().clone();
    let block = |nodes: &[u32], resource: &str| {
        let block =
            Block { nodes: NodeMask::of(nodes.iter().copied()), resource: resource.to_owned(), bytes: 5 };
        BTreeMap::from([("u".to_owned(), BTreeMap::from([("c".to_owned(), vec![block])]))])
    };
    let with = |blocks: Blocks| Some(MemoryState { blocks, ..good.clone() });
    let mut larger = good.clone();
    larger.machine.get_mut(&1).unwrap().memory.get_mut(MEMORY).unwrap().total = 1001;
    for (reserved, wanted, state, message) in [
        (
            &Reserved::from([(2, memory(100))]),
            100,
            None,
            "the reserved memory configuration references a NUMA node 2 that does not exist on this machine",
        ),
        (
            &reserved,
            200,
            None,
            "the total amount \"100\" of type \"memory\" is not equal to the value \"200\" determined by Node Allocatable feature",
        ),
        (&Reserved::new(), 0, None, "[memorymanager] you should specify the system reserved memory"),
        (
            &reserved,
            100,
            Some(MemoryState { machine: Machine::new(), blocks: block(&[0], MEMORY) }),
            "[memorymanager] machine state can not be empty when it has memory assignments",
        ),
        (
            &reserved,
            100,
            with(block(&[3], MEMORY)),
            "[memorymanager] (pod: u, container: c) the memory assignment uses the NUMA that does not exist",
        ),
        (
            &reserved,
            100,
            with(block(&[1], "hugepages-2Mi")),
            "[memorymanager] (pod: u, container: c) the memory assignment uses memory resource that does not exist",
        ),
        (&reserved, 100, with(block(&[1], MEMORY)), other),
        (&reserved, 100, Some(larger), other),
    ] {
        assert_eq!(start(reserved, wanted, state).map(|_| ()), Err(message.to_owned()));
    }
    assert!(start(&reserved, 100, Some(good)).is_ok());
}
