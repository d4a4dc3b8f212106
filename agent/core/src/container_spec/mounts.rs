//! Bind mounts of a container (contract 7.8, 7.11, 10.4).
//!
//! In: `volumeMounts`, the pod's volumes, the node. Out: [`Mount`]s in order: volumes as listed, then the managed
//! hosts file, then the termination message. Invariant: only volume kinds that `unsupported` lets through.

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};

use super::SpecError;
use super::context::NodeContext;
use super::dirs::{hosts_path, termination_log};
use super::hosts;
use crate::runtime::config::{Mount, MountPropagation};
use crate::types::{ContainerRef, pod};
use crate::volume::Plugin;
use crate::volume::claim::Claims;
use crate::volume::plan::{Location, location};
use crate::volume::sub_path;

const ETC_HOSTS: &str = "/etc/hosts";

/// All mounts of one container instance.
///
/// # Errors
/// A mount of a volume that the pod does not have or that this node cannot provide.
pub fn mounts(
    pod: &Pod,
    container: ContainerRef<'_>,
    attempt: u32,
    (pod_ips, claims): (&[String], &Claims),
    node: &NodeContext,
) -> Result<Vec<Mount>, SpecError> {
    let Some(spec) = container.find(pod) else { return Ok(Vec::new()) };
    let mut mounts = Vec::new();
    for (index, mount) in spec.volume_mounts.iter().flatten().enumerate() {
        let mut made = volume_mount(pod, &spec, mount, (claims, node))?;
        if sub_path::is_asked(mount) {
            made.host_path = sub_path::target(pod, &spec.name, mount, index, node);
        }
        mounts.push(made);
    }
    let own_hosts = mounts.iter().any(|m| m.container_path == ETC_HOSTS);
    if !own_hosts && hosts::hosts_file(pod, pod_ips, node).is_some() {
        mounts.push(Mount {
            container_path: ETC_HOSTS.to_owned(),
            host_path: hosts_path(pod, node),
            selinux_relabel: node.security.selinux_enabled,
            ..Mount::default()
        });
    }
    if let Some(path) = spec.termination_message_path.as_deref().filter(|p| !p.is_empty()) {
        mounts.push(Mount {
            container_path: path.to_owned(),
            host_path: termination_log(pod, container, attempt, node),
            selinux_relabel: node.security.selinux_enabled,
            ..Mount::default()
        });
    }
    Ok(mounts)
}

/// Where the volume of a mount is on the host.
///
/// # Errors
/// The pod does not have it, or this node cannot provide it.
pub(crate) fn mounted_volume(
    pod: &Pod,
    container: &Container,
    mount: &VolumeMount,
    (claims, node): (&Claims, &NodeContext),
) -> Result<Location, SpecError> {
    let volumes = pod::spec(pod).volumes.as_deref().unwrap_or(&[]);
    let volume = volumes.iter().find(|v| v.name == mount.name).ok_or_else(|| {
        SpecError::container(format!(
            "cannot find volume {:?} to mount into container {:?}",
            mount.name, container.name
        ))
    })?;
    location(pod, volume, claims, node).ok_or_else(|| {
        SpecError::container(format!("volume {:?} has a type that this node cannot provide", mount.name))
    })
}

