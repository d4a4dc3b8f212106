//! The world around the agent: virtual time, the fake runtime, a disk, calls in flight, and the faults.
//!
//! In: a seed, a fault plan, what users do. Out: a trace, and the first broken invariant. A crash drops the
//! agent and keeps the world; a reboot also stops everything that ran and ends every call in flight.
//! Each effect has three crash points: before apply; applied, not acknowledged; acknowledged, not processed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::drivers::Class;
use agent_core::machine::EffectId;
use agent_core::pleg::PlegEvent;
use agent_core::pod_manager::Leftovers;
use agent_core::pod_worker::{TerminatingRecord, WorkerContext, longest_call};
use agent_core::runtime::effect::{Effect, EffectError, EffectOk, EffectResult};
use agent_core::runtime::observed::{ContainerState, RuntimeHint};
use agent_core::runtime::{ContainerId, PodKey, PodUid, SandboxId};
use agent_core::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use crate::checks::{Checks, Violation};
use crate::fake_runtime::{FakeRuntime, now_at};
use crate::faults::Faults;
use crate::node::{Defect, Node, NodeEvent, NodeRequest, key_of};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::{Trace, brief, brief_result, brief_snapshot};

/// What is asked of the runtime or the disk.
#[derive(Clone)]
pub(crate) enum Ask {
    Effect { key: PodKey, id: EffectId, effect: Effect },
    Persist { id: EffectId, record: TerminatingRecord },
    Inspect(PodUid),
    Relist,
}

impl Ask {
    /// True if somebody else carries it out, who may not notice that the agent died.
    fn is_remote(&self) -> bool {
        let local = |e: &Effect| matches!(e, Effect::CreatePodDirs { .. } | Effect::RemovePodDirs);
        matches!(self, Ask::Effect { effect, .. } if !local(effect))
    }

    pub(crate) fn mutates(&self) -> bool {
        match self {
            Ask::Effect { effect, .. } => !matches!(effect, Effect::Inspect | Effect::InspectImage { .. }),
            Ask::Persist { .. } => true,
            Ask::Inspect(_) | Ask::Relist => false,
        }
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ask::Effect { key, id, effect } => write!(f, "{} #{} {}", key.uid, id.0, brief(effect)),
            Ask::Persist { id, record } => write!(f, "{} #{} persist", record.pod.uid, id.0),
            Ask::Inspect(uid) => write!(f, "{uid} pleg inspect"),
            Ask::Relist => f.write_str("pleg relist"),
        }
    }
}

/// A call on its way to the runtime and back.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) incarnation: u32,
    pub(crate) ask: Ask,
    pub(crate) issued: Mono,
    pub(crate) deadline: Option<Mono>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (agent {})", self.ask, self.incarnation)
    }
}

/// What happens at a moment of virtual time.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Apply(Call),
    Answer(Call, Box<Answer>),
    Exit { container: ContainerId, code: i32 },
    AgentStart { incarnation: u32 },
    Tick { incarnation: u32 },
    ToPleg { incarnation: u32, event: PlegEvent },
    Second,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Worker(result) => f.write_str(&brief_result(result)),
            Answer::Pleg(PlegEvent::Inspected(s)) => f.write_str(&brief_snapshot(s)),
            Answer::Pleg(PlegEvent::Listed { result, .. }) => {
                write!(f, "{:?}", result.as_ref().map(Vec::len))
            }
            Answer::Pleg(event) => write!(f, "{event:?}"),
        }
    }
}

