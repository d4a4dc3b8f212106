//! Configuration of one container: the CRI message `ContainerConfig`.
//!
//! In: the pod, one of its containers, the attempt, the resolved image, the pod's addresses, the node. Out:
//! [`ContainerConfig`]. Invariant: equal inputs give an equal configuration, so a repeated CreateContainer
//! finds the container of the first call. Upstream: `generateContainerConfig` of
//! pkg/kubelet/kuberuntime/kuberuntime_container.go.

use std::collections::BTreeMap;

use agent_types::node_context::NodeContext;
use agent_types::runtime::config::{ContainerConfig, ContainerSecurity, LinuxResources};
use agent_types::runtime::labels;
use agent_types::spec_error::SpecError;
use agent_types::{ContainerRef, pod};
use agent_volumes::bound::Claims;
use agent_volumes::sub_path::SubPath;
use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod};
use serde::Serialize;

use super::devices::devices;
use super::env::{EnvSources, environment};
use super::hash::container_hash;
use super::linux::container_resources;
use super::mounts::mounts;
use super::sandbox::identity_labels;
use super::security::{container_security, groups_of_volumes};
use crate::container_spec::inputs::ContainerInputs;
use crate::container_spec::sub_path;

/// The parts of volumes to mount before the container is created.
///
/// # Errors
/// A field of the pod cannot be resolved.
pub fn sub_paths(
    pod: &Pod,
    container: ContainerRef<'_>,
    given: ContainerInputs<'_>,
    node: &NodeContext,
) -> Result<Vec<SubPath>, SpecError> {
    let ContainerInputs { pod_ips, objects, files, claims, placement, .. } = given;
    let Some(spec) = container.find(pod) else { return Ok(Vec::new()) };
    if !spec.volume_mounts.iter().flatten().any(sub_path::is_asked) {
        return Ok(Vec::new());
    }
    let devices = placement.devices.get(&spec.name);
    let environment =
        environment(&spec, EnvSources { pod, container, pod_ips, objects, files, devices, node })?;
    sub_path::of_container(pod, container, &environment, claims, node)
}

/// Configuration of instance `attempt` of one container.
///
/// # Errors
/// A field of the pod cannot be resolved; reason and message are for the container's status.
pub fn container_config(
    pod: &Pod,
    container: ContainerRef<'_>,
    attempt: u32,
    given: ContainerInputs<'_>,
    node: &NodeContext,
) -> Result<ContainerConfig, SpecError> {
    let spec = &*container.find(pod).ok_or_else(|| {
        SpecError::container(format!("pod {} has no container {:?}", pod::key(pod), container.name()))
    })?;
    let ContainerInputs { image, pod_ips, objects, files, claims, placement, resource_claims, .. } = given;
    let of_plugins = placement.devices.get(&spec.name);
    let sources = EnvSources { pod, container, pod_ips, objects, files, devices: of_plugins, node };
    let environment = environment(spec, sources)?;
    let mut container_labels = identity_labels(pod);
    container_labels.insert(labels::CONTAINER_NAME.to_owned(), spec.name.clone());
    let mut mounted = of_plugins.map(|devices| devices.mounts.clone()).unwrap_or_default();
    mounted.extend(mounts(pod, container, attempt, given, &environment, node)?);
    let mut nodes = of_plugins.map(|of| of.devices.clone()).unwrap_or_default();
    nodes.extend(devices(pod, spec, claims, node)?);
    let mut cdi_devices = resource_claims.map(|of| of.cdi_devices.clone()).unwrap_or_default();
    cdi_devices.extend(of_plugins.into_iter().flat_map(|of| of.cdi_devices.clone()));
    let mut annotated = of_plugins.map(|devices| devices.annotations.clone()).unwrap_or_default();
    annotated.extend(annotations(pod, spec, attempt));
    Ok(ContainerConfig {
        name: spec.name.clone(),
        attempt,
        image: image.id.clone(),
        user_specified_image: spec.image.clone().unwrap_or_default(),
        command: environment.expand_all(spec.command.as_ref()),
        args: environment.expand_all(spec.args.as_ref()),
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        envs: environment.into_vars(),
        mounts: mounted,
        devices: nodes,
        cdi_devices,
        labels: container_labels,
        annotations: annotated,
        log_path: format!("{}/{attempt}.log", spec.name),
        stdin: spec.stdin == Some(true),
        stdin_once: spec.stdin_once == Some(true),
        tty: spec.tty == Some(true),
        stop_signal: stop_signal(spec).filter(|_| node.features.stop_signals),
        resources: LinuxResources {
            cpuset_cpus: placement.cpus_of(&spec.name).to_owned(),
            cpuset_mems: placement.mems_of(&spec.name).to_owned(),
            ..container_resources(pod, spec, node)
        },
        security: in_groups(claims, container_security(pod, spec, image, node)?),
    })
}

