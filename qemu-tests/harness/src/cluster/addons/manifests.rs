//! The objects of kube-proxy and CoreDNS, as kubeadm makes them (cmd/kubeadm/app/phases/addons). Pure.
//!
//! In: the mode of kube-proxy. Out: a list of objects for `kubectl apply`. Invariant: the pods ask for everything
//! that the published manifests ask for: priorities, tolerations, paths of the host, capabilities, probes.

use anyhow::Result;
use serde_json::{Value, json};

use super::{COREDNS, KUBE_PROXY, NAMESPACE, ProxyMode, images};
use crate::cluster::flags::{CLUSTER_DOMAIN, DNS_ADDRESS};
use crate::cluster::plane::server_url;
use crate::cluster::wires::{IPV6_POD_RANGE, POD_RANGE};

/// Pods of CoreDNS.
pub(super) const REPLICAS: i32 = 2;
/// Label of the pods of CoreDNS, and name of their Service.
const KUBE_DNS: &str = "kube-dns";
/// Role of kube-proxy, which the API server makes.
const PROXIER: &str = "system:node-proxier";
const RBAC: &str = "rbac.authorization.k8s.io";

/// Differences between installations.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProxySettings {
    /// The mode of kube-proxy.
    pub(super) mode: ProxyMode,
    /// kube-proxy sets the largest number of tracked connections. The kernel refuses this in a network namespace that is
    /// not the machine's first one.
    pub(super) sets_conntrack_max: bool,
    /// Pods have addresses of both families.
    pub(super) dual_stack: bool,
}

/// All objects, each after those that it needs.
///
/// # Errors
/// If a go.mod names no release.
pub(super) fn objects(settings: ProxySettings) -> Result<Value> {
    let mut items = vec![account(KUBE_PROXY), binding("kubeadm:node-proxier", PROXIER, KUBE_PROXY)];
    items.extend([proxy_configuration(settings), proxy_pods(&images::kube_proxy()?)]);
    let role = format!("system:{COREDNS}");
    items.extend([account(COREDNS), names_role(&role), binding(&role, &role, COREDNS)]);
    items.extend([names_configuration(), names_service(), names_pods(&images::coredns()?)]);
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}})
}

fn binding(name: &str, role: &str, account: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    })
}

/// kube-proxy cannot reach the API server through a Service, so it has the server's address.
fn proxy_configuration(settings: ProxySettings) -> Value {
    let secrets = "/var/run/secrets/kubernetes.io/serviceaccount";
    let ranges = [Some(POD_RANGE), settings.dual_stack.then_some(IPV6_POD_RANGE)];
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config",
        "clusters": [{"name": "default", "cluster": {
            "certificate-authority": format!("{secrets}/ca.crt"), "server": server_url(),
        }}],
        "users": [{"name": "default", "user": {"tokenFile": format!("{secrets}/token")}}],
        "contexts": [{"name": "default", "context": {
            "cluster": "default", "namespace": "default", "user": "default",
        }}],
        "current-context": "default",
    });
    let mut config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"},
        "clusterCIDR": ranges.into_iter().flatten().collect::<Vec<_>>().join(","),
        "mode": settings.mode.name(),
    });
    if !settings.sets_conntrack_max {
        // kube-proxy leaves the number as it is.
        config["conntrack"] = json!({"maxPerCore": 0});
    }
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": KUBE_PROXY, "namespace": NAMESPACE, "labels": {"app": KUBE_PROXY}},
        "data": {"kubeconfig.conf": kubeconfig.to_string(), "config.conf": config.to_string()},
    })
}

fn proxy_pods(image: &str) -> Value {
    let labels = json!({"k8s-app": KUBE_PROXY});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": KUBE_PROXY, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels}, "spec": {
                "priorityClassName": "system-node-critical",
                "serviceAccountName": KUBE_PROXY,
                "hostNetwork": true,
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": KUBE_PROXY,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": [
                        "/usr/local/bin/kube-proxy",
                        "--config=/var/lib/kube-proxy/config.conf",
                        "--hostname-override=$(NODE_NAME)",
                    ],
                    "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                    "securityContext": {"privileged": true},
                    "volumeMounts": [
                        {"name": "kube-proxy", "mountPath": "/var/lib/kube-proxy"},
                        {"name": "xtables-lock", "mountPath": "/run/xtables.lock", "readOnly": false},
                        {"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": true},
                    ],
                }],
                "volumes": [
                    {"name": "kube-proxy", "configMap": {"name": KUBE_PROXY}},
                    {"name": "xtables-lock", "hostPath": {"path": "/run/xtables.lock", "type": "FileOrCreate"}},
                    {"name": "lib-modules", "hostPath": {"path": "/lib/modules"}},
                ],
            }},
        },
    })
}

fn names_role(name: &str) -> Value {
    let verbs = ["list", "watch"];
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [
            {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": verbs},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
        ],
    })
}

fn names_configuration() -> Value {
    let corefile = format!(
        ".:53 {{
    errors
    health {{
        lameduck 5s
    }}
    ready
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    prometheus :9153
    forward . /etc/resolv.conf {{
        max_concurrent 1000
    }}
    cache 30 {{
        disable success {CLUSTER_DOMAIN}
        disable denial {CLUSTER_DOMAIN}
    }}
    loop
    reload
    loadbalance
}}
"
    );
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": COREDNS, "namespace": NAMESPACE},
        "data": {"Corefile": corefile},
    })
}

