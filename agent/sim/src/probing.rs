//! Probes and hooks in the simulated world: pods that have them, containers that answer well, badly, late or not at
//! all, hooks that fail and hang.
//!
//! In: pods before they are created, probes and hooks of the agent. Out: pods with probes and hooks, answers, and the
//! input of the checkers PROBE-OWN and HOOK-GRACE. The module has its own random numbers, so that runs without probes
//! do not change; only runs that request it use it.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::lifecycle_hooks::{Hook, HookCall};
use agent_core::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult};
use agent_core::probe::{Kind, Outcome, ProbeCall, ProbeId};
use agent_types::event::EventFact;
use agent_types::failure::Class;
use agent_types::ids::{ContainerId, PodKey, PodUid};
use agent_types::machine::EffectId;
use agent_types::runtime::observed::ContainerState;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};

use crate::calls::{Ask, CallAnswer};
use crate::checks::Violation;
use crate::defects::Defect;
use crate::node::NodeEvent;
use crate::rng::Rng;
use crate::world::{Event, World};

/// A probe without an answer.
#[derive(Clone, Debug)]
pub(crate) struct PendingProbe {
    pub(crate) incarnation: u32,
    pub(crate) uid: PodUid,
    pub(crate) id: ProbeId,
    pub(crate) call: Box<ProbeCall>,
}

/// Chances of the answers of a container, per mille.
#[derive(Clone, Copy, Debug, Default)]
struct Temper {
    bad: u64,
    broken: u64,
    silent: u64,
}

/// State of a run with probes and hooks.
#[derive(Clone, Debug)]
pub(crate) struct Probing {
    rng: Rng,
    /// Behaviour by container name.
    tempers: BTreeMap<String, Temper>,
    /// Probes of containers.
    probed: BTreeMap<(String, Kind), u32>,
    /// The last outcome in each pod, for a broken agent that confuses probes.
    last: BTreeMap<PodUid, Outcome>,
}

impl Probing {
    /// All random numbers of this module come from `seed`.
    #[must_use]
    pub(crate) fn new(seed: u64) -> Probing {
        Probing {
            rng: Rng::new(seed),
            tempers: BTreeMap::new(),
            probed: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }

    fn decorate(&mut self, pod: &mut Value) {
        let Some(containers) = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut) else {
            return;
        };
        for container in containers {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            let rng = &mut self.rng;
            let temper = Temper { bad: rng.below(500), broken: rng.below(60), silent: rng.below(60) };
            for (kind, key) in [
                (Kind::Startup, "startupProbe"),
                (Kind::Liveness, "livenessProbe"),
                (Kind::Readiness, "readinessProbe"),
            ] {
                if rng.chance(400) {
                    container[key] = json!({
                        "exec": { "command": ["ask"] }, "periodSeconds": rng.between(1, 15),
                        "timeoutSeconds": rng.between(1, 5), "initialDelaySeconds": rng.below(8),
                        "failureThreshold": rng.between(1, 4), "successThreshold": 1,
                    });
                    if kind != Kind::Readiness && rng.chance(300) {
                        container[key]["terminationGracePeriodSeconds"] = json!(rng.between(1, 20));
                    }
                    self.probed.insert((name.clone(), kind), 1);
                }
            }
            for key in ["postStart", "preStop"] {
                if rng.chance(250) {
                    container["lifecycle"][key] = json!({ "exec": { "command": ["hook"] } });
                }
            }
            self.tempers.insert(name, temper);
        }
    }

    fn outcome(&mut self, name: &str) -> Outcome {
        let temper = self.tempers.get(name).copied().unwrap_or_default();
        let roll = self.rng.below(1000);
        match roll {
            r if r < temper.bad => Outcome::Failure("no".to_owned()),
            r if r < temper.bad + temper.broken => Outcome::Error("broken".to_owned()),
            _ => Outcome::Success,
        }
    }
}

