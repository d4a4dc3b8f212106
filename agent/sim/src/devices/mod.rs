//! Pods that request devices, and device plugins that hang, lie, vanish and come back.
//!
//! ```text
//! plugins ──DeviceEvent──► agent ──DeviceAction──► plugins (late, wrong, or no answer), checkpoint on disk (late, or not written)
//!                            └──CreateContainer with the plugin's answer──► checks
//! ```
//! In: random numbers of its own. Out: the checkers of devices (`checks`), one plugin that hangs at rest (`hanging`), and the containers
//! that LIVENESS does not ask for (`excuses`). The plugins are in `plugins`, their answers in `asking` and `answers`; `agent` has the
//! defects. Upstream: pkg/kubelet/cm/devicemanager.

mod agent;
mod answers;
mod asking;
mod checks;
mod excuses;
mod hanging;
mod plugins;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::resource_managers::{DeviceAction, DeviceEvent, ResourceManagers};
use agent_managers::checkpoint;
use agent_managers::devices::manager::DeviceState;
use agent_managers::devices::records::PodRecords;
use agent_managers::hints::merge::Nodes;
use agent_managers::hints::policy::Policy;
use agent_managers::placement::{Managers, Scope, Topology};
use agent_types::ids::{ContainerId, PodUid};
use agent_types::pod;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use serde_json::{Value, json};

use crate::checks::Violation;
use crate::defects::Defect;
use crate::node::NodeEvent;
use crate::rng::Rng;
use crate::world::{Event, World};

pub(crate) use agent::AgentDevices;
use plugins::FakePlugin;

/// Resources of the plugins.
const RESOURCES: [&str; 3] = ["x.io/disk", "x.io/gpu", "x.io/nic"];
/// Longest extra time of a write of the checkpoint, milliseconds.
const WRITE_SLOW_MS_MAX: u64 = 5_000;
/// Reason of a pod that does not get its devices.
const REFUSED: &str = "UnexpectedAdmissionError";
/// Reason of a pod whose devices are on the wrong nodes.
const UNALIGNED: &str = "TopologyAffinityError";
/// Part of upstream's message about a container whose plugin wants to know of its start, and that has no devices.
const NO_RECORD: &str = "no devices found allocated in local cache";
/// Parts of upstream's messages about rejected pods.
const WORDS: [&str; 8] = [
    "cannot allocate unregistered device",
    "no healthy devices present; cannot allocate unhealthy devices",
    "previously allocated devices are no longer healthy; cannot allocate unhealthy devices",
    "requested number of devices unavailable for",
    "has been stopped",
    "no containers return in allocation response",
    "failed to write checkpoint file",
    "rpc error",
];

/// Events between plugins, agent and disk.
#[derive(Clone, Debug)]
pub(crate) enum PluginEvent {
    /// A plugin's call or answer reaches the agent.
    Arrive { incarnation: u32, event: DeviceEvent },
    /// A plugin registers.
    Register { resource: String },
    /// The checkpoint is replaced, and the agent gets the result `told`.
    Write { incarnation: u32, text: String, told: Result<(), String> },
}

/// Devices that a pod requests, by container and resource.
#[derive(Clone, Debug, Default)]
struct DeviceLimits {
    limits: BTreeMap<String, BTreeMap<String, usize>>,
    since: Mono,
}

/// A call of `Allocate`.
#[derive(Clone, Debug)]
struct Question {
    /// Number that the agent gave to the question.
    ask: u64,
    incarnation: u32,
    at: Mono,
    uid: PodUid,
    resource: String,
    ids: BTreeSet<String>,
    /// The answer omits devices.
    is_lie: bool,
    /// The answer came while the agent waited for another answer, or for none.
    is_stale: bool,
}

/// State of a run with device plugins.
#[derive(Clone, Debug)]
pub(crate) struct Devices {
    rng: Rng,
    /// Policy and scope of the topology manager.
    topology: Option<(Policy, Scope)>,
    plugins: BTreeMap<String, FakePlugin>,
    /// Plugins have no faults.
    calm: bool,
    /// The checkpoint's content.
    text: Option<String>,
    on_disk: DeviceState,
    /// Number of the last registration with this agent.
    connections: u64,
    /// Calls of `Allocate`, by the numbers that plugins write into their answers.
    questions: BTreeMap<u64, Question>,
    /// The last question for each pod, of any kind.
    open: BTreeMap<PodUid, u64>,
    /// Devices that the last GetPreferredAllocation call of each pod named.
    preferred: BTreeMap<PodUid, BTreeSet<String>>,
    asking: BTreeMap<PodUid, DeviceLimits>,
    /// Answers of instances that have devices, by resource.
    of: BTreeMap<ContainerId, BTreeMap<String, u64>>,
}

