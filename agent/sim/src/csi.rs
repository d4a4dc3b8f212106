//! A CSI driver in the simulated world: volumes that are attached to the node, staged once for all their pods,
//! published for each, and released when no pod uses them.
//!
//! ```text
//! a pod wants one ─► volumesInUse ─► the controller attaches ─► staged ─► published for the pod
//!                        └─ the last pod is gone ─► unstaged ─► not in use ─► the controller detaches
//! ```
//! In: set-ups and tear-downs of pods, seconds. Out: calls of the driver, their records, which survive the agent; the
//! input of VOL-HELD and LEAK. The decisions are `agent_volumes::attach`'s; the steps of a set-up are one event here,
//! in the order of `agent_volumes::csi::publishing` ([`crate::staging`] takes them apart). An agent may die between any
//! two steps, and any call of the driver may fail or have its answer lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_core::pod_worker::effect::{EffectError, EffectOk};
use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_volumes::attach::{Attached, OnDisk, Staging};
use agent_volumes::key::VolumeKey;

use crate::defects::Defect;
use crate::node::NodeEvent;
use crate::rng::Rng;
use crate::world::{Event, World};

/// Per mille of steps at which the agent dies; then per mille of calls that the driver refuses or whose answer is lost.
const DIES: u64 = 30;
const FAILS: u64 = 150;

/// A NodeUnstageVolume call on its way to the driver.
#[derive(Clone, Debug)]
pub(crate) struct Unstage {
    incarnation: u32,
    key: VolumeKey,
}

/// The driver, the records of its volumes on disk, the cluster's controller, and the state of the agent.
#[derive(Debug, Default)]
pub(crate) struct Drivers {
    /// Records on disk. They survive the agent and a reboot.
    disk: OnDisk,
    /// Staged volumes. A reboot unmounts them.
    staged: BTreeSet<VolumeKey>,
    published: BTreeMap<VolumeKey, BTreeSet<PodUid>>,
    /// `volumesInUse` of the Node.
    in_use: BTreeSet<String>,
    attached: BTreeSet<String>,
    /// State of the agent; it ends with the agent.
    staging: Staging,
}

/// Reason for which a set-up ended early.
enum Early {
    Failed,
    Died,
}

impl Drivers {
    /// The agent died.
    pub(crate) fn forget(&mut self) {
        self.staging = Staging::default();
    }

    /// The machine lost its power.
    pub(crate) fn power_lost(&mut self) {
        self.staged.clear();
        self.published.clear();
    }

    /// Number of remains of volumes, for leak checks.
    pub(crate) fn left(&self) -> usize {
        self.disk.len() + self.staged.len() + self.published.len() + self.attached.len()
    }

    fn key_of(&self, name: &str) -> Option<VolumeKey> {
        let mut all = self.staged.iter().chain(self.published.keys());
        all.find(|key| key.unique_name() == name).cloned()
    }

    /// Takes all steps that publish a volume for a pod. Steps that are done already are repeated.
    fn publish(&mut self, pod: &PodUid, key: &VolumeKey, rng: &mut Rng, calm: bool) -> Result<(), Early> {
        let mut step = || match rng.below(1_000) {
            n if n < DIES && !calm => Err(Early::Died),
            n if n < DIES + FAILS && !calm => Err(Early::Failed),
            _ => Ok(()),
        };
        let held = self.disk.entry(key.clone()).or_default();
        held.attached = true;
        held.pods.insert(pod.clone());
        step()?;
        held.staged = true;
        step()?;
        self.staged.insert(key.clone());
        step()?;
        self.published.entry(key.clone()).or_default().insert(pod.clone());
        step()
    }

    fn release(&mut self, pod: &PodUid) {
        for pods in self.published.values_mut() {
            pods.remove(pod);
        }
        self.published.retain(|_, pods| !pods.is_empty());
        for held in self.disk.values_mut() {
            held.pods.remove(pod);
        }
        self.disk.retain(|_, held| held.staged || !held.pods.is_empty());
        self.staging.forget(pod);
    }
}

