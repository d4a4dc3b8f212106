//! Time that the managers of processors, memory and topology take for one admission, on a node with 500 pods.
//!
//! `cargo run --release --package agent-core --example admission-bench` prints figures; no test depends on them. The machine has 64
//! processors in two sockets of 16 cores with two threads, and two NUMA nodes; all managers are static, with `single-numa-node`. A tenth
//! of the pods has a processor for itself. Each round ends one pod and admits another: judged, given, records for the disk made.
#![allow(clippy::print_stdout, clippy::disallowed_types)] // it measures and prints

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::time::{Duration, Instant};

use agent_core::resource_managers::ResourceManagers;
use agent_managers::cpu_set::CpuSet;
use agent_managers::cpus::manager::CpuManager;
use agent_managers::cpus::options::CpuOptions;
use agent_managers::cpus::start::Reservation;
use agent_managers::hints::merge::Nodes;
use agent_managers::hints::policy::Policy;
use agent_managers::memory::manager::MemoryManager;
use agent_managers::memory::start::NodeMemory;
use agent_managers::placement::{Managers, Scope, Topology};
use agent_managers::topology::{Cpu, CpuTopology};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

const PODS: usize = 500;
const ROUNDS: usize = 5000;
/// One pod of so many has a processor for itself.
const EXCLUSIVE: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut managers = managers()?;
    let mut live = VecDeque::new();
    let mut number = 0;
    let (mut decisions, mut records, mut refused) = (Vec::new(), Vec::new(), 0);
    while decisions.len() < PODS + ROUNDS {
        if live.len() == PODS
            && let Some(first) = live.pop_front()
        {
            managers.keep_only(|uid, _| uid != first);
        }
        let pod = pod(number)?;
        number += 1;
        let began = Instant::now();
        let given = managers.judge(&pod, false).and_then(|()| managers.give(&pod, false));
        decisions.push(began.elapsed());
        refused += usize::from(given.is_err());
        let began = Instant::now();
        std::hint::black_box((managers.records(), managers.view()));
        records.push(began.elapsed());
        live.push_back(pod.metadata.uid.unwrap_or_default());
    }
    let steady = PODS..;
    print("judged and given", decisions.get(steady.clone()).unwrap_or_default());
    print("records and view", records.get(steady).unwrap_or_default());
    println!("refused: {refused} of {number}");
    Ok(())
}

fn print(name: &str, times: &[Duration]) {
    let mut times = times.to_vec();
    times.sort();
    let at = |share: usize| times.get(times.len() * share / 1000).copied().unwrap_or_default();
    let last = times.last().copied().unwrap_or_default();
    println!("{name}: median {:?}, p99 {:?}, max {last:?}, n {}", at(500), at(990), times.len());
}

fn managers() -> Result<ResourceManagers, Box<dyn Error>> {
    let cpu = |n: u32| {
        let core = n % 32;
        (n, Cpu { core, socket: core / 16, node: core / 16, uncore: core / 16 })
    };
    let topology = CpuTopology::new((0..64).map(cpu).collect(), 2);
    let reservation = Reservation { milli: 2000, cpus: CpuSet::new() };
    let memory = NodeMemory { total: 128 << 30, huge_pages: BTreeMap::new() };
    let nodes = BTreeMap::from([(0, memory.clone()), (1, memory)]);
    let amount = BTreeMap::from([("memory".to_owned(), 1 << 30)]);
    let reserved = BTreeMap::from([(0, amount.clone())]);
    let topology_manager =
        Topology { policy: Policy::SingleNumaNode, scope: Scope::Container, nodes: Nodes::new([0, 1]) };
    Ok(Managers {
        topology: Some(topology_manager),
        cpus: Some(CpuManager::start(topology, CpuOptions::default(), &reservation, None)?),
        memory: Some(MemoryManager::start(&nodes, &reserved, &amount, None)?),
        ..Managers::default()
    }
    .into())
}

fn pod(number: usize) -> Result<Pod, serde_json::Error> {
    let amounts =
        json!({"cpu": if number.is_multiple_of(EXCLUSIVE) { "1" } else { "20m" }, "memory": "64Mi"});
    let container = |name: &str| json!({"name": name, "resources": {"requests": amounts, "limits": amounts}});
    serde_json::from_value(
        json!({"metadata": {"name": format!("p{number}"), "uid": format!("u{number}")}, "spec": {
        "containers": [container("a")]}}),
    )
}
