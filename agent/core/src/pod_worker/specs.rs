//! What a pod worker needs from `container_spec`, as a narrow trait, so that scenarios can use tiny pods.
//!
//! In: a pod. Out: runtime configurations. Invariant: pure functions of their arguments.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::Pod;

use crate::runtime::config::{ContainerConfig, SandboxConfig};
use crate::runtime::effect::{Effect, ImageInfo};
use crate::types::ContainerRef;

/// A pod or container that cannot be turned into a runtime configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SpecFailure {
    /// Waiting reason, for example `CreateContainerConfigError`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Builds runtime configurations from pods.
pub trait PodSpecs: Debug + Send + Sync {
    /// The sandbox of `pod` under `attempt`.
    ///
    /// # Errors
    /// What in the pod cannot be done.
    fn sandbox(&self, pod: &Pod, attempt: u32) -> Result<SandboxConfig, SpecFailure>;

    /// One container of `pod` under `attempt`.
    ///
    /// # Errors
    /// What in the pod cannot be done.
    fn container(
        &self,
        pod: &Pod,
        container: ContainerRef<'_>,
        attempt: u32,
        image: &ImageInfo,
        pod_ips: &[String],
    ) -> Result<ContainerConfig, SpecFailure>;

    /// Hash of what makes a container a different one (name and image).
    fn container_hash(&self, name: &str, image: &str) -> String;

    /// The [`Effect::CreatePodDirs`] that must be done before the pod's first sandbox.
    fn pod_dirs(&self, pod: &Pod) -> Effect;

    /// The [`Effect::CreatePodDirs`] that must be done before a container is created.
    fn container_files(
        &self,
        pod: &Pod,
        container: ContainerRef<'_>,
        attempt: u32,
        pod_ips: &[String],
    ) -> Effect;
}
