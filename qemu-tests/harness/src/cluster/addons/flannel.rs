//! flannel: the pod network of a cluster, as an overlay of VXLAN.
//!
//! What comes in: the programs, a registry's directory, a cluster. What goes out: images under the names of the
//! published ones, the objects of the published manifest (Documentation/kube-flannel.yml), and nodes without another pod
//! network. Invariant: the pods ask for everything that the published manifest asks for. See docs/howto/addons.md.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::images::{PATH, links, program};
use super::objects::{await_daemon_set, create};
use crate::cluster::build;
use crate::cluster::flags::{ADDRESS, PORT};
use crate::cluster::plane::Cluster;
use crate::cluster::programs::FlannelPrograms;
use crate::cluster::wires::{POD_RANGE, remove_link};
use crate::native::blobs::Blobs;
use crate::native::images::install_busybox;
use crate::native::node::NativeNode;
use crate::run::Run;

/// Namespace of flannel's pods.
pub const NAMESPACE: &str = "kube-flannel";
/// Bytes of a packet between nodes that VXLAN takes for itself: the pods' MTU is smaller by as many.
pub const OVERHEAD: u32 = 50;
/// The registry of the published images.
pub(super) const REGISTRY: &str = "ghcr.io";
const IMAGE: &str = "flannel-io/flannel";
const PLUGIN_IMAGE: &str = "flannel-io/flannel-cni-plugin";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Account and role.
const FLANNEL: &str = "flannel";
const PODS: &str = "kube-flannel-ds";
const CONFIGURATION: &str = "kube-flannel-cfg";
/// Links that flannel and its plugin make on a node.
const LINKS: [&str; 2] = ["flannel.1", "cni0"];
/// The CNI configuration, in a node's directory of them.
const CONFLIST: &str = "10-flannel.conflist";
/// flannel's daemon is reached by the probes of the kubelet.
const HEALTH_PORT: u16 = 8081;
/// Limit for its pods to be gone.
const REMOVAL_LIMIT: &str = "--timeout=120s";

/// The image of flannel's daemon. It has the programs of busybox, too, as the published one.
///
/// # Errors
/// If go.mod names no release.
pub fn image() -> Result<String> {
    Ok(format!("{REGISTRY}/{IMAGE}:{}", build::flannel_version()?))
}

fn plugin_image() -> Result<String> {
    Ok(format!("{REGISTRY}/{PLUGIN_IMAGE}:{}", build::flannel_cni_version()?))
}

/// True if this machine's kernel, which native nodes share, has VXLAN.
#[must_use]
pub fn is_possible_here() -> bool {
    let link = ["ip", "link", "add", "probe", "type", "vxlan", "id", "1", "dstport", "8472"];
    // The link goes with the namespace.
    let output = Command::new("unshare").arg("--net").args(link).output();
    output.is_ok_and(|output| output.status.success())
}

/// Makes both images in a registry's directory.
///
/// # Errors
/// If a program is missing, or the directory cannot be written.
pub(super) fn make(run: &Arc<Run>, dir: &Path, programs: &FlannelPrograms) -> Result<()> {
    let blobs = Blobs::at(dir)?;
    let tools = blobs.layer(run, &programs.packet_tools)?;
    let own = blobs.layer_of(run, |tree| {
        links(tree)?;
        install_busybox(&tree.join("usr/bin"))?;
        fs::create_dir_all(tree.join("tmp")).context("make tmp")?;
        program(&programs.flanneld, &tree.join("opt/bin/flanneld"))?;
        program(&programs.install_conf, &tree.join("opt/bin/install-conf"))
    })?;
    let config = json!({"Env": [PATH], "Entrypoint": ["/opt/bin/flanneld"]});
    blobs.image(IMAGE, build::flannel_version()?, &config, &[tools, own])?;
    let plugin = blobs.layer_of(run, |tree| {
        install_busybox(&tree.join("bin"))?;
        program(&programs.plugin, &tree.join("flannel"))
    })?;
    let config = json!({"Env": [PATH]});
    blobs.image(PLUGIN_IMAGE, build::flannel_cni_version()?, &config, std::slice::from_ref(&plugin))?;
    Ok(())
}

