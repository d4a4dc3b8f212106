//! Random courses of plugins, pods and starts of the agent: no device has two pods, and no pod loses a device.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::allocation::AllocationStep;
use super::manager::DeviceManager;
use super::plugin::{Connection, PluginDevice, PluginOptions};
use super::run_options::RunOptions;
use super::testing::{GPU, NIC, container, device, response, seconds, sick};
use crate::checkpoint::devices::{read, write};
use crate::node_mask::NodeMask;
use crate::request::Kind;

const RESOURCES: [&str; 2] = [GPU, NIC];

/// One event of a course. Numbers are taken modulo the number of things there are.
#[derive(Clone, Debug)]
enum Event {
    Register { resource: usize, asks: bool },
    List { connection: usize, devices: Vec<(u8, u8)> },
    End { connection: usize },
    Begin { pod: u8, container: u8, kind: u8, gpus: u64, nics: u64, nodes: u64 },
    Answer { fails: bool, preferred: Vec<u8> },
    Finish,
    PodEnds { pod: u8 },
    NodeStatus,
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let lists = prop::collection::vec((0..8_u8, 0..6_u8), 0..8);
    let event = prop_oneof![
        1 => (0..2_usize, any::<bool>()).prop_map(|(resource, asks)| Event::Register { resource, asks }),
        3 => (0..9_usize, lists).prop_map(|(connection, devices)| Event::List { connection, devices }),
        1 => (0..9_usize).prop_map(|connection| Event::End { connection }),
        6 => (0..5_u8, 0..3_u8, 0..3_u8, 0..4_u64, 0..2_u64, 0..16_u64).prop_map(
            |(pod, container, kind, gpus, nics, nodes)| Event::Begin { pod, container, kind, gpus, nics, nodes }
        ),
        3 => (prop::bool::weighted(0.2), prop::collection::vec(0..9_u8, 0..4))
            .prop_map(|(fails, preferred)| Event::Answer { fails, preferred }),
        6 => Just(Event::Finish),
        2 => (0..5_u8).prop_map(|pod| Event::PodEnds { pod }),
        1 => Just(Event::NodeStatus),
        1 => Just(Event::Restart),
    ];
    prop::collection::vec(event, 1..120)
}

/// The agent with its disk, and the devices of each pod.
struct Agent {
    manager: DeviceManager,
    connections: Vec<Connection>,
    step: AllocationStep,
    allocating: String,
    file: String,
    /// Pods that are active, with the containers that finished their allocation, and their devices.
    active: BTreeMap<String, BTreeMap<(String, String), BTreeSet<String>>>,
    now: u64,
}

fn decode(_: &[u8]) -> Option<RunOptions> {
    Some(RunOptions::default())
}

fn id(number: u8) -> String {
    format!("d{number}")
}

fn listed((number, look): (u8, u8)) -> PluginDevice {
    let nodes: &[i64] = match look % 3 {
        0 => &[],
        1 => &[0],
        _ => &[1, 2],
    };
    let device = device(&id(number), nodes);
    if look == 5 { sick(device, "Unhealthy") } else { device }
}

impl Agent {
    fn new() -> Agent {
        let manager = DeviceManager::start(NodeMask::of(0..4), None, seconds(0));
        let file = write(&manager.state());
        let (connections, step) = (Vec::new(), AllocationStep::Done);
        Agent { manager, connections, step, allocating: String::new(), file, active: BTreeMap::new(), now: 0 }
    }

    fn connection(&self, number: usize) -> Option<Connection> {
        self.connections.get(number.checked_rem(self.connections.len())?).copied()
    }

    fn keep_only(&mut self) {
        let active = &self.active;
        self.manager.keep_only(|uid| active.contains_key(uid));
    }

    /// Takes the next step of the unfinished allocation.
    fn answer(&mut self, fails: bool, preferred: &[u8]) {
        let failure = || "no".to_owned();
        self.step = match self.step.clone() {
            AllocationStep::AskPreferred(_) if fails => {
                self.manager.preferred(&self.allocating, Err(failure()))
            }
            AllocationStep::AskPreferred(question) => {
                assert!(question.must_include.is_subset(&question.available), "{question:?}");
                self.manager.preferred(&self.allocating, Ok(preferred.iter().copied().map(id).collect()))
            }
            AllocationStep::AskAllocate(_) if fails => {
                self.manager.allocated(&self.allocating, Err(failure()))
            }
            AllocationStep::AskAllocate(question) => {
                self.manager.allocated(&self.allocating, Ok(Some(response(&question))))
            }
            AllocationStep::WriteCheckpoint if fails => {
                self.manager.written(&self.allocating, Err(failure()))
            }
            AllocationStep::WriteCheckpoint => {
                self.file = write(&self.manager.state());
                self.manager.written(&self.allocating, Ok(()))
            }
            done => done,
        };
        match &self.step {
            AllocationStep::Refused(_) => {
                // A refused pod is not active.
                self.active.remove(&self.allocating);
                self.step = AllocationStep::Done;
            }
            AllocationStep::Done => self.note(),
            _ => {}
        }
    }

