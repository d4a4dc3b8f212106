//! Specifications for the tests' world: names and what a test needs, nothing else.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::node_context::{Features, NodeContext};
use agent_types::runtime::config::{
    ContainerConfig, ContainerSecurity, LinuxResources, SandboxConfig, SandboxSecurity,
};
use agent_types::runtime::labels;
use agent_types::runtime::pod_files::PodFiles;
use agent_types::spec_error::SpecError;
use agent_types::{ContainerRef, objects, pod};
use agent_volumes::env_file::EnvFile;
use agent_volumes::{bound, sub_path};
use k8s_openapi::api::core::v1::Pod;

use crate::container_spec;
use crate::container_spec::dns::DnsWarning;
use crate::container_spec::inputs::ContainerInputs;
use crate::pod_specs::PodSpecs;

/// Specifications without anything but names.
#[derive(Debug)]
pub(super) struct TinySpecs;

impl PodSpecs for TinySpecs {
    fn features(&self) -> Features {
        Features { pod_level_resize: false, ..Features::default() }
    }

    fn sandbox(&self, p: &Pod, attempt: u32, _: &bound::Claims) -> Result<SandboxConfig, SpecError> {
        Ok(SandboxConfig {
            pod: pod::key(p),
            attempt,
            hostname: String::new(),
            log_directory: String::new(),
            dns: None,
            port_mappings: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            runtime_handler: String::new(),
            overhead: LinuxResources::default(),
            cgroup_parent: String::new(),
            sysctls: BTreeMap::new(),
            security: SandboxSecurity::default(),
            resources: LinuxResources::default(),
        })
    }

    fn container(
        &self,
        p: &Pod,
        container: ContainerRef<'_>,
        attempt: u32,
        ContainerInputs { image, pod_ips, placement, resource_claims, .. }: ContainerInputs<'_>,
    ) -> Result<ContainerConfig, SpecError> {
        let spec = container.find(p).expect("the worker asks for containers of the pod");
        assert!(!pod_ips.is_empty(), "a container is made when the pod has an address");
        if spec.working_dir.as_deref() == Some("bad") {
            return Err(SpecError {
                reason: "CreateContainerConfigError",
                message: "bad working dir".to_owned(),
            });
        }
        let image_name = spec.image.clone().unwrap_or_default();
        let annotations = BTreeMap::from([(
            labels::CONTAINER_HASH.to_owned(),
            self.container_hash(container.name(), &image_name),
        )]);
        Ok(ContainerConfig {
            name: container.name().to_owned(),
            attempt,
            image: image.id.clone(),
            user_specified_image: image_name,
            command: Vec::new(),
            args: Vec::new(),
            working_dir: String::new(),
            envs: Vec::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
            cdi_devices: resource_claims.map(|of| of.cdi_devices.clone()).unwrap_or_default(),
            labels: BTreeMap::new(),
            annotations,
            log_path: String::new(),
            stdin: false,
            stdin_once: false,
            tty: false,
            stop_signal: None,
            resources: LinuxResources {
                cpuset_cpus: placement.cpus_of(container.name()).to_owned(),
                ..LinuxResources::default()
            },
            security: ContainerSecurity::default(),
        })
    }

    fn objects(&self, p: &Pod, container: ContainerRef<'_>) -> BTreeSet<objects::ObjectRef> {
        NodeContext::new("n").objects(p, container)
    }

    fn env_files(&self, p: &Pod, container: ContainerRef<'_>) -> Result<BTreeSet<EnvFile>, SpecError> {
        NodeContext::new("n").env_files(p, container)
    }

    fn sub_paths(
        &self,
        p: &Pod,
        container: ContainerRef<'_>,
        given: ContainerInputs<'_>,
    ) -> Result<Vec<sub_path::SubPath>, SpecError> {
        container_spec::sub_paths(p, container, given, &NodeContext::new("n"))
    }

    fn dns_warnings(&self, p: &Pod) -> Vec<DnsWarning> {
        let policy = pod::spec(p).dns_policy.iter().filter(|policy| *policy == "odd");
        policy.map(|_| DnsWarning { reason: "DNSConfigForming", message: "too long".to_owned() }).collect()
    }

    fn container_hash(&self, name: &str, image: &str) -> String {
        format!("{name}@{image}")
    }

    fn pod_dirs(&self, _: &Pod) -> PodFiles {
        PodFiles { log_directory: "/logs".to_owned(), dirs: Vec::new(), files: Vec::new(), log_of: None }
    }

    fn volume(
        &self,
        p: &Pod,
        name: &str,
        claims: &bound::Claims,
    ) -> Result<agent_volumes::SetUp, agent_volumes::SetUpError> {
        agent_volumes::plan::set_up(p, name, claims, &NodeContext::new("n"))
    }

    fn container_files(&self, _: &Pod, _: ContainerRef<'_>, _: u32, _: &[String]) -> PodFiles {
        PodFiles { log_directory: "/logs".to_owned(), dirs: Vec::new(), files: Vec::new(), log_of: None }
    }
}
