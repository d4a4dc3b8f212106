//! Mounts of a part of a volume (API fields `subPath` and `subPathExpr`).
//!
//! In: a container of a pod and its variables. Out: the part to mount and its target, before the runtime
//! makes the container. Invariants: the path is relative and has no `..`; the kernel resolves it and does not
//! follow a link out of the volume. Upstream: pkg/volume/util/subpath.

use agent_types::node_context::NodeContext;
use agent_types::pod_paths::pod_dir;
use agent_types::spec_error::SpecError;
use agent_types::{ContainerRef, pod};
use agent_volumes::bound::Claims;
use agent_volumes::sub_path::{SUB_PATHS, SubPath};
use k8s_openapi::api::core::v1::{Pod, VolumeMount};

use crate::container_spec::env::Environment;
use crate::container_spec::mounted::mounted_volume;

/// The mount names a part of its volume.
#[must_use]
pub fn is_asked(mount: &VolumeMount) -> bool {
    let set = |text: &Option<String>| text.as_deref().is_some_and(|t| !t.is_empty());
    set(&mount.sub_path) || set(&mount.sub_path_expr)
}

/// Where the part is mounted that a container's mount number `index` names.
#[must_use]
pub fn target(p: &Pod, container: &str, mount: &VolumeMount, index: usize, node: &NodeContext) -> String {
    format!("{}/{SUB_PATHS}/{}/{container}/{index}", pod_dir(p, node), mount.name)
}

/// All parts of volumes that a container mounts.
///
/// # Errors
/// A path that leaves its volume, a variable that has no value, a volume that the pod does not have.
pub fn of_container(
    p: &Pod,
    container: ContainerRef<'_>,
    environment: &Environment,
    claims: &Claims,
    node: &NodeContext,
) -> Result<Vec<SubPath>, SpecError> {
    let Some(spec) = container.find(p) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let is_image =
        |name: &str| pod::spec(p).volumes.iter().flatten().any(|v| v.name == name && v.image.is_some());
    for (index, mount) in spec.volume_mounts.iter().flatten().enumerate() {
        // The runtime mounts a part of an image itself.
        if !is_asked(mount) || is_image(&mount.name) {
            continue;
        }
        let path = path(mount, environment).map_err(SpecError::container)?;
        let root = mounted_volume(p, &spec, mount, claims, node)?.path;
        found.push(SubPath {
            volume: mount.name.clone(),
            container: spec.name.clone(),
            root,
            path,
            target: target(p, &spec.name, mount, index, node),
        });
    }
    Ok(found)
}

/// The part of its volume that a mount names; empty if it names none.
///
/// # Errors
/// It leaves the volume, or a variable in it has no value.
pub(crate) fn path(mount: &VolumeMount, environment: &Environment) -> Result<String, String> {
    let path = match mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        Some(expression) => environment
            .expand_known(expression)
            .map_err(|missing| format!("missing value for {}", missing.join(", ")))?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if path.starts_with('/') {
        return Err(format!("error SubPath `{path}` must not be an absolute path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("unable to provision SubPath `{path}`: must not contain '..'"));
    }
    if path.contains('\0') {
        return Err("unable to provision SubPath: it has a NUL byte".to_owned());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parts(mount: serde_json::Value) -> Result<Vec<(String, String)>, String> {
        let mut mount = mount;
        mount["mountPath"] = json!("/m");
        let p: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"volumes": [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/srv"}}],
                "containers": [{"name": "c", "volumeMounts": [{"name": "e", "mountPath": "/e"}, mount]}]}}))
        .unwrap();
        let mut environment = Environment::default();
        for (name, value) in [("POD", "p-1"), ("UP", "a/../.."), ("ROOT", "/etc"), ("NONE", "")] {
            environment.set(name, value.to_owned());
        }
        let found = of_container(
            &p,
            ContainerRef::Regular("c"),
            &environment,
            &Claims::new(),
            &NodeContext::new("n"),
        );
        let found = found.map_err(|e| e.message)?;
        Ok(found.into_iter().map(|s| (format!("{}:{}", s.root, s.path), s.target)).collect())
    }

    #[test]
    fn parts_of_volumes() {
        let table = [
            (json!({"name": "h", "subPath": "a/b"}), "/srv:a/b"),
            (json!({"name": "h", "subPathExpr": "logs/$(POD)/x$$(POD)"}), "/srv:logs/p-1/x$(POD)"),
            (
                json!({"name": "e", "subPath": "..data"}),
                "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/e:..data",
            ),
        ];
        for (mount, what) in table {
            let volume = mount["name"].as_str().unwrap().to_owned();
            let at = format!("/var/lib/kubelet/pods/u/volume-subpaths/{volume}/c/1");
            assert_eq!(parts(mount).unwrap(), [(what.to_owned(), at)]);
        }
        assert_eq!(parts(json!({"name": "h"})).unwrap(), []);
        assert_eq!(parts(json!({"name": "h", "subPath": "", "subPathExpr": ""})).unwrap(), []);
    }

    #[test]
    fn what_leaves_its_volume_is_refused() {
        let table = [
            (json!({"name": "h", "subPath": "/etc"}), "must not be an absolute path"),
            (json!({"name": "h", "subPathExpr": "$(ROOT)"}), "must not be an absolute path"),
            (json!({"name": "h", "subPath": "a/../b"}), "must not contain '..'"),
            (json!({"name": "h", "subPathExpr": "$(UP)"}), "must not contain '..'"),
            (json!({"name": "h", "subPath": "a\u{0}b"}), "NUL"),
            (json!({"name": "h", "subPathExpr": "$(NONE)/$(NOT)/$(NONE)"}), "missing value for NONE, NOT"),
            (json!({"name": "x", "subPath": "a"}), "cannot find volume \"x\""),
        ];
        for (mount, words) in table {
            let error = parts(mount.clone()).unwrap_err();
            assert!(error.contains(words), "{mount}: {error}");
        }
    }
}