    /// The allocation has ended: the container keeps its devices.
    fn note(&mut self) {
        let Some(of_pod) = self.active.get_mut(&self.allocating) else { return };
        for (uid, container, resource, record) in self.manager.records().iter() {
            if *uid == self.allocating {
                of_pod.insert((container.to_owned(), resource.clone()), record.devices());
            }
        }
    }

    fn happen(&mut self, event: Event) {
        self.now += 20;
        let now = seconds(self.now);
        match event {
            Event::Register { resource, asks } => {
                let options = PluginOptions { preferred_allocation: asks, ..PluginOptions::default() };
                self.connections.push(self.manager.connect(RESOURCES[resource], options));
            }
            Event::List { connection, devices } => {
                let Some(connection) = self.connection(connection) else { return };
                if self.manager.list(connection, devices.into_iter().map(listed)).is_some() {
                    self.file = write(&self.manager.state());
                }
            }
            Event::End { connection } => {
                let Some(connection) = self.connection(connection) else { return };
                self.manager.end(connection, now);
            }
            Event::Begin { pod, container: name, kind, gpus, nics, nodes } => {
                if self.step != AllocationStep::Done {
                    return;
                }
                let uid = format!("pod{pod}");
                self.active.entry(uid.clone()).or_default();
                self.keep_only();
                let kind = [Kind::Init, Kind::Sidecar, Kind::App][usize::from(kind)];
                let container = container(&format!("c{name}"), kind, &[(GPU, gpus), (NIC, nics)]);
                let nodes = (nodes > 0).then(|| NodeMask::from_bits(nodes));
                self.step = self.manager.begin(&uid, &container, nodes, false);
                self.allocating = uid;
                if let AllocationStep::Refused(_) = self.step {
                    self.answer(false, &[]);
                }
            }
            Event::Answer { fails, preferred } => self.answer(fails, &preferred),
            Event::Finish => {
                while self.step != AllocationStep::Done {
                    self.answer(false, &[]);
                }
            }
            Event::PodEnds { pod } => {
                self.active.remove(&format!("pod{pod}"));
                self.keep_only();
            }
            Event::NodeStatus => {
                self.now += 200;
                if !self.manager.node_devices(seconds(self.now)).removed.is_empty() {
                    self.file = write(&self.manager.state());
                }
            }
            Event::Restart => self.restart(now),
        }
    }

    /// A restart of the agent loses an unfinished allocation; its pod has no container yet.
    fn restart(&mut self, now: std::time::Duration) {
        if self.step != AllocationStep::Done {
            self.active.remove(&self.allocating);
            self.step = AllocationStep::Done;
        }
        let content = read(&self.file, decode).expect("the agent's own file");
        assert!(content.left_out.is_empty());
        assert_eq!(write(&content.state), self.file, "there and back");
        self.manager = DeviceManager::start(NodeMask::of(0..4), Some(content.state), now);
        self.connections.clear();
        self.keep_only();
    }

    fn check(&self) {
        let mut owners: BTreeMap<(&str, String), &str> = BTreeMap::new();
        for (uid, _, resource, record) in self.manager.records().iter() {
            for id in record.devices() {
                let owner = *owners.entry((resource, id.clone())).or_insert(uid);
                assert_eq!(owner, uid, "{resource} {id} belongs to two pods");
            }
        }
        for resource in RESOURCES {
            let free = self.manager.available(resource);
            let taken = free.iter().find(|id| owners.contains_key(&(resource, (*id).clone())));
            assert_eq!(taken, None, "free and in use");
        }
        if let AllocationStep::AskAllocate(question) = &self.step {
            for id in &question.ids {
                let owner = owners.get(&(question.resource.as_str(), id.clone()));
                assert!(owner.is_none_or(|owner| *owner == self.allocating), "{id} is another pod's");
            }
        }
        for (uid, of_pod) in &self.active {
            for ((container, resource), ids) in of_pod {
                let has = self.manager.records().devices(uid, container, resource);
                assert_eq!(has.as_ref(), Some(ids), "{uid} {container} {resource}");
            }
        }
    }
}

/// A course that the property below found: the checkpoint of a refused allocation could not be written, and the pod's next one needs
/// nothing more.
#[test]
fn the_next_allocation_of_a_pod_writes_the_devices_that_the_checkpoint_lacks() {
    let begin = || Event::Begin { pod: 4, container: 2, kind: 0, gpus: 3, nics: 0, nodes: 0 };
    let answer = |fails| Event::Answer { fails, preferred: Vec::new() };
    let mut agent = Agent::new();
    for event in [
        Event::Register { resource: 0, asks: false },
        Event::List { connection: 0, devices: vec![(1, 0), (0, 0), (2, 0)] },
        begin(),
        answer(false),
        answer(true),
        begin(),
        answer(false),
        Event::Restart,
    ] {
        agent.happen(event);
        agent.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_device_belongs_to_two_pods_and_no_pod_loses_one(events in events()) {
        let mut agent = Agent::new();
        for event in events {
            agent.happen(event);
            agent.check();
        }
    }
}