impl World {
    /// Sets up a volume of the driver for a pod.
    pub(crate) fn set_up_drivers(
        &mut self,
        pod: &PodUid,
        key: &VolumeKey,
    ) -> Result<Option<EffectOk>, EffectError> {
        let Some(volumes) = &mut self.volumes else { return Ok(None) };
        let drivers = &mut volumes.drivers;
        drivers.staging.want(pod, key, true);
        if drivers.staging.is_attached(key) != Attached::Yes {
            return Ok(Some(EffectOk::Unattached { full: false }));
        }
        let detached = !drivers.attached.contains(&key.unique_name());
        // The agent records the volume in the pod's directory before it calls the driver. The next agent finds the record there, even
        // if no source has the pod any more (simulation, mounting, seed 20162).
        self.disk.dirs.insert(pod.clone());
        let done = drivers.publish(pod, key, &mut volumes.rng, volumes.calm);
        if detached {
            self.checks.report("VOL-HELD", format!("{key:?} is staged and not attached"));
        }
        let message = match done {
            Ok(()) => return Ok(None),
            Err(Early::Failed) => "the driver says no".to_owned(),
            Err(Early::Died) => {
                self.crash();
                "the agent died".to_owned()
            }
        };
        Err(EffectError { class: Class::Retryable { after_ms: 0 }, message })
    }

    /// Unpublishes the volumes of a pod.
    pub(crate) fn release_drivers(&mut self, pod: &PodUid) {
        if let Some(volumes) = &mut self.volumes {
            volumes.drivers.release(pod);
        }
        self.look_at_stages();
    }

    /// Every second: the agent reports the volumes in use, the controller attaches and detaches volumes, and the agent receives the
    /// result.
    pub(crate) fn drivers_second(&mut self) {
        if self.node.is_none() {
            return;
        }
        self.look_at_stages();
        let Some(volumes) = &mut self.volumes else { return };
        let drivers = &mut volumes.drivers;
        let in_use: BTreeSet<String> = drivers.staging.in_use(&drivers.disk).into_iter().collect();
        drivers.in_use.clone_from(&in_use);
        // The controller is slow, and nothing waits for it.
        let wants = |name: &String| in_use.contains(name);
        let slow = !volumes.calm && volumes.rng.chance(500);
        let gone: Vec<String> =
            drivers.attached.iter().filter(|name| !wants(name) && !slow).cloned().collect();
        let held: Vec<VolumeKey> = gone.iter().filter_map(|name| drivers.key_of(name)).collect();
        if !slow {
            drivers.attached.clone_from(&in_use);
        }
        let woken = drivers.staging.node_says(in_use, drivers.attached.clone());
        for key in held {
            self.checks.report("VOL-HELD", format!("{key:?} is detached while the driver has it"));
        }
        if !woken.is_empty() {
            self.tell(NodeEvent::Sources(woken));
        }
    }

    /// Sends NodeUnstageVolume calls for volumes that no pod uses.
    fn look_at_stages(&mut self) {
        let (now, incarnation) = (self.queue.now(), self.incarnation);
        let Some(volumes) = self.volumes.as_mut().filter(|_| self.node.is_some()) else { return };
        let drivers = &mut volumes.drivers;
        let mut due = drivers.staging.unstage(&drivers.disk, now);
        match self.defect {
            Some(Defect::KeepsStages) => due.clear(),
            Some(Defect::UnstagesUnderPods) => due.extend(drivers.published.keys().cloned()),
            _ => {}
        }
        for key in due {
            let wait = Duration::from_millis(volumes.rng.between(1, 3_000));
            self.queue.after(wait, Event::Unstage(Unstage { incarnation, key }));
        }
    }

    /// A NodeUnstageVolume call arrives; the agent drops it if a pod uses the volume by now.
    pub(crate) fn unstage(&mut self, asked: &Unstage) {
        let now = self.queue.now();
        // The connection of a dead agent is closed.
        if asked.incarnation != self.incarnation {
            return;
        }
        let (key, careless) = (&asked.key, self.defect == Some(Defect::UnstagesUnderPods));
        let Some(volumes) = &mut self.volumes else { return };
        let drivers = &mut volumes.drivers;
        if !careless && !drivers.staging.is_idle(key, &drivers.disk) {
            drivers.staging.unstaged(key, false, now);
            return;
        }
        let fate = if volumes.calm { 1_000 } else { volumes.rng.below(1_000) };
        if (DIES..DIES + FAILS).contains(&fate) {
            drivers.staging.unstaged(key, false, now);
            return;
        }
        let pods = drivers.published.get(key).cloned();
        drivers.staged.remove(key);
        if let Some(pods) = pods {
            self.checks.report("VOL-HELD", format!("{key:?} is unstaged, {pods:?} have it"));
            return;
        }
        if fate < DIES {
            // The agent dies after the driver has unstaged the volume and before the record is removed.
            self.crash();
            return;
        }
        drivers.disk.remove(key);
        drivers.staging.unstaged(key, true, now);
    }
}
