//! Directories and files below `<root>/pods/<uid>` that must exist before the runtime makes a sandbox or a
//! container.
//!
//! In: pod, node, addresses. Out: [`PodFiles`], from which the worker makes an idempotent effect. Invariants:
//! every path is below the pod's directory or its log directory; names from the pod are validated DNS labels,
//! so no path can leave these directories. Upstream: pkg/kubelet/kubelet_getters.go (directory layout).

use agent_types::ContainerRef;
use agent_types::node_context::NodeContext;
use agent_types::pod_paths::{LAST_WORDS_DIR, hosts_path, log_directory, pod_dir, termination_log};
use agent_types::runtime::pod_files::{FileWrite, PodFile, PodFiles};
use k8s_openapi::api::core::v1::Pod;

use super::hosts;

/// Mode of kubelet-made directories in the pod directory.
const DIR_MODE: u32 = 0o750;
/// Log readers run as other users.
const LOG_DIR_MODE: u32 = 0o755;
/// A container may run as any user and must be able to write its last words.
const TERMINATION_LOG_MODE: u32 = 0o666;

/// The attempt that a file of termination messages is of, by its name.
#[must_use]
pub fn attempt_of_last_words(name: &str) -> Option<u32> {
    u32::from_str_radix(name, 16).ok().filter(|attempt| format!("{attempt:08x}") == name)
}

/// What must exist before the pod's sandbox: pod directory, its parts, log directory. Volumes are made by [`agent_volumes`].
#[must_use]
pub fn pod_dirs(pod: &Pod, node: &NodeContext) -> PodFiles {
    let root = pod_dir(pod, node);
    let mut dirs = vec![(root.clone(), DIR_MODE)];
    for part in ["volumes", "plugins", LAST_WORDS_DIR] {
        dirs.push((format!("{root}/{part}"), DIR_MODE));
    }
    PodFiles { log_directory: log_directory(pod, node), dirs, files: Vec::new(), log_of: None }
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
) -> PodFiles {
    let root = pod_dir(pod, node);
    let dirs = vec![
        (root.clone(), DIR_MODE),
        (format!("{root}/{LAST_WORDS_DIR}"), DIR_MODE),
        (format!("{root}/{LAST_WORDS_DIR}/{}", container.name()), DIR_MODE),
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
    PodFiles { log_directory: log_directory(pod, node), dirs, files, log_of }
}