/// In the groups of the claims' volumes, too.
fn in_groups(claims: &Claims, mut security: ContainerSecurity) -> ContainerSecurity {
    let groups = groups_of_volumes(claims, &security.supplemental_groups);
    security.supplemental_groups.extend(groups);
    security
}

fn stop_signal(container: &Container) -> Option<String> {
    container.lifecycle.as_ref().and_then(|l| l.stop_signal.clone())
}

/// What a later agent must know about the container even if the pod is gone.
fn annotations(pod: &Pod, container: &Container, attempt: u32) -> BTreeMap<String, String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let hash = container_hash(&container.name, container.image.as_deref().unwrap_or(""));
    let mut map = BTreeMap::from([
        (labels::CONTAINER_HASH.to_owned(), hash),
        (labels::CONTAINER_RESTART_COUNT.to_owned(), attempt.to_string()),
        (labels::TERMINATION_MESSAGE_PATH.to_owned(), text(&container.termination_message_path)),
        (labels::TERMINATION_MESSAGE_POLICY.to_owned(), text(&container.termination_message_policy)),
    ]);
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            map.insert(key.to_owned(), value);
        }
    };
    let grace = pod::spec(pod).termination_grace_period_seconds;
    put(labels::TERMINATION_GRACE_PERIOD, grace.map(|s| s.to_string()));
    let deletion_grace = pod.metadata.deletion_grace_period_seconds;
    put(labels::DELETION_GRACE_PERIOD, deletion_grace.map(|s| s.to_string()));
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    put(labels::CONTAINER_PORTS, ports.and_then(|ports| written(ports)));
    let pre_stop = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
    put(labels::PRE_STOP_HANDLER, pre_stop.and_then(|hook| serde_json::to_string(hook).ok()));
    map
}

/// A port as upstream writes it into an annotation: the fields in the order of the API's type, none that is empty.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenPort<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_port: Option<i32>,
    container_port: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'a String>,
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    host_ip: Option<&'a String>,
}

impl<'a> From<&'a ContainerPort> for WrittenPort<'a> {
    fn from(port: &'a ContainerPort) -> WrittenPort<'a> {
        WrittenPort {
            name: port.name.as_ref().filter(|v| !v.is_empty()),
            host_port: port.host_port.filter(|p| *p != 0),
            container_port: port.container_port,
            protocol: port.protocol.as_ref().filter(|v| !v.is_empty()),
            host_ip: port.host_ip.as_ref().filter(|v| !v.is_empty()),
        }
    }
}