/// What an ask is answered with.
#[derive(Clone)]
pub(crate) enum Answer {
    Worker(EffectResult),
    Pleg(PlegEvent),
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
    pub(crate) node: Option<Node>,
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
            node: None,
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
    }

    /// Somebody other than the agent changed something.
    fn disturb(&mut self) {
        self.quiet = false;
        self.checks.note(self.queue.now(), &TraceEvent::Disturbed);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Apply(call) => self.apply(call),
            Event::Answer(call, answer) => self.answer(call, *answer),
            Event::Exit { container, code } => self.exit(&container, code),
            Event::AgentStart { incarnation } if incarnation == self.incarnation => self.start_agent(),
            Event::Tick { incarnation } if incarnation == self.incarnation => self.tell(NodeEvent::Tick),
            Event::ToPleg { incarnation, event } if incarnation == self.incarnation => {
                self.tell(NodeEvent::Pleg(event));
            }
            Event::Second => self.second(),
            Event::AgentStart { .. } | Event::Tick { .. } | Event::ToPleg { .. } => {}
        }
    }

    /// A user writes a manifest.
    pub fn user_adds(&mut self, pod: &Arc<Pod>) {
        self.disturb();
        let uid = key_of(pod).uid;
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
        if let Some(at) = self.node.as_ref().and_then(Node::deadline) {
            self.queue.at(at, Event::Tick { incarnation });
        }
    }

    fn carry_out(&mut self, request: NodeRequest) {
        let now = self.queue.now();
        match request {
            NodeRequest::Effect { key, id, effect, deadline } => {
                self.checks.issued(now, &key, &effect);
                self.send(Ask::Effect { key, id, effect }, deadline);
            }
            NodeRequest::Persist { id, record } => self.send(Ask::Persist { id, record }, None),
            NodeRequest::Inspect(uid) => self.send(Ask::Inspect(uid), None),
            NodeRequest::Relist => self.send(Ask::Relist, None),
            NodeRequest::Status(key, status) => {
                self.checks.world(now, &self.runtime);
                self.checks.status(now, &key, status.phase.as_deref());
            }
            NodeRequest::Event(..) => {}
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
            let answer = refused(&call, error);
            self.queue
                .at(deadline.map_or(arrives, |d| d.min(arrives)), Event::Answer(call, Box::new(answer)));
        } else if deadline.is_some_and(|d| arrives >= d) {
            self.time_out(call);
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

    fn answer(&mut self, call: Call, answer: Answer) {
        if call.incarnation != self.incarnation {
            return;
        }
        if call.ask.mutates() && self.rng.chance(self.faults.crash_before_process) {
            self.crash();
            return;
        }
        match (call.ask, answer) {
            (Ask::Effect { key, id, .. }, Answer::Worker(result)) => {
                self.tell(NodeEvent::Reply { uid: key.uid, id, result });
            }
            (Ask::Persist { id, record }, Answer::Worker(result)) => {
                self.tell(NodeEvent::Reply { uid: record.pod.uid, id, result });
            }
            (_, Answer::Pleg(event)) => self.tell(NodeEvent::Pleg(event)),
            (Ask::Inspect(_) | Ask::Relist, Answer::Worker(_)) => {}
        }
    }

    /// `kill -9` of the agent in a world at rest: the next incarnation may start, stop and remove nothing.
    pub fn crash_at_rest(&mut self) {
        self.quiet = true;
        self.crash();
    }

    /// `kill -9` of the agent. Calls in flight may still reach the runtime until their deadlines.
    pub fn crash(&mut self) {
        self.node = None;
        self.incarnation += 1;
        let longest = longest_call(self.context.request_timeout, Duration::from_secs(60));
        self.fence_until = self.queue.now().after(longest);
        let (dead, zombies) = (self.incarnation, self.faults.zombie_applies);
        let mut kept = Vec::new();
        self.queue.retain(|event| match event {
            Event::Apply(call) if call.incarnation < dead => {
                // What the process itself does on disk ends with it; only the runtime goes on.
                if call.ask.is_remote() {
                    kept.push(call.clone());
                }
                false
            }
            _ => true,
        });
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
        self.crash();
        self.disturb();
        self.fence_until = Mono(0);
        self.runtime.reboot(self.now());
        self.queue.retain(|e| !matches!(e, Event::Apply(_) | Event::Exit { .. } | Event::Answer(..)));
    }

    fn start_agent(&mut self) {
        let leftovers = Leftovers {
            records: self.disk.records.values().cloned().collect(),
            directories: self.disk.dirs.clone(),
            fence_until: self.fence_until,
        };
        self.node = Some(Node::new(self.context.clone(), leftovers, self.defect));
        self.checks.note(self.queue.now(), &TraceEvent::AgentStarted { undisturbed: self.quiet });
        for pod in std::mem::take(&mut self.added_again) {
            self.checks.note(self.queue.now(), &TraceEvent::PodForgotten { pod });
        }
        self.tell(NodeEvent::Start(self.disk.manifests.values().cloned().collect()));
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
        self.runtime.exit(now, id, code, if code == 0 { "Completed" } else { "Error" });
        if let Some(uid) = self.runtime.containers.get(id).map(|c| c.pod.uid.clone()) {
            self.hint(&uid);
        }
        if self.defect == Some(Defect::IgnoresBackOff) {
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

fn refused(call: &Call, error: EffectError) -> Answer {
    match &call.ask {
        Ask::Effect { .. } | Ask::Persist { .. } => Answer::Worker(Err(error)),
        Ask::Inspect(uid) => Answer::Pleg(PlegEvent::InspectFailed { uid: uid.clone() }),
        Ask::Relist => Answer::Pleg(PlegEvent::Listed { as_of: call.issued, result: Err(error.message) }),
    }
}

/// What a look answers.
pub(crate) fn answered_effect(ok: EffectOk) -> Answer {
    Answer::Worker(Ok(ok))
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
