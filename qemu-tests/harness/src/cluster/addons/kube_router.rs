//! kube-router: the pod network of a cluster without an overlay. Its daemons exchange by BGP which node has which
//! pods, and filter packets for NetworkPolicies.
//!
//! What comes in: the program, a registry's directory, a cluster. What goes out: the image under the name of the published
//! one, the objects of the published manifest (daemonset/generic-kuberouter.yaml), which leaves Services to kube-proxy.
//! Invariant: the pods ask for everything of the node that the published manifest asks for. See docs/howto/addons.md.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::NAMESPACE;
use super::images::{PATH, links, program};
use super::objects::{await_daemon_set, create};
use crate::cluster::build;
use crate::cluster::flags::{ADDRESS, PORT};
use crate::cluster::plane::Cluster;
use crate::cluster::programs::KubeRouterPrograms;
use crate::cluster::ready;
use crate::native::blobs::Blobs;
use crate::native::images::install_busybox;
use crate::run::Run;

/// The bridge of the pods on a node.
pub const BRIDGE: &str = "kube-bridge";
/// Name of the network in the CNI configuration: also that of the directory with the addresses in use.
pub const NETWORK: &str = "mynet";
/// The module that keeps the sets of addresses which the rules name.
pub(super) const IP_SET: &str = "ip_set";
/// It is there if the kernel has the module.
const IP_SET_DIR: &str = "/sys/module/ip_set";
/// The registry of the published image.
pub(super) const REGISTRY: &str = "docker.io";
const IMAGE: &str = "cloudnativelabs/kube-router";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Account, role, DaemonSet, container.
const KUBE_ROUTER: &str = "kube-router";
const CONFIGURATION: &str = "kube-router-cfg";
/// The CNI configuration on a node. kube-router adds the node's range and its MTU to the file.
const CONFLIST: &str = "/etc/cni/net.d/10-kuberouter.conflist";
/// Port of its health, in the node's network.
const HEALTH_PORT: u16 = 20244;
/// kube-router adds its own table of routes to this file, and makes no rule without the file.
const ROUTE_TABLES: &str = "255 local\n254 main\n253 default\n0 unspec\n";

/// The image. It has the programs of busybox, too, as the published one.
///
/// # Errors
/// If go.mod names no release.
pub fn image() -> Result<String> {
    Ok(format!("{REGISTRY}/{IMAGE}:{}", build::kube_router_version()?))
}

/// The module that this machine's kernel lacks for native nodes, which share it.
#[must_use]
pub fn missing_module() -> Option<&'static str> {
    (!Path::new(IP_SET_DIR).exists()).then_some(IP_SET)
}

/// Makes the image in a registry's directory.
///
/// # Errors
/// If a program is missing, or the directory cannot be written.
pub(super) fn make(run: &Arc<Run>, dir: &Path, programs: &KubeRouterPrograms) -> Result<()> {
    let blobs = Blobs::at(dir)?;
    let tools = blobs.layer(run, &programs.packet_tools)?;
    let own = blobs.layer_of(run, |tree| {
        links(tree)?;
        install_busybox(&tree.join("usr/bin"))?;
        for dir in ["tmp", "etc/iproute2"] {
            fs::create_dir_all(tree.join(dir)).with_context(|| format!("make {dir}"))?;
        }
        fs::write(tree.join("etc/iproute2/rt_tables"), ROUTE_TABLES)
            .context("write the names of the tables of routes")?;
        program(&programs.kube_router, &tree.join("usr/local/bin/kube-router"))
    })?;
    let config = json!({"Env": [PATH], "Entrypoint": ["/usr/local/bin/kube-router"]});
    blobs.image(IMAGE, build::kube_router_version()?, &config, &[tools, own])?;
    Ok(())
}

/// Creates the objects.
///
/// # Errors
/// If an object is refused.
pub(super) fn apply(cluster: &Cluster) -> Result<()> {
    create(cluster, KUBE_ROUTER, &objects()?)
}

/// Waits until kube-router runs on `nodes` nodes. Their routes to each other's pods come some seconds later.
///
/// # Errors
/// At the deadline, with the present state.
pub(super) fn await_ready(cluster: &Cluster, nodes: i32, limit_s: u64) -> Result<()> {
    await_daemon_set(cluster, (NAMESPACE, KUBE_ROUTER), nodes, limit_s)
}

/// The rules of iptables on a node, as the pod of kube-router there sees them.
///
/// # Errors
/// If no Ready pod of kube-router is on the node, or `iptables-save` fails there.
pub fn rules(cluster: &Cluster, node: &str) -> Result<String> {
    let client = cluster.client();
    let is_here = |pod: &Pod| {
        ready::pod(pod) && pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
    };
    let what = format!("a pod of kube-router on {node}");
    let pod = client.wait::<Pod, _>(&client.of(NAMESPACE), 30, &what, |all| {
        let found = all.iter().find(|(name, pod)| name.starts_with(KUBE_ROUTER) && is_here(pod));
        found.map(|(name, _)| name.clone())
    })?;
    cluster.kubectl(&["exec", "--namespace", NAMESPACE, &pod, "--", "iptables-save"])
}

/// All objects, each after those that it needs.
///
/// # Errors
/// If a go.mod names no release.
fn objects() -> Result<Value> {
    let items = [account(), role(), binding(), configuration(), pods(&image()?)];
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

fn account() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": KUBE_ROUTER, "namespace": NAMESPACE},
    })
}

