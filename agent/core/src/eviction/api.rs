//! Events and actions of eviction, as plain data.
//!
//! In: [`EvictionEvent`]. Out: [`EvictionAction`]. They borrow nothing, so they can be queued and replayed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::{PodKey, PodUid};
use agent_types::pressures::Pressures;
use agent_types::resources::observation::{Layout, Observations};
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::Pod;
use orlop_config::kubelet::KubeletConfiguration;
use orlop_config::kubelet::eviction::{EvictionProblem, Signal};

use super::rank::Uses;
use super::threshold::{self, Resource, Threshold};

/// What is configured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvictionConfig {
    /// Hard and soft.
    pub thresholds: Vec<Threshold>,
    /// `evictionPressureTransitionPeriod`.
    pub transition: Duration,
    /// `evictionMaxPodGracePeriod`, seconds; `None`: the pod's own.
    pub max_pod_grace_s: Option<u32>,
    /// `localStorageCapacityIsolation`.
    pub local_storage: bool,
}

impl EvictionConfig {
    /// The settings of the configuration.
    ///
    /// # Errors
    /// Every wrong entry of the thresholds.
    pub fn new(kubelet: &KubeletConfiguration) -> Result<EvictionConfig, Vec<EvictionProblem>> {
        Ok(EvictionConfig {
            thresholds: threshold::of_configuration(kubelet)?,
            transition: kubelet.eviction_pressure_transition_period.to_std(),
            max_pod_grace_s: u32::try_from(kubelet.eviction_max_pod_grace_period).ok(),
            local_storage: kubelet.local_storage_capacity_isolation,
        })
    }

    /// There is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.thresholds.is_empty() && !self.local_storage
    }

    /// Memory has a threshold.
    #[must_use]
    pub fn minds_memory(&self) -> bool {
        self.thresholds.iter().any(|t| Resource::of(t.signal) == Resource::Memory)
    }
}

/// State of the machine at one moment, with its pods.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// What could be read.
    pub signals: Observations,
    /// The file systems; `None` until the runtime has reported the one of its images. Disks have no
    /// thresholds before.
    pub layout: Option<Layout>,
    /// Pods that have begun and are not at their end.
    pub pods: Vec<Arc<Pod>>,
}

/// What is to be measured of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Usage of memory.
    Memory,
    /// Memory and processes.
    Processes,
    /// All there is, disks walked.
    Storage,
}

/// Resources that may be freed before a pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaim {
    /// Containers that have ended.
    pub containers: bool,
    /// Images that nothing uses.
    pub images: bool,
}

/// A pod to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Identity of the pod.
    pub key: PodKey,
    /// What is counted: the threshold's signal, or the limit's.
    pub signal: &'static str,
    /// `status.message`, and the event's.
    pub message: String,
    /// At most; `None`: the pod's own.
    pub grace_s: Option<u32>,
    /// The pod ends because the node is short, not because it exceeds a limit: condition `DisruptionTarget`.
    pub disrupted: bool,
    /// Of the event.
    pub annotations: BTreeMap<String, String>,
}

/// What people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionReport {
    /// What the node freed by itself was enough.
    Resolved(Resource),
    /// The pods that would be evicted, in order.
    Ranked(Resource, Vec<PodKey>),
    /// No pod may be evicted, or there is none.
    Nobody(Resource),
    /// The resources of an evicted pod are still in use; other pods may be evicted now.
    TimedOut(PodUid),
}

/// What the machine reacts to.
#[derive(Clone, Debug)]
pub enum EvictionEvent {
    /// The kernel reports that memory is short.
    Pressed,
    /// The answer to [`EvictionAction::Observe`].
    Observed(Box<Observed>),
    /// The answer to [`EvictionAction::Measure`].
    Measured(Uses),
    /// The answer to [`EvictionAction::MeasureLimited`].
    Limited(Uses),
    /// The answer to [`EvictionAction::Reclaim`].
    Reclaimed,
    /// Nothing of the pod runs, and its volumes are released.
    Released(PodUid),
    /// The deadline has passed.
    Tick,
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum EvictionAction {
    /// Read the signals; answer [`EvictionEvent::Observed`].
    Observe,
    /// Measure all pods; answer [`EvictionEvent::Measured`].
    Measure(Measure),
    /// Measure the storage of these pods, which have limits; answer [`EvictionEvent::Limited`].
    MeasureLimited(BTreeSet<PodUid>),
    /// Remove unused containers or images; answer [`EvictionEvent::Reclaimed`].
    Reclaim(Reclaim),
    /// End this pod.
    Evict(Box<Victim>),
    /// The Node's conditions have changed; admission follows them.
    Pressures(Pressures),
    /// An event of type Warning about the Node, [`super::THRESHOLD_MET`].
    ThresholdMet(String),
    /// Signal of the choice, and the time of the observation behind it.
    Decided(Signal, Wall),
    /// Report for logs and events.
    Report(EvictionReport),
}
