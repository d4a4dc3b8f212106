//! The invariants of `agent_core::checkers`, fed from the simulated world.
//!
//! In: the runtime after every event (compared with its last state), the agent's calls and statuses. Out: the first
//! violation. Invariant: the checkers see the world, never the machines' state.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use agent_core::checkers::{self, InitContainer, Invariant, TraceEvent};
use agent_core::pod_worker::effect::Effect;
use agent_types::ids::{ContainerId, PodKey, PodUid, SandboxId};
use agent_types::pod;
use agent_types::runtime::observed::{ContainerState, SandboxState};
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::fake_runtime::FakeRuntime;
use crate::trace::brief;

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {detail}")]
pub struct Violation {
    /// Name of the invariant, for example `ONE-LIVE`.
    pub invariant: &'static str,
    /// The object and the observation.
    pub detail: String,
}

/// Most calls, timers and hints that may wait at one time: a few for each pod.
const AGENDA_MAX: usize = 2_000;
/// Most events in one second of simulated time. An agent that is called again at once, without end, exceeds the number (resizing,
/// seed 62709).
const EVENTS_A_SECOND_MAX: usize = 200_000;
/// Most effects that one pod worker may have in flight: one for each container and its hook (which may outlast the grace
/// period), the sandboxes, the record, an inspection, the cgroup, the claims, and four volumes.
const IN_FLIGHT_MAX: usize = 19;

/// The checkers and the last state that they saw.
pub struct Checks {
    invariants: Vec<Box<dyn Invariant>>,
    violation: Option<Violation>,
    /// Revisions of the runtime's sandboxes and containers when it was compared last.
    seen: Option<(u64, u64)>,
    sandboxes: BTreeMap<SandboxId, SandboxState>,
    containers: BTreeMap<ContainerId, ContainerState>,
    finished: BTreeSet<PodUid>,
    /// The present second of simulated time, and the number of its events.
    second: (u64, usize),
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks").field("violation", &self.violation).finish_non_exhaustive()
    }
}

impl Default for Checks {
    fn default() -> Self {
        Checks {
            invariants: checkers::all(),
            violation: None,
            seen: None,
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            finished: BTreeSet::new(),
            second: (0, 0),
        }
    }
}

impl Checks {
    /// The first broken invariant, if any.
    ///
    /// # Errors
    /// That invariant.
    pub fn verdict(&self) -> Result<(), Violation> {
        self.violation.clone().map_or(Ok(()), Err)
    }

    /// Passes one event to every checker.
    pub fn note(&mut self, at: Mono, event: &TraceEvent) {
        if let Err(v) = checkers::observe_all(&mut self.invariants, at, event) {
            self.report(v.invariant, v.message);
        }
    }

    /// Reports a broken invariant that only the scenario can see (liveness, leaks).
    pub fn report(&mut self, invariant: &'static str, detail: String) {
        self.violation.get_or_insert(Violation { invariant, detail });
    }

    /// Compares the runtime with its last state, if it may have changed since.
    pub fn world(&mut self, at: Mono, runtime: &FakeRuntime) {
        let revisions = (runtime.sandboxes.revision(), runtime.containers.revision());
        if self.seen.replace(revisions) == Some(revisions) {
            return;
        }
        for event in self.changes(runtime) {
            self.note(at, &event);
        }
        self.sandboxes = runtime.sandboxes.iter().map(|(id, s)| (id.clone(), s.observed.state)).collect();
        self.containers = runtime.containers.iter().map(|(id, c)| (id.clone(), c.observed.state)).collect();
    }