fn role() -> Value {
    let read = json!(["list", "get", "watch"]);
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": KUBE_ROUTER},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["namespaces", "pods", "services", "nodes", "endpoints"],
                "verbs": read,
            },
            {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": read},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
            {"apiGroups": [""], "resources": ["services/status"], "verbs": ["update"]},
        ],
    })
}

fn binding() -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": KUBE_ROUTER},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": KUBE_ROUTER},
        "subjects": [{"kind": "ServiceAccount", "name": KUBE_ROUTER, "namespace": NAMESPACE}],
    })
}

/// Without the node's range, which kube-router adds.
fn configuration() -> Value {
    let bridge = json!({
        "name": "kubernetes", "type": "bridge", "bridge": BRIDGE, "isDefaultGateway": true,
        "hairpinMode": true, "ipam": {"type": "host-local"},
    });
    let cni = json!({"cniVersion": "0.3.0", "name": NETWORK, "plugins": [bridge]});
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": CONFIGURATION, "namespace": NAMESPACE,
            "labels": {"tier": "node", "k8s-app": KUBE_ROUTER},
        },
        "data": {"cni-conf.json": cni.to_string()},
    })
}

fn pods(image: &str) -> Value {
    let labels = json!({"tier": "node", "k8s-app": KUBE_ROUTER});
    let host = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path}});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": KUBE_ROUTER, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "priorityClassName": "system-node-critical",
                "serviceAccountName": KUBE_ROUTER,
                "hostNetwork": true,
                "hostPID": true,
                "tolerations": [
                    {"effect": "NoSchedule", "operator": "Exists"},
                    {"key": "CriticalAddonsOnly", "operator": "Exists"},
                    {"effect": "NoExecute", "operator": "Exists"},
                ],
                "initContainers": [install(image)],
                "containers": [daemon(image)],
                "volumes": [
                    host("lib-modules", "/lib/modules"),
                    host("cni-conf-dir", "/etc/cni/net.d"),
                    {"name": "kube-router-cfg", "configMap": {"name": CONFIGURATION}},
                    {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
                    host("host-opt", "/opt"),
                ],
            }},
        },
    })
}

/// Puts the configuration into its place as a whole, unless it is there. Its plugins are the node's own.
fn install(image: &str) -> Value {
    let script = format!(
        "set -e -x; if [ ! -f {CONFLIST} ]; then new=/etc/cni/net.d/.tmp-kuberouter-cfg; \
         cp /etc/kube-router/cni-conf.json $new; mv $new {CONFLIST}; fi; mkdir -p /opt/cni/bin"
    );
    json!({
        "name": "install-cni",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": [
            {"name": "cni-conf-dir", "mountPath": "/etc/cni/net.d"},
            {"name": "kube-router-cfg", "mountPath": "/etc/kube-router"},
            {"name": "host-opt", "mountPath": "/opt"},
        ],
    })
}

/// Without graceful restart of BGP: two nodes that both begin would wait for each other's routes first.
fn daemon(image: &str) -> Value {
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let value = |name: &str, value: &str| json!({"name": name, "value": value});
    json!({
        "name": KUBE_ROUTER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--run-router=true", "--run-firewall=true", "--run-service-proxy=false"],
        "env": [
            field("NODE_NAME", "spec.nodeName"),
            field("POD_NAME", "metadata.name"),
            value("KUBE_ROUTER_CNI_CONF_FILE", CONFLIST),
            // The API server is reached before kube-proxy routes the address of its Service.
            value("KUBERNETES_SERVICE_HOST", ADDRESS),
            value("KUBERNETES_SERVICE_PORT", &PORT.to_string()),
        ],
        // A busy machine needs more than the nineteen seconds of the published probe until its caches are filled.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": HEALTH_PORT},
            "initialDelaySeconds": 10, "periodSeconds": 3, "failureThreshold": 40,
        },
        "resources": {"requests": {"cpu": "250m", "memory": "250Mi"}},
        "securityContext": {"privileged": true},
        "volumeMounts": [
            {"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": true},
            {"name": "cni-conf-dir", "mountPath": "/etc/cni/net.d"},
            {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
        ],
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;
    use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};

    use super::super::objects::ensure_typed;
    use super::*;

    #[test]
    fn the_objects_have_fields_of_the_api() {
        for object in objects().unwrap()["items"].as_array().unwrap() {
            match object["kind"].as_str().unwrap() {
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
    fn the_configuration_is_a_bridge_without_a_range() {
        let text = configuration()["data"]["cni-conf.json"].as_str().unwrap().to_owned();
        let cni: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (cni["name"].as_str(), cni["plugins"][0]["type"].as_str()),
            (Some(NETWORK), Some("bridge"))
        );
        assert_eq!(cni["plugins"][0]["ipam"], json!({"type": "host-local"}));
        // kube-router reads a file with another ending as a single plugin.
        assert!(Path::new(CONFLIST).extension().is_some_and(|end| end == "conflist"));
    }

    #[test]
    fn the_image_is_in_the_registry_under_the_published_name() {
        let dir = tempfile::tempdir().unwrap();
        let (packet_tools, registry) = (dir.path().join("tools"), dir.path().join("registry"));
        fs::create_dir_all(packet_tools.join("usr/sbin")).unwrap();
        let kube_router = dir.path().join("program");
        fs::write(&kube_router, "a program").unwrap();
        let run = Run::start().unwrap();
        make(&run, &registry, &KubeRouterPrograms { kube_router, packet_tools }).unwrap();
        run.close();
        let version = build::kube_router_version().unwrap();
        assert!(registry.join(format!("tags/cloudnativelabs-kube-router@{version}")).is_file());
        assert_eq!(image().unwrap(), format!("docker.io/cloudnativelabs/kube-router:{version}"));
    }
}
