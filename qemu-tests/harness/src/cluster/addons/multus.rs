//! Multus: pods with more than one network. The thin plugin, which containerd starts.
//!
//! What comes in: the programs, a registry's directory, a cluster. What goes out: the image under the name of the
//! published one, the objects of the published manifest (deployments/multus-daemonset.yml), networks for pods. Invariant:
//! the pods ask for everything that the published manifest asks for.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};

use super::NAMESPACE;
use super::images::{PATH, program};
use super::objects::{await_daemon_set, create};
use crate::cluster::build;
use crate::cluster::flags::{ADDRESS, PORT};
use crate::cluster::plane::Cluster;
use crate::cluster::programs::MultusPrograms;
use crate::native::blobs::Blobs;
use crate::run::Run;

/// The annotation by which a pod asks for more networks.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The CNI configuration that Multus makes of the first one that it finds, in the node. Of one with a `cniVersion` before
/// 1.0.0 it would make `00-multus.conf`.
pub const CONFIGURATION: &str = "/var/lib/orlop/cni/net.d/00-multus.conflist";
const IMAGE: &str = "k8snetworkplumbingwg/multus-cni";
const GROUP: &str = "k8s.cni.cncf.io";
const DEFINITIONS: &str = "network-attachment-definitions";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Account and role.
const MULTUS: &str = "multus";
const PODS: &str = "kube-multus-ds";
const CONFIG_MAP: &str = "multus-cni-config";

fn image() -> Result<String> {
    Ok(format!("{}/{IMAGE}:{}", super::flannel::REGISTRY, build::multus_version()?))
}

/// Makes the image in a registry's directory.
///
/// # Errors
/// If a program is missing, or the directory cannot be written.
pub(super) fn make(run: &Arc<Run>, dir: &Path, programs: &MultusPrograms) -> Result<()> {
    let blobs = Blobs::at(dir)?;
    let layer = blobs.layer_of(run, |tree| {
        let bin = tree.join("usr/src/multus-cni/bin");
        program(&programs.plugin, &bin.join("multus"))?;
        program(&programs.passthru, &bin.join("passthru"))?;
        program(&programs.install, &tree.join("install_multus"))?;
        program(&programs.entrypoint, &tree.join("thin_entrypoint"))
    })?;
    let config = json!({"Env": [PATH], "Entrypoint": ["/thin_entrypoint"]});
    blobs.image(IMAGE, build::multus_version()?, &config, std::slice::from_ref(&layer))?;
    Ok(())
}

/// Creates the objects.
///
/// # Errors
/// If an object is refused.
pub(super) fn apply(cluster: &Cluster) -> Result<()> {
    create(cluster, "multus", &objects()?)?;
    let definition = format!("crd/{DEFINITIONS}.{GROUP}");
    cluster.kubectl(&["wait", "--for=condition=Established", &definition, "--timeout=60s"]).map(drop)
}

/// Waits until it runs on `nodes` nodes.
///
/// # Errors
/// At the deadline, with the present state.
pub(super) fn await_ready(cluster: &Cluster, nodes: i32, limit_s: u64) -> Result<()> {
    await_daemon_set(cluster, (NAMESPACE, PODS), nodes, limit_s)
}

/// Defines a network for pods of the namespace `default`; `config` is its CNI configuration.
///
/// # Errors
/// If the object is refused.
pub fn define(cluster: &Cluster, name: &str, config: &Value) -> Result<()> {
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"config": config.to_string()},
    });
    create(cluster, &format!("network-{name}"), &object)
}

/// All objects, each after those that it needs.
///
/// # Errors
/// If a go.mod names no release.
fn objects() -> Result<Value> {
    let items = [definitions(), role(), binding(), account(), configuration(), pods(&image()?)];
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

fn definitions() -> Value {
    let schema = json!({"type": "object", "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {"type": "object", "properties": {"config": {"type": "string"}}},
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{DEFINITIONS}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {
                "plural": DEFINITIONS, "singular": "network-attachment-definition",
                "kind": "NetworkAttachmentDefinition", "shortNames": ["net-attach-def"],
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

fn role() -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": MULTUS},
        "rules": [
            {"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "update"]},
            {
                "apiGroups": ["", "events.k8s.io"], "resources": ["events"],
                "verbs": ["create", "patch", "update"],
            },
        ],
    })
}

fn binding() -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": MULTUS},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": MULTUS},
        "subjects": [{"kind": "ServiceAccount", "name": MULTUS, "namespace": NAMESPACE}],
    })
}

