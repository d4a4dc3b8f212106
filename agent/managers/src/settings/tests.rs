//! Settings, and the machines on which they do not work.

use orlop_config::quantity::Quantity;

use super::start::{ManagerStates, NodeReservation};
use super::*;
use crate::cpus::state::CpuState;
use crate::memory::start::{MEMORY, NodeMemory};
use crate::placement::Managers;
use crate::topology::machine::{MachineTopology, NumaNode};
use crate::topology::testing::Regular;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn reservation(numa_node: i32, limits: &[(&str, &str)]) -> MemoryReservation {
    let amount = |value: &str| Quantity::parse(value).unwrap();
    let limits = limits.iter().map(|(name, value)| ((*name).to_owned(), amount(value))).collect();
    MemoryReservation { numa_node, limits }
}

fn settings(kubelet: &KubeletConfiguration) -> Result<ManagerSettings, String> {
    let gates = FeatureGates::of(kubelet);
    ManagerSettings::new(kubelet, &gates).map_err(|error| error.to_string())
}

/// All managers are on.
fn on() -> KubeletConfiguration {
    KubeletConfiguration {
        cpu_manager_policy: CpuManagerPolicy::Static,
        memory_manager_policy: MemoryManagerPolicy::Static,
        reserved_memory: vec![reservation(0, &[(MEMORY, "1Gi")])],
        topology_manager_policy: TopologyManagerPolicy::Restricted,
        ..KubeletConfiguration::default()
    }
}

/// Two sockets and as many nodes, two cores with two threads each, 4 GiB a node.
fn machine() -> MachineTopology {
    let cpus = Regular { sockets: 2, nodes: 2, cores_of_node: 2, threads: 2, uncore: None }.topology();
    let memory = NodeMemory { total: 4 << 30, ..NodeMemory::default() };
    let node = NumaNode { memory, distances: Some(BTreeMap::from([(0, 10), (1, 10)])) };
    MachineTopology { cpus, nodes: BTreeMap::from([(0, node.clone()), (1, node)]) }
}

fn kept(cpu_milli: u64, memory: u64) -> NodeReservation {
    NodeReservation { cpu_milli, memory: BTreeMap::from([(MEMORY.to_owned(), memory)]) }
}

fn managers(
    kubelet: &KubeletConfiguration,
    machine: &MachineTopology,
    kept: &NodeReservation,
) -> Result<Managers, String> {
    let settings = settings(kubelet).unwrap();
    settings.managers(machine, kept, ManagerStates::default()).map_err(|error| error.to_string())
}

#[test]
fn policies_that_are_off_have_no_settings() {
    let kubelet = KubeletConfiguration {
        // Options are not read without their policies.
        topology_manager_policy_options: map(&[("x", "y")]),
        reserved_memory: vec![reservation(-1, &[(MEMORY, "100m")])],
        ..KubeletConfiguration::default()
    };
    let off = settings(&kubelet).unwrap();
    assert_eq!((off.cpus, &off.memory, off.topology, &off.reserved_system_cpus), (None, &None, None, &None));
    assert!(!off.need_machine());
    let off = off.managers(&machine(), &kept(0, 0), ManagerStates::default()).unwrap();
    assert!(off.cpus.is_none() && off.memory.is_none() && off.topology.is_none());
}

#[test]
fn settings_of_all_managers() {
    let kubelet = KubeletConfiguration {
        cpu_manager_policy_options: map(&[("full-pcpus-only", "true")]),
        reserved_system_cpus: "0,4".to_owned(),
        reserved_memory: vec![
            reservation(0, &[(MEMORY, "1Gi"), ("hugepages-2Mi", "4Mi")]),
            reservation(1, &[(MEMORY, "5e2")]),
        ],
        topology_manager_scope: TopologyManagerScope::Pod,
        topology_manager_policy_options: map(&[("prefer-closest-numa-nodes", "true")]),
        ..on()
    };
    let given = settings(&kubelet).unwrap();
    assert!(given.need_machine());
    assert_eq!(given.reconcile_period, Duration::from_secs(10));
    assert_eq!(given.cpus, Some(CpuOptions { full_cores_only: true, ..CpuOptions::default() }));
    assert_eq!(given.reserved_system_cpus, Some(CpuSet::from_iter([0, 4])));
    let options = TopologyOptions { prefer_closest: true, ..TopologyOptions::default() };
    let topology = TopologySettings { policy: Policy::Restricted, scope: Scope::Pod, options };
    assert_eq!(given.topology, Some(topology));
    let memory = |bytes| (MEMORY.to_owned(), bytes);
    let first = BTreeMap::from([memory(1 << 30), ("hugepages-2Mi".to_owned(), 4 << 20)]);
    assert_eq!(given.memory, Some(Reserved::from([(0, first), (1, BTreeMap::from([memory(500)]))])));
}

