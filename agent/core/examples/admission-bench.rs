//! Time that admission takes for one pod on a node with 500 active pods and static managers.
//!
//! `cargo run --release --package agent-core --example admission-bench` prints figures; no test depends on them. The machine has 64
//! processors in two sockets of 16 cores with two threads, and two NUMA nodes; all managers are static, with `single-numa-node`. A tenth
//! of the pods has a processor for itself, all of them have memory of one NUMA node.
//!
//! ```text
//! each round: one of 500 active pods ends ─► another one arrives
//!             decision   the pure decision alone: every check of admission next to the 499 others, processors and memory chosen
//!             arrival    the pod manager's whole step: decision, assignment, the text of the state files, placements for workers
//!             record     its step after the state files are on disk: the pod's worker gets its pod
//! ```
#![allow(clippy::print_stdout, clippy::disallowed_types)] // it measures and prints

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_core::admission::{self, AdmissionContext, NodeMarks};
use agent_core::pod_manager::{Leftovers, ManagerAction, ManagerEvent, PodManager};
use agent_core::pod_source::{PodOp, PodUpdate, Source};
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
use agent_types::Quantity;
use agent_types::ids::PodUid;
use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

const PODS: usize = 500;
const ROUNDS: usize = 5000;
/// One pod of so many has a processor for itself.
const EXCLUSIVE: usize = 10;
/// The time in the machine, which no decision here depends on.
const NOW: Now = Now { mono: Mono(1), wall: Wall(1) };

/// Times of the rounds with all pods.
#[derive(Default)]
struct Times {
    decision: Vec<Duration>,
    arrival: Vec<Duration>,
    record: Vec<Duration>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let context = context()?;
    let leftovers = Leftovers { managers: managers()?, ..Leftovers::default() };
    let expected = BTreeSet::from([Source::Api]);
    let mut manager = PodManager::new(expected, leftovers, Arc::new(context.clone()), Ok(()));
    step(&mut manager, ManagerEvent::Listed(Vec::new()));
    step(&mut manager, ManagerEvent::Node(Some(NodeMarks::default())));
    let (mut active, mut times, mut refused) = (VecDeque::new(), Times::default(), 0);
    for number in 0..PODS + ROUNDS {
        if active.len() == PODS
            && let Some(first) = active.pop_front()
        {
            end(&mut manager, &first);
        }
        let pod = Arc::new(pod(number)?);
        let (verdict, decision) = timed(|| decide(&manager, &pod, &active, &context));
        let (actions, arrival) = timed(|| step(&mut manager, update(PodOp::Add, &pod)));
        let is_refused = actions.iter().any(|action| matches!(action, ManagerAction::Rejected { .. }));
        if is_refused == verdict {
            return Err(format!("the decision about p{number} alone differs from the pod manager's").into());
        }
        let ((), record) = timed(|| write(&mut manager, actions));
        if is_refused {
            refused += 1;
            end(&mut manager, &pod);
        } else {
            active.push_back(pod);
        }
        if number >= PODS {
            times.decision.push(decision);
            times.arrival.push(arrival);
            times.record.push(record);
        }
    }
    for (name, times) in [("decision", times.decision), ("arrival", times.arrival), ("record", times.record)]
    {
        print(name, times);
    }
    println!("refused: {refused} of {}", PODS + ROUNDS);
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed())
}

fn print(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times.get(times.len() * share / 1000).copied().unwrap_or_default();
    let last = times.last().copied().unwrap_or_default();
    println!("{name}: median {:?}, p99 {:?}, max {last:?}, n {}", at(500), at(990), times.len());
}

/// What the pod manager asks before it lets the pod start, in its order; true if the pod may start.
fn decide(manager: &PodManager, pod: &Pod, active: &VecDeque<Arc<Pod>>, context: &AdmissionContext) -> bool {
    admission::may_be_placed(pod, context).is_ok()
        && manager.resource_managers().judge(pod, false).is_ok()
        && admission::admit(pod, active.iter().map(|other| &**other), context).is_ok()
}

fn step(manager: &mut PodManager, event: ManagerEvent) -> Vec<ManagerAction> {
    let mut out = Outbox::new();
    manager.step(NOW, event, &mut out);
    out.drain().collect()
}

fn update(op: PodOp, pod: &Arc<Pod>) -> ManagerEvent {
    ManagerEvent::Update(PodUpdate { source: Source::Api, op, pods: vec![Arc::clone(pod)] })
}

/// Records reach the disk at once.
fn write(manager: &mut PodManager, mut actions: Vec<ManagerAction>) {
    while actions.iter().any(|action| matches!(action, ManagerAction::Allocated(..))) {
        actions = step(manager, ManagerEvent::Recorded(true));
    }
}

/// The API server deletes the pod, its containers end, and nothing is left of it.
fn end(manager: &mut PodManager, pod: &Arc<Pod>) {
    let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
    for event in [update(PodOp::Remove, pod), ManagerEvent::Ended(uid.clone()), ManagerEvent::Finished(uid)] {
        let actions = step(manager, event);
        write(manager, actions);
    }
}

fn context() -> Result<AdmissionContext, Box<dyn Error>> {
    let mut allocatable = BTreeMap::new();
    for (name, amount) in [("cpu", "62"), ("memory", "255Gi"), ("ephemeral-storage", "100Gi")] {
        allocatable.insert(name.to_owned(), Quantity::parse(amount)?);
    }
    let max_pods = Some(2 * u32::try_from(PODS)?);
    Ok(AdmissionContext { allocatable, max_pods, ..AdmissionContext::default() })
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
    let container = |name: &str| json!({"name": name, "image": "i", "resources": {"requests": amounts, "limits": amounts}});
    let metadata = json!({
        "name": format!("p{number}"), "namespace": "default", "uid": format!("u{number}"),
        "annotations": {"kubernetes.io/config.source": "api"},
    });
    serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": [container("a")]}}))
}
