//! Events and actions of the owner of resource claims, as plain data.
//!
//! ```text
//! pod workers ──Prepare, Find, Unprepare──► ResourceClaims ──Answer──► pod workers
//! API server  ◄──Fetch──  plugins ◄──Call──  files ◄──Write──  status of pods ◄──Changed──
//! ```
//! In: [`ClaimEvent`]. Out: [`ClaimAction`]. Invariants: a question has a number that comes back with its answer; events and actions
//! borrow nothing. Upstream: pkg/kubelet/cm/dra.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::runtime::claims::{ClaimsOfPod, PodClaims};
use k8s_openapi::api::resource::v1::ResourceClaim;

/// Number of a plugin's registration; a later registration has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginId(pub u64);

/// Events of the owner of resource claims.
#[derive(Clone, Debug)]
pub enum ClaimEvent {
    /// A pod is about to get a sandbox: prepare its claims. Answered by [`ClaimAction::Answer`].
    Prepare {
        /// Number of the question.
        ask: u64,
        /// Claims of the pod.
        pod: Arc<ClaimsOfPod>,
    },
    /// A container is about to be created in a sandbox that lives: find the devices of the pod's claims, prepare nothing. Answered by
    /// [`ClaimAction::Answer`].
    Find {
        /// Number of the question.
        ask: u64,
        /// Claims of the pod.
        pod: Arc<ClaimsOfPod>,
    },
    /// The containers of the pod have ended: unprepare all its claims. Answered by [`ClaimAction::Answer`] with empty claims.
    Unprepare {
        /// Number of the question.
        ask: u64,
        /// UID of the pod.
        uid: PodUid,
    },
    /// The answer to [`ClaimAction::Fetch`].
    Fetched {
        /// Number of the question.
        fetch: u64,
        /// The claim, or the API error's text.
        answer: Result<Arc<ResourceClaim>, String>,
    },
    /// The answer to [`ClaimAction::Call`].
    Called {
        /// Number of the call.
        call: u64,
        /// Results by claim UID, or the gRPC error's text (`rpc error: code = … desc = …`).
        answer: Result<BTreeMap<String, ClaimResult>, String>,
    },
    /// The answer to [`ClaimAction::Write`].
    Written(Result<(), String>),
    /// A plugin of this driver registered. It is not connected yet.
    Registered {
        /// Number of the registration, larger than all earlier ones.
        plugin: PluginId,
        /// Name of the driver.
        driver: String,
    },
    /// The plugin is connected.
    Connected(PluginId),
    /// The connection to the plugin ended; the shell connects again.
    Disconnected(PluginId),
    /// The plugin's registration ended.
    Deregistered(PluginId),
    /// The plugin reports the health of devices.
    Health {
        /// Number of the registration.
        plugin: PluginId,
        /// Devices that the plugin lists in this answer.
        devices: Vec<ReportedHealth>,
    },
    /// The plugin's stream of health reports ended, or could not be opened.
    HealthEnded(PluginId),
    /// UIDs of the active pods ([`crate::pod_manager::PodManager::active_pods`]), while all sources are ready: the claims of other pods
    /// are unprepared. The shell sends it every 60 seconds if [`super::ResourceClaims::has_references`].
    ActivePods(BTreeSet<PodUid>),
    /// The deadline has passed.
    Tick,
}

/// A driver's result for one claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimResult {
    /// The driver's error; empty: it succeeded.
    pub error: String,
    /// Devices of the claim; empty after `NodeUnprepareResources`.
    pub devices: Vec<ClaimedDevice>,
}

/// A device of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimedDevice {
    /// Pool of the device.
    pub pool: String,
    /// Name of the device in its pool.
    pub device: String,
    /// Share of a device that several claims use.
    pub share_id: Option<String>,
    /// Requests that the device was allocated for; empty: all.
    pub requests: Vec<String>,
    /// CDI devices.
    pub cdi_devices: Vec<String>,
}

/// Health of a device, as a driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedHealth {
    /// Pool of the device.
    pub pool: String,
    /// Name of the device in its pool.
    pub device: String,
    /// The reported health.
    pub health: DeviceHealth,
    /// Time after which the report expires; `None`: 30 s.
    pub timeout: Option<Duration>,
    /// The driver's message, unchanged.
    pub message: String,
}

/// Health of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceHealth {
    /// The device works.
    Healthy,
    /// The device does not work.
    Unhealthy,
    /// The health is not known.
    #[default]
    Unknown,
}

/// Requests of the owner of resource claims to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAction {
    /// GET this claim, past all caches.
    Fetch {
        /// Number of the question.
        fetch: u64,
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        name: String,
    },
    /// Call `NodePrepareResources` or `NodeUnprepareResources`, within 45 seconds.
    Call {
        /// Number of the call.
        call: u64,
        /// Registration to call.
        plugin: PluginId,
        /// The method.
        method: ClaimMethod,
        /// Claims of the call.
        claims: Vec<CalledClaim>,
    },
    /// Replace the checkpoint `dra_manager_state`. One at a time, answered by [`ClaimEvent::Written`].
    Write(String),
    /// Replace the file `dra_health_state`; not answered.
    WriteHealth(String),
    /// Delete the ResourceSlices of this driver on this node, `None`: of all drivers. The shell tries until it succeeds.
    DeleteSlices {
        /// Name of the driver.
        driver: Option<String>,
    },
    /// The answer to a worker's question. An error is upstream's text after `prepare dynamic resources: `.
    Answer {
        /// Number of the question.
        ask: u64,
        /// Devices for the containers.
        answer: Result<PodClaims, String>,
    },
    /// Claims of a pod that is gone could not be unprepared; the next [`ClaimEvent::ActivePods`] tries again. For the log.
    NotGivenBack {
        /// UID of the pod.
        uid: PodUid,
        /// Upstream's text.
        error: String,
    },
    /// The health of devices of this pod changed. Goes to the pod's worker.
    Changed {
        /// UID of the pod.
        uid: PodUid,
        /// The claims with the new health.
        claims: PodClaims,
    },
}

/// A method of `DRAPlugin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimMethod {
    /// `NodePrepareResources`.
    Prepare,
    /// `NodeUnprepareResources`.
    Unprepare,
}

/// A claim in a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CalledClaim {
    /// Namespace of the claim.
    pub namespace: String,
    /// UID of the claim.
    pub uid: String,
    /// Name of the claim.
    pub name: String,
}

/// Feature gates that the owner needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimGates {
    /// ResourceHealthStatus.
    pub health: bool,
    /// ResourceHealthStatusMessage.
    pub health_message: bool,
    /// DRAWorkloadResourceClaims.
    pub workload_claims: bool,
}

/// The claims of the node for the pod resources API and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimsView {
    /// Claims with references, by namespace and name.
    pub claims: BTreeMap<(String, String), ClaimView>,
    /// Number of prepared claims by driver. The entry `<any>` counts all of them, and always exists.
    pub in_use: BTreeMap<String, u64>,
}

/// One claim for the pod resources API and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimView {
    /// UIDs of pods that use it.
    pub pods: BTreeSet<PodUid>,
    /// Devices by driver.
    pub devices: BTreeMap<String, Vec<ClaimedDevice>>,
}