fn account() -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": MULTUS, "namespace": NAMESPACE}})
}

/// Published for installations that do not leave the configuration to Multus.
fn configuration() -> Value {
    let config = json!({
        "name": "multus-cni-network", "type": MULTUS, "capabilities": {"portMappings": true},
        "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig",
    });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": NAMESPACE, "labels": {"tier": "node", "app": MULTUS}},
        "data": {"cni-conf.json": config.to_string()},
    })
}

fn pods(image: &str) -> Value {
    let labels = json!({"tier": "node", "app": MULTUS, "name": MULTUS});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": PODS, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"name": MULTUS}},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels}, "spec": {
                "hostNetwork": true,
                "tolerations": [
                    {"operator": "Exists", "effect": "NoSchedule"},
                    {"operator": "Exists", "effect": "NoExecute"},
                ],
                "serviceAccountName": MULTUS,
                "terminationGracePeriodSeconds": 10,
                "initContainers": [install(image)],
                "containers": [entrypoint(image)],
                "volumes": [
                    {"name": "cni", "hostPath": {"path": "/etc/cni/net.d"}},
                    {"name": "cnibin", "hostPath": {"path": "/opt/cni/bin"}},
                    {"name": "multus-cfg", "configMap": {
                        "name": CONFIG_MAP, "items": [{"key": "cni-conf.json", "path": "70-multus.conf"}],
                    }},
                ],
            }},
        },
    })
}

fn install(image: &str) -> Value {
    json!({
        "name": "install-multus-binary",
        "image": image,
        "command": ["/install_multus"],
        "args": ["--type", "thin"],
        "resources": {"requests": {"cpu": "10m", "memory": "15Mi"}},
        "securityContext": {"privileged": true},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "cnibin", "mountPath": "/host/opt/cni/bin", "mountPropagation": "Bidirectional"},
        ],
    })
}

fn entrypoint(image: &str) -> Value {
    let value = |name: &str, value: &str| json!({"name": name, "value": value});
    let amounts = json!({"cpu": "100m", "memory": "50Mi"});
    json!({
        "name": "kube-multus",
        "image": image,
        "command": ["/thin_entrypoint"],
        "args": [
            "--multus-conf-file=auto",
            "--multus-autoconfig-dir=/host/etc/cni/net.d",
            "--cni-conf-dir=/host/etc/cni/net.d",
        ],
        // The plugin runs on the node and reaches the API server without kube-proxy.
        "env": [
            value("KUBERNETES_SERVICE_HOST", ADDRESS),
            value("KUBERNETES_SERVICE_PORT", &PORT.to_string()),
        ],
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"privileged": true},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "cni", "mountPath": "/host/etc/cni/net.d"},
            {"name": "cnibin", "mountPath": "/host/opt/cni/bin"},
            {"name": "multus-cfg", "mountPath": "/tmp/multus-conf"},
        ],
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use k8s_openapi::api::apps::v1::DaemonSet;
    use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

    use super::super::objects::ensure_typed;
    use super::*;

    #[test]
    fn the_objects_have_fields_of_the_api() {
        for object in objects().unwrap()["items"].as_array().unwrap() {
            match object["kind"].as_str().unwrap() {
                "CustomResourceDefinition" => ensure_typed::<CustomResourceDefinition>(object),
                "ConfigMap" => ensure_typed::<ConfigMap>(object),
                "ServiceAccount" => ensure_typed::<ServiceAccount>(object),
                "ClusterRole" => ensure_typed::<ClusterRole>(object),
                "ClusterRoleBinding" => ensure_typed::<ClusterRoleBinding>(object),
                "DaemonSet" => ensure_typed::<DaemonSet>(object),
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_image_is_in_the_registry_under_the_published_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        fs::write(&file, "a program").unwrap();
        let programs = MultusPrograms {
            plugin: file.clone(),
            passthru: file.clone(),
            install: file.clone(),
            entrypoint: file,
        };
        let run = Run::start().unwrap();
        make(&run, dir.path(), &programs).unwrap();
        run.close();
        let version = build::multus_version().unwrap();
        assert!(dir.path().join(format!("tags/k8snetworkplumbingwg-multus-cni@{version}")).is_file());
        assert_eq!(image().unwrap(), format!("ghcr.io/k8snetworkplumbingwg/multus-cni:{version}"));
    }
}