fn volume_mount(
    pod: &Pod,
    container: &Container,
    mount: &VolumeMount,
    (claims, node): (&Claims, &NodeContext),
) -> Result<Mount, SpecError> {
    let Location { path: host_path, plugin, read_only } =
        mounted_volume(pod, container, mount, (claims, node))?;
    let path = &mount.mount_path;
    Ok(Mount {
        container_path: if path.starts_with('/') { path.clone() } else { format!("/{path}") },
        host_path,
        readonly: mount.read_only == Some(true) || read_only,
        recursive_read_only: false,
        // Only what the node made for this pod may be relabelled.
        selinux_relabel: plugin != Plugin::HostPath && node.security.selinux_enabled,
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => MountPropagation::HostToContainer,
            Some("Bidirectional") => MountPropagation::Bidirectional,
            _ => MountPropagation::Private,
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::volume::HostPathType;
    use crate::volume::claim::{Bound, Source};

    fn pod(mounts: Value, message_path: &str) -> Pod {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"volumes": [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/srv"}},
                                 {"name": "s", "secret": {"secretName": "x"}}, {"name": "n", "nfs": {"server": "x", "path": "/"}},
                                 {"name": "p", "persistentVolumeClaim": {"claimName": "x"}}, {"name": "r", "persistentVolumeClaim": {"claimName": "y"}},
                                 {"name": "u", "persistentVolumeClaim": {"claimName": "z"}}],
                "containers": [{"name": "c", "volumeMounts": mounts, "terminationMessagePath": message_path}]}}))
        .unwrap()
    }

    fn mount(container_path: &str, host_path: &str) -> Mount {
        Mount { container_path: container_path.into(), host_path: host_path.into(), ..Mount::default() }
    }

    /// Those of volumes `p` (local) and `r` (hostPath, to be read only) are bound; that of `u` is not.
    fn claims() -> Claims {
        let bound = |volume: &str, source: Source, read_only: bool| Bound {
            volume: volume.to_owned(),
            source,
            read_only,
            options: Vec::new(),
            one_pod: false,
            block: false,
        };
        let local = Source::Local { path: "/mnt/disk".to_owned() };
        let host = Source::HostPath { path: "/srv/r".to_owned(), kind: HostPathType::Unset };
        Claims::from([
            ("p".to_owned(), bound("pv-p", local, false)),
            ("r".to_owned(), bound("pv-r", host, true)),
        ])
    }

    fn built(pod: &Pod, node: &NodeContext) -> Result<Vec<Mount>, SpecError> {
        mounts(pod, ContainerRef::Regular("c"), 2, (&["10.0.0.2".to_owned()], &claims()), node)
    }

    #[test]
    fn volumes_hosts_and_termination_message_in_order() {
        let pod = pod(
            json!([{"name": "h", "mountPath": "data", "readOnly": true, "mountPropagation": "HostToContainer"},
                   {"name": "e", "mountPath": "/tmp"}, {"name": "h", "mountPath": "/part", "subPath": "a/b"}]),
            "/dev/termination-log",
        );
        let mut node = NodeContext::new("n");
        let expected = vec![
            Mount {
                readonly: true,
                propagation: MountPropagation::HostToContainer,
                ..mount("/data", "/srv")
            },
            mount("/tmp", "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/e"),
            mount("/part", "/var/lib/kubelet/pods/u/volume-subpaths/h/c/2"),
            mount("/etc/hosts", "/var/lib/kubelet/pods/u/etc-hosts"),
            mount("/dev/termination-log", "/var/lib/kubelet/pods/u/containers/c/00000002"),
        ];
        assert_eq!(built(&pod, &node).unwrap(), expected);
        node.security.selinux_enabled = true;
        let relabelled: Vec<bool> = built(&pod, &node).unwrap().iter().map(|m| m.selinux_relabel).collect();
        assert_eq!(relabelled, [false, true, false, true, true]);
    }

    #[test]
    fn a_claims_volume_is_where_it_was_bound_to() {
        let pod = pod(json!([{"name": "p", "mountPath": "/p"}, {"name": "r", "mountPath": "/r"}]), "");
        let built = built(&pod, &NodeContext::new("n")).unwrap();
        let local = mount("/p", "/var/lib/kubelet/pods/u/volumes/kubernetes.io~local-volume/pv-p");
        assert_eq!(built[..2], [local, Mount { readonly: true, ..mount("/r", "/srv/r") }]);
    }

    #[test]
    fn a_pod_may_bring_its_own_hosts_file() {
        let pod = pod(json!([{"name": "h", "mountPath": "/etc/hosts"}]), "");
        assert_eq!(built(&pod, &NodeContext::new("n")).unwrap(), [mount("/etc/hosts", "/srv")]);
    }

    #[test]
    fn a_volume_that_cannot_be_mounted_is_an_error() {
        for name in ["missing", "n", "u"] {
            let pod = pod(json!([{"name": name, "mountPath": "/x"}]), "");
            let error = built(&pod, &NodeContext::new("n")).unwrap_err();
            assert!(error.reason == "CreateContainerConfigError" && error.message.contains(name), "{error}");
        }
    }
}