impl World {
    /// From now on the node has device plugins, and pods request devices; in some runs processors too.
    pub fn plug_in(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0xDE71);
        if rng.chance(300) {
            self.place_pods(seed);
        }
        // Static pods request few enough processors that none is rejected, so the policy must not reject them either.
        let policies: &[Policy] = match self.placing {
            Some(_) => &[Policy::BestEffort],
            None => &[Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode],
        };
        let policy = rng.pick(policies).copied().filter(|_| rng.chance(300));
        let scope = if rng.chance(500) { Scope::Pod } else { Scope::Container };
        let plugin = |name: &&str| ((*name).to_owned(), FakePlugin::new(&mut rng));
        let plugins = RESOURCES.iter().map(plugin).collect();
        self.devices = Some(Box::new(Devices {
            topology: policy.map(|policy| (policy, scope)),
            plugins,
            calm: true,
            text: None,
            on_disk: DeviceState::default(),
            connections: 0,
            questions: BTreeMap::new(),
            open: BTreeMap::new(),
            preferred: BTreeMap::new(),
            asking: BTreeMap::new(),
            of: BTreeMap::new(),
            rng,
        }));
    }

    /// The managers of a new agent: `managers` with the devices of the checkpoint.
    pub(crate) fn restore_devices(&mut self, mut managers: Managers) -> ResourceManagers {
        let now = self.now();
        let defect = self.defect;
        let Some(devices) = &mut self.devices else { return managers.into() };
        devices.connections = 0;
        managers.topology =
            devices.topology.map(|(policy, scope)| Topology { policy, scope, nodes: Nodes::new(0..2) });
        let read = devices.text.as_ref().map(|text| checkpoint::devices::read(text, answers::decode));
        let earlier = match read {
            Some(Ok(content)) if content.left_out.is_empty() => Some(content.state),
            Some(_) => {
                self.checks.report("ALLOC-DURABLE", "the checkpoint of devices cannot be read".to_owned());
                return managers.into();
            }
            None => None,
        };
        for (name, plugin) in &mut devices.plugins {
            let known = earlier.as_ref().is_some_and(|state| state.registered.contains_key(name));
            plugin.agent_starts(now.mono, known);
        }
        let earlier =
            earlier.map(|state| if defect == Some(Defect::ForgetsDevices) { short(&state) } else { state });
        ResourceManagers::from(managers).with_devices(earlier, now)
    }

    /// Makes a new pod request devices, if this run has some. No record of a rejection survives the agent, and the API keeps the
    /// terminal phase of a static pod: only static pods of a node without an API request devices.
    pub(crate) fn ask_for_devices(&mut self, pod: &mut Value, is_static: bool) {
        let has_api = self.api.is_some();
        let Some(devices) = &mut self.devices else { return };
        if (is_static && has_api) || !devices.rng.chance(700) {
            return;
        }
        for list in ["/spec/containers", "/spec/initContainers"] {
            for container in pod.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                for resource in RESOURCES {
                    if devices.rng.chance(300) {
                        ask(container, resource, devices.rng.between(1, 2));
                    }
                }
            }
        }
    }

    /// A pod was created.
    pub(crate) fn note_limits(&mut self, pod: &Pod) {
        let since = self.queue.now();
        let Some(devices) = &mut self.devices else { return };
        let all = pod::init_containers(pod).iter().chain(pod::containers(pod));
        let limits = all.map(|c| (c.name.clone(), limits(c))).filter(|(_, limits)| !limits.is_empty());
        let asking = DeviceLimits { limits: limits.collect(), since };
        devices.asking.entry(PodUid::from(pod::uid(pod))).or_insert(asking);
    }

    /// The agent died: no question waits for an answer any more.
    pub(crate) fn forget_questions(&mut self) {
        if let Some(devices) = &mut self.devices {
            devices.open.clear();
            devices.preferred.clear();
        }
    }

    pub(crate) fn plugin_event(&mut self, event: PluginEvent) {
        match event {
            PluginEvent::Arrive { incarnation, event } if incarnation == self.incarnation => {
                if matches!(event, DeviceEvent::Written(_))
                    && self.rng.chance(self.faults.crash_before_process)
                {
                    return self.crash();
                }
                self.note_arrival(&event);
                self.tell(NodeEvent::Devices(event));
            }
            PluginEvent::Register { resource } => self.register(&resource),
            PluginEvent::Write { incarnation, text, told } if incarnation == self.incarnation => {
                self.checkpoint_replaced(text, told);
            }
            PluginEvent::Arrive { .. } | PluginEvent::Write { .. } => {}
        }
    }

    /// Handles a question of the agent to a plugin, or a write of the checkpoint.
    pub(crate) fn devices_ask(&mut self, action: DeviceAction) {
        match action {
            DeviceAction::AskPreferred { ask, uid, question } => self.ask_preferred(ask, uid, question),
            DeviceAction::AskAllocate { ask, uid, question } => self.ask_allocate(ask, uid, question),
            DeviceAction::WriteCheckpoint(text) => self.write_checkpoint(text),
        }
    }

    /// Writes the checkpoint, with the same three crash points as every other write.
    fn write_checkpoint(&mut self, text: String) {
        let slow = self.faults.slow_ms_max.min(WRITE_SLOW_MS_MAX);
        let wait = Duration::from_millis(self.rng.between(1, 20) + self.rng.below(slow + 1));
        let incarnation = self.incarnation;
        let no_space = || Err("no space left on device".to_owned());
        if self.rng.chance(self.faults.error_before_apply) {
            let event = DeviceEvent::Written(no_space());
            self.queue.after(wait, Event::Plugin(PluginEvent::Arrive { incarnation, event }));
        } else {
            // The new content may be on disk although the write failed: the directory could not be synchronised.
            let told = if self.rng.chance(self.faults.reply_lost) { no_space() } else { Ok(()) };
            self.queue.after(wait, Event::Plugin(PluginEvent::Write { incarnation, text, told }));
        }
        if self.rng.chance(self.faults.crash_before_apply) {
            self.crash();
        }
    }

    fn checkpoint_replaced(&mut self, text: String, told: Result<(), String>) {
        let Some(devices) = &mut self.devices else { return };
        match checkpoint::devices::read(&text, answers::decode) {
            Ok(content) => devices.on_disk = content.state,
            Err(error) => {
                self.checks.report("ALLOC-DURABLE", format!("the checkpoint cannot be read: {error}"))
            }
        }
        devices.text = Some(text);
        if self.rng.chance(self.faults.crash_before_ack) {
            return self.crash();
        }
        let (incarnation, event) = (self.incarnation, DeviceEvent::Written(told));
        let wait = Duration::from_millis(self.rng.between(1, 5));
        self.queue.after(wait, Event::Plugin(PluginEvent::Arrive { incarnation, event }));
    }

    /// True if the pod requests devices and its status has upstream's message of a rejection for devices.
    pub(crate) fn lacks_devices(&self, pod: &Pod, status: &PodStatus) -> bool {
        let Some(devices) = &self.devices else { return false };
        let asking = devices.asking.get(&PodUid::from(pod::uid(pod)));
        if asking.is_none_or(|asking| asking.limits.is_empty()) {
            return false;
        }
        let message = status.message.as_deref().unwrap_or_default();
        match status.reason.as_deref() {
            Some(REFUSED) => WORDS.iter().any(|words| message.contains(words)),
            Some(UNALIGNED) => devices.topology.is_some(),
            _ => false,
        }
    }

    /// The agent dies. On a node without an API no record of a pod's end survives the agent: the next agent admits static pods
    /// again, and may reject a pod that has ended, as upstream.
    pub(crate) fn forget_ends(&mut self) {
        if self.devices.is_none() {
            return;
        }
        let statics: Vec<PodUid> = self.disk.manifests.keys().cloned().collect();
        for pod in statics {
            if matches!(self.status_of(&pod).phase.as_deref(), Some("Succeeded" | "Failed")) {
                self.checks.note(self.queue.now(), &TraceEvent::PodForgotten { pod });
            }
        }
    }

    /// Removes static pods that this agent has rejected, because a later agent would admit them.
    pub(crate) fn remove_refused(&mut self) -> Result<(), Violation> {
        if self.devices.is_none() {
            return Ok(());
        }
        let statics: Vec<PodUid> = self.disk.manifests.keys().cloned().collect();
        for uid in statics {
            if matches!(self.status_of(&uid).reason.as_deref(), Some(REFUSED | UNALIGNED)) {
                self.user_removes(&uid);
            }
        }
        self.run_for(Duration::from_secs(180))
    }

    /// The pod's status as the agent computes it.
    pub(crate) fn status_of(&self, uid: &PodUid) -> PodStatus {
        let worker = self.node.as_ref().and_then(|node| node.workers().get(uid));
        worker.and_then(|worker| worker.status()).cloned().unwrap_or_default()
    }

    /// Number of devices that the agent has allocated, for leak checks.
    pub(crate) fn devices_left(&self) -> usize {
        let Some(node) = self.node.as_ref().filter(|_| self.devices.is_some()) else { return 0 };
        let managers = node.manager.resource_managers().managers();
        managers.devices.records().iter().count() + managers.unfinished.len()
    }
}

/// Makes a container request `count` devices.
fn ask(container: &mut Value, resource: &str, count: u64) {
    for list in ["requests", "limits"] {
        container["resources"][list][resource] = json!(count.to_string());
    }
}

fn limits(container: &Container) -> BTreeMap<String, usize> {
    let all = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let own = all.into_iter().flatten().filter(|(name, _)| RESOURCES.contains(&name.as_str()));
    own.filter_map(|(name, count)| Some((name.clone(), count.0.parse().ok()?))).collect()
}

/// The state without the devices of its first pod.
fn short(state: &DeviceState) -> DeviceState {
    let first = state.records.iter().next().map(|(uid, ..)| uid.to_owned());
    let mut records = PodRecords::default();
    for (uid, container, resource, record) in state.records.iter() {
        if first.as_deref() != Some(uid) {
            records.insert(uid, container, resource, record.clone());
        }
    }
    DeviceState { records, registered: state.registered.clone() }
}
