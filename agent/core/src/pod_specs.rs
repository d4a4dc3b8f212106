//! The part of `container_spec` that a pod worker uses, as a narrow trait, so that scenarios can use tiny
//! pods.
//!
//! In: a pod. Out: runtime configurations. Invariant: pure functions of their arguments.

use std::collections::BTreeSet;
use std::fmt::Debug;

use agent_types::node_context::{Features, NodeContext};
use agent_types::resources::cgroups::pod::{PodCgroup, pod_cgroup};
use agent_types::runtime::config::{ContainerConfig, LinuxResources, SandboxConfig};
use agent_types::runtime::pod_files::PodFiles;
use agent_types::spec_error::SpecError;
use agent_types::{ContainerRef, objects};
use agent_volumes::bound::Claims;
use agent_volumes::env_file::EnvFile;
use agent_volumes::sub_path::SubPath;
use agent_volumes::{plan, references};
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::container_spec::dns::{self, DnsWarning};
use crate::container_spec::inputs::ContainerInputs;
use crate::container_spec::{self, env_files};

/// Builds runtime configurations from pods.
pub trait PodSpecs: Debug + Send + Sync {
    /// The sandbox of `pod` under `attempt`.
    ///
    /// # Errors
    /// What in the pod cannot be done.
    fn sandbox(&self, pod: &Pod, attempt: u32, claims: &Claims) -> Result<SandboxConfig, SpecError>;

    /// What people should know about the resolver configuration in `pod`'s sandbox.
    fn dns_warnings(&self, _pod: &Pod) -> Vec<DnsWarning> {
        Vec::new()
    }

    /// One container of `pod` under `attempt`.
    ///
    /// # Errors
    /// What in the pod cannot be done.
    fn container(
        &self,
        pod: &Pod,
        container: ContainerRef<'_>,
        attempt: u32,
        given: ContainerInputs<'_>,
    ) -> Result<ContainerConfig, SpecError>;

    /// The objects that the container's environment needs in addition to the pod.
    fn objects(&self, pod: &Pod, container: ContainerRef<'_>) -> BTreeSet<objects::ObjectRef>;

    /// The files of volumes that the container's environment is made from.
    ///
    /// # Errors
    /// What in the pod cannot be done.
    fn env_files(&self, _pod: &Pod, _container: ContainerRef<'_>) -> Result<BTreeSet<EnvFile>, SpecError> {
        Ok(BTreeSet::new())
    }

    /// The parts of volumes that must be mounted before the container is made.
    ///
    /// # Errors
    /// What in the pod cannot be done.
    fn sub_paths(
        &self,
        pod: &Pod,
        container: ContainerRef<'_>,
        given: ContainerInputs<'_>,
    ) -> Result<Vec<SubPath>, SpecError>;

    /// Feature gates for pods.
    fn features(&self) -> Features {
        Features::default()
    }

    /// Read-only mounts of pods that this handler runs can be read-only all the way down.
    fn makes_read_only(&self, _handler: &str) -> bool {
        false
    }

    /// The pod's own cgroup; `None` where pods have none.
    fn cgroup(&self, _pod: &Pod) -> Option<PodCgroup> {
        None
    }

    /// A container's resources for the runtime.
    fn resources(&self, _pod: &Pod, _container: &Container) -> LinuxResources {
        LinuxResources::default()
    }

    /// What the sandbox itself needs, and the sum of its containers; `None` if the runtime need not know.
    fn sandbox_resources(&self, _pod: &Pod) -> Option<(LinuxResources, LinuxResources)> {
        None
    }

    /// Pods have cgroups of their own.
    fn has_cgroups(&self) -> bool {
        false
    }

    /// Hash of the fields that make a container another one (name and image).
    fn container_hash(&self, name: &str, image: &str) -> String;

    /// Directories and files that must exist before the pod's first sandbox.
    fn pod_dirs(&self, pod: &Pod) -> PodFiles;

    /// The set-up of a volume of the pod.
    ///
    /// # Errors
    /// The reason why there is none.
    fn volume(
        &self,
        pod: &Pod,
        name: &str,
        claims: &Claims,
    ) -> Result<agent_volumes::SetUp, agent_volumes::SetUpError>;

    /// Directories and files that must exist before a container is created.
    fn container_files(
        &self,
        pod: &Pod,
        container: ContainerRef<'_>,
        attempt: u32,
        pod_ips: &[String],
    ) -> PodFiles;
}

impl PodSpecs for NodeContext {
    fn sandbox(&self, pod: &Pod, attempt: u32, claims: &Claims) -> Result<SandboxConfig, SpecError> {
        container_spec::sandbox_config(pod, attempt, claims, self)
    }

    fn dns_warnings(&self, pod: &Pod) -> Vec<DnsWarning> {
        dns::pod_dns(pod, self).1
    }

    fn container(
        &self,
        pod: &Pod,
        container: ContainerRef<'_>,
        attempt: u32,
        given: ContainerInputs<'_>,
    ) -> Result<ContainerConfig, SpecError> {
        container_spec::container_config(pod, container, attempt, given, self)
    }

    fn objects(&self, pod: &Pod, container: ContainerRef<'_>) -> BTreeSet<objects::ObjectRef> {
        let spec = container.find(pod);
        let mut objects = spec.map(|c| references::of_container(pod, &c)).unwrap_or_default();
        if self.in_cluster {
            objects.extend(references::services(pod));
        }
        objects
    }

    fn env_files(&self, pod: &Pod, container: ContainerRef<'_>) -> Result<BTreeSet<EnvFile>, SpecError> {
        let spec = container.find(pod);
        spec.map_or_else(|| Ok(BTreeSet::new()), |c| env_files::files(pod, &c, self))
    }

    fn sub_paths(
        &self,
        pod: &Pod,
        container: ContainerRef<'_>,
        given: ContainerInputs<'_>,
    ) -> Result<Vec<SubPath>, SpecError> {
        container_spec::sub_paths(pod, container, given, self)
    }

    fn features(&self) -> Features {
        self.features
    }

    fn makes_read_only(&self, handler: &str) -> bool {
        self.read_only_handlers.contains(handler)
    }

    fn cgroup(&self, pod: &Pod) -> Option<PodCgroup> {
        pod_cgroup(pod, self)
    }

    fn resources(&self, pod: &Pod, container: &Container) -> LinuxResources {
        container_spec::linux::container_resources(pod, container, self)
    }

    fn sandbox_resources(&self, pod: &Pod) -> Option<(LinuxResources, LinuxResources)> {
        let linux = (
            container_spec::linux::sandbox_overhead(pod, self),
            container_spec::linux::sandbox_resources(pod, self),
        );
        Some(linux)
    }

    fn has_cgroups(&self) -> bool {
        self.cgroup.per_qos
    }

    fn container_hash(&self, name: &str, image: &str) -> String {
        container_spec::container_hash(name, image)
    }

    fn pod_dirs(&self, pod: &Pod) -> PodFiles {
        container_spec::pod_dirs(pod, self)
    }

    fn volume(
        &self,
        pod: &Pod,
        name: &str,
        claims: &Claims,
    ) -> Result<agent_volumes::SetUp, agent_volumes::SetUpError> {
        plan::set_up(pod, name, claims, self)
    }

    fn container_files(
        &self,
        pod: &Pod,
        container: ContainerRef<'_>,
        attempt: u32,
        pod_ips: &[String],
    ) -> PodFiles {
        container_spec::container_files(pod, container, attempt, pod_ips, self)
    }
}