    fn changes(&self, runtime: &FakeRuntime) -> Vec<TraceEvent> {
        let mut events = Vec::new();
        for (id, c) in runtime.containers.iter() {
            let before = self.containers.get(id);
            if before.is_none() {
                let (pod, name) = (c.pod.uid.clone(), c.observed.name.clone());
                let attempt = c.observed.attempt;
                events.push(TraceEvent::ContainerCreated { pod, name, attempt, id: id.clone() });
            }
            if before == Some(&c.observed.state) {
                continue;
            }
            match c.observed.state {
                ContainerState::Running => events.push(TraceEvent::ContainerStarted { id: id.clone() }),
                ContainerState::Exited => {
                    events.push(TraceEvent::ContainerExited { id: id.clone() });
                    if c.observed.exit_code != 0 {
                        events.push(TraceEvent::ContainerFailed { id: id.clone() });
                    }
                }
                ContainerState::Created | ContainerState::Unknown => {}
            }
        }
        for (id, s) in runtime.sandboxes.iter() {
            let (id, pod, attempt) = (id.clone(), s.pod.uid.clone(), s.observed.attempt);
            match (self.sandboxes.get(&id), s.observed.state) {
                (Some(before), after) if *before == after => {}
                (_, SandboxState::Ready) => events.push(TraceEvent::SandboxReady { pod, id, attempt }),
                (_, SandboxState::NotReady) => events.push(TraceEvent::SandboxStopped { id }),
            }
        }
        let gone = self.containers.keys().filter(|id| !runtime.containers.contains_key(*id));
        events.extend(gone.map(|id| TraceEvent::ContainerRemoved { id: id.clone() }));
        let gone = self.sandboxes.keys().filter(|id| !runtime.sandboxes.contains_key(*id));
        events.extend(gone.map(|id| TraceEvent::SandboxRemoved { id: id.clone() }));
        events
    }

    /// The agent requested an effect.
    pub fn issued(&mut self, at: Mono, key: &PodKey, effect: &Effect) {
        let (pod, verb, object) = (key.uid.clone(), effect.verb(), brief(effect));
        self.note(at, &TraceEvent::EffectIssued { pod, verb, object });
        if let Effect::RemoveContainer { container, .. } = effect {
            self.note(at, &TraceEvent::RemovalAsked { pod: key.uid.clone(), id: container.clone() });
        }
        if let Effect::StopContainer { container, grace_s } = effect {
            let (pod, id) = (key.uid.clone(), container.clone());
            self.note(at, &TraceEvent::StopAsked { pod, id, grace_s: *grace_s });
        }
    }

    /// A pod was created whose containers start in an order.
    pub fn planned(&mut self, at: Mono, pod: &Pod) {
        let one = |c: &Container| InitContainer { name: c.name.clone(), sidecar: pod::is_sidecar(c) };
        let init = pod::init_containers(pod).iter().map(one).collect();
        let uid = PodUid::from(pod::uid(pod));
        self.note(at, &TraceEvent::PodPlanned { pod: uid.clone(), init });
        let volumes = pod::spec(pod).volumes.iter().flatten().map(|v| v.name.clone()).collect();
        self.note(at, &TraceEvent::VolumesPlanned { pod: uid, volumes });
    }

    /// The state of a worker after a step, and the number of its effects in flight.
    pub fn worker(&mut self, at: Mono, uid: &PodUid, state: &'static str, in_flight: usize) {
        let pod = uid.clone();
        if self.finished.remove(uid) {
            self.note(at, &TraceEvent::PodForgotten { pod: pod.clone() });
        }
        self.note(at, &TraceEvent::WorkerState { pod, state });
        if state == "finished" {
            self.finished.insert(uid.clone());
        }
        self.gauge(at, "effects in flight of one pod", in_flight, IN_FLIGHT_MAX);
    }

    /// A status was published.
    pub fn status(&mut self, at: Mono, key: &PodKey, phase: Option<&str>) {
        let phase = phase.unwrap_or_default().to_owned();
        self.note(at, &TraceEvent::StatusPublished { pod: key.uid.clone(), phase });
    }

    /// One event happened in the world.
    pub fn happened(&mut self, at: Mono) {
        let second = at.0 / 1_000_000_000;
        let before = if self.second.0 == second { self.second.1 } else { 0 };
        self.second = (second, before + 1);
        self.gauge(at, "events in one second", self.second.1, EVENTS_A_SECOND_MAX);
    }

    /// Number of events that wait in the world for the agent.
    pub fn agenda(&mut self, at: Mono, waiting: usize) {
        self.gauge(at, "calls, timers and hints waiting", waiting, AGENDA_MAX);
    }

    /// A size within its limit is of no interest to any checker, and there are sizes after every event.
    fn gauge(&mut self, at: Mono, name: &'static str, value: usize, limit: usize) {
        if value > limit {
            self.note(at, &TraceEvent::Gauge { name, value, limit });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_is_called_without_end_is_reported() {
        let mut checks = Checks::default();
        for second in 1..3 {
            (0..EVENTS_A_SECOND_MAX).for_each(|_| checks.happened(Mono(second * 1_000_000_000)));
        }
        assert_eq!(checks.verdict(), Ok(()));
        checks.happened(Mono(2_999_999_999));
        assert_eq!(checks.verdict().map_err(|v| v.invariant), Err("BOUNDED"));
    }
}
