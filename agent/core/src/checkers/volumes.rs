//! VOL-HELD: no volume is torn down under a live container, and no container starts before its pod's volumes
//! are mounted.
//!
//! In: mounted volumes and running containers. Out: violations.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::{ContainerId, PodUid};
use agent_types::time::Mono;

use super::{Invariant, TraceEvent};

/// VOL-HELD.
#[derive(Clone, Debug, Default)]
pub struct VolHeld {
    planned: BTreeMap<PodUid, Vec<String>>,
    mounted: BTreeMap<PodUid, BTreeSet<String>>,
    pods: BTreeMap<ContainerId, PodUid>,
    live: BTreeSet<ContainerId>,
}

impl Invariant for VolHeld {
    fn name(&self) -> &'static str {
        "VOL-HELD"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::VolumesPlanned { pod, volumes } => {
                self.planned.insert(pod.clone(), volumes.clone());
            }
            TraceEvent::VolumeMounted { pod, volume } => {
                self.mounted.entry(pod.clone()).or_default().insert(volume.clone());
            }
            TraceEvent::VolumesGone { pod } => {
                self.mounted.remove(pod);
                let held = self.live.iter().find(|id| self.pods.get(*id) == Some(pod));
                return held.map_or(Ok(()), |id| Err(format!("volumes of {pod} are gone, {id} lives")));
            }
            TraceEvent::ContainerCreated { pod, id, .. } => {
                self.pods.insert(id.clone(), pod.clone());
            }
            TraceEvent::ContainerStarted { id } => {
                self.live.insert(id.clone());
                return self.started(id);
            }
            TraceEvent::ContainerExited { id } => {
                self.live.remove(id);
            }
            TraceEvent::ContainerRemoved { id } => {
                self.live.remove(id);
                self.pods.remove(id);
            }
            TraceEvent::RuntimeEmptied => {
                self.live.clear();
                self.pods.clear();
            }
            _ => {}
        }
        Ok(())
    }
}

impl VolHeld {
    fn started(&self, id: &ContainerId) -> Result<(), String> {
        let Some(pod) = self.pods.get(id) else { return Ok(()) };
        let is_mounted = |name: &&String| self.mounted.get(pod).is_some_and(|m| m.contains(*name));
        match self.planned.get(pod).into_iter().flatten().find(|name| !is_mounted(name)) {
            Some(name) => Err(format!("{id} of {pod} starts, volume {name} is not mounted")),
            None => Ok(()),
        }
    }
}
