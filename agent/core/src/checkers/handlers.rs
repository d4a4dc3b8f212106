//! Invariants over probes and hooks: PROBE-OWN, HOOK-GRACE.
//!
//! In: answers of probes, and the statuses and events that follow from them; hooks and stops. Out:
//! violations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::ids::{ContainerId, PodUid};
use agent_types::time::Mono;

use super::{Invariant, TraceEvent};
use crate::probe::Kind;

/// PROBE-OWN: a verdict about an instance comes from a probe of that very instance.
#[derive(Clone, Debug, Default)]
pub struct ProbeOwn {
    good: BTreeSet<(ContainerId, Kind)>,
    bad: BTreeSet<(ContainerId, Kind)>,
}

impl Invariant for ProbeOwn {
    fn name(&self) -> &'static str {
        "PROBE-OWN"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::ProbeAnswered { id, kind, good } => {
                let answers = if *good { &mut self.good } else { &mut self.bad };
                answers.insert((id.clone(), *kind));
            }
            TraceEvent::ShownFine { id, kind } if !self.good.contains(&(id.clone(), *kind)) => {
                return Err(format!("{id} is shown as fine, and its {kind} probe never said so"));
            }
            TraceEvent::KilledFor { id, kind } if !self.bad.contains(&(id.clone(), *kind)) => {
                return Err(format!("{id} is killed for its {kind} probe, which never failed"));
            }
            TraceEvent::ContainerRemoved { id } => {
                self.good.retain(|(of, _)| of != id);
                self.bad.retain(|(of, _)| of != id);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Least grace of a stop, and the most that rounding to whole seconds may add.
const SLACK: Duration = Duration::from_secs(3);
const STOP_GRACE_MIN_S: u32 = 2;

#[derive(Clone, Debug)]
struct HandlerRun {
    pod: PodUid,
    began: Mono,
    /// What the hook itself has.
    own: Duration,
    /// What hook and stop have together.
    within: Duration,
    over: bool,
}

/// HOOK-GRACE: no stop while the preStop hook of its instance runs, as long as there is any grace left; the hook and the stop
/// together take no more than the grace, of which a stop gets 2 s in any case. A hook that outlasts the grace goes on next
/// to that last stop, as upstream's does: it ends with its container. So does a hook that has had all the time that it was given
/// when its container was killed, while the pod, which is taken down since, has more (simulation, probing, seed 30141: a failed
/// liveness probe began the hook, the pod was removed 22 s later, and the hook's 24 s ended before those of the pod).
#[derive(Clone, Debug, Default)]
pub struct HookGrace {
    hooks: BTreeMap<ContainerId, HandlerRun>,
    states: BTreeMap<PodUid, &'static str>,
    made: BTreeMap<ContainerId, PodUid>,
    /// Pods whose containers must all restart: these stop at once, without hooks.
    anew: BTreeSet<PodUid>,
}

impl HookGrace {
    /// The kill of a container became the end of its pod, with another grace period.
    fn enters(&mut self, pod: &PodUid, state: &'static str) {
        if self.states.insert(pod.clone(), state).is_some_and(|before| before != state) {
            self.hooks.retain(|_, ran| ran.pod != *pod || !ran.over);
            for ran in self.hooks.values_mut().filter(|ran| ran.pod == *pod) {
                ran.within = Duration::MAX / 2;
            }
        }
    }
}

impl Invariant for HookGrace {
    fn name(&self) -> &'static str {
        "HOOK-GRACE"
    }

    fn observe(&mut self, at: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::HookStarted { pod, id, within_s } => {
                let within = Duration::from_secs(u64::from(*within_s));
                self.hooks.insert(
                    id.clone(),
                    HandlerRun { pod: pod.clone(), began: at, own: within, within, over: false },
                );
            }
            TraceEvent::HookEnded { id } => {
                if let Some(ran) = self.hooks.get_mut(id) {
                    ran.over = true;
                }
            }
            TraceEvent::ContainerCreated { pod, id, .. } => {
                self.made.insert(id.clone(), pod.clone());
            }
            TraceEvent::RestartAllAsked { pod, .. } => {
                self.anew.insert(pod.clone());
            }
            TraceEvent::StopIssued { id, grace_s: 0 }
                if self.made.get(id).is_some_and(|p| self.anew.contains(p)) => {}
            TraceEvent::StopIssued { id, grace_s } => {
                if *grace_s < STOP_GRACE_MIN_S {
                    return Err(format!("{id} is stopped with {grace_s} s of grace"));
                }
                let Some(ran) = self.hooks.get(id) else { return Ok(()) };
                if !ran.over && *grace_s > STOP_GRACE_MIN_S && at.since(ran.began) < ran.own {
                    return Err(format!("{id} is stopped while its preStop hook runs"));
                }
                let whole = at.since(ran.began) + Duration::from_secs(u64::from(*grace_s));
                // A failed stop may be repeated long after the grace period, with the least grace.
                if *grace_s > STOP_GRACE_MIN_S && whole > ran.within + SLACK {
                    let (whole, within) = (whole.as_secs(), ran.within.as_secs());
                    return Err(format!("{id}: hook and stop may take {whole} s of {within} s of grace"));
                }
            }
            TraceEvent::WorkerState { pod, state } => self.enters(pod, state),
            // The new agent does not remember the hooks of an agent that died.
            TraceEvent::AgentStarted { .. } => self.hooks.clear(),
            TraceEvent::ContainerRemoved { id } => {
                self.hooks.remove(id);
                self.made.remove(id);
            }
            TraceEvent::PodForgotten { pod } => drop(self.states.remove(pod)),
            _ => {}
        }
        Ok(())
    }
}