/// Creates the objects.
///
/// # Errors
/// If an object is refused.
pub(super) fn apply(cluster: &Cluster) -> Result<()> {
    create(cluster, "flannel", &objects()?)
}

/// Waits until flannel is Ready on `nodes` nodes.
///
/// # Errors
/// At the deadline, with the present state.
pub(super) fn await_ready(cluster: &Cluster, nodes: i32, limit_s: u64) -> Result<()> {
    await_daemon_set(cluster, (NAMESPACE, PODS), nodes, limit_s)
}

/// Removes the objects, and waits until its pods are gone.
///
/// # Errors
/// If they are not gone in time.
pub fn remove(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["delete", "namespace", NAMESPACE, REMOVAL_LIMIT])?;
    for kind in ["clusterrolebinding", "clusterrole"] {
        cluster.kubectl(&["delete", kind, FLANNEL])?;
    }
    Ok(())
}

/// Removes from a native node what flannel leaves there: its CNI configuration and its links.
///
/// # Errors
/// If flannel was not on the node.
pub fn clean(node: &NativeNode) -> Result<()> {
    let file = format!("/var/lib/orlop/cni/net.d/{CONFLIST}");
    fs::remove_file(node.inside(&file)).with_context(|| format!("remove {file} in {}", node.name()))?;
    LINKS.iter().try_for_each(|link| remove_link(node.pid(), link))
}

/// All objects, each after those that it needs.
///
/// # Errors
/// If a go.mod names no release.
fn objects() -> Result<Value> {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {
            "k8s-app": FLANNEL, "pod-security.kubernetes.io/enforce": "privileged",
        }},
    });
    let items = [namespace, role(), binding(), account(), configuration(), pods()?];
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

fn role() -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": FLANNEL},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        ],
    })
}

fn binding() -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": FLANNEL},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": FLANNEL},
        "subjects": [{"kind": "ServiceAccount", "name": FLANNEL, "namespace": NAMESPACE}],
    })
}

fn account() -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": FLANNEL, "namespace": NAMESPACE}})
}

/// The version of the CNI configuration is the newest one that this plugin knows of those that flannel published.
fn configuration() -> Value {
    let network = json!({"Network": POD_RANGE, "EnableNFTables": false, "Backend": {"Type": "vxlan"}});
    let cni = json!({
        "name": "cbr0", "cniVersion": "0.3.1",
        "plugins": [
            {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": CONFIGURATION, "namespace": NAMESPACE,
            "labels": {"tier": "node", "k8s-app": FLANNEL, "app": FLANNEL},
        },
        "data": {"cni-conf.json": cni.to_string(), "net-conf.json": network.to_string()},
    })
}

fn pods() -> Result<Value> {
    let labels = json!({"tier": "node", "app": FLANNEL});
    let linux = json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]});
    Ok(json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": PODS, "namespace": NAMESPACE,
            "labels": {"tier": "node", "app": FLANNEL, "k8s-app": FLANNEL},
        },
        "spec": {
            "selector": {"matchLabels": {"app": FLANNEL}},
            "template": {"metadata": {"labels": labels}, "spec": {
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [linux]}],
                }}},
                "hostNetwork": true,
                "priorityClassName": "system-node-critical",
                "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
                "serviceAccountName": FLANNEL,
                "initContainers": [install_plugin(&plugin_image()?), install_configuration(&image()?)],
                "containers": [daemon(&image()?)],
                "volumes": [
                    {"name": "run", "hostPath": {"path": "/run/flannel"}},
                    {"name": "cni-plugin", "hostPath": {"path": "/opt/cni/bin"}},
                    {"name": "cni", "hostPath": {"path": "/etc/cni/net.d"}},
                    {"name": "flannel-cfg", "configMap": {"name": CONFIGURATION}},
                    {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
                ],
            }},
        },
    }))
}

fn install_plugin(image: &str) -> Value {
    json!({
        "name": "install-cni-plugin",
        "image": image,
        "command": ["cp"],
        "args": ["-f", "/flannel", "/opt/cni/bin/flannel"],
        "volumeMounts": [{"name": "cni-plugin", "mountPath": "/opt/cni/bin"}],
    })
}

