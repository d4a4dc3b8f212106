//! A world small enough to be cloned at every choice: one worker, one runtime, a queue of calls.
//!
//! In: effects of the worker. Out: answers, applied in virtual time. Zombies of dead incarnations stay and
//! may be applied until their deadline. agent-sim has the real simulated world; this one is for tables and
//! for exhaustive search.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_types::event::EventFact;
use agent_types::ids::PodKey;
use agent_types::kill::{KillReason, TerminatingRecord};
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::restart;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::{ContainerStateWaiting, Pod, PodStatus};

use super::runtime::Runtime;
use super::specs::TinySpecs;
use crate::lifecycle_hooks::HookCall;
use crate::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult};
use crate::pod_worker::{PodAction, PodEvent, PodWorker, WorkerContext};
use crate::probe::{ProbeCall, ProbeId};

pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn context() -> Arc<WorkerContext> {
    Arc::new(WorkerContext {
        specs: Arc::new(TinySpecs),
        request_timeout: REQUEST_TIMEOUT,
        cpus_again: Duration::from_secs(10),
        crash_loop: restart::SERIES,
        runtime_name: "tiny".to_owned(),
        host_ips: vec!["192.0.2.1".to_owned()],
        ipv6_first: false,
        agent_started: Now::default(),
    })
}

/// A pod from JSON of its spec.
pub(super) fn make_pod(spec: serde_json::Value) -> Arc<Pod> {
    let whole = serde_json::json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": spec,
    });
    Arc::new(serde_json::from_value(whole).expect("a pod"))
}

/// A call on its way.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) effect: Effect,
    pub(super) deadline: Option<Mono>,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: Mono,
    pub(super) runtime: Runtime,
    pub(super) worker: PodWorker,
    pub(super) pending: BTreeMap<EffectId, Call>,
    pub(super) zombies: Vec<Call>,
    pub(super) record: Option<TerminatingRecord>,
    pub(super) dirs: bool,
    pub(super) events: Vec<EventFact>,
    pub(super) statuses: Vec<PodStatus>,
    /// Mutating verbs in the order applied, with their object.
    pub(super) applied: Vec<String>,
    pub(super) cancelled: Vec<EffectId>,
    /// Probes asked and not answered.
    pub(super) probes: Vec<(ProbeId, ProbeCall)>,
    /// Hooks that run.
    pub(super) hooks: Vec<(EffectId, HookCall, Option<Mono>)>,
    pub(super) finished: Option<bool>,
}

pub(super) const SECOND: u64 = 1_000_000_000;

impl World {
    pub(super) fn new() -> World {
        let key = PodKey { namespace: "default".into(), name: "p".into(), uid: "u1".into() };
        World {
            now: Mono(SECOND),
            runtime: Runtime::default(),
            worker: PodWorker::new(key, context(), Mono(0)),
            pending: BTreeMap::new(),
            zombies: Vec::new(),
            record: None,
            dirs: false,
            events: Vec::new(),
            statuses: Vec::new(),
            applied: Vec::new(),
            cancelled: Vec::new(),
            probes: Vec::new(),
            hooks: Vec::new(),
            finished: None,
        }
    }

    /// A world whose worker has the pod and has finished all its steps.
    pub(super) fn with(p: &Arc<Pod>) -> World {
        let mut w = World::new();
        w.desire(p);
        w.settle();
        w
    }

    pub(super) fn now(&self) -> Now {
        Now { mono: self.now, wall: self.wall() }
    }

    pub(super) fn wall(&self) -> Wall {
        Wall(i64::try_from(self.now.0).expect("small times") + 1_700_000_000_000_000_000)
    }

    pub(super) fn desire(&mut self, p: &Arc<Pod>) {
        self.step(PodEvent::Desired(p.clone()));
    }

    pub(super) fn kill(&mut self, reason: KillReason, grace_s: Option<u32>) {
        self.step(PodEvent::Kill { reason, grace_s });
    }

