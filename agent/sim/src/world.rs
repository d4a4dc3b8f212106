//! The world around the agent: virtual time, the fake runtime, a disk, calls in flight, and the faults.
//!
//! In: a seed, a fault plan, actions of users. Out: a trace, and the first broken invariant. A crash drops the agent
//! and keeps the world; a reboot also stops all processes and ends every call in flight. Each effect has three crash
//! points: before apply; applied, not acknowledged; acknowledged, not processed.

mod incarnations;
mod sending;
mod spontaneous;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_core::allocation::Allocations;
use agent_core::checkers::TraceEvent;
use agent_core::pleg::PlegEvent;
use agent_core::pod_worker::WorkerContext;
use agent_core::pod_worker::effect::{Effect, EffectOk};
use agent_types::ids::{ContainerId, PodKey, PodUid};
use agent_types::kill::TerminatingRecord;
use agent_types::machine::EffectId;
use agent_types::resources::cgroups::CgroupValues;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use crate::api_calls::ApiEvent;
use crate::api_side::ApiSide;
use crate::calls::{Ask, Call, CallAnswer};
use crate::checks::{Checks, Violation};
use crate::claims::{ClaimNews, Claims};
use crate::csi::Unstage;
use crate::defects::Defect;
use crate::devices::{Devices, PluginEvent};
use crate::fake_runtime::{FakeRuntime, now_at};
use crate::faults::Faults;
use crate::in_place::InPlace;
use crate::node::{Node, NodeEvent, NodeRequest, key_of};
use crate::placing::Placing;
use crate::probing::{PendingProbe, Probing};
use crate::queue::Queue;
use crate::resizing::Resizing;
use crate::rng::Rng;
use crate::stopping::{LogindEvent, Stopping};
use crate::trace::Trace;
use crate::volumes::Volumes;

/// An event at a moment of virtual time.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Apply(Call),
    Answer(Call, Box<CallAnswer>),
    /// A container answers a probe.
    Probe(PendingProbe),
    Exit {
        container: ContainerId,
        code: i32,
    },
    AgentStart {
        incarnation: u32,
    },
    Tick {
        incarnation: u32,
    },
    ToPleg {
        incarnation: u32,
        event: PlegEvent,
    },
    /// An event between the owner of claims, the drivers and the disk.
    Claims {
        incarnation: u32,
        news: ClaimNews,
    },
    /// The answer to `UnprepareClaims` in a run without claims.
    NoClaims {
        incarnation: u32,
        uid: PodUid,
        id: EffectId,
    },
    /// An event between the agent and the API server.
    Api(ApiEvent),
    /// An event between the agent, logind and the disk.
    Logind(LogindEvent),
    /// An event between the agent, device plugins and the disk.
    Plugin(PluginEvent),
    /// A CSI driver gets a call to unstage a volume.
    Unstage(Unstage),
    Second,
}

/// State that survives a crash of the agent.
#[derive(Debug, Default)]
pub struct Disk {
    /// The static pod directory.
    pub manifests: BTreeMap<PodUid, Arc<Pod>>,
    /// Terminating records.
    pub records: BTreeMap<PodUid, TerminatingRecord>,
    /// `<root>/pods/<uid>`.
    pub dirs: BTreeSet<PodUid>,
    /// The newest attempt of each container that has a log file; only in runs with changes of running pods.
    pub logs: BTreeMap<(PodUid, String), u32>,
    /// Pods' cgroups; a reboot removes them.
    pub cgroups: BTreeMap<PodUid, CgroupValues>,
    /// Allocations of pods.
    pub allocated: Allocations,
    /// Actuated resources of containers and pods, as the agent recorded them.
    pub actuated: Allocations,
    /// Mounted volumes by pod.
    pub mounts: BTreeMap<PodUid, BTreeSet<String>>,
}

