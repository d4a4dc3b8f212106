//! container_spec: a pod becomes what the runtime is told. Contract chapters 7.1 and 7.5 to 7.11.
//!
//! In: a defaulted, validated pod ([`crate::pod_source`]), the attempt, and the node ([`NodeContext`]).
//! Out: sandbox and container configurations, the directories and files to make first ([`pod_dirs`],
//! [`container_files`]), or a [`SpecError`] with the waiting reason that people see.
//! Invariants: pure and deterministic; a field that is not carried out is listed by [`unsupported()`], never
//! dropped silently. Upstream: pkg/kubelet/kuberuntime, kubelet_pods.go.

pub mod cgroup;
pub mod container;
pub mod context;
pub mod devices;
pub mod dirs;
pub mod dns;
pub mod downward;
pub mod env;
pub mod env_files;
pub mod env_objects;
pub mod expansion;
pub mod hash;
pub mod hosts;
pub mod linux;
pub mod mounts;
pub mod sandbox;
pub mod security;
pub mod services;
pub mod unsupported;

pub use cgroup::{cgroup_parent, kubepods};
pub use container::{Given, ImageVolumes, container_config, sub_paths};
pub use context::NodeContext;
pub use dirs::{container_files, pod_dir, pod_dirs};
pub use hash::container_hash;
pub use sandbox::sandbox_config;
pub use unsupported::{Unsupported, unsupported};

/// Why a sandbox or container cannot be configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SpecError {
    /// Waiting reason of the container status (`CreateContainerConfigError`, `FailedCreatePodSandBox`).
    pub reason: &'static str,
    /// The detailed message of the status and of the event.
    pub message: String,
}

/// Waiting reason: the container's configuration cannot be made.
pub const CREATE_CONTAINER_CONFIG_ERROR: &str = "CreateContainerConfigError";
/// Event reason: the sandbox's configuration cannot be made.
pub const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";

impl SpecError {
    /// A container's configuration failed.
    #[must_use]
    pub fn container(message: impl Into<String>) -> SpecError {
        SpecError { reason: CREATE_CONTAINER_CONFIG_ERROR, message: message.into() }
    }

    /// A sandbox's configuration failed.
    #[must_use]
    pub fn sandbox(message: impl Into<String>) -> SpecError {
        SpecError { reason: FAILED_CREATE_POD_SANDBOX, message: message.into() }
    }
}
