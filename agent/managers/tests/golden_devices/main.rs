//! Invented device plugins and pods, and the allocations of the upstream kubelet's device manager: this manager must give the same
//! devices, amounts, hints, health, refusals and checkpoints, also after changes of lists, ends of plugins, and restarts.
//!
//! In: `fixtures/devices.json.gz`, recorded by `qemu-tests/controlplane/cmd/devices` (docs/internals/testing.md). Each state is compared by
//! the hash of one text. The recorder ends a course where upstream chooses at random, or crashes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod recording;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read as _;
use std::time::Duration;

use agent_managers::checkpoint::devices::{read, write};
use agent_managers::devices::allocation::AllocationStep;
use agent_managers::devices::manager::DeviceManager;
use agent_managers::devices::plugin::{Connection, PluginDevice, PluginOptions};
use agent_managers::devices::status::DeviceNodes;
use agent_managers::hints::lists;
use agent_managers::hints::merge::Nodes;
use agent_managers::hints::policy::Policy;
use agent_managers::node_mask::NodeMask;
use agent_managers::placement::Refusal;
use agent_managers::request::{ContainerRequest, PodRequest};

use recording::{ConnectOf, DeviceOf, RecordedCourse, RecordedStep, StartOf, decode, preference, response};

struct Node<'c> {
    course: &'c RecordedCourse,
    manager: DeviceManager,
    plugins: BTreeMap<String, (Connection, ConnectOf)>,
    active: Vec<PodRequest>,
    pods: BTreeMap<String, PodRequest>,
    /// Nodes of the hint of each container.
    hints: BTreeMap<(String, String), Option<NodeMask>>,
    ready: bool,
    running: BTreeSet<String>,
    file: String,
    /// The pod of the last allocation.
    last: String,
    /// Pods to sync since the last step.
    sync: BTreeSet<String>,
}

