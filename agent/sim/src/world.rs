//! The world around the agent: virtual time, the fake runtime, a disk, calls in flight, and the faults.
//!
//! In: a seed, a fault plan, actions of users. Out: a trace, and the first broken invariant. A crash drops the agent
//! and keeps the world; a reboot also stops all processes and ends every call in flight. Each effect has three crash
//! points: before apply; applied, not acknowledged; acknowledged, not processed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_core::allocation::Allocations;
use agent_core::checkers::TraceEvent;
use agent_core::pleg::PlegEvent;
use agent_core::pod_manager::Leftovers;
use agent_core::pod_worker::effect::{Effect, EffectError, EffectOk};
use agent_core::pod_worker::{WorkerContext, longest_call};
use agent_types::failure::{CANCELLED_CALL_MAX, Class};
use agent_types::ids::{ContainerId, PodKey, PodUid, SandboxId};
use agent_types::kill::TerminatingRecord;
use agent_types::machine::EffectId;
use agent_types::resources::cgroups::CgroupValues;
use agent_types::runtime::observed::{ContainerState, RuntimeHint};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use crate::api_calls::ApiEvent;
use crate::api_side::{ApiSide, WATCHES};
use crate::calls::{Ask, Call, CallAnswer, refused};
use crate::checks::{Checks, Violation};
use crate::claims::{ClaimNews, Claims};
use crate::cluster::Cluster;
use crate::csi::Unstage;
use crate::defects::Defect;
use crate::devices::{Devices, PluginEvent};
use crate::fake_runtime::{FakeRuntime, now_at};
use crate::faults::Faults;
use crate::in_place::{InPlace, is_ephemeral};
use crate::node::{Node, NodeEvent, NodeRequest, key_of};
use crate::placing::Placing;
use crate::probing::{PendingProbe, Probing};
use crate::queue::Queue;
use crate::resizing::Resizing;
use crate::rng::Rng;
use crate::stopping::{LogindEvent, Stopping};
use crate::trace::Trace;
use crate::volumes::Volumes;

/// What happens at a moment of virtual time.
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
    /// Between the owner of claims, drivers and disk.
    Claims {
        incarnation: u32,
        news: ClaimNews,
    },
    /// A run without claims: a pod has none to give back.
    NoClaims {
        incarnation: u32,
        uid: PodUid,
        id: EffectId,
    },
    /// Between agent and API server.
    Api(ApiEvent),
    /// Between agent, logind and disk.
    Logind(LogindEvent),
    /// Between agent, device plugins and disk.
    Plugin(PluginEvent),
    /// A CSI driver is asked to let go of a volume.
    Unstage(Unstage),
    Second,
}

/// What survives a crash of the agent.
#[derive(Debug, Default)]
pub struct Disk {
    /// The static pod directory.
    pub manifests: BTreeMap<PodUid, Arc<Pod>>,
    /// Terminating records.
    pub records: BTreeMap<PodUid, TerminatingRecord>,
    /// `<root>/pods/<uid>`.
    pub dirs: BTreeSet<PodUid>,
    /// The newest attempt of each container that left a log; only in runs with changes in place.
    pub logs: BTreeMap<(PodUid, String), u32>,
    /// Pods' cgroups; a reboot takes them away.
    pub cgroups: BTreeMap<PodUid, CgroupValues>,
    /// What pods were given.
    pub allocated: Allocations,
    /// What their containers have, as the agent remembers it.
    pub actuated: Allocations,
    /// What is mounted there.
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
    /// Everything that happened, as a hash and its tail.
    pub trace: Trace,
    /// The invariants.
    pub checks: Checks,
    /// The API server; `None` for a standalone node.
    pub api: Option<Box<ApiSide>>,
    /// Probes and hooks; `None` for a run without.
    pub(crate) probing: Option<Box<Probing>>,
    /// Changes of pods that live; `None` for a run without.
    pub(crate) in_place: Option<Box<InPlace>>,
    /// Changes of what pods are given; `None` for a run without.
    pub(crate) resizing: Option<Box<Resizing>>,
    /// Resource claims; `None` for a run without.
    pub(crate) claims: Option<Box<Claims>>,
    /// Static managers; `None` for a run without.
    pub(crate) placing: Option<Box<Placing>>,
    /// Device plugins; `None` for a run without.
    pub(crate) devices: Option<Box<Devices>>,
    /// Objects that pods' volumes are made from; `None` for a run without volumes.
    pub(crate) volumes: Option<Box<Volumes>>,
    /// logind; `None` for a machine that nobody tells to stop.
    pub(crate) stopping: Option<Box<Stopping>>,
    pub(crate) node: Option<Node>,
    /// When the agent's timer goes off.
    armed: Option<Mono>,
    pub(crate) incarnation: u32,
    pub(crate) defect: Option<Defect>,
    context: Arc<WorkerContext>,
    fence_until: Mono,
    stream_up: bool,
    removed: BTreeSet<PodUid>,
    /// Removed and added again under the same UID: an agent that starts later knows only the new life.
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

