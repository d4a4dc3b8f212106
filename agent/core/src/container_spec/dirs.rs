//! Directories and files below `<root>/pods/<uid>` that must exist before a sandbox or a container is made
//! (contract 10.2, 7.8, 13).
//!
//! In: pod, node, addresses. Out: [`Effect::CreatePodDirs`], idempotent, so that the worker may repeat it.
//! Invariants: every path lies below the pod's directory or its log directory; names that come from the pod
//! are DNS labels (validated), so no path escapes.

use k8s_openapi::api::core::v1::Pod;

use super::context::NodeContext;
use super::hosts;
use crate::runtime::effect::{Effect, FileWrite, PodFile};
use crate::types::{ContainerRef, pod};

/// Mode of kubelet-made directories in the pod directory.
const DIR_MODE: u32 = 0o750;
/// Log readers run as other users.
const LOG_DIR_MODE: u32 = 0o755;
/// A container may run as any user and must be able to write its last words.
const TERMINATION_LOG_MODE: u32 = 0o666;

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
    format!("{}/etc-hosts", pod_dir(pod, node))
}

/// Host path of a container instance's termination message. The attempt keeps instances apart.
#[must_use]
pub fn termination_log(pod: &Pod, container: ContainerRef<'_>, attempt: u32, node: &NodeContext) -> String {
    format!("{}/{}", pod_dir(pod, node), termination_log_below(container.name(), attempt))
}

/// The same, below the pod's directory.
#[must_use]
pub fn termination_log_below(container: &str, attempt: u32) -> String {
    format!("containers/{container}/{attempt:08x}")
}

/// What must exist before the pod's sandbox: pod directory, its parts, log directory. Volumes are made by [`crate::volume`].
#[must_use]
pub fn pod_dirs(pod: &Pod, node: &NodeContext) -> Effect {
    let root = pod_dir(pod, node);
    let mut dirs = vec![(root.clone(), DIR_MODE)];
    for part in ["volumes", "plugins", "containers"] {
        dirs.push((format!("{root}/{part}"), DIR_MODE));
    }
    Effect::CreatePodDirs { log_directory: log_directory(pod, node), dirs, files: Vec::new(), log_of: None }
}

/// What must exist before one container instance is created: its directory, its log directory, its termination message file
/// (kept if it is there already) and, once the pod has addresses, the managed hosts file.
#[must_use]
pub fn container_files(
    pod: &Pod,
    container: ContainerRef<'_>,
    attempt: u32,
    pod_ips: &[String],
    node: &NodeContext,
) -> Effect {
    let root = pod_dir(pod, node);
    let dirs = vec![
        (root.clone(), DIR_MODE),
        (format!("{root}/containers"), DIR_MODE),
        (format!("{root}/containers/{}", container.name()), DIR_MODE),
        (format!("{}/{}", log_directory(pod, node), container.name()), LOG_DIR_MODE),
    ];
    let log_of = Some(format!("{}/{}", log_directory(pod, node), container.name()));
    let mut files = Vec::new();
    let message_path = container.find(pod).and_then(|c| c.termination_message_path.clone());
    if message_path.is_some_and(|p| !p.is_empty()) {
        files.push(PodFile {
            path: termination_log(pod, container, attempt, node),
            content: String::new(),
            mode: TERMINATION_LOG_MODE,
            write: FileWrite::KeepExisting,
        });
    }
    if let Some(content) = hosts::hosts_file(pod, pod_ips, node) {
        let path = hosts_path(pod, node);
        files.push(PodFile { path, content, mode: 0o644, write: FileWrite::Replace });
    }
    Effect::CreatePodDirs { log_directory: log_directory(pod, node), dirs, files, log_of }
}