    pub(super) fn step(&mut self, event: PodEvent) {
        self.now.0 += 1_000_000;
        let mut out = Outbox::new();
        let now = self.now();
        self.worker.step(now, event, &mut out);
        let mut persisted = Vec::new();
        for action in out.drain() {
            match action {
                PodAction::Effect { id, effect: Effect::RunHook { call, .. }, deadline } => {
                    self.hooks.push((id, *call, deadline));
                }
                PodAction::Effect { id, effect, deadline } => {
                    self.pending.insert(id, Call { effect, deadline });
                }
                PodAction::Persist { id, record } => {
                    let refused = self.runtime.refuse.get("persist").cloned();
                    if refused.is_none() {
                        self.record = Some(record);
                    }
                    self.pending.insert(id, Call { effect: Effect::Inspect, deadline: None });
                    persisted.push((id, refused));
                }
                PodAction::Cancel(id) => self.cancelled.push(id),
                PodAction::Probe { id, call } => self.probes.push((id, *call)),
                PodAction::CancelProbe(id) => self.probes.retain(|(asked, _)| *asked != id),
                PodAction::Actuated(_) => {}
                PodAction::PublishStatus(s) => self.statuses.push((*s).clone()),
                PodAction::Event(e) => self.events.push(e),
                PodAction::Finished { desired_again } => self.finished = Some(desired_again),
            }
        }
        // The disk answers after the whole step, as in the real agent.
        for (id, refused) in persisted {
            self.answer_persist(id, refused);
        }
    }

    fn answer_persist(&mut self, id: EffectId, refused: Option<EffectError>) {
        self.pending.remove(&id);
        let completed_at = self.now;
        let result = refused.map_or(Ok(EffectOk::Done), Err);
        self.step(PodEvent::EffectDone { id, completed_at, result });
    }

    /// Applies a call to the world.
    pub(super) fn apply(&mut self, effect: &Effect) -> EffectResult {
        self.now.0 += 1_000_000;
        let wall = self.wall();
        if *effect == Effect::Inspect {
            if let Some(e) = self.runtime.refuse.get(effect.verb()) {
                return Err(e.clone());
            }
            let snapshot = self.snapshot();
            self.now.0 += 1_000_000;
            return Ok(EffectOk::Snapshot(Box::new(snapshot)));
        }
        let result = self.runtime.apply(wall, effect);
        match effect {
            _ if result.is_err() => {}
            Effect::CreatePodDirs { .. } => self.dirs = true,
            Effect::RemovePodDirs { .. } => (self.dirs, self.record) = (false, None),
            _ => {}
        }
        if result.is_ok() {
            self.applied.push(describe(effect));
        }
        result
    }

    pub(super) fn snapshot(&self) -> PodSnapshot {
        let mut sandboxes: Vec<_> = self.runtime.sandboxes.values().cloned().collect();
        sandboxes.sort_by_key(|s| std::cmp::Reverse(s.attempt));
        PodSnapshot {
            pod: self.worker.key().clone(),
            as_of: self.now,
            sandboxes,
            containers: self.runtime.containers.values().cloned().collect(),
            actuated: None,
        }
    }

    /// Performs one pending call and processes its answer.
    pub(super) fn perform(&mut self, id: EffectId) {
        let Some(call) = self.pending.remove(&id) else { return };
        let result = self.apply(&call.effect);
        self.answer(id, result);
    }

    pub(super) fn answer(&mut self, id: EffectId, result: EffectResult) {
        self.pending.remove(&id);
        self.now.0 += 1_000_000;
        let completed_at = self.now;
        self.step(PodEvent::EffectDone { id, completed_at, result });
    }

    /// Ends the oldest hook; answers which it was.
    pub(super) fn end_hook(&mut self, result: EffectResult) -> String {
        let (id, call, _) = self.hooks.remove(0);
        self.answer(id, result);
        self.settle();
        format!("{:?} {}", call.hook, call.name)
    }