#[test]
fn mistakes_in_settings() {
    let single = KubeletConfiguration {
        cpu_manager_policy_options: map(&[("align-by-socket", "true")]),
        topology_manager_policy: TopologyManagerPolicy::SingleNumaNode,
        feature_gates: BTreeMap::from([("CPUManagerPolicyAlphaOptions".to_owned(), true)]),
        ..on()
    };
    for (kubelet, message) in [
        (
            KubeletConfiguration {
                cpu_manager_policy_options: map(&[("b", "1"), ("a", "2")]),
                ..KubeletConfiguration::default()
            },
            "new none policy error: None policy: received unsupported options=map[a:2 b:1]",
        ),
        (
            KubeletConfiguration { feature_gates: BTreeMap::new(), ..single.clone() },
            "new static policy error: CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
        ),
        (
            single,
            "new static policy error: Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket \
             policy option",
        ),
        (
            KubeletConfiguration { topology_manager_policy_options: map(&[("x", "y")]), ..on() },
            "unknown Topology Manager Policy option: \"x\"",
        ),
        (
            KubeletConfiguration { reserved_memory: vec![reservation(-1, &[(MEMORY, "1Gi")])], ..on() },
            "the reserved memory configuration references a NUMA node -1 that does not exist on this machine",
        ),
        (
            KubeletConfiguration { reserved_memory: vec![reservation(0, &[(MEMORY, "100m")])], ..on() },
            "could not covert a variable of type Quantity to int64",
        ),
    ] {
        assert_eq!(settings(&kubelet), Err(message.to_owned()));
    }
}

#[test]
fn machines_on_which_the_settings_do_not_work() {
    let gibibyte = 1 << 30;
    let no_distances = || {
        let mut machine = machine();
        machine.nodes.insert(2, NumaNode::default());
        machine
    };
    let nine_nodes = || {
        let mut machine = machine();
        machine.nodes.extend((2..9).map(|node| (node, NumaNode::default())));
        machine
    };
    let closest = map(&[("prefer-closest-numa-nodes", "true")]);
    let two_nodes = [reservation(0, &[(MEMORY, "1Gi")]), reservation(3, &[(MEMORY, "1Gi")])];
    for (kubelet, machine, kept, message) in [
        (
            KubeletConfiguration { reserved_system_cpus: "0,1,2,8".to_owned(), ..Default::default() },
            machine(),
            kept(4000, 0),
            "reserved-cpus: 0,1,2,8 is not a subset of online-cpus: 0-7",
        ),
        (
            KubeletConfiguration { topology_manager_policy_options: closest, ..on() },
            no_distances(),
            kept(1000, gibibyte),
            "cannot discover NUMA topology: error getting NUMA distances from cadvisor",
        ),
        (on(), nine_nodes(), kept(1000, gibibyte), "unsupported on machines with more than 8 NUMA Nodes"),
        (
            on(),
            machine(),
            kept(0, gibibyte),
            "[cpumanager] unable to determine reserved CPU resources for static policy",
        ),
        (
            on(),
            machine(),
            kept(8001, gibibyte),
            "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 9)",
        ),
        (
            on(),
            machine(),
            kept(1000, (3 << 29) + 1024),
            "the total amount \"1Gi\" of type \"memory\" is not equal to the value \"1572865Ki\" determined by Node Allocatable \
             feature",
        ),
        (
            KubeletConfiguration { reserved_memory: two_nodes.to_vec(), ..on() },
            machine(),
            kept(1000, 2 * gibibyte),
            "the reserved memory configuration references a NUMA node 3 that does not exist on this machine",
        ),
        (
            KubeletConfiguration { reserved_memory: Vec::new(), ..on() },
            machine(),
            kept(1000, 0),
            "[memorymanager] you should specify the system reserved memory",
        ),
    ] {
        assert_eq!(managers(&kubelet, &machine, &kept).map(|_| ()), Err(message.to_owned()));
    }
    let none = MachineTopology { cpus: crate::topology::CpuTopology::new(BTreeMap::new(), 0), ..machine() };
    let error = managers(&on(), &none, &kept(1000, gibibyte)).map(|_| ());
    assert_eq!(error, Err("could not detect number of cpus".to_owned()));
}