impl World {
    /// From now on pods have probes and hooks.
    pub fn probe(&mut self, seed: u64) {
        self.probing = Some(Box::new(Probing::new(seed)));
    }

    /// Gives a pod probes and hooks, if this run has them.
    pub(crate) fn decorate(&mut self, pod: &mut Value) {
        if let Some(probing) = &mut self.probing {
            probing.decorate(pod);
        }
    }

    /// From now on every container answers well and at once.
    pub(crate) fn calm(&mut self) {
        if let Some(probing) = &mut self.probing {
            probing.tempers.clear();
        }
        self.calm_objects();
    }

    /// The agent runs a probe; the answer arrives, or the time limit passes.
    pub(crate) fn ask(&mut self, uid: PodUid, id: ProbeId, call: Box<ProbeCall>) {
        let incarnation = self.incarnation;
        let Some(probing) = &mut self.probing else { return };
        let temper = probing.tempers.get(&call.name).copied().unwrap_or_default();
        let silent = probing.rng.chance(temper.silent);
        let wait = if silent { call.timeout } else { Duration::from_millis(probing.rng.between(1, 200)) };
        let at = self.queue.now().after(wait);
        self.queue.at(at, Event::Probe(PendingProbe { incarnation, uid, id, call }));
    }

    /// A container answers a probe.
    pub(crate) fn probe_answers(&mut self, asked: PendingProbe) {
        if asked.incarnation != self.incarnation {
            return;
        }
        let defect = self.defect;
        let id = &asked.call.container;
        let runs =
            self.runtime.containers.get(id).is_some_and(|c| c.observed.state == ContainerState::Running);
        let Some(probing) = &mut self.probing else { return };
        let own = if runs { probing.outcome(&asked.call.name) } else { Outcome::Failure("gone".to_owned()) };
        let others = probing.last.insert(asked.uid.clone(), own.clone());
        if !matches!(own, Outcome::Error(_)) {
            let good = own == Outcome::Success;
            let event = TraceEvent::ProbeAnswered { id: id.clone(), kind: asked.call.kind, good };
            self.checks.note(self.queue.now(), &event);
        }
        let outcome = match (defect, others) {
            (Some(Defect::MixesProbes), Some(others)) => others,
            _ => own,
        };
        self.tell(NodeEvent::ProbeDone { uid: asked.uid, id: asked.id, outcome });
    }

    /// The result of a hook, and its time.
    pub(crate) fn run_hook(&mut self, call: &HookCall) -> (EffectResult, Duration) {
        let fine = Ok(EffectOk::Hook { fell_back: None });
        let runs = self
            .runtime
            .containers
            .get(&call.container)
            .is_some_and(|c| c.observed.state == ContainerState::Running);
        let failed = || Err(EffectError { class: Class::Invalid, message: "the hook failed".to_owned() });
        if !runs {
            return (failed(), Duration::ZERO);
        }
        let Some(probing) = &mut self.probing else { return (fine, Duration::ZERO) };
        if !probing.tempers.contains_key(&call.name) {
            return (fine, Duration::from_millis(10));
        }
        let takes = Duration::from_millis(probing.rng.below(5_000));
        match probing.rng.below(10) {
            0 | 1 => (failed(), takes),
            2 => (fine, Duration::from_secs(600)),
            _ => (fine, takes),
        }
    }

    /// The agent does not wait for this effect any more. This cancels hooks only: a runtime does not cancel a stop.
    pub(crate) fn cancel(&mut self, uid: &PodUid, id: EffectId) {
        let incarnation = self.incarnation;
        let mut cancelled = Vec::new();
        self.queue.retain(|event| {
            let (Event::Apply(call) | Event::Answer(call, _)) = event else { return true };
            let Ask::Effect { key, id: of, effect: Effect::RunHook { .. } } = &call.ask else { return true };
            let this = call.incarnation == incarnation && key.uid == *uid && *of == id;
            if this {
                cancelled.push(call.clone());
            }
            !this
        });
        for call in cancelled {
            let error = EffectError { class: Class::DeadlineExceeded, message: "cancelled".to_owned() };
            self.queue.after(
                Duration::from_millis(1),
                Event::Answer(call, Box::new(CallAnswer::Worker(Err(error)))),
            );
        }
    }

