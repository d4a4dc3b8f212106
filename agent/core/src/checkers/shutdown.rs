//! Invariants while the machine is about to stop: SHUTDOWN-ORDER, SHUTDOWN-BUDGET, SHUTDOWN-CLOSED.
//!
//! In: signals and calls of logind, pods that the agent ends, running containers. Out: violations. They end
//! with the shutdown: when it is cancelled, when the agent dies (the lock dies with it), and with the boot.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::time::Mono;

use super::order::Instances;
use super::{Invariant, TraceEvent};

/// Time for reports and records beyond the pods' periods.
const BEYOND: Duration = Duration::from_secs(2);

/// SHUTDOWN-ORDER: a pod is ended when each of the groups before its own has ended or has used up its period.
#[derive(Clone, Debug, Default)]
pub struct ShutdownOrder {
    instances: Instances,
    /// Whom the agent was ordered to end: group, and when its period is over.
    ordered: BTreeMap<PodUid, (usize, Mono)>,
}

impl Invariant for ShutdownOrder {
    fn name(&self) -> &'static str {
        "SHUTDOWN-ORDER"
    }

    fn observe(&mut self, at: Mono, event: &TraceEvent) -> Result<(), String> {
        self.instances.observe(at, event);
        match event {
            TraceEvent::ShutdownTold { .. } | TraceEvent::ShutdownPast => self.ordered.clear(),
            TraceEvent::EndOrdered { pod, group, period } => {
                self.ordered.insert(pod.clone(), (*group, at.after(*period)));
                return self.others_are_done(at, pod, *group);
            }
            _ => {}
        }
        Ok(())
    }
}

impl ShutdownOrder {
    fn others_are_done(&self, at: Mono, pod: &PodUid, group: usize) -> Result<(), String> {
        let early = self.ordered.iter().find(|(other, (before, until))| {
            *before < group && at < *until && self.instances.of(other).any(|i| i.live.is_some())
        });
        early.map_or(Ok(()), |(other, _)| {
            Err(format!("{pod} is ended while {other} of a lower group still runs"))
        })
    }
}

/// SHUTDOWN-BUDGET: the lock is given back within the budget and two seconds, if the agent lives.
#[derive(Clone, Debug, Default)]
pub struct ShutdownBudget {
    until: Option<Mono>,
}

impl Invariant for ShutdownBudget {
    fn name(&self) -> &'static str {
        "SHUTDOWN-BUDGET"
    }

    fn observe(&mut self, at: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::ShutdownTold { budget } => self.until = Some(at.after(*budget + BEYOND)),
            TraceEvent::ShutdownPast => self.until = None,
            TraceEvent::LockGivenBack | TraceEvent::StopNotAwaited => {
                if let Some(until) = self.until.take()
                    && at > until
                {
                    return Err(format!("{} ms beyond the budget", at.since(until).as_millis()));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// SHUTDOWN-CLOSED: once the agent knows of the shutdown, no pod starts.
#[derive(Clone, Debug, Default)]
pub struct ShutdownClosed {
    known: BTreeSet<PodUid>,
    closed: bool,
}

impl Invariant for ShutdownClosed {
    fn name(&self) -> &'static str {
        "SHUTDOWN-CLOSED"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::ShutdownTold { .. } => self.closed = true,
            TraceEvent::ShutdownPast => self.closed = false,
            TraceEvent::EffectIssued { pod, verb, .. } => {
                if !self.closed {
                    self.known.insert(pod.clone());
                } else if *verb == "run_sandbox" && !self.known.contains(pod) {
                    return Err(format!("{pod} begins while the machine is about to stop"));
                }
            }
            TraceEvent::WorkerState { pod, .. } if !self.closed => {
                self.known.insert(pod.clone());
            }
            TraceEvent::PodForgotten { pod } => {
                self.known.remove(pod);
            }
            _ => {}
        }
        Ok(())
    }
}