fn service_port(name: &str, port: u16, protocol: &str) -> Value {
    json!({"name": name, "port": port, "targetPort": port, "protocol": protocol})
}

fn names_service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": KUBE_DNS, "namespace": NAMESPACE,
            "labels": {
                "k8s-app": KUBE_DNS, "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
            },
            "annotations": {"prometheus.io/port": "9153", "prometheus.io/scrape": "true"},
        },
        "spec": {
            "clusterIP": DNS_ADDRESS,
            "selector": {"k8s-app": KUBE_DNS},
            "ports": [
                service_port("dns", 53, "UDP"),
                service_port("dns-tcp", 53, "TCP"),
                service_port("metrics", 9153, "TCP"),
            ],
        },
    })
}

fn names_pods(image: &str) -> Value {
    let labels = json!({"k8s-app": KUBE_DNS});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": COREDNS, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": REPLICAS,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "priorityClassName": "system-cluster-critical",
                "serviceAccountName": COREDNS,
                "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                    "weight": 100,
                    "podAffinityTerm": {
                        "labelSelector": {"matchExpressions": [
                            {"key": "k8s-app", "operator": "In", "values": [KUBE_DNS]},
                        ]},
                        "topologyKey": "kubernetes.io/hostname",
                    },
                }]}},
                "tolerations": [
                    {"key": "CriticalAddonsOnly", "operator": "Exists"},
                    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
                ],
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "dnsPolicy": "Default",
                "containers": [names_container(image)],
                "volumes": [{"name": "config-volume", "configMap": {
                    "name": COREDNS, "items": [{"key": "Corefile", "path": "Corefile"}],
                }}],
            }},
        },
    })
}

fn container_port(name: &str, port: u16, protocol: &str) -> Value {
    json!({"name": name, "containerPort": port, "protocol": protocol})
}

fn names_container(image: &str) -> Value {
    json!({
        "name": COREDNS,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "resources": {"limits": {"memory": "170Mi"}, "requests": {"cpu": "100m", "memory": "70Mi"}},
        "volumeMounts": [{"name": "config-volume", "mountPath": "/etc/coredns", "readOnly": true}],
        "ports": [
            container_port("dns", 53, "UDP"),
            container_port("dns-tcp", 53, "TCP"),
            container_port("metrics", 9153, "TCP"),
            container_port("liveness-probe", 8080, "TCP"),
            container_port("readiness-probe", 8181, "TCP"),
        ],
        "livenessProbe": {
            "httpGet": {"path": "/health", "port": "liveness-probe", "scheme": "HTTP"},
            "initialDelaySeconds": 60, "timeoutSeconds": 5, "successThreshold": 1, "failureThreshold": 5,
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "readiness-probe", "scheme": "HTTP"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
        },
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
    use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};

    use super::super::objects::ensure_typed;
    use super::*;

    const NATIVE: ProxySettings =
        ProxySettings { mode: ProxyMode::Nftables, sets_conntrack_max: false, dual_stack: false };

    fn items(settings: ProxySettings) -> Vec<Value> {
        objects(settings).unwrap()["items"].as_array().unwrap().clone()
    }

    #[test]
    fn the_objects_have_fields_of_the_api() {
        for object in items(NATIVE) {
            match object["kind"].as_str().unwrap() {
                "ServiceAccount" => ensure_typed::<ServiceAccount>(&object),
                "ClusterRole" => ensure_typed::<ClusterRole>(&object),
                "ClusterRoleBinding" => ensure_typed::<ClusterRoleBinding>(&object),
                "ConfigMap" => ensure_typed::<ConfigMap>(&object),
                "Service" => ensure_typed::<Service>(&object),
                "DaemonSet" => ensure_typed::<DaemonSet>(&object),
                "Deployment" => ensure_typed::<Deployment>(&object),
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_configuration_of_kube_proxy_is_of_the_mode_and_of_the_nodes() {
        let config = |settings: ProxySettings| -> Value {
            let object =
                items(settings).into_iter().find(|o| o["data"].get("config.conf").is_some()).unwrap();
            serde_json::from_str(object["data"]["config.conf"].as_str().unwrap()).unwrap()
        };
        let native = config(NATIVE);
        assert_eq!(native["mode"], "nftables");
        assert_eq!(native["conntrack"]["maxPerCore"], 0);
        assert_eq!(native["clusterCIDR"], POD_RANGE);
        let both = config(ProxySettings { dual_stack: true, ..NATIVE });
        assert_eq!(both["clusterCIDR"], "10.88.0.0/16,fd00:88::/32");
        let vm = config(ProxySettings { mode: ProxyMode::Ipvs, sets_conntrack_max: true, dual_stack: false });
        assert_eq!(vm["mode"], "ipvs");
        assert!(vm.get("conntrack").is_none(), "{vm}");
    }

    #[test]
    fn the_corefile_closes_what_it_opens() {
        let object = names_configuration();
        let corefile = object["data"]["Corefile"].as_str().unwrap();
        assert_eq!(corefile.matches('{').count(), corefile.matches('}').count());
        assert!(corefile.contains("\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n"), "{corefile}");
    }
}
