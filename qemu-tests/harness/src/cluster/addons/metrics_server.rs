//! metrics-server as a pod of the cluster, behind the API server's aggregation: the source of `kubectl top`.
//!
//! What comes in: the program, a registry's directory, a cluster whose API server reaches pods
//! ([`crate::cluster::flags::Settings::aggregator_routing`]). What goes out: the image under the name of the published one,
//! the objects of the published manifest. Invariant: the pod asks for everything that the published manifest asks for.
//! [`crate::cluster::metrics_server`] starts the same program next to the control plane, without a pod.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};

use super::NAMESPACE;
use super::images::{PATH, REGISTRY, program};
use super::objects::{await_deployment, create};
use crate::cluster::build;
use crate::cluster::plane::Cluster;
use crate::native::blobs::Blobs;
use crate::run::Run;

/// Name of the Deployment, the Service, the account.
const NAME: &str = "metrics-server";
const IMAGE: &str = "metrics-server/metrics-server";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Group and version that it serves.
const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
/// Its port, in its own network.
const PORT: u16 = 10250;

fn image() -> Result<String> {
    Ok(format!("{REGISTRY}/{IMAGE}:{}", build::metrics_server_version()?))
}

/// Makes the image in a registry's directory.
///
/// # Errors
/// If the program is missing, or the directory cannot be written.
pub(super) fn make(run: &Arc<Run>, dir: &Path, metrics_server: &Path) -> Result<()> {
    let blobs = Blobs::at(dir)?;
    let layer = blobs.layer_of(run, |tree| program(metrics_server, &tree.join(NAME)))?;
    let config = json!({"Env": [PATH], "Entrypoint": [format!("/{NAME}")], "User": "65534"});
    blobs.image(IMAGE, build::metrics_server_version()?, &config, std::slice::from_ref(&layer))?;
    Ok(())
}

/// Creates the objects.
///
/// # Errors
/// If an object is refused.
pub(super) fn apply(cluster: &Cluster) -> Result<()> {
    create(cluster, NAME, &objects()?)
}

/// Waits until it is available. It is when it has values of a node.
///
/// # Errors
/// At the deadline, with the present state.
pub(super) fn await_ready(cluster: &Cluster, limit_s: u64) -> Result<()> {
    await_deployment(cluster, (NAMESPACE, NAME), 1, limit_s)
}

/// All objects, each after those that it needs.
///
/// # Errors
/// If a go.mod names no release.
fn objects() -> Result<Value> {
    let reader = "extension-apiserver-authentication-reader";
    let delegator = "system:auth-delegator";
    let own = format!("system:{NAME}");
    let mut items = vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata()}),
        role_of_readers(),
        own_role(&own),
        binding("RoleBinding", &format!("{NAME}-auth-reader"), ("Role", reader)),
        binding("ClusterRoleBinding", &format!("{NAME}:{delegator}"), ("ClusterRole", delegator)),
        binding("ClusterRoleBinding", &own, ("ClusterRole", own.as_str())),
    ];
    items.extend([service(), pods(&image()?), api_service()]);
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

fn metadata() -> Value {
    json!({"name": NAME, "namespace": NAMESPACE, "labels": {"k8s-app": NAME}})
}

/// People who may see pods may see what they use.
fn role_of_readers() -> Value {
    let aggregates = |role: &str| format!("{RBAC}/aggregate-to-{role}");
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole",
        "metadata": {"name": "system:aggregated-metrics-reader", "labels": {
            "k8s-app": NAME,
            aggregates("admin"): "true", aggregates("edit"): "true", aggregates("view"): "true",
        }},
        "rules": [{"apiGroups": [GROUP], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}],
    })
}

fn own_role(name: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"k8s-app": NAME}},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
        ],
    })
}

fn binding(kind: &str, name: &str, (role_kind, role): (&str, &str)) -> Value {
    let mut metadata = json!({"name": name, "labels": {"k8s-app": NAME}});
    if kind == "RoleBinding" {
        metadata["namespace"] = json!(NAMESPACE);
    }
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(),
        "spec": {
            "selector": {"k8s-app": NAME},
            "ports": [{
                "appProtocol": "https", "name": "https", "port": 443, "protocol": "TCP", "targetPort": "https",
            }],
        },
    })
}

fn pods(image: &str) -> Value {
    let labels = json!({"k8s-app": NAME});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(),
        "spec": {
            "selector": {"matchLabels": labels},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}},
            "template": {"metadata": {"labels": labels}, "spec": {
                "serviceAccountName": NAME,
                "priorityClassName": "system-cluster-critical",
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "containers": [container(image)],
                "volumes": [{"name": "tmp-dir", "emptyDir": {}}],
            }},
        },
    })
}

fn container(image: &str) -> Value {
    let get = |path: &str| json!({"path": path, "port": "https", "scheme": "HTTPS"});
    json!({
        "name": NAME,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "--cert-dir=/tmp",
            format!("--secure-port={PORT}"),
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
            "--kubelet-use-node-status-port",
            "--metric-resolution=15s",
        ],
        "ports": [{"name": "https", "containerPort": PORT, "protocol": "TCP"}],
        "livenessProbe": {"httpGet": get("/livez"), "periodSeconds": 10, "failureThreshold": 3},
        "readinessProbe": {
            "httpGet": get("/readyz"), "initialDelaySeconds": 20, "periodSeconds": 10, "failureThreshold": 3,
        },
        "resources": {"requests": {"cpu": "100m", "memory": "200Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "tmp-dir", "mountPath": "/tmp"}],
    })
}

fn api_service() -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("{VERSION}.{GROUP}"), "labels": {"k8s-app": NAME}},
        "spec": {
            "group": GROUP, "version": VERSION, "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true,
            "service": {"name": NAME, "namespace": NAMESPACE},
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::{Service, ServiceAccount};
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
    use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

    use super::super::objects::ensure_typed;
    use super::*;

    #[test]
    fn the_objects_have_fields_of_the_api() {
        for object in objects().unwrap()["items"].as_array().unwrap() {
            match object["kind"].as_str().unwrap() {
                "ServiceAccount" => ensure_typed::<ServiceAccount>(object),
                "ClusterRole" => ensure_typed::<ClusterRole>(object),
                "ClusterRoleBinding" => ensure_typed::<ClusterRoleBinding>(object),
                "RoleBinding" => ensure_typed::<RoleBinding>(object),
                "Service" => ensure_typed::<Service>(object),
                "Deployment" => ensure_typed::<Deployment>(object),
                "APIService" => ensure_typed::<APIService>(object),
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_image_is_in_the_registry_under_the_published_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        fs::write(&file, "a program").unwrap();
        let run = Run::start().unwrap();
        make(&run, dir.path(), &file).unwrap();
        run.close();
        let version = build::metrics_server_version().unwrap();
        assert!(dir.path().join(format!("tags/metrics-server-metrics-server@{version}")).is_file());
        assert_eq!(image().unwrap(), format!("registry.k8s.io/metrics-server/metrics-server:{version}"));
    }
}
