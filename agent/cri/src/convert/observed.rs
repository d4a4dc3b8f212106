//! CRI states and statuses to agent-core's observations.
//!
//! Invariant: each answer of a runtime gives an observation or an error in words; unknown enum numbers become the
//! state that claims least (`NotReady`, `Unknown`).

use std::collections::{BTreeMap, HashMap};

use agent_types::ids::{PodKey, PodUid};
use agent_types::node_context::CgroupDriver;
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::labels;
use agent_types::runtime::observed::{
    ContainerObserved, ContainerState, ResourcesObserved, SandboxObserved, SandboxState, UserObserved,
};
use agent_types::runtime::status::{RuntimeFeatures, RuntimeHandler, RuntimeStatus, RuntimeVersion};
use agent_types::time::Wall;
use orlop_proto::cri::v1;

use super::signal;

/// The pod that the kubelet's labels name; `None` if this is not a kubelet's object.
#[must_use]
pub fn pod_key(object_labels: &HashMap<String, String>) -> Option<PodKey> {
    let label = |name| object_labels.get(name).filter(|v| !v.is_empty());
    Some(PodKey {
        namespace: label(labels::POD_NAMESPACE)?.as_str().into(),
        name: label(labels::POD_NAME)?.as_str().into(),
        uid: PodUid::from(label(labels::POD_UID)?.as_str()),
    })
}

/// `VersionResponse`.
#[must_use]
pub fn version(v: v1::VersionResponse) -> RuntimeVersion {
    RuntimeVersion { name: v.runtime_name, version: v.runtime_version, api_version: v.runtime_api_version }
}

/// `StatusResponse`; a condition that the runtime does not report is not met.
#[must_use]
pub fn status(response: v1::StatusResponse) -> RuntimeStatus {
    let conditions = response.status.unwrap_or_default().conditions;
    let condition = |wanted: &str| match conditions.iter().find(|c| c.r#type == wanted) {
        Some(c) if c.status => Ok(()),
        Some(c) => Err(format!("{wanted}=false reason:{} message:{}", c.reason, c.message)),
        None => Err(format!("the container runtime does not report the condition {wanted}")),
    };
    let handlers = response.runtime_handlers.into_iter().map(|h| {
        let features = h.features.unwrap_or_default();
        RuntimeHandler {
            name: h.name,
            recursive_read_only_mounts: features.recursive_read_only_mounts,
            user_namespaces: features.user_namespaces,
        }
    });
    RuntimeStatus {
        runtime_ready: condition("RuntimeReady"),
        network_ready: condition("NetworkReady"),
        handlers: handlers.collect(),
        features: response.features.map(|f| RuntimeFeatures {
            supplemental_groups_policy: f.supplemental_groups_policy,
            user_namespaces_host_network: f.user_namespaces_host_network,
        }),
    }
}

/// `RuntimeConfigResponse`.
///
/// # Errors
/// In words, if the runtime names a driver that we do not know.
pub fn cgroup_driver(r: &v1::RuntimeConfigResponse) -> Result<Option<CgroupDriver>, String> {
    let Some(linux) = &r.linux else { return Ok(None) };
    match v1::CgroupDriver::try_from(linux.cgroup_driver) {
        Ok(v1::CgroupDriver::Systemd) => Ok(Some(CgroupDriver::Systemd)),
        Ok(v1::CgroupDriver::Cgroupfs) => Ok(Some(CgroupDriver::Cgroupfs)),
        Err(_) => {
            Err(format!("cgroup driver {} is not known: 0 (SYSTEMD) or 1 (CGROUPFS)", linux.cgroup_driver))
        }
    }
}

/// `PodSandboxState`.
#[must_use]
pub fn sandbox_state(number: i32) -> SandboxState {
    match v1::PodSandboxState::try_from(number) {
        Ok(v1::PodSandboxState::SandboxReady) => SandboxState::Ready,
        Ok(v1::PodSandboxState::SandboxNotready) | Err(_) => SandboxState::NotReady,
    }
}

/// `ContainerState`.
#[must_use]
pub fn container_state(number: i32) -> ContainerState {
    match v1::ContainerState::try_from(number) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

/// `PodSandboxStatus`.
#[must_use]
pub fn sandbox(s: v1::PodSandboxStatus) -> SandboxObserved {
    let network = s.network.unwrap_or_default();
    let ips = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|ip| ip.ip));
    let options = s.linux.and_then(|l| l.namespaces).and_then(|n| n.options);
    SandboxObserved {
        id: s.id.into(),
        attempt: s.metadata.unwrap_or_default().attempt,
        state: sandbox_state(s.state),
        created: Wall(s.created_at),
        ips: ips.filter(|ip| !ip.is_empty()).collect(),
        host_network: options.is_some_and(|o| o.network == i32::from(v1::NamespaceMode::Node)),
        runtime_handler: s.runtime_handler,
    }
}

/// `ContainerStatus`, with the sandbox that only `ListContainers` has.
#[must_use]
pub fn container(sandbox_id: &str, c: v1::ContainerStatus) -> ContainerObserved {
    let metadata = c.metadata.unwrap_or_default();
    let time = |ns: i64| (ns > 0).then_some(Wall(ns));
    let annotations: BTreeMap<String, String> = c.annotations.into_iter().collect();
    ContainerObserved {
        id: c.id.into(),
        sandbox: sandbox_id.into(),
        name: metadata.name,
        attempt: metadata.attempt,
        state: container_state(c.state),
        created: Wall(c.created_at),
        started: time(c.started_at),
        finished: time(c.finished_at),
        exit_code: c.exit_code,
        reason: c.reason,
        message: c.message,
        image: c.image.unwrap_or_default().image,
        image_ref: c.image_ref,
        log_path: c.log_path,
        annotations,
        user: c.user.and_then(|u| u.linux).map(user),
        actuated: None,
        resources: c.resources.and_then(|r| r.linux).map(|r| resources(&r)),
        stop_signal: signal::name(c.stop_signal),
    }
}

fn user(u: v1::LinuxContainerUser) -> UserObserved {
    UserObserved { uid: u.uid, gid: u.gid, supplemental_groups: u.supplemental_groups }
}

fn resources(r: &v1::LinuxContainerResources) -> ResourcesObserved {
    ResourcesObserved {
        cpu_period_us: r.cpu_period,
        cpu_quota_us: r.cpu_quota,
        cpu_shares: r.cpu_shares,
        memory_limit_bytes: r.memory_limit_in_bytes,
    }
}

/// `Image`.
#[must_use]
pub fn image(i: v1::Image) -> ImageInfo {
    ImageInfo {
        id: i.id.into(),
        uid: i.uid.map(|u| u.value),
        username: i.username,
        size_bytes: i.size,
        repo_tags: i.repo_tags,
        repo_digests: i.repo_digests,
        pinned: i.pinned,
    }
}