fn written(ports: &[ContainerPort]) -> Option<String> {
    serde_json::to_string(&ports.iter().map(WrittenPort::from).collect::<Vec<_>>()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use agent_types::objects::Objects;
    use agent_types::runtime::claims::ContainerClaims;
    use agent_types::runtime::config::{Device, Mount};
    use agent_types::runtime::image::ImageInfo;
    use agent_types::runtime::placement::{ContainerDevices, Placement};
    use agent_volumes::env_file::EnvFiles;

    use super::*;
    use crate::container_spec::inputs::ImageVolumes;
    use agent_volumes::bound::{Bound, Source};

    fn config(pod: &Pod, name: &str, claims: &Claims, node: &NodeContext) -> ContainerConfig {
        placed(pod, name, claims, node, &Placement::default(), None)
    }

    fn placed(
        pod: &Pod,
        name: &str,
        claims: &Claims,
        node: &NodeContext,
        placement: &Placement,
        resource_claims: Option<&ContainerClaims>,
    ) -> ContainerConfig {
        let image = ImageInfo {
            id: "sha256:1".into(),
            uid: None,
            username: String::new(),
            size_bytes: 1,
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            pinned: false,
        };
        let given = ContainerInputs {
            image: &image,
            pod_ips: &[],
            objects: &Objects::new(),
            files: &EnvFiles::new(),
            claims,
            images: &ImageVolumes::new(),
            placement,
            resource_claims,
            recursive_read_only: false,
        };
        container_config(pod, ContainerRef::Regular(name), 0, given, node).unwrap()
    }

    fn pod(spec: &serde_json::Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}),
        )
        .unwrap()
    }

    #[test]
    fn a_containers_devices_change_its_configuration_and_the_pods_own_words_count_more() {
        let pod = pod(&json!({"volumes": [{"name": "h", "hostPath": {"path": "/h"}}],
            "containers": [{"name": "c", "image": "i", "args": ["$(GPU) $(OWN)"],
                "env": [{"name": "OWN", "value": "pod"}], "volumeMounts": [{"name": "h", "mountPath": "/h"}]}]}));
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let mount =
            Mount { container_path: "/lib".to_owned(), host_path: "/host".to_owned(), ..Mount::default() };
        let device = Device {
            container_path: "/dev/gpu".to_owned(),
            host_path: "/dev/gpu0".to_owned(),
            permissions: "rw".to_owned(),
        };
        let devices = ContainerDevices {
            envs: text(&[("GPU", "0"), ("OWN", "plugin")]),
            mounts: vec![mount.clone()],
            devices: vec![device.clone()],
            annotations: text(&[("x.io/a", "b"), (labels::CONTAINER_RESTART_COUNT, "9")]),
            cdi_devices: vec!["x.io/gpu=0".to_owned()],
            pre_start: Ok(Vec::new()),
            lacks_some: false,
            health: BTreeMap::new(),
        };
        let all = BTreeMap::from([("c".to_owned(), devices)]);
        let placement = Placement { devices: all, ..Placement::default() };
        let claimed =
            ContainerClaims { cdi_devices: vec!["y.io/c=1".to_owned()], ..ContainerClaims::default() };
        let node = NodeContext::new("n");
        let config = placed(&pod, "c", &Claims::new(), &node, &placement, Some(&claimed));
        let env = |name: &str| config.envs.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert_eq!((env("GPU"), env("OWN")), (Some("0"), Some("pod")));
        assert_eq!(config.args, ["0 pod"]);
        assert_eq!(config.mounts.first(), Some(&mount));
        assert!(config.mounts.iter().any(|mount| mount.container_path == "/h"));
        assert_eq!(config.devices, [device]);
        assert_eq!(config.cdi_devices, ["y.io/c=1", "x.io/gpu=0"]);
        assert_eq!(config.annotations["x.io/a"], "b");
        assert_eq!(config.annotations[labels::CONTAINER_RESTART_COUNT], "0", "the agent's own");
    }

    #[test]
    fn groups_of_claims_volumes_are_the_containers() {
        let pod = pod(&json!({"securityContext": {"fsGroup": 1, "supplementalGroups": [7, 5]},
            "containers": [{"name": "c", "image": "i"}]}));
        let bound = |group| Bound {
            volume: "pv".to_owned(),
            source: Source::Local { path: "/x".to_owned(), fs_type: String::new() },
            read_only: false,
            options: Vec::new(),
            one_pod: false,
            block: false,
            group,
            labelled: false,
        };
        let groups = [Some(9), None, Some(5), Some(9), Some(8)];
        let claims: Claims =
            groups.iter().enumerate().map(|(n, group)| (n.to_string(), bound(*group))).collect();
        let groups = |claims| config(&pod, "c", claims, &NodeContext::new("n")).security.supplemental_groups;
        assert_eq!(groups(&claims), [1, 7, 5, 8, 9]);
        assert_eq!(groups(&Claims::new()), [1, 7, 5]);
        assert_eq!(
            crate::container_spec::security::sandbox_security(&pod, &claims).supplemental_groups,
            [1, 8, 9, 7, 5]
        );
    }

    #[test]
    fn the_stop_signal_is_told_where_the_node_has_the_feature() {
        let pod = pod(
            &json!({"containers": [{"name": "c", "image": "i", "lifecycle": {"stopSignal": "SIGRTMIN+3"}},
                {"name": "d", "image": "i"}]}),
        );
        let told = |name: &str, node: &NodeContext| config(&pod, name, &Claims::new(), node).stop_signal;
        let mut node = NodeContext::new("n");
        assert_eq!(told("c", &node), None);
        node.features.stop_signals = true;
        assert_eq!(told("c", &node).as_deref(), Some("SIGRTMIN+3"));
        assert_eq!(told("d", &node), None);
    }
}
