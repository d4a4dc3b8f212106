//! Accessors of a pod: identity, containers, and common properties (static, host network, sidecar).
//!
//! In: `k8s_openapi` Pod. Out: borrowed values and [`PodKey`]. Upstream: pkg/kubelet/types,
//! pkg/kubelet/container.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, EphemeralContainer, Pod, PodSpec, PodStatus};

use crate::ids::{PodKey, PodUid};

/// Annotation: which source the pod came from (`file`, `http`, `api`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation: when the source first delivered the pod, RFC 3339 with nanoseconds.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation: hash of a static pod, equal to its UID unless the manifest names one.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation: on a mirror pod, the hash of the static pod it mirrors.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// `priorityClassName` of pods that the node cannot do without.
pub const SYSTEM_NODE_CRITICAL: &str = "system-node-critical";
/// The least priority of a system's pods, that of `system-cluster-critical`.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Identifies one container of a pod. All its containers share one name space; the kind names the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerRef<'a> {
    /// From `spec.initContainers` (sidecars included).
    Init(&'a str),
    /// From `spec.containers`.
    Regular(&'a str),
    /// From `spec.ephemeralContainers`.
    Ephemeral(&'a str),
}

impl<'a> ContainerRef<'a> {
    /// The container's name.
    #[must_use]
    pub fn name(self) -> &'a str {
        match self {
            ContainerRef::Init(name) | ContainerRef::Regular(name) | ContainerRef::Ephemeral(name) => name,
        }
    }

    /// The container in `pod`, if present. For an ephemeral container, the fields that it shares with the
    /// others.
    #[must_use]
    pub fn find(self, pod: &Pod) -> Option<Cow<'_, Container>> {
        let list = match self {
            ContainerRef::Init(_) => init_containers(pod),
            ContainerRef::Regular(_) => containers(pod),
            ContainerRef::Ephemeral(name) => {
                let found = ephemeral_containers(pod).iter().find(|c| c.name == name);
                return found.map(|c| Cow::Owned(as_container(c)));
            }
        };
        list.iter().find(|c| c.name == self.name()).map(Cow::Borrowed)
    }
}

impl fmt::Display for ContainerRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The pod's spec; empty if it has none, which validation rejects earlier.
#[must_use]
pub fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// `spec.containers`.
#[must_use]
pub fn containers(pod: &Pod) -> &[Container] {
    &spec(pod).containers
}

/// `spec.initContainers`, in start order.
#[must_use]
pub fn init_containers(pod: &Pod) -> &[Container] {
    spec(pod).init_containers.as_deref().unwrap_or(&[])
}

/// `spec.ephemeralContainers`, in the order they were added.
#[must_use]
pub fn ephemeral_containers(pod: &Pod) -> &[EphemeralContainer] {
    spec(pod).ephemeral_containers.as_deref().unwrap_or(&[])
}

/// The common fields of an ephemeral container and other containers: all but its target container.
fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let EphemeralContainer {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        target_container_name: _,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    } = ephemeral.clone();
    Container {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    }
}

/// Statuses of all containers: regular, init, ephemeral.
pub fn container_statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses]
        .into_iter()
        .flatten()
        .flatten()
}

/// The CRI id in a status's `containerID`, `containerd://<id>`.
#[must_use]
pub fn runtime_id(container_id: &str) -> &str {
    container_id.split_once("://").map_or(container_id, |(_, id)| id)
}

/// True for an init container with `restartPolicy: Always`.
#[must_use]
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// `metadata.name`, empty if absent.
#[must_use]
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or("")
}

/// `metadata.namespace`, empty if absent.
#[must_use]
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("")
}

/// `metadata.uid`, empty if absent.
#[must_use]
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or("")
}

/// Name, namespace and UID together.
#[must_use]
pub fn key(pod: &Pod) -> PodKey {
    PodKey { namespace: namespace(pod).into(), name: name(pod).into(), uid: PodUid::from(uid(pod)) }
}

/// `name_namespace`, unique among the pods that run at one time.
#[must_use]
pub fn full_name(pod: &Pod) -> String {
    format!("{}_{}", name(pod), namespace(pod))
}

/// An annotation's value.
#[must_use]
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str)
}

/// Labels, empty if absent.
#[must_use]
pub fn labels(pod: &Pod) -> &BTreeMap<String, String> {
    static EMPTY: BTreeMap<String, String> = BTreeMap::new();
    pod.metadata.labels.as_ref().unwrap_or(&EMPTY)
}

/// Annotations, empty if absent.
#[must_use]
pub fn annotations(pod: &Pod) -> &BTreeMap<String, String> {
    static EMPTY: BTreeMap<String, String> = BTreeMap::new();
    pod.metadata.annotations.as_ref().unwrap_or(&EMPTY)
}

/// True for a pod that may preempt others: static, a mirror, or with system priority. Upstream: IsCriticalPod.
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    let of_system = spec(pod).priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY);
    is_static(pod) || annotation(pod, CONFIG_MIRROR).is_some() || of_system
}

/// True if the pod comes from this node (file or http), not from the API.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|s| s != "api")
}

/// `spec.hostUsers: false`: the pod has its own user namespace.
#[must_use]
pub fn own_users(pod: &Pod) -> bool {
    spec(pod).host_users == Some(false)
}

/// `spec.hostNetwork`.
#[must_use]
pub fn host_network(pod: &Pod) -> bool {
    spec(pod).host_network == Some(true)
}

/// The status of the container at `index` of its list in the specification: lists of init containers have that order.
#[must_use]
pub fn status_at<'a>(all: &'a [ContainerStatus], index: usize, name: &str) -> Option<&'a ContainerStatus> {
    all.get(index).filter(|s| s.name == name).or_else(|| named(all, name))
}

/// The status of a container. Our own lists are sorted by name; others are looked through.
#[must_use]
pub fn named<'a>(all: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    let found = all.binary_search_by(|s| s.name.as_str().cmp(name)).ok().and_then(|at| all.get(at));
    found.or_else(|| all.iter().find(|s| s.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_found_at_its_place_or_by_its_name() {
        let all: Vec<ContainerStatus> = ["c", "a", "b"]
            .map(|name| ContainerStatus { name: name.to_owned(), ..ContainerStatus::default() })
            .into();
        for (index, name) in [(0, "c"), (1, "a"), (9, "a"), (0, "b"), (2, "c")] {
            assert_eq!(status_at(&all, index, name).map(|s| s.name.as_str()), Some(name), "{index}");
        }
        assert_eq!(status_at(&all, 0, "d"), None);
    }
}
