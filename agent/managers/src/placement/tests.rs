//! Placements of pods while another pod waits for a device plugin.

use std::time::Duration;

use super::*;
use crate::cpus::accumulator::tests::M1;
use crate::cpus::options::CpuOptions;
use crate::cpus::start::Reservation;
use crate::devices::plugin::{AllocateResponse, HEALTHY, PluginDevice, PluginOptions};
use crate::devices::run_options::RunOptions;
use crate::memory::start::{MEMORY, NodeMemory, Reserved};
use crate::node_mask::NodeMask;
use crate::request::{DeviceLimits, Kind};

const GPU: &str = "example.com/gpu";
const GIB: u64 = 1 << 30;

/// One node of four cores with two threads and 5 GiB; processor 0 and 1 GiB are reserved. A plugin has one device.
fn managers() -> Managers {
    let reservation = Reservation { milli: 500, cpus: CpuSet::new() };
    let cpus = CpuManager::start(M1.topology(), CpuOptions::default(), &reservation, None).unwrap();
    let nodes = BTreeMap::from([(0, NodeMemory { total: 5 * GIB, huge_pages: BTreeMap::new() })]);
    let amount = BTreeMap::from([(MEMORY.to_owned(), GIB)]);
    let reserved = Reserved::from([(0, amount.clone())]);
    let memory = MemoryManager::start(&nodes, &reserved, &amount, None).unwrap();
    let mut devices = DeviceManager::start(NodeMask::of([0]), None, Duration::ZERO);
    let connection = devices.connect(GPU, PluginOptions::default());
    let device = PluginDevice { id: "d0".to_owned(), health: HEALTHY.to_owned(), nodes: BTreeSet::new() };
    devices.list(connection, [device]);
    Managers { cpus: Some(cpus), memory: Some(memory), devices, ..Managers::default() }
}

fn container(name: &str, kind: Kind, cpus: u64, gib: u64, gpus: u64) -> ContainerRequest {
    let limits = (gpus > 0).then(|| (GPU.to_owned(), gpus)).into_iter().collect();
    ContainerRequest {
        name: name.to_owned(),
        kind,
        cpu_milli: cpus * 1000,
        memory: BTreeMap::from([(MEMORY.to_owned(), gib * GIB)]),
        devices: DeviceLimits { limits, claimed: BTreeSet::new() },
    }
}

fn pod(uid: &str, containers: Vec<ContainerRequest>) -> PodRequest {
    PodRequest { uid: uid.to_owned(), guaranteed: true, pod_level: false, containers }
}

#[test]
fn a_pod_that_waits_for_a_plugin_uses_the_parts_of_its_init_container_again() {
    let mut managers = managers();
    let waits = pod("p", vec![container("init", Kind::Init, 4, 2, 0), container("app", Kind::App, 4, 2, 1)]);
    let step = managers.begin(waits, BTreeSet::new());
    assert!(matches!(step, PlaceStep::AskAllocate(_)), "{step:?}");
    // Two of the three processors that are left.
    assert_eq!(managers.place(&pod("q", vec![container("c", Kind::App, 2, 1, 0)])), Ok(()));
    let response = AllocateResponse { encoded: Vec::new(), options: RunOptions::default() };
    let step = managers.answered("p", |devices| devices.allocated("p", Ok(Some(response))));
    assert_eq!(step, Some(PlaceStep::WriteCheckpoint));
    // The last processor and the last memory, while the pod waits for the checkpoint.
    let last = managers.place(&pod("r", vec![container("c", Kind::App, 1, 1, 0)]));
    assert_eq!(last, Ok(()));
    let step = managers.answered("p", |devices| devices.written("p", Ok(())));
    assert_eq!(step, Some(PlaceStep::Placed));
    let cpus = managers.cpus.as_ref().unwrap();
    let [init, app] = ["init", "app"].map(|name| cpus.cpus_of("p", name).to_string());
    assert_eq!((init.as_str(), app.as_str()), ("1-2,5-6", "1-2,5-6"));
    assert!(cpus.available().is_empty());
    let machine = &managers.memory.as_ref().unwrap().state().machine;
    assert_eq!(machine[&0].memory[MEMORY].free, 0);
}