/// The world.
pub struct World {
    pub(crate) queue: Queue<Event>,
    pub(crate) rng: Rng,
    /// Active faults; healing empties it.
    pub faults: Faults,
    /// The container runtime.
    pub runtime: FakeRuntime,
    /// The disk.
    pub disk: Disk,
    /// Hash of all events, and the last events.
    pub trace: Trace,
    /// The invariants.
    pub checks: Checks,
    /// The API server; `None` for a standalone node.
    pub api: Option<Box<ApiSide>>,
    /// Probes and hooks; `None` for a run without.
    pub(crate) probing: Option<Box<Probing>>,
    /// Changes of running pods; `None` for a run without.
    pub(crate) in_place: Option<Box<InPlace>>,
    /// Resizes of pods; `None` for a run without.
    pub(crate) resizing: Option<Box<Resizing>>,
    /// Resource claims; `None` for a run without.
    pub(crate) claims: Option<Box<Claims>>,
    /// Static managers; `None` for a run without.
    pub(crate) placing: Option<Box<Placing>>,
    /// Device plugins; `None` for a run without.
    pub(crate) devices: Option<Box<Devices>>,
    /// Objects that pods' volumes use; `None` for a run without volumes.
    pub(crate) volumes: Option<Box<Volumes>>,
    /// logind; `None` for a run without shutdowns.
    pub(crate) stopping: Option<Box<Stopping>>,
    pub(crate) node: Option<Node>,
    /// Time of the agent's timer.
    armed: Option<Mono>,
    pub(crate) incarnation: u32,
    pub(crate) defect: Option<Defect>,
    context: Arc<WorkerContext>,
    fence_until: Mono,
    stream_up: bool,
    removed: BTreeSet<PodUid>,
    /// Pods that were removed and added again with the same UID: an agent that starts later knows only the new pod.
    added_again: BTreeSet<PodUid>,
    /// The world is at rest: a restarted agent has nothing to do.
    pub(crate) quiet: bool,
}

impl World {
    /// An empty world whose agent starts at once.
    #[must_use]
    pub fn new(seed: u64, faults: Faults, context: Arc<WorkerContext>, defect: Option<Defect>) -> World {
        let mut world = World {
            queue: Queue::default(),
            rng: Rng::new(seed),
            faults,
            runtime: FakeRuntime::default(),
            disk: Disk::default(),
            trace: Trace::default(),
            checks: Checks::default(),
            api: None,
            probing: None,
            in_place: None,
            resizing: None,
            placing: None,
            claims: None,
            devices: None,
            volumes: None,
            stopping: None,
            node: None,
            armed: None,
            incarnation: 0,
            defect,
            context,
            fence_until: Mono(0),
            stream_up: true,
            removed: BTreeSet::new(),
            added_again: BTreeSet::new(),
            quiet: false,
        };
        world.queue.after(Duration::from_millis(10), Event::AgentStart { incarnation: 0 });
        world.queue.after(Duration::from_secs(1), Event::Second);
        world
    }

    /// Both clocks of the present time.
    #[must_use]
    pub fn now(&self) -> Now {
        now_at(self.queue.now())
    }