#[test]
fn managers_of_a_machine() {
    let given = managers(&on(), &machine(), &kept(1500, 1 << 30)).unwrap();
    assert_eq!(given.cpus.unwrap().allocatable().to_string(), "1-3,5-7", "a whole core is reserved");
    let memory = given.memory.unwrap();
    assert_eq!(memory.state().machine[&0].memory[MEMORY].allocatable, 3 << 30);
    assert_eq!(given.topology.unwrap().nodes.mask().count(), 2);

    let kubelet = KubeletConfiguration { reserved_system_cpus: "1-2".to_owned(), ..on() };
    let given = managers(&kubelet, &machine(), &kept(2000, 1 << 30)).unwrap();
    assert_eq!(given.cpus.unwrap().allocatable().to_string(), "0,3-7");
}

#[test]
fn a_mistake_in_the_settings_is_reported_before_one_of_a_state() {
    let states = || ManagerStates {
        cpus: Some(CpuState { shared: CpuSet::from_iter([0]), assignments: BTreeMap::new() }),
        memory: None,
    };
    let start = |kept: &NodeReservation| {
        let started = settings(&on()).unwrap().managers(&machine(), kept, states());
        started.map(|_| ()).map_err(|error| error.to_string())
    };
    let state = "current set of available CPUs \"0-7\" doesn't match with CPUs in state \"0\"";
    assert_eq!(start(&kept(1000, 1 << 30)), Err(state.to_owned()));
    assert!(start(&kept(1000, 5)).unwrap_err().starts_with("the total amount \"1Gi\""));
}

#[test]
fn after_a_boot_pods_keep_the_parts_that_still_fit() {
    use crate::request::{ContainerRequest, Kind, PodRequest};

    let (settings, kept) = (settings(&on()).unwrap(), kept(500, 1 << 30));
    let before = machine();
    let mut managers = settings.managers(&before, &kept, ManagerStates::default()).unwrap();
    let pod = |uid: &str, cpus: u64, bytes: u64| PodRequest {
        uid: uid.to_owned(),
        guaranteed: true,
        pod_level: false,
        containers: vec![ContainerRequest {
            name: "c".to_owned(),
            kind: Kind::App,
            cpu_milli: cpus * 1000,
            memory: BTreeMap::from([(MEMORY.to_owned(), bytes)]),
            devices: Default::default(),
        }],
    };
    managers.place(&pod("small", 1, 1 << 20)).unwrap();
    managers.place(&pod("large", 2, 4 << 30)).unwrap();
    let states = ManagerStates {
        cpus: managers.cpus.as_ref().map(|of| of.state().clone()),
        memory: managers.memory.as_ref().map(|of| of.state().clone()),
    };
    // The kernel's own memory lies on the other node now, so each node has another amount.
    let mut after = machine();
    for (id, node) in &mut after.nodes {
        node.memory.total -= u64::from(*id) << 20;
    }
    let error = settings.managers(&after, &kept, states.clone()).unwrap_err();
    assert!(
        error.to_string().ends_with("the expected machine state is different from the real one"),
        "{error}"
    );
    let managers = settings.managers_after_boot(&after, &kept, states.clone()).unwrap();
    let memory = managers.memory.as_ref().unwrap().state();
    assert_eq!(memory.blocks.keys().collect::<Vec<_>>(), ["small"], "4 GiB do not fit any more");
    assert_eq!(
        managers.cpus.as_ref().unwrap().state(),
        states.cpus.as_ref().unwrap(),
        "the processors are the same"
    );
    let again = ManagerStates { memory: Some(memory.clone()), ..states };
    settings.managers(&after, &kept, again).expect("a state that fits");
}
