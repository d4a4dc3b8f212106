//! Invariants over what changes in a pod while it lives: EPHEMERAL-ONCE.
//!
//! In: which ephemeral containers were added, the runtime's events. Out: violations.

use std::collections::{BTreeMap, BTreeSet};

use super::{Invariant, TraceEvent};
use crate::runtime::{ContainerId, PodUid};
use crate::time::Mono;

/// EPHEMERAL-ONCE: an ephemeral container is started at most once, whatever its end and whoever the agent is. A runtime
/// that lost everything begins anew.
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
