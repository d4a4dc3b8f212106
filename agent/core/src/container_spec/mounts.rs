//! Bind mounts of a container (API field `volumeMounts`).
//!
//! In: `volumeMounts`, the pod's volumes, the node. Out: [`Mount`]s in order: volumes as listed, then the
//! managed hosts file, then the termination message. Invariant: only volume types that `unsupported` lets
//! through. Upstream: `makeMounts` of pkg/kubelet/kubelet_pods.go and of
//! pkg/kubelet/kuberuntime/kuberuntime_container.go.

use agent_types::ContainerRef;
use agent_types::node_context::NodeContext;
use agent_types::pod_paths::{hosts_path, termination_log};
use agent_types::runtime::config::{ImageMount, Mount, MountPropagation};
use agent_types::spec_error::SpecError;
use agent_volumes::bound::{Bound, Claims};
use agent_volumes::plan::Location;
use agent_volumes::plugin::Plugin;
use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod, VolumeMount};

use super::env::Environment;
use super::hosts;
use crate::container_spec::inputs::{ContainerInputs, ImageVolumes};
use crate::container_spec::mounted::{image_of, mounted_volume};
use crate::container_spec::sub_path;

const ETC_HOSTS: &str = "/etc/hosts";

/// All mounts of one container instance.
///
/// # Errors
/// A mount of a volume that the pod does not have or that this node cannot provide.
pub fn mounts(
    pod: &Pod,
    container: ContainerRef<'_>,
    attempt: u32,
    given: ContainerInputs<'_>,
    environment: &Environment,
    node: &NodeContext,
) -> Result<Vec<Mount>, SpecError> {
    let Some(spec) = container.find(pod) else { return Ok(Vec::new()) };
    let ContainerInputs { pod_ips, claims, images, recursive_read_only, .. } = given;
    let mut mounts = Vec::new();
    for (index, mount) in spec.volume_mounts.iter().flatten().enumerate() {
        let mut made = match image_of(pod, &mount.name) {
            Some(image) => image_mount(pod, mount, image, images, environment)?,
            None => volume_mount(pod, &spec, mount, claims, node)?,
        };
        if made.image.is_none() && sub_path::is_asked(mount) {
            made.host_path = sub_path::target(pod, &spec.name, mount, index, node);
        }
        made.recursive_read_only = recursively(mount, recursive_read_only).map_err(|why| {
            SpecError::container(format!("failed to resolve recursive read-only mode: {why}"))
        })?;
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

/// The runtime mounts the image by itself: always to be read only.
fn image_mount(
    pod: &Pod,
    mount: &VolumeMount,
    image: &ImageVolumeSource,
    images: &ImageVolumes,
    environment: &Environment,
) -> Result<Mount, SpecError> {
    let id = images.get(&mount.name).ok_or_else(|| {
        SpecError::container(format!("the image of volume {:?} was not looked up", mount.name))
    })?;
    Ok(Mount {
        container_path: container_path(mount),
        readonly: true,
        propagation: propagation(mount),
        image: Some(ImageMount {
            id: id.clone(),
            written: image.reference.clone().unwrap_or_default(),
            annotations: pod.metadata.annotations.clone().unwrap_or_default(),
            sub_path: sub_path::path(mount, environment).map_err(SpecError::container)?,
        }),
        ..Mount::default()
    })
}

/// Whether mounts inside of the mount become read-only, too; `can` is the runtime's capability.
///
/// # Errors
/// It is required and the runtime cannot do it.
pub(crate) fn recursively(mount: &VolumeMount, can: bool) -> Result<bool, String> {
    let Some(mode) = mount.recursive_read_only.as_deref().filter(|mode| *mode != "Disabled") else {
        return Ok(false);
    };
    let asked = format!("volume {:?} requested recursive read-only mode, but it is not", mount.name);
    if mount.read_only != Some(true) {
        return Err(format!("{asked} read-only"));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        return Err(format!("{asked} compatible with propagation {propagation:?}"));
    }
    match mode {
        "IfPossible" => Ok(can),
        "Enabled" if can => Ok(true),
        "Enabled" => Err(format!("{asked} supported by the runtime")),
        other => Err(format!("unknown recursive read-only mode {other:?}")),
    }
}

/// True if the runtime labels the contents of a volume: not for host or server directories, nor if the mount
/// sets the label.
fn relabels(plugin: Plugin, bound: Option<&Bound>) -> bool {
    !matches!(plugin, Plugin::HostPath | Plugin::Nfs) && !bound.is_some_and(|bound| bound.labelled)
}

fn container_path(mount: &VolumeMount) -> String {
    let path = &mount.mount_path;
    if path.starts_with('/') { path.clone() } else { format!("/{path}") }
}

fn propagation(mount: &VolumeMount) -> MountPropagation {
    match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => MountPropagation::HostToContainer,
        Some("Bidirectional") => MountPropagation::Bidirectional,
        _ => MountPropagation::Private,
    }
}

fn volume_mount(
    pod: &Pod,
    container: &Container,
    mount: &VolumeMount,
    claims: &Claims,
    node: &NodeContext,
) -> Result<Mount, SpecError> {
    let Location { path: host_path, plugin, read_only } =
        mounted_volume(pod, container, mount, claims, node)?;
    Ok(Mount {
        container_path: container_path(mount),
        host_path,
        readonly: mount.read_only == Some(true) || read_only,
        recursive_read_only: false,
        // Only files that the node made for this pod may be relabelled.
        selinux_relabel: node.security.selinux_enabled && relabels(plugin, claims.get(&mount.name)),
        propagation: propagation(mount),
        image: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use agent_types::objects::Objects;
    use agent_types::runtime::image::ImageInfo;
    use agent_types::runtime::placement::Placement;
    use agent_volumes::bound::HostPathType;
    use agent_volumes::bound::Source;
    use agent_volumes::env_file::EnvFiles;

    fn pod(mounts: Value, message_path: &str) -> Pod {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"volumes": [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/srv"}},
                                 {"name": "s", "secret": {"secretName": "x"}}, {"name": "n", "rbd": {"monitors": ["x"], "image": "y"}},
                                 {"name": "p", "persistentVolumeClaim": {"claimName": "x"}}, {"name": "r", "persistentVolumeClaim": {"claimName": "y"}},
                                 {"name": "u", "persistentVolumeClaim": {"claimName": "z"}},
                                 {"name": "i", "image": {"reference": "r.example/m:1"}}, {"name": "j", "image": {"reference": "x"}}],
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
            group: None,
            labelled: false,
        };
        let local = Source::Local { path: "/mnt/disk".to_owned(), fs_type: String::new() };
        let host = Source::HostPath { path: "/srv/r".to_owned(), kind: HostPathType::Unset };
        Claims::from([
            ("p".to_owned(), bound("pv-p", local, false)),
            ("r".to_owned(), bound("pv-r", host, true)),
        ])
    }

    fn built(pod: &Pod, node: &NodeContext) -> Result<Vec<Mount>, SpecError> {
        let image = ImageInfo {
            id: "sha256:1".into(),
            uid: None,
            username: String::new(),
            size_bytes: 1,
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            pinned: false,
        };
        let images = ImageVolumes::from([("i".to_owned(), "sha256:2".into())]);
        let given = ContainerInputs {
            image: &image,
            pod_ips: &["10.0.0.2".to_owned()],
            objects: &Objects::new(),
            files: &EnvFiles::new(),
            claims: &claims(),
            images: &images,
            placement: &Placement::default(),
            resource_claims: None,
            recursive_read_only: node.read_only_handlers.contains(""),
        };
        let mut environment = Environment::default();
        environment.set("PART", "models".to_owned());
        mounts(pod, ContainerRef::Regular("c"), 2, given, &environment, node)
    }

    #[test]
    fn an_image_is_mounted_by_the_runtime() {
        let mut pod = pod(
            json!([{"name": "i", "mountPath": "all"}, {"name": "i", "mountPath": "/part", "subPathExpr": "$(PART)/a"}]),
            "",
        );
        pod.metadata.annotations = Some([("k".to_owned(), "v".to_owned())].into());
        let image = |sub_path: &str| ImageMount {
            id: "sha256:2".into(),
            written: "r.example/m:1".to_owned(),
            annotations: [("k".to_owned(), "v".to_owned())].into(),
            sub_path: sub_path.to_owned(),
        };
        let expected = [("/all", ""), ("/part", "models/a")].map(|(at, sub_path)| Mount {
            readonly: true,
            image: Some(image(sub_path)),
            ..mount(at, "")
        });
        let mut node = NodeContext::new("n");
        node.security.selinux_enabled = true;
        assert_eq!(built(&pod, &node).unwrap()[..2], expected);
        for (mount, words) in [
            (json!({"name": "i", "mountPath": "/x", "subPath": "../a"}), "must not contain '..'"),
            (json!({"name": "i", "mountPath": "/x", "subPathExpr": "$(NONE)"}), "missing value for NONE"),
            (json!({"name": "j", "mountPath": "/x"}), "volume \"j\""),
        ] {
            let pod = tests::pod(json!([mount]), "");
            let error = built(&pod, &node).unwrap_err();
            assert!(error.message.contains(words), "{error}");
        }
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
    fn what_a_mount_labels_is_not_labelled_again() {
        let claim = |source: Source, labelled: bool| Bound {
            volume: "pv".to_owned(),
            source,
            read_only: false,
            options: Vec::new(),
            one_pod: true,
            block: false,
            group: None,
            labelled,
        };
        let csi = claim(Source::Csi(Box::default()), false);
        let nfs = claim(Source::Nfs { server: "s".to_owned(), path: "/".to_owned() }, false);
        assert!(relabels(csi.plugin(), Some(&csi)) && relabels(Plugin::EmptyDir, None));
        assert!(!relabels(nfs.plugin(), Some(&nfs)) && !relabels(Plugin::HostPath, None));
        assert!(!relabels(csi.plugin(), Some(&Bound { labelled: true, ..csi })));
    }

    #[test]
    fn a_claims_volume_is_where_it_was_bound_to() {
        let pod = pod(json!([{"name": "p", "mountPath": "/p"}, {"name": "r", "mountPath": "/r"}]), "");
        let built = built(&pod, &NodeContext::new("n")).unwrap();
        let local = mount("/p", "/var/lib/kubelet/pods/u/volumes/kubernetes.io~local-volume/pv-p");
        assert_eq!(built[..2], [local, Mount { readonly: true, ..mount("/r", "/srv/r") }]);
    }

    #[test]
    fn read_only_all_the_way_down() {
        let of = |mode: &str, read_only: bool, propagation: Option<&str>, can: bool| {
            let mut mount =
                json!({"name": "e", "mountPath": "/x", "readOnly": read_only, "recursiveReadOnly": mode});
            if let Some(propagation) = propagation {
                mount["mountPropagation"] = json!(propagation);
            }
            let mut node = NodeContext::new("n");
            if can {
                node.read_only_handlers.insert(String::new());
            }
            built(&pod(json!([mount]), ""), &node)
                .map(|all| all[0].recursive_read_only)
                .map_err(|e| e.message)
        };
        let refused = |why: &str| {
            let asked =
                "failed to resolve recursive read-only mode: volume \"e\" requested recursive read-only mode";
            Err(format!("{asked}, but it is not {why}"))
        };
        for (mode, can, expected) in [
            ("Disabled", true, Ok(false)),
            ("IfPossible", true, Ok(true)),
            ("IfPossible", false, Ok(false)),
            ("Enabled", true, Ok(true)),
            ("Enabled", false, refused("supported by the runtime")),
        ] {
            assert_eq!(of(mode, true, None, can), expected, "{mode} {can}");
            assert_eq!(of(mode, true, Some("None"), can), expected, "{mode} {can}");
        }
        assert_eq!(of("Enabled", false, None, true), refused("read-only"));
        let propagation = of("IfPossible", true, Some("HostToContainer"), true);
        assert_eq!(propagation, refused("compatible with propagation \"HostToContainer\""));
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