    /// Lets `length` of virtual time pass.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn run_for(&mut self, length: Duration) -> Result<(), Violation> {
        let until = self.queue.now().after(length);
        while let Some(event) = self.queue.pop_until(until) {
            if !matches!(event, Event::Second) {
                self.trace.note(self.queue.now(), &event);
            }
            self.happen(event);
            self.checks.happened(self.queue.now());
            self.look();
            self.checks.verdict()?;
        }
        Ok(())
    }

    /// Passes the state of the world to the checkers.
    pub(crate) fn look(&mut self) {
        let now = self.queue.now();
        self.checks.world(now, &self.runtime);
        self.checks.agenda(now, self.queue.len());
        self.look_at_amounts();
        self.look_at_processors();
        self.look_at_claims();
        self.look_at_devices();
    }

    /// Another party than the agent changed the world.
    pub(crate) fn disturb(&mut self) {
        self.quiet = false;
        self.checks.note(self.queue.now(), &TraceEvent::Disturbed);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Apply(call) => self.apply(call),
            Event::Answer(call, answer) => self.answer(call, *answer),
            Event::Probe(asked) => self.probe_answers(asked),
            Event::Exit { container, code } => self.exit(&container, code),
            Event::AgentStart { incarnation } if incarnation == self.incarnation => self.start_agent(),
            Event::Tick { incarnation } if incarnation == self.incarnation => self.tick(),
            Event::ToPleg { incarnation, event } if incarnation == self.incarnation => {
                self.tell(NodeEvent::Pleg(event));
            }
            Event::Claims { incarnation, news } => self.claims_event(incarnation, news),
            Event::NoClaims { incarnation, uid, id } => {
                if incarnation == self.incarnation {
                    self.tell(NodeEvent::Reply { uid, id, result: Ok(EffectOk::Done) });
                }
            }
            Event::Api(event) => self.api_event(event),
            Event::Logind(event) => self.logind(event),
            Event::Plugin(event) => self.plugin_event(event),
            Event::Unstage(asked) => self.unstage(&asked),
            Event::Second => self.second(),
            Event::AgentStart { .. } | Event::Tick { .. } | Event::ToPleg { .. } => {}
        }
    }

    /// A user writes a manifest.
    pub fn user_adds(&mut self, pod: &Arc<Pod>) {
        self.disturb();
        let PodKey { namespace, name, uid } = key_of(pod);
        self.owns(&namespace, &name);
        self.pod_planned(pod);
        self.claims_planned(pod);
        if self.removed.remove(&uid) {
            self.added_again.insert(uid.clone());
        }
        self.disk.manifests.insert(uid, pod.clone());
        self.tell(NodeEvent::Desired(pod.clone()));
    }

    /// A user removes a manifest.
    pub fn user_removes(&mut self, uid: &PodUid) {
        self.disturb();
        let Some(pod) = self.disk.manifests.remove(uid) else { return };
        self.removed.insert(uid.clone());
        self.tell(NodeEvent::Removed(pod));
    }

    /// The disk is full: the agent must remove unused containers.
    pub(crate) fn space_runs_short(&mut self) {
        self.disturb();
        self.tell(NodeEvent::DeleteUnused);
    }

    pub(crate) fn tell(&mut self, event: NodeEvent) {
        let now = self.now();
        let Some(node) = &mut self.node else { return };
        let requests = node.handle(now, event);
        let incarnation = self.incarnation;
        for request in requests {
            self.trace.note(self.queue.now(), &request);
            self.carry_out(request);
            if self.incarnation != incarnation {
                return; // The agent died in the middle: the remaining requests were never sent.
            }
        }
        self.arm();
    }

    /// Sets the one timer of the agent to the nearest deadline, as the daemon does.
    fn arm(&mut self) {
        let Some(at) = self.node.as_ref().and_then(Node::deadline) else { return };
        let at = at.max(self.queue.now());
        if self.armed.is_none_or(|armed| at < armed) {
            self.armed = Some(at);
            self.queue.at(at, Event::Tick { incarnation: self.incarnation });
        }
    }

    fn tick(&mut self) {
        // A timer that a nearer deadline has replaced does nothing.
        if self.armed.take_if(|armed| *armed <= self.queue.now()).is_some() {
            self.tell(NodeEvent::Tick);
        }
    }

    fn carry_out(&mut self, request: NodeRequest) {
        let now = self.queue.now();
        match request {
            // This effect draws no random number here, so that runs without claims do not change.
            NodeRequest::Effect { key, id, effect: Effect::UnprepareClaims, .. } if self.claims.is_none() => {
                let incarnation = self.incarnation;
                self.queue.after(Duration::from_millis(1), Event::NoClaims { incarnation, uid: key.uid, id });
            }
            NodeRequest::Effect { key, id, effect, deadline } => {
                self.checks.issued(now, &key, &effect);
                self.note_effect(&key, &effect);
                // The agent records the resources before it calls the runtime, so they are also known for a call that is
                // applied late.
                if let Effect::CreateContainer { config, actuates, .. } = &effect {
                    self.actuate(&key, Some(&config.name), actuates);
                }
                self.send(Ask::Effect { key, id, effect }, deadline);
            }
            NodeRequest::Cancel(uid, id) => self.cancel(&uid, id),
            NodeRequest::Probe(uid, id, call) => self.ask(uid, id, call),
            NodeRequest::Persist { id, record } => self.send(Ask::Persist { id, record }, None),
            NodeRequest::Allocated(all, managers) => self.send(Ask::Allocated(all, managers), None),
            NodeRequest::Devices(action) => self.devices_ask(action),
            NodeRequest::Inspect(uid) => self.send(Ask::Inspect(uid), None),
            NodeRequest::Relist => self.send(Ask::Relist, None),
            NodeRequest::Status(key, status) => {
                self.checks.world(now, &self.runtime);
                self.checks.status(now, &key, status.phase.as_deref());
                self.note_status(&status);
            }
            NodeRequest::Api { owner, id, call } => self.send_call(owner, id, call),
            NodeRequest::CloseConnections => self.reconnect(),
            NodeRequest::Shutdown(action) => self.shutdown_asks(action),
            NodeRequest::Event(key, fact) => self.note_event(&key, &fact),
            NodeRequest::Worker { uid, state, in_flight } => {
                self.checks.world(now, &self.runtime);
                self.checks.worker(now, &uid, state, in_flight);
            }
        }
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