fn install_configuration(image: &str) -> Value {
    json!({
        "name": "install-cni",
        "image": image,
        "command": ["/opt/bin/install-conf"],
        "args": ["/etc/kube-flannel/cni-conf.json", format!("/etc/cni/net.d/{CONFLIST}")],
        "volumeMounts": [
            {"name": "cni", "mountPath": "/etc/cni/net.d"},
            {"name": "flannel-cfg", "mountPath": "/etc/kube-flannel/"},
        ],
    })
}

fn daemon(image: &str) -> Value {
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let value = |name: &str, value: &str| json!({"name": name, "value": value});
    json!({
        "name": PODS.trim_end_matches("-ds"),
        "image": image,
        "command": ["/opt/bin/flanneld"],
        "args": ["--ip-masq", "--kube-subnet-mgr", format!("--healthz-port={HEALTH_PORT}")],
        "ports": [{"name": "healthz", "containerPort": HEALTH_PORT, "protocol": "TCP"}],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "healthz"}, "initialDelaySeconds": 10, "periodSeconds": 30,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "healthz"}, "initialDelaySeconds": 5, "periodSeconds": 10,
        },
        "resources": {"requests": {"cpu": "100m", "memory": "50Mi"}},
        "securityContext": {"privileged": false, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
        "env": [
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            value("EVENT_QUEUE_DEPTH", "5000"),
            value("CONT_WHEN_CACHE_NOT_READY", "false"),
            // The API server is reached before kube-proxy routes the address of its Service.
            value("KUBERNETES_SERVICE_HOST", ADDRESS),
            value("KUBERNETES_SERVICE_PORT", &PORT.to_string()),
        ],
        "volumeMounts": [
            {"name": "run", "mountPath": "/run/flannel"},
            {"name": "flannel-cfg", "mountPath": "/etc/kube-flannel/"},
            {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
        ],
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;
    use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};

    use super::super::objects::ensure_typed;
    use super::*;

    #[test]
    fn the_objects_have_fields_of_the_api() {
        for object in objects().unwrap()["items"].as_array().unwrap() {
            match object["kind"].as_str().unwrap() {
                "Namespace" => ensure_typed::<Namespace>(object),
                "ClusterRole" => ensure_typed::<ClusterRole>(object),
                "ClusterRoleBinding" => ensure_typed::<ClusterRoleBinding>(object),
                "ServiceAccount" => ensure_typed::<ServiceAccount>(object),
                "ConfigMap" => ensure_typed::<ConfigMap>(object),
                "DaemonSet" => ensure_typed::<DaemonSet>(object),
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_network_is_the_range_of_all_pods() {
        let data = &configuration()["data"];
        let read = |key: &str| -> Value { serde_json::from_str(data[key].as_str().unwrap()).unwrap() };
        assert_eq!(read("net-conf.json")["Network"], POD_RANGE);
        assert_eq!(read("cni-conf.json")["plugins"][0]["type"], "flannel");
    }

    #[test]
    fn the_images_are_in_the_registry_under_the_published_names() {
        let dir = tempfile::tempdir().unwrap();
        let (packet_tools, registry) = (dir.path().join("tools"), dir.path().join("registry"));
        fs::create_dir_all(packet_tools.join("usr/sbin")).unwrap();
        let file = dir.path().join("program");
        fs::write(&file, "a program").unwrap();
        let programs = FlannelPrograms {
            flanneld: file.clone(),
            install_conf: file.clone(),
            plugin: file,
            packet_tools,
        };
        let run = Run::start().unwrap();
        make(&run, &registry, &programs).unwrap();
        run.close();
        let mut tags: Vec<String> = fs::read_dir(registry.join("tags"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        tags.sort();
        let (flannel, plugin) = (build::flannel_version().unwrap(), build::flannel_cni_version().unwrap());
        let named = [format!("{IMAGE}@{flannel}"), format!("{PLUGIN_IMAGE}@{plugin}")];
        let mut wanted = named.map(|name| name.replace('/', "-"));
        wanted.sort();
        assert_eq!(tags, wanted);
        assert_eq!(image().unwrap(), format!("ghcr.io/flannel-io/flannel:{flannel}"));
    }
}
