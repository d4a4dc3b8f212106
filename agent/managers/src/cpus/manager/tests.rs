//! Admissions one after the other on small machines.

use std::collections::BTreeMap;

use super::*;
use crate::cpus::accumulator::tests::{M1, M2};
use crate::cpus::start::Reservation;
use crate::topology::testing::Regular;

fn manager(machine: Regular, options: CpuOptions) -> CpuManager {
    let reservation = Reservation { milli: 500, cpus: CpuSet::new() };
    CpuManager::start(machine.topology(), options, &reservation, None).unwrap()
}

fn container(name: &str, kind: Kind, cpu_milli: u64) -> ContainerRequest {
    let devices = crate::request::DeviceLimits::default();
    ContainerRequest { name: name.to_owned(), kind, cpu_milli, memory: BTreeMap::new(), devices }
}

fn pod(uid: &str, containers: Vec<ContainerRequest>) -> PodRequest {
    PodRequest { uid: uid.to_owned(), guaranteed: true, pod_level: false, containers }
}

/// Admits all containers; the processors of each.
fn admit(manager: &mut CpuManager, pod: &PodRequest) -> Result<Vec<String>, AllocateError> {
    for container in &pod.containers {
        manager.allocate(pod, container, None)?;
    }
    Ok(pod.containers.iter().map(|of| manager.cpus_of(&pod.uid, &of.name).to_string()).collect())
}

#[test]
fn whole_processors_of_guaranteed_pods_are_exclusive_and_come_back() {
    let mut manager = manager(M1, CpuOptions::default());
    let own = pod("a", vec![container("x", Kind::App, 2000), container("y", Kind::App, 1500)]);
    assert_eq!(admit(&mut manager, &own).unwrap(), ["1,5", "0,2-4,6-7"]);
    let burstable = PodRequest { guaranteed: false, ..pod("b", vec![container("x", Kind::App, 2000)]) };
    assert_eq!(admit(&mut manager, &burstable).unwrap(), ["0,2-4,6-7"]);
    let whole = PodRequest { pod_level: true, ..pod("c", vec![container("x", Kind::App, 2000)]) };
    assert_eq!(admit(&mut manager, &whole).unwrap(), ["0,2-4,6-7"]);
    assert!(!manager.keep_only(|uid, _| uid == "a"));
    assert!(manager.keep_only(|_, _| false));
    assert_eq!(manager.state().shared.to_string(), "0-7");
    assert_eq!(manager.state().assignments, BTreeMap::new());
}

#[test]
fn processors_of_an_init_container_serve_later_ones_and_a_sidecar_keeps_its_own() {
    let mut manager = manager(M1, CpuOptions::default());
    let kinds =
        [("i", Kind::Init, 4000), ("s", Kind::Sidecar, 1000), ("a", Kind::App, 3000), ("b", Kind::App, 2000)];
    let pod = pod("p", kinds.map(|(name, kind, milli)| container(name, kind, milli)).to_vec());
    let given = admit(&mut manager, &pod).unwrap();
    assert_eq!(given, ["1-2,5-6", "4", "1-2,5", "3,7"]);
    // A new admission of the pod changes nothing.
    assert_eq!(admit(&mut manager, &pod).unwrap(), given);
    manager.keep_only(|_, name| name != "i");
    assert_eq!(manager.state().shared.to_string(), "0,6", "what others of the pod have stays theirs");
}

#[test]
fn whole_cores_or_nothing() {
    let mut manager = manager(M1, CpuOptions { full_cores_only: true, ..CpuOptions::default() });
    let error = |manager: &mut CpuManager, milli| {
        admit(manager, &pod("p", vec![container("c", Kind::App, milli)])).unwrap_err().to_string()
    };
    assert_eq!(
        error(&mut manager, 3000),
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    assert_eq!(
        error(&mut manager, 8000),
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, \
         CPUs per core = 2"
    );
    let fits = pod("p", vec![container("c", Kind::App, 6000)]);
    assert_eq!(admit(&mut manager, &fits).unwrap(), ["1-3,5-7"]);
}

#[test]
fn the_nodes_of_the_hint_come_first() {
    let mut manager = manager(M2, CpuOptions::default());
    let pod = pod("p", vec![container("c", Kind::App, 10_000)]);
    manager.allocate(&pod, &pod.containers[0], Some(NodeMask::of([1]))).unwrap();
    assert_eq!(
        manager.cpus_of("p", "c").to_string(),
        "1,4-7,9,12-15",
        "all of node 1, then a core of node 0"
    );
}
