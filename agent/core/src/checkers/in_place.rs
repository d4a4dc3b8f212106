//! Invariants over changes of a running pod: EPHEMERAL-ONCE, RESTART-ALL.
//!
//! In: added ephemeral containers, ends that restart all containers, the runtime's events. Out: violations.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::{ContainerId, PodUid};
use agent_types::time::Mono;

use super::{Invariant, TraceEvent};

/// EPHEMERAL-ONCE: an ephemeral container starts at most once over all incarnations of the agent, however
/// it ended. A runtime that lost everything starts again.
#[derive(Clone, Debug, Default)]
pub struct EphemeralOnce {
    added: BTreeSet<(PodUid, String)>,
    made: BTreeMap<ContainerId, (PodUid, String)>,
    started: BTreeMap<(PodUid, String), ContainerId>,
}

impl Invariant for EphemeralOnce {
    fn name(&self) -> &'static str {
        "EPHEMERAL-ONCE"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::EphemeralAdded { pod, name } => {
                self.added.insert((pod.clone(), name.clone()));
            }
            TraceEvent::ContainerCreated { pod, name, id, .. } => {
                self.made.insert(id.clone(), (pod.clone(), name.clone()));
            }
            TraceEvent::ContainerStarted { id } => {
                let Some(of) = self.made.get(id).filter(|of| self.added.contains(of)) else { return Ok(()) };
                if let Some(first) = self.started.insert(of.clone(), id.clone()) {
                    return Err(format!(
                        "ephemeral container {} of {} ran as {first} and runs as {id}",
                        of.1, of.0
                    ));
                }
            }
            TraceEvent::ContainerRemoved { id } => {
                self.made.remove(id);
            }
            TraceEvent::RuntimeEmptied => {
                self.made.clear();
                self.started.clear();
            }
            TraceEvent::PodForgotten { pod } => self.started.retain(|(p, _), _| p != pod),
            _ => {}
        }
        Ok(())
    }
}

/// RESTART-ALL: a container whose end restarts all containers of its pod exists until every other one is gone
/// (ephemeral ones stay), and does not run again before.
#[derive(Clone, Debug, Default)]
pub struct RestartAll {
    made: BTreeMap<ContainerId, (PodUid, String)>,
    ephemeral: BTreeSet<(PodUid, String)>,
    asked: BTreeSet<ContainerId>,
    syncing: BTreeSet<PodUid>,
}

impl RestartAll {
    /// Another container of the pod of `of`, except those that requested the restart, too.
    fn other(&self, of: &(PodUid, String)) -> Option<&ContainerId> {
        let other = self
            .made
            .iter()
            .find(|(id, o)| o.0 == of.0 && !self.ephemeral.contains(o) && !self.asked.contains(*id));
        other.map(|(id, _)| id)
    }
}

impl Invariant for RestartAll {
    fn name(&self) -> &'static str {
        "RESTART-ALL"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::EphemeralAdded { pod, name } => {
                self.ephemeral.insert((pod.clone(), name.clone()));
            }
            TraceEvent::RestartAllAsked { id, .. } => {
                self.asked.insert(id.clone());
            }
            TraceEvent::ContainerCreated { pod, name, id, .. } => {
                let of = (pod.clone(), name.clone());
                self.made.insert(id.clone(), of.clone());
                let before = self.asked.iter().find(|asked| self.made.get(*asked) == Some(&of));
                if let Some(asked) = before {
                    return Err(format!(
                        "{id} was made while {asked}, which asked for all to begin anew, is there"
                    ));
                }
            }
            TraceEvent::ContainerRemoved { id } => {
                let asked = self.asked.remove(id);
                let Some(of) = self.made.remove(id).filter(|of| asked && self.syncing.contains(&of.0)) else {
                    return Ok(());
                };
                if let Some(other) = self.other(&of) {
                    return Err(format!(
                        "{id} asked for all of {} to begin anew and is gone before {other}",
                        of.0
                    ));
                }
            }
            TraceEvent::WorkerState { pod, state } => {
                if *state == "syncing" {
                    self.syncing.insert(pod.clone());
                } else {
                    self.syncing.remove(pod);
                }
            }
            TraceEvent::AgentStarted { .. } => self.syncing.clear(),
            TraceEvent::RuntimeEmptied => {
                self.made.clear();
                self.asked.clear();
            }
            _ => {}
        }
        Ok(())
    }
}