    /// Passes an effect to HOOK-GRACE.
    pub(crate) fn note_effect(&mut self, key: &PodKey, effect: &Effect) {
        let event = match effect {
            Effect::RunHook { call, within_s: Some(within_s) } if call.hook == Hook::PreStop => {
                TraceEvent::HookStarted {
                    pod: key.uid.clone(),
                    id: call.container.clone(),
                    within_s: *within_s,
                }
            }
            Effect::StopContainer { container, grace_s } => {
                TraceEvent::StopIssued { id: container.clone(), grace_s: *grace_s }
            }
            _ => return,
        };
        self.checks.note(self.queue.now(), &event);
    }

    /// Passes an answer to HOOK-GRACE.
    pub(crate) fn note_answer(&mut self, effect: &Effect) {
        if let Effect::RunHook { call, .. } = effect
            && call.hook == Hook::PreStop
        {
            self.checks.note(self.queue.now(), &TraceEvent::HookEnded { id: call.container.clone() });
        }
    }

    /// Passes a status to PROBE-OWN.
    pub(crate) fn note_status(&mut self, status: &PodStatus) {
        let Some(probing) = &self.probing else { return };
        let mut shown = Vec::new();
        for s in status.container_statuses.iter().flatten() {
            let Some(id) = s.container_id.as_deref().and_then(|id| id.strip_prefix("fake://")) else {
                continue;
            };
            for (kind, fine) in [(Kind::Readiness, s.ready), (Kind::Startup, s.started == Some(true))] {
                if fine && probing.probed.contains_key(&(s.name.clone(), kind)) {
                    shown.push(TraceEvent::ShownFine { id: ContainerId::from(id), kind });
                }
            }
        }
        for event in shown {
            self.checks.note(self.queue.now(), &event);
        }
    }

    /// Passes a Kubernetes event to PROBE-OWN.
    pub(crate) fn note_event(&mut self, key: &PodKey, fact: &EventFact) {
        let kind = Kind::ALL.into_iter().find(|kind| {
            fact.reason == "Killing"
                && fact.message.contains(&format!("failed {} probe", kind.as_lower_str()))
        });
        let (Some(kind), Some(name)) = (kind, fact.container.as_ref()) else { return };
        let instances =
            self.runtime.containers.values().filter(|c| c.pod.uid == key.uid && c.observed.name == *name);
        if let Some(newest) = instances.max_by_key(|c| c.observed.attempt) {
            let id = newest.observed.id.clone();
            self.checks.note(self.queue.now(), &TraceEvent::KilledFor { id, kind });
        }
    }

    /// Long after all faults have healed, running containers must be ready.
    ///
    /// # Errors
    /// LIVENESS.
    pub(crate) fn ready_at_rest(&mut self) -> Result<(), Violation> {
        let workers = self.node.as_ref().map(|n| n.workers()).into_iter().flatten();
        let mut unready = Vec::new();
        for (uid, worker) in workers.filter(|(_, w)| w.state_name() == "syncing") {
            let containers =
                worker.status().and_then(|s| s.container_statuses.as_ref()).into_iter().flatten();
            let running = |s: &&k8s_openapi::api::core::v1::ContainerStatus| {
                s.state.as_ref().is_some_and(|state| state.running.is_some())
            };
            unready
                .extend(containers.filter(running).filter(|s| !s.ready).map(|s| format!("{uid} {}", s.name)));
        }
        if self.probing.is_some() && !unready.is_empty() {
            let detail = format!("unready long after everything healed: {}", unready.join(", "));
            self.checks.report("LIVENESS", detail);
        }
        self.checks.verdict()
    }
}