impl<'c> Node<'c> {
    fn new(course: &'c RecordedCourse) -> Node<'c> {
        Node {
            course,
            manager: DeviceManager::start(NodeMask::of(0..course.nodes), None, Duration::ZERO),
            plugins: BTreeMap::new(),
            active: Vec::new(),
            pods: BTreeMap::new(),
            hints: BTreeMap::new(),
            ready: true,
            running: BTreeSet::new(),
            file: "none".to_owned(),
            last: String::new(),
            sync: BTreeSet::new(),
        }
    }

    fn policy(&self) -> Option<Policy> {
        match self.course.topology.as_str() {
            "best-effort" => Some(Policy::BestEffort),
            "restricted" => Some(Policy::Restricted),
            "single-numa-node" => Some(Policy::SingleNumaNode),
            _ => None,
        }
    }

    fn keep_only(&mut self) {
        if self.ready {
            let active: BTreeSet<&str> = self.active.iter().map(|pod| pod.uid.as_str()).collect();
            self.manager.keep_only(|uid| active.contains(uid));
        }
    }

    fn judge(&self, hints: Vec<agent_managers::hints::Hints>) -> Result<Option<NodeMask>, Refusal> {
        let Some(policy) = self.policy() else { return Ok(None) };
        let (hint, admitted) = policy.place(&Nodes::new(0..self.course.nodes), &lists(&[hints]));
        if admitted { Ok(hint.nodes) } else { Err(Refusal::Affinity) }
    }

    fn place(&mut self, pod: &PodRequest) -> Result<(), Refusal> {
        self.keep_only();
        let by_pod = self.course.scope == "pod";
        let whole = if by_pod { self.judge(self.manager.pod_hints(pod))? } else { None };
        for container in &pod.containers {
            let nodes = match by_pod {
                true => whole,
                false => self.judge(self.manager.container_hints(pod, container))?,
            };
            self.hints.insert((pod.uid.clone(), container.name.clone()), nodes);
            self.allocate(&pod.uid, container, nodes).map_err(Refusal::Unexpected)?;
        }
        Ok(())
    }

    fn allocate(
        &mut self,
        uid: &str,
        container: &ContainerRequest,
        nodes: Option<NodeMask>,
    ) -> Result<(), String> {
        self.keep_only();
        if self.last != uid {
            // Upstream admits one pod at a time: the admission of another pod ends the reuse of devices.
            self.manager.forget_reusable(&self.last);
            self.last = uid.to_owned();
        }
        let runs = !self.ready && self.running.contains(&format!("{uid}/{}", container.name));
        let mut step = self.manager.begin(uid, container, nodes, runs);
        loop {
            step = match step {
                AllocationStep::AskPreferred(question) => {
                    let (_, of) = &self.plugins[&question.resource];
                    self.manager.preferred(uid, Ok(preference(of, &question)))
                }
                AllocationStep::AskAllocate(question) if self.plugins[&question.resource].1.fails => {
                    self.manager.allocated(uid, Err("the plugin refuses".to_owned()))
                }
                AllocationStep::AskAllocate(question) => {
                    self.manager.allocated(uid, Ok(Some(response(&question))))
                }
                AllocationStep::WriteCheckpoint => {
                    self.file = write(&self.manager.state());
                    self.manager.written(uid, Ok(()))
                }
                AllocationStep::Done => return Ok(()),
                AllocationStep::Refused(message) => return Err(message),
            }
        }
    }

    fn admit(&mut self, pod: &PodRequest) -> String {
        if !self.active.iter().any(|other| other.uid == pod.uid) {
            self.active.push(pod.clone());
        }
        let Err(refusal) = self.place(pod) else { return String::new() };
        self.active.retain(|other| other.uid != pod.uid);
        stopped(format!("{}: {refusal}", refusal.reason()))
    }

    fn start(&mut self, of: &StartOf) -> String {
        let container = self.pods[&of.uid].container(&of.c).expect("one of the pod").clone();
        let is_active = self.active.iter().any(|pod| pod.uid == of.uid);
        let work = match self.manager.start_work(&of.uid, &container, is_active) {
            Ok(work) => work,
            Err(error) => return stopped(error.to_string()),
        };
        let ids = |ids: BTreeSet<String>| ids.into_iter().collect::<Vec<String>>().join(",");
        let calls = work.pre_start.into_iter();
        let mut out: Vec<String> =
            calls.map(|call| format!("pre-start {} {}", call.resource, ids(call.ids))).collect();
        if work.allocate {
            let nodes = self.hints.get(&(of.uid.clone(), of.c.clone())).copied().flatten();
            if let Err(message) = self.allocate(&of.uid, &container, nodes) {
                return stopped(message);
            }
        }
        if let Some(options) = self.manager.run_options(&of.uid, &of.c) {
            out.push("options".to_owned());
            out.extend(options.envs.iter().map(|(name, value)| format!("{name}={value}")));
        }
        out.join(" ")
    }

    /// The recorder's text of the manager's whole visible state.
    fn text(&mut self) -> String {
        self.keep_only();
        let mut out = String::new();
        let amounts = self.manager.node_devices(Duration::ZERO);
        for (name, capacity) in &amounts.capacity {
            writeln!(out, "{name} {capacity}/{}", amounts.allocatable[name]).unwrap();
        }
        for (name, devices) in self.manager.allocatable_devices() {
            if !devices.is_empty() {
                writeln!(out, "allocatable {name} {}", instances(&devices)).unwrap();
            }
        }
        for (uid, pod) in &self.pods {
            for (name, count) in self.manager.raised_allocatable(uid) {
                writeln!(out, "{uid} raises {name} to {count}").unwrap();
            }
            for container in &pod.containers {
                let health = self.manager.health(uid, &container.name);
                for (name, devices) in self.manager.devices_of(uid, &container.name) {
                    let word = |healthy| if healthy { "Healthy" } else { "Unhealthy" };
                    let words = health[&name].iter().map(|(id, healthy)| format!("{id}={}", word(*healthy)));
                    let words = words.collect::<Vec<String>>().join(",");
                    writeln!(out, "{uid}/{} {name} {} {words}", container.name, instances(&devices)).unwrap();
                }
            }
        }
        let sync = std::mem::take(&mut self.sync).into_iter().collect::<Vec<String>>().join(" ");
        writeln!(out, "sync {sync}\nfile {}", self.file).unwrap();
        out
    }

    fn restart(&mut self, running: &BTreeSet<String>) {
        let machine = NodeMask::of(0..self.course.nodes);
        let earlier =
            (self.file != "none").then(|| read(&self.file, decode).expect("the agent's file").state);
        self.manager = DeviceManager::start(machine, earlier, Duration::ZERO);
        self.plugins.clear();
        self.hints.clear();
        self.ready = false;
        self.running = running.clone();
    }

    /// Takes one step and compares it: the error is the first difference from upstream.
    fn take(&mut self, step: &RecordedStep) -> Result<(), String> {
        let mut outcomes = Vec::new();
        if let Some(of) = &step.connect {
            let options = PluginOptions {
                pre_start_required: of.pre_start,
                preferred_allocation: !of.prefers.is_empty(),
            };
            let connection = self.manager.connect(&of.r, options);
            self.plugins.insert(of.r.clone(), (connection, of.clone()));
        } else if let Some(of) = &step.list {
            let health = |sick| if sick { "Unhealthy" } else { "Healthy" }.to_owned();
            let device = |of: &DeviceOf| PluginDevice {
                id: of.id.clone(),
                health: health(of.sick),
                nodes: of.n.clone(),
            };
            let (connection, _) = self.plugins[&of.r];
            self.sync.extend(self.manager.list(connection, of.d.iter().map(device)).unwrap_or_default());
            self.file = write(&self.manager.state());
        } else if let Some(name) = &step.disconnect {
            assert!(self.manager.end(self.plugins[name].0, Duration::ZERO));
        } else if let Some(of) = &step.admit {
            let pod = of.request();
            self.pods.insert(pod.uid.clone(), pod.clone());
            outcomes.push(self.admit(&pod));
        } else if let Some(uid) = &step.end {
            self.active.retain(|pod| pod.uid != *uid);
        } else if let Some(of) = &step.start {
            outcomes.push(self.start(of));
        } else if step.restart {
            self.restart(&step.running);
        } else if step.readmit {
            for pod in self.active.clone() {
                outcomes.push(self.admit(&pod));
            }
            self.ready = true;
        }
        if outcomes != step.outcomes {
            return Err(format!("upstream {:?}, here {outcomes:?}", step.outcomes));
        }
        let text = self.text();
        if hash(&text) == step.state {
            return Ok(());
        }
        Err(format!("upstream\n{}here\n{text}", step.text))
    }
}

/// The name of the endpoint in the message, which is a pointer upstream.
fn stopped(message: String) -> String {
    let Some((before, rest)) = message.split_once("endpoint ") else { return message };
    match rest.split_once(" has been stopped") {
        Some((_, after)) => format!("{before}endpoint has been stopped{after}"),
        None => message,
    }
}

fn instances(devices: &DeviceNodes) -> String {
    let one = |(id, nodes): (&String, &BTreeSet<i64>)| {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        format!("{id}@{}", nodes.join("+"))
    };
    devices.iter().map(one).collect::<Vec<String>>().join(",")
}

fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn compare(course: &RecordedCourse) -> Result<(), String> {
    let mut node = Node::new(course);
    for (at, step) in course.steps.iter().enumerate() {
        node.take(step).map_err(|error| format!("step {at}: {error}"))?;
    }
    if course.file.is_empty() {
        return Ok(());
    }
    // Upstream's own file, with lists in its own order.
    let content = read(&course.file, decode).map_err(|error| format!("upstream's file: {error}"))?;
    let written = write(&content.state);
    if written == node.file { Ok(()) } else { Err(format!("upstream's file {written}, here {}", node.file)) }
}

#[test]
fn every_course_is_upstreams() {
    let packed: &[u8] = include_bytes!("../fixtures/devices.json.gz");
    let mut json = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut json).expect("gzip");
    let courses: Vec<RecordedCourse> = serde_json::from_str(&json).expect("courses");
    let wrong: Vec<String> = (1..)
        .zip(&courses)
        .filter_map(|(seed, course)| Some(format!("seed {seed}: {}", compare(course).err()?)))
        .collect();
    let some = wrong.get(..wrong.len().min(5)).unwrap_or_default().join("\n");
    assert!(wrong.is_empty(), "{} of {} courses differ:\n{some}", wrong.len(), courses.len());
    let steps: usize = courses.iter().map(|course| course.steps.len()).sum();
    let files = courses.iter().filter(|course| !course.file.is_empty()).count();
    assert!(steps > 10_000 && files > 500, "{steps} steps, {files} files");
}
