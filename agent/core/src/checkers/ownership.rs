//! VOL-OWNED: an agent begins no container while it gives a volume of the pod to the pod's group for the first time, and there is
//! one walk at a time through a volume of a pod.
//!
//! In: walks that begin, volumes that are there, what the agent asks for. Out: violations. A volume that was there once with
//! this agent stays there for its pod while the agent looks through it again. The walks of an agent end with it: the next agent
//! begins them again, and containers that run meanwhile go on.

use std::collections::BTreeSet;

use agent_types::ids::PodUid;
use agent_types::time::Mono;

use super::agent::brings_up;
use super::{Invariant, TraceEvent};

/// VOL-OWNED.
#[derive(Clone, Debug, Default)]
pub struct VolOwned {
    /// Walks that this agent has begun, and that it has not said the end of.
    walks: BTreeSet<(PodUid, String)>,
    /// Volumes that this agent has seen there.
    mounted: BTreeSet<(PodUid, String)>,
}

impl Invariant for VolOwned {
    fn name(&self) -> &'static str {
        "VOL-OWNED"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::WalkBegan { pod, volume } if !self.walks.insert((pod.clone(), volume.clone())) => {
                return Err(format!("a second walk through volume {volume} of {pod} begins"));
            }
            TraceEvent::VolumeMounted { pod, volume } => {
                let of = (pod.clone(), volume.clone());
                self.walks.remove(&of);
                self.mounted.insert(of);
            }
            TraceEvent::VolumesGone { pod } => {
                self.walks.retain(|(p, _)| p != pod);
                self.mounted.retain(|(p, _)| p != pod);
            }
            TraceEvent::AgentStarted { .. } => {
                self.walks.clear();
                self.mounted.clear();
            }
            TraceEvent::EffectIssued { pod, verb, object } if brings_up(verb) => {
                let first = |of: &&(PodUid, String)| of.0 == *pod && !self.mounted.contains(*of);
                if let Some((_, volume)) = self.walks.iter().find(first) {
                    return Err(format!(
                        "{verb} {object} of {pod} while volume {volume} is given to its group"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
