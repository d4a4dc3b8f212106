//! The pods that the node wants. The pod manager shows them; sources of values, metrics and the API read them.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;

/// The pods that the node wants, by UID.
pub type DesiredPods = BTreeMap<PodUid, Arc<Pod>>;
