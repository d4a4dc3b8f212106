//! The pods that the node wants, and the active ones. The pod manager shows them; sources of values, metrics and APIs read them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_types::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;

/// The pods that the node wants, by UID.
pub type DesiredPods = BTreeMap<PodUid, Arc<Pod>>;

/// The active pods: pods that may use something of the node ([`agent_core::pod_manager::PodManager::active_pods`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivePods {
    /// UIDs of the pods.
    pub uids: BTreeSet<PodUid>,
    /// Every source was read and the runtime listed: no other pod of an earlier agent is active.
    pub synced: bool,
}
