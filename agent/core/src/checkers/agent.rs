//! Invariants over the agent's effects and reports: ABSORB-TERM, STATUS-MONO, BACKOFF, RESTART-TRANSPARENT,
//! BOUNDED.
//!
//! In: effects, states, statuses. Out: violations.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use agent_types::ids::{ContainerId, PodUid};
use agent_types::time::Mono;

use super::{Invariant, TraceEvent};

/// Verbs that bring something up.
pub(super) fn brings_up(verb: &str) -> bool {
    matches!(verb, "run_sandbox" | "create_container" | "start_container")
}

/// Verbs that change the runtime.
fn changes(verb: &str) -> bool {
    brings_up(verb)
        || matches!(verb, "stop_container" | "remove_container" | "stop_sandbox" | "remove_sandbox")
}

/// ABSORB-TERM: a pod worker never goes back, and a terminating one brings nothing up.
#[derive(Clone, Debug, Default)]
pub struct AbsorbTerm {
    rank: BTreeMap<PodUid, usize>,
}

const ORDER: [&str; 5] = ["pending", "syncing", "terminating", "terminated", "finished"];

impl Invariant for AbsorbTerm {
    fn name(&self) -> &'static str {
        "ABSORB-TERM"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::WorkerState { pod, state } => {
                let Some(rank) = ORDER.iter().position(|s| s == state) else {
                    return Err(format!("{pod}: no such state: {state}"));
                };
                let before = self.rank.insert(pod.clone(), rank).unwrap_or(0);
                if before > rank {
                    return Err(format!("{pod} went from {} back to {state}", ORDER[before]));
                }
            }
            TraceEvent::EffectIssued { pod, verb, object } if brings_up(verb) => {
                let rank = self.rank.get(pod).copied().unwrap_or(0);
                if rank >= 2 {
                    return Err(format!("{pod} is {} and asks for {verb} {object}", ORDER[rank]));
                }
            }
            // A new incarnation knows only its records; STATUS-MONO checks the phase.
            TraceEvent::AgentStarted { .. } => self.rank.clear(),
            TraceEvent::PodForgotten { pod } => {
                self.rank.remove(pod);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Pods that the API server shows in a phase that is not terminal: the only knowledge of a new agent about
/// them.
#[derive(Clone, Debug, Default)]
pub(super) struct NonTerminalPods(BTreeSet<PodUid>);

impl NonTerminalPods {
    pub(super) fn observe(&mut self, event: &TraceEvent) {
        match event {
            TraceEvent::ApiStatus { pod, phase, .. } if !matches!(phase.as_str(), "Succeeded" | "Failed") => {
                self.0.insert(pod.clone());
            }
            TraceEvent::ApiStatus { pod, .. } | TraceEvent::ApiGone { pod } => {
                self.0.remove(pod);
            }
            _ => {}
        }
    }

    pub(super) fn contains(&self, pod: &PodUid) -> bool {
        self.0.contains(pod)
    }
}

/// STATUS-MONO: a terminal phase never reverts, a pod that ran is never pending again without a new sandbox.
/// A status that did not reach the API server may be lost with its incarnation, because no client has seen
/// it. The same holds for an earlier incarnation's status that a restored server does not show any more
/// before this incarnation reports the pod.
#[derive(Clone, Debug, Default)]
pub struct StatusMono {
    terminal: BTreeMap<PodUid, String>,
    /// Pods whose status this incarnation reported.
    own: BTreeSet<PodUid>,
    going_on: NonTerminalPods,
}

impl Invariant for StatusMono {
    fn name(&self) -> &'static str {
        "STATUS-MONO"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        self.going_on.observe(event);
        match event {
            TraceEvent::StatusPublished { pod, phase } => match self.terminal.get(pod) {
                Some(was) if was != phase => Err(format!("{pod} was {was} and is {phase}")),
                _ if matches!(phase.as_str(), "Succeeded" | "Failed") => {
                    self.terminal.insert(pod.clone(), phase.clone());
                    self.own.insert(pod.clone());
                    Ok(())
                }
                _ => Ok(()),
            },
            TraceEvent::AgentStarted { .. } => {
                self.terminal.retain(|pod, _| !self.going_on.contains(pod));
                self.own.clear();
                Ok(())
            }
            TraceEvent::ApiStatus { pod, .. } if self.going_on.contains(pod) && !self.own.contains(pod) => {
                self.terminal.remove(pod);
                Ok(())
            }
            // The runtime has no object left that shows the phase.
            TraceEvent::RuntimeEmptied => {
                self.terminal.clear();
                Ok(())
            }
            TraceEvent::PodForgotten { pod } | TraceEvent::ApiListedFirst { pod } => {
                self.terminal.remove(pod);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// BACKOFF: no hot loop. A container that ends by itself again and again is started at most as often as the
/// series 0, 10, 20, 40 … s allows; no effect is repeated more than a bounded number of times in 10 s.
#[derive(Clone, Debug, Default)]
pub struct BackOff {
    names: BTreeMap<ContainerId, (PodUid, String)>,
    starts: BTreeMap<(PodUid, String), VecDeque<Mono>>,
    effects: BTreeMap<(PodUid, &'static str, String), VecDeque<Mono>>,
}

const STARTS_WINDOW: Duration = Duration::from_secs(600);
/// One start, restarts after 0, 10, 30, 70, 150 and 310 s, one for an entry that expires inside the window, one for the first kill
/// by a probe, which counts for nothing, and two for restarts that are not crashes (definition changed, sandbox replaced).
const STARTS_MAX: usize = 11;
const EFFECTS_WINDOW: Duration = Duration::from_secs(10);
const EFFECTS_MAX: usize = 40;

fn push(times: &mut VecDeque<Mono>, at: Mono, window: Duration) -> usize {
    times.push_back(at);
    while times.front().is_some_and(|t| at.since(*t) > window) {
        times.pop_front();
    }
    times.len()
}

impl Invariant for BackOff {
    fn name(&self) -> &'static str {
        "BACKOFF"
    }

    fn observe(&mut self, at: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::ContainerCreated { pod, name, id, .. } => {
                self.names.insert(id.clone(), (pod.clone(), name.clone()));
            }
            TraceEvent::ContainerStarted { id } => {
                let Some(key) = self.names.get(id).cloned() else { return Ok(()) };
                let n = push(self.starts.entry(key.clone()).or_default(), at, STARTS_WINDOW);
                if n > STARTS_MAX {
                    return Err(format!("container {} of {} was started {n} times in 600 s", key.1, key.0));
                }
            }
            TraceEvent::ContainerRemoved { id } => {
                self.names.remove(id);
            }
            TraceEvent::EffectIssued { pod, verb, object } => {
                let key = (pod.clone(), *verb, object.clone());
                let n = push(self.effects.entry(key).or_default(), at, EFFECTS_WINDOW);
                if n > EFFECTS_MAX {
                    return Err(format!("{verb} {object} was asked for {n} times in 10 s for {pod}"));
                }
            }
            // A container that goes because another one requested it is no hot loop; the one that requested
            // it counts.
            TraceEvent::RestartAllAsked { pod, id } => {
                let asked = self.names.get(id).map(|(_, name)| name.clone());
                self.starts.retain(|(p, name), _| p != pod || Some(name) == asked.as_ref());
            }
            // A container killed by another process counts as a crash for the agent, but not as its hot loop.
            TraceEvent::Disturbed | TraceEvent::RuntimeEmptied => self.starts.clear(),
            TraceEvent::PodForgotten { pod } => {
                self.starts.retain(|(p, _), _| p != pod);
                self.effects.retain(|(p, _, _), _| p != pod);
            }
            _ => {}
        }
        Ok(())
    }
}

/// RESTART-TRANSPARENT: an agent that restarts in an unchanged world starts, stops and removes nothing.
#[derive(Clone, Debug, Default)]
pub struct RestartTransparent {
    undisturbed: bool,
}

impl Invariant for RestartTransparent {
    fn name(&self) -> &'static str {
        "RESTART-TRANSPARENT"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::AgentStarted { undisturbed } => self.undisturbed = *undisturbed,
            TraceEvent::Disturbed | TraceEvent::ContainerExited { .. } | TraceEvent::RuntimeEmptied => {
                self.undisturbed = false;
            }
            TraceEvent::EffectIssued { pod, verb, object } if self.undisturbed && changes(verb) => {
                return Err(format!("{verb} {object} for {pod} after a restart in an unchanged world"));
            }
            _ => {}
        }
        Ok(())
    }
}

/// BOUNDED: nothing that the agent holds grows beyond its limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounded;

impl Invariant for Bounded {
    fn name(&self) -> &'static str {
        "BOUNDED"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::Gauge { name, value, limit } if value > limit => {
                Err(format!("{name} is {value}, at most {limit} are allowed"))
            }
            _ => Ok(()),
        }
    }
}