    /// Both clocks of the present.
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
            self.look();
            self.checks.verdict()?;
        }
        Ok(())
    }

    /// Shows the world to the observers.
    pub(crate) fn look(&mut self) {
        let now = self.queue.now();
        self.checks.world(now, &self.runtime);
        self.checks.agenda(now, self.queue.len());
        self.look_at_amounts();
        self.look_at_processors();
        self.look_at_claims();
        self.look_at_devices();
    }

    /// Somebody other than the agent changed something.
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

    /// The disk is full: what nobody needs is to go.
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
                return; // It died in the middle: the rest was never sent.
            }
        }
        self.arm();
    }

    /// One timer: the nearest deadline, as in production.
    fn arm(&mut self) {
        let Some(at) = self.node.as_ref().and_then(Node::deadline) else { return };
        let at = at.max(self.queue.now());
        if self.armed.is_none_or(|armed| at < armed) {
            self.armed = Some(at);
            self.queue.at(at, Event::Tick { incarnation: self.incarnation });
        }
    }

    fn tick(&mut self) {
        // One that was overtaken by a nearer deadline has nothing to do any more.
        if self.armed.take_if(|armed| *armed <= self.queue.now()).is_some() {
            self.tell(NodeEvent::Tick);
        }
    }

    fn carry_out(&mut self, request: NodeRequest) {
        let now = self.queue.now();
        match request {
            // It draws no random number, so that runs without claims do not depend on it.
            NodeRequest::Effect { key, id, effect: Effect::UnprepareClaims, .. } if self.claims.is_none() => {
                let incarnation = self.incarnation;
                self.queue.after(Duration::from_millis(1), Event::NoClaims { incarnation, uid: key.uid, id });
            }
            NodeRequest::Effect { key, id, effect, deadline } => {
                self.checks.issued(now, &key, &effect);
                self.note_effect(&key, &effect);
                // Written down before the runtime is asked: so it is known of a call that comes through late, too.
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

    fn send(&mut self, ask: Ask, deadline: Option<Mono>) {
        let issued = self.queue.now();
        let latency = self.rng.between(1, 20) + self.rng.below(self.faults.slow_ms_max + 1);
        let arrives = issued.after(Duration::from_millis(latency));
        let mutates = ask.mutates();
        let call = Call { incarnation: self.incarnation, ask, issued, deadline };
        if self.rng.chance(self.faults.error_before_apply) {
            let error = EffectError { class: Class::Retryable { after_ms: 0 }, message: "injected".into() };
            if let Ask::Persist { record, .. } = &call.ask {
                self.checks.note(issued, &TraceEvent::RecordLost { pod: record.pod.uid.clone() });
            }
            let answer = refused(&call, error);
            self.queue
                .at(deadline.map_or(arrives, |d| d.min(arrives)), Event::Answer(call, Box::new(answer)));
        } else if deadline.is_some_and(|d| arrives >= d) {
            self.time_out(call);
        } else if call.ask.is_of_the_runtime() && self.rng.chance(self.faults.connection_lost) {
            self.interrupt(call);
        } else {
            self.queue.at(arrives, Event::Apply(call));
        }
        if mutates && self.rng.chance(self.faults.crash_before_apply) {
            self.crash();
        }
    }

    pub(crate) fn time_out(&mut self, call: Call) {
        let lost = self.queue.now().after(Duration::from_secs(10));
        let at = call.deadline.unwrap_or(lost);
        let error = EffectError { class: Class::DeadlineExceeded, message: "no answer in time".into() };
        let answer = refused(&call, error);
        self.queue.at(at, Event::Answer(call, Box::new(answer)));
    }

    /// The connection breaks under the call, which may be carried out before the runtime has seen that.
    fn interrupt(&mut self, call: Call) {
        let heard = self.queue.now().after(Duration::from_millis(self.rng.between(1, 20)));
        let error = EffectError { class: Class::Interrupted, message: "connection lost".into() };
        let answer = refused(&call, error);
        if self.rng.chance(500) {
            let late = Duration::from_millis(self.rng.below(millis(CANCELLED_CALL_MAX)));
            self.queue.at(heard.after(late), Event::Apply(call.clone()));
        }
        self.queue.at(heard, Event::Answer(call, Box::new(answer)));
    }

    fn answer(&mut self, call: Call, answer: CallAnswer) {
        if call.incarnation != self.incarnation {
            return;
        }
        if call.ask.mutates() && self.rng.chance(self.faults.crash_before_process) {
            self.crash();
            return;
        }
        match (call.ask, answer) {
            (Ask::Effect { key, id, effect }, CallAnswer::Worker(result)) => {
                self.note_answer(&effect);
                self.tell(NodeEvent::Reply { uid: key.uid, id, result });
            }
            (Ask::Persist { id, record }, CallAnswer::Worker(result)) => {
                self.tell(NodeEvent::Reply { uid: record.pod.uid, id, result });
            }
            (_, CallAnswer::Pleg(event)) => self.tell(NodeEvent::Pleg(event)),
            (_, CallAnswer::Recorded(written)) => {
                if !written {
                    self.managers_unwritten();
                }
                self.tell(NodeEvent::Recorded(written));
            }
            (Ask::Inspect(_) | Ask::Relist | Ask::Allocated(..), CallAnswer::Worker(_)) => {}
        }
    }

    /// `kill -9` of the agent in a world at rest: the next incarnation may start, stop and remove nothing.
    pub fn crash_at_rest(&mut self) {
        self.quiet = true;
        self.crash();
    }

    /// `kill -9` of the agent. Calls in flight may still reach the runtime until their deadlines.
    pub fn crash(&mut self) {
        self.forget_ends();
        (self.node, self.armed) = (None, None);
        self.incarnation += 1;
        if let Some(volumes) = &mut self.volumes {
            volumes.drivers.forget();
            if let Some(ownership) = &mut volumes.ownership {
                ownership.forget(self.queue.now());
            }
        }
        self.forget_claims();
        if let Some(api) = &mut self.api {
            for which in WATCHES {
                api.watches.close(which);
            }
        }
        let longest = longest_call(self.context.request_timeout, Duration::from_secs(60));
        self.fence_until = self.queue.now().after(longest);
        self.forget_questions();
        self.lock_is_lost();
        self.unit_died();
        let (dead, zombies) = (self.incarnation, self.faults.zombie_applies);
        let (mut kept, mut under_way) = (Vec::new(), Vec::new());
        self.queue.retain(|event| match event {
            Event::Apply(call) if call.incarnation < dead => {
                // What the process itself does on disk ends with it; only the runtime goes on.
                if call.ask.is_remote() {
                    kept.push(call.clone());
                }
                false
            }
            Event::Api(ApiEvent::Arrive(flight)) if flight.incarnation < dead => {
                under_way.push(flight.clone());
                false
            }
            Event::Api(ApiEvent::Answer(..) | ApiEvent::Heard { .. }) => false,
            _ => true,
        });
        // What was on the wire may still arrive, and nobody will wait for the answer.
        for flight in under_way {
            if self.rng.chance(zombies) {
                let wait = Duration::from_millis(self.rng.below(10_000));
                self.queue.after(wait, Event::Api(ApiEvent::Arrive(flight)));
            }
        }
        for call in kept {
            if self.rng.chance(zombies) {
                let left = call.deadline.unwrap_or(self.queue.now()).since(self.queue.now());
                let wait = Duration::from_millis(self.rng.below(millis(left)));
                self.queue.after(wait, Event::Apply(call));
            }
        }
        let down = Duration::from_millis(self.rng.between(100, 5_000));
        self.queue.after(down, Event::AgentStart { incarnation: self.incarnation });
    }

    /// The machine loses power and comes back: nothing runs, no call is in flight, the disk is kept.
    pub fn reboot(&mut self) {
        self.ensure_taken_back();
        self.crash();
        self.disturb();
        self.fence_until = Mono(0);
        self.runtime.reboot(self.now());
        self.forget_mounts();
        self.logind_boots();
        self.disk.cgroups.clear();
        // A machine takes longer to come back than what it sent takes to the server.
        self.queue.retain(|e| {
            !matches!(
                e,
                Event::Apply(_)
                    | Event::Exit { .. }
                    | Event::Answer(..)
                    | Event::Claims { .. }
                    | Event::Api(ApiEvent::Arrive(_))
            )
        });
    }

    fn start_agent(&mut self) {
        let (shutdown, records) = self.begin_shutdown();
        let leftovers = Leftovers {
            records,
            directories: self.disk.dirs.clone(),
            fence_until: self.fence_until,
            allocated: self.disk.allocated.clone(),
            actuated: self.disk.actuated.clone(),
            managers: self.managers(),
        };
        let cluster = self.api.is_some().then(|| Cluster::new(u64::from(self.incarnation)));
        let context = WorkerContext { agent_started: self.now(), ..(*self.context).clone() };
        let mut node = Node::new(Arc::new(context), leftovers, self.allocatable(), cluster, self.defect);
        node.shutdown = shutdown;
        self.node = Some(node);
        self.start_claims();
        self.checks.note(self.queue.now(), &TraceEvent::AgentStarted { undisturbed: self.quiet });
        for pod in std::mem::take(&mut self.added_again) {
            self.checks.note(self.queue.now(), &TraceEvent::PodForgotten { pod });
        }
        self.tell(NodeEvent::Start(self.disk.manifests.values().cloned().collect()));
        self.start_api();
        self.socket_is_served();
        if self.stream_up {
            self.tell(NodeEvent::Pleg(PlegEvent::StreamUp));
        }
        if self.defect == Some(Defect::StopsOnStart) && self.incarnation > 0 {
            let running =
                |c: &&crate::fake_runtime::FakeContainer| c.observed.state == ContainerState::Running;
            if let Some(c) = self.runtime.containers.values().find(running) {
                let (key, container) = (c.pod.clone(), c.observed.id.clone());
                let effect = Effect::StopContainer { container, grace_s: 2 };
                self.checks.issued(self.queue.now(), &key, &effect);
                self.send(Ask::Effect { key, id: EffectId(u64::MAX), effect }, None);
            }
        }
    }

    /// The faults that strike on their own.
    fn second(&mut self) {
        self.queue.after(Duration::from_secs(1), Event::Second);
        self.api_second();
        self.objects_change();
        self.drivers_second();
        self.claims_second();
        self.plugins_second();
        self.sweep_cgroups();
        if self.rng.chance(self.faults.container_killed) {
            let running: Vec<ContainerId> = self.ids_in(ContainerState::Running);
            if let Some(id) = self.rng.pick(&running).cloned() {
                self.disturb();
                self.exit(&id, 137);
            }
        }
        if self.rng.chance(self.faults.sandbox_dies) {
            let all: Vec<SandboxId> = self.runtime.sandboxes.keys().cloned().collect();
            if let Some(id) = self.rng.pick(&all).cloned() {
                self.disturb();
                let now = self.now();
                self.runtime.sandbox_dies(now, &id);
                if let Some(uid) = self.runtime.sandboxes.get(&id).map(|s| s.pod.uid.clone()) {
                    self.hint(&uid);
                }
            }
        }
        if self.rng.chance(self.faults.stream_drop) {
            self.stream_up = false;
            self.tell(NodeEvent::Pleg(PlegEvent::StreamDown));
        } else if !self.stream_up {
            self.stream_up = true;
            self.tell(NodeEvent::Pleg(PlegEvent::StreamUp));
        }
        if self.rng.chance(self.faults.reboot) {
            self.reboot();
        }
    }

    fn ids_in(&self, state: ContainerState) -> Vec<ContainerId> {
        let of = |c: &&crate::fake_runtime::FakeContainer| c.observed.state == state;
        self.runtime.containers.values().filter(of).map(|c| c.observed.id.clone()).collect()
    }

    /// A container's process ends.
    pub(crate) fn exit(&mut self, id: &ContainerId, code: i32) {
        let now = self.now();
        self.note_asked(id, code);
        self.runtime.exit(now, id, code, if code == 0 { "Completed" } else { "Error" });
        if let Some(uid) = self.runtime.containers.get(id).map(|c| c.pod.uid.clone()) {
            self.hint(&uid);
        }
        if self.defect == Some(Defect::IgnoresBackOff) {
            self.rogue_instance(id);
        }
        let debugger = self.runtime.containers.get(id).is_some_and(|c| is_ephemeral(&c.observed.name));
        if self.defect == Some(Defect::RemovesTheOneThatAsked) && self.asks_for_all(id) {
            self.runtime.containers.remove(id);
        }
        if debugger && self.defect == Some(Defect::RestartsDebuggers) {
            self.rogue_instance(id);
        }
    }

    /// The event stream says something about a pod, if it is up and the hint is not lost.
    pub(crate) fn hint(&mut self, uid: &PodUid) {
        let copies = if !self.stream_up || self.rng.chance(self.faults.hint_lost) {
            0
        } else if self.rng.chance(self.faults.hint_duplicated) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let wait = Duration::from_millis(self.rng.between(1, 50));
            let event = PlegEvent::Hint(RuntimeHint { uid: uid.clone() });
            self.queue.after(wait, Event::ToPleg { incarnation: self.incarnation, event });
        }
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
