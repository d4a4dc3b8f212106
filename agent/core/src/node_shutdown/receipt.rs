//! The receipt of a shutdown: its kind, its start and end, and the end of each pod.
//!
//! It is upstream's `graceful_node_shutdown_state` (start and end, RFC 3339) with more fields, so that either
//! kubelet reads the other's. Invariant: the end is written before the machine may continue to stop. So a
//! receipt with an end means that the last boot ended well; no receipt, or one without an end, means that it
//! did not.

use std::time::Duration;

use agent_types::api_time;
use agent_types::ids::PodKey;
use agent_types::time::{Now, Wall};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

/// Name of the file in the kubelet's root directory, as upstream's.
pub const FILE: &str = "graceful_node_shutdown_state";
/// How much longer than its budget a shutdown is believed to be under way.
const OVERDUE: Duration = Duration::from_secs(60);

/// What is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// Time of the signal to stop.
    pub start_time: Time,
    /// When the pods were done; there is none while they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// The kernel's id of the boot that ends.
    #[serde(default)]
    pub boot_id: String,
    /// `reboot`, `poweroff`, `halt`, `kexec`, `soft-reboot`, …, from logind; empty if unknown.
    #[serde(default)]
    pub kind: String,
    /// The boot of [`Receipt::boot_id`] continued after it (soft-reboot): the receipt does not describe that
    /// boot's end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub boot_went_on: bool,
    /// What became of the pods.
    #[serde(default)]
    pub pods: Vec<PodReceipt>,
}

/// What became of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReceipt {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// Nothing of it runs, and its volumes are released; if not, the machine stopped under it.
    pub ended: bool,
    /// True if the API server has its last status; otherwise the next boot reports it.
    pub told: bool,
}

impl Receipt {
    /// Of a shutdown that begins now.
    #[must_use]
    pub fn begin(boot_id: &str, kind: &str, now: Wall) -> Receipt {
        let (boot_id, kind) = (boot_id.to_owned(), kind.to_owned());
        let start_time = api_time::api_time(now);
        Receipt { start_time, end_time: None, boot_id, kind, boot_went_on: false, pods: Vec::new() }
    }

    /// A later signal contains the kind, after one without it.
    pub(super) fn learn_kind(&mut self, kind: &str) {
        if self.kind.is_empty() {
            kind.clone_into(&mut self.kind);
        }
    }

    /// A shutdown began in this boot and has neither ended nor taken longer than it can: another agent was in the middle
    /// of it.
    #[must_use]
    pub fn is_under_way(&self, boot_id: &str, budget: Duration, now: Now) -> bool {
        let age = now.wall.since(api_time::wall(&self.start_time));
        self.end_time.is_none() && self.boot_id == boot_id && age <= budget + OVERDUE
    }

    /// True if the boot ended as in this receipt: its pods first.
    #[must_use]
    pub fn is_of(&self, boot_id: &str) -> bool {
        self.end_time.is_some() && self.boot_id == boot_id && !self.boot_went_on
    }
}

impl PodReceipt {
    /// Of a pod that is there.
    #[must_use]
    pub fn of(key: &PodKey) -> PodReceipt {
        PodReceipt {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            uid: key.uid.to_string(),
            ended: false,
            told: false,
        }
    }
}
