//! Paths that belong to a pod: below `<root>/pods/<uid>` and in the directory of logs.
//!
//! In: pod and node. Out: absolute paths. Invariant: names that come from the pod are DNS labels (validated), so no path leaves
//! the pod's directory.

use k8s_openapi::api::core::v1::Pod;

use crate::node_context::NodeContext;
use crate::{ContainerRef, pod};

/// Below a pod's directory: the managed hosts file, which containers may write to.
pub const HOSTS_FILE: &str = "etc-hosts";
/// Below a pod's directory: the files for containers' termination messages, which containers may write to.
pub const LAST_WORDS_DIR: &str = "containers";

/// `<root>/pods/<uid>`.
#[must_use]
pub fn pod_dir(pod: &Pod, node: &NodeContext) -> String {
    format!("{}/pods/{}", node.root_dir, pod::uid(pod))
}

/// `<podLogsDir>/<namespace>_<name>_<uid>`.
#[must_use]
pub fn log_directory(pod: &Pod, node: &NodeContext) -> String {
    format!("{}/{}_{}_{}", node.pod_logs_dir, pod::namespace(pod), pod::name(pod), pod::uid(pod))
}

/// Host path of the managed `/etc/hosts`.
#[must_use]
pub fn hosts_path(pod: &Pod, node: &NodeContext) -> String {
    format!("{}/{HOSTS_FILE}", pod_dir(pod, node))
}

/// Host path of a container instance's termination message. The attempt keeps instances apart.
#[must_use]
pub fn termination_log(pod: &Pod, container: ContainerRef<'_>, attempt: u32, node: &NodeContext) -> String {
    format!("{}/{}", pod_dir(pod, node), termination_log_below(container.name(), attempt))
}

/// The same, below the pod's directory.
#[must_use]
pub fn termination_log_below(container: &str, attempt: u32) -> String {
    format!("{LAST_WORDS_DIR}/{container}/{attempt:08x}")
}