    /// Performs calls until none is pending; passes due timers.
    pub(super) fn settle(&mut self) {
        for _ in 0..2_000 {
            if let Some(id) = self.pending.keys().next().copied() {
                self.perform(id);
            } else if self.worker.deadline().is_some_and(|d| d <= self.now) {
                self.step(PodEvent::Tick);
            } else {
                return;
            }
        }
        panic!("the worker does not come to rest: {:?}", self.applied);
    }

    /// Lets time pass, timer by timer.
    pub(super) fn wait(&mut self, d: Duration) {
        let end = self.now.after(d);
        self.settle();
        while let Some(due) = self.worker.deadline().filter(|t| *t <= end) {
            self.now = self.now.max(due);
            self.step(PodEvent::Tick);
            self.settle();
        }
        self.now = self.now.max(end);
    }

    /// PLEG noticed something.
    pub(super) fn observe(&mut self) {
        self.look();
        self.settle();
    }

    pub(super) fn look(&mut self) {
        self.now.0 += 1_000_000;
        let snapshot = Arc::new(self.snapshot());
        self.step(PodEvent::Observed(snapshot));
    }

    /// A container ends and the worker gets the snapshot; the resulting effects stay pending.
    pub(super) fn end(&mut self, name: &str, code: i32) {
        let wall = self.wall();
        for id in self.runtime.running(name) {
            self.runtime.exit(wall, &id, code);
        }
        self.look();
    }

    pub(super) fn exit(&mut self, name: &str, code: i32) {
        self.end(name, code);
        self.settle();
    }

    /// A new agent, which knows when it began.
    pub(super) fn restart_agent(&mut self) {
        self.crash(Mono(0));
        let context = WorkerContext { agent_started: self.now(), ..(*context()).clone() };
        self.step(PodEvent::Context(Arc::new(context)));
    }

    /// Kills the agent; its calls become zombies. The next incarnation starts with `fence_until`.
    pub(super) fn crash(&mut self, fence_until: Mono) {
        let calls = std::mem::take(&mut self.pending).into_values();
        self.zombies.extend(calls.filter(|c| c.effect != Effect::Inspect));
        let key = self.worker.key().clone();
        self.worker = match self.record.clone() {
            Some(record) => PodWorker::resume(&record, context(), fence_until, self.now()),
            None => PodWorker::new(key, context(), fence_until),
        };
    }

    pub(super) fn phase(&self) -> &str {
        self.statuses.last().and_then(|s| s.phase.as_deref()).unwrap_or("")
    }

    pub(super) fn waiting(&self, name: &str) -> Option<ContainerStateWaiting> {
        let all = self.statuses.last().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
        all.into_iter().find(|c| c.name == name).and_then(|c| c.state).and_then(|s| s.waiting)
    }

    pub(super) fn waiting_reason(&self, name: &str) -> String {
        self.waiting(name).and_then(|w| w.reason).unwrap_or_default()
    }

    pub(super) fn events_of(&self, reason: &str) -> Vec<String> {
        self.events.iter().filter(|e| e.reason == reason).map(|e| e.message.clone()).collect()
    }

    pub(super) fn count(&self, verb: &str) -> usize {
        self.applied.iter().filter(|a| a.split(' ').next() == Some(verb)).count()
    }
}

fn describe(effect: &Effect) -> String {
    let object = match effect {
        Effect::RunSandbox { config } => format!("/{}", config.attempt),
        Effect::StopSandbox { sandbox } | Effect::RemoveSandbox { sandbox } => sandbox.to_string(),
        Effect::CreateContainer { config, .. } => format!("{}/{}", config.name, config.attempt),
        Effect::StartContainer { container } | Effect::RemoveContainer { container, .. } => {
            container.to_string()
        }
        Effect::StopContainer { container, grace_s } => format!("{container} {grace_s}"),
        Effect::RemovePodDirs { keep_logs: true } => "but the logs".to_owned(),
        _ => String::new(),
    };
    format!("{} {object}", effect.verb()).trim_end().to_owned()
}
