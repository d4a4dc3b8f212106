//! NodeConfigs: one for each node with the control plane, and one for all workers. Pure.
//!
//! Invariant: a node of the control plane gets no key that it does not need: the keys of etcd's and of the front proxy's authority stay
//! in the output's directory.

use orlop_config::node::{API_VERSION, KIND};
use orlop_config::{base64, yaml_emit};
use serde_json::{Value, json};

use super::kubeconfig;
use super::manifests::{self, BOOTSTRAP, CONTROLLER_MANAGER, PKI, SCHEDULER, SUPER_ADMIN};
use super::pki::{Authorities, KeyedCertificate, NodeCertificates};
use super::plan::{API_PORT, CLUSTER_DOMAIN, ClusterPlan, ControlPlaneNode};

/// With it the node asks its own API server for its first certificate.
pub(super) const BOOTSTRAP_KUBELET: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
/// Longest wait between restarts on a node of the control plane: etcd, the API server and the rest wait for each other.
const RESTART_PERIOD: &str = "30s";
const SECRET: &str = "0600";
const PUBLIC: &str = "0644";

/// The API server as programs on its own node reach it.
fn own_server() -> String {
    format!("https://127.0.0.1:{API_PORT}")
}

/// The document of a node with the control plane. `objects` is the text of the first objects, which the node applies.
pub(super) fn control_plane(
    plan: &ClusterPlan,
    node: &ControlPlaneNode,
    authorities: &Authorities,
    certificates: &NodeCertificates,
    objects: &str,
) -> Value {
    let mut files = pki_files(authorities, certificates);
    let authority = &authorities.cluster.certificate;
    for (path, user, credentials) in [
        (CONTROLLER_MANAGER, "system:kube-controller-manager".to_owned(), &certificates.controller_manager),
        (SCHEDULER, "system:kube-scheduler".to_owned(), &certificates.scheduler),
        (SUPER_ADMIN, "kubernetes-super-admin".to_owned(), &certificates.super_admin),
        (BOOTSTRAP_KUBELET, format!("system:node:{}", node.name), &certificates.kubelet),
    ] {
        let text = kubeconfig::render(&own_server(), authority, &user, credentials);
        files.push(file(path, SECRET, &text));
    }
    files.push(file(BOOTSTRAP, SECRET, objects));
    let mut document = head(plan);
    document["node"] = json!({"name": node.name});
    if let Some(address) = node.address {
        document["node"]["addresses"] = json!([address.to_string()]);
    }
    if !plan.is_single() {
        document["taints"] =
            json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
    }
    document["join"] = json!({"bootstrapKubeconfig": BOOTSTRAP_KUBELET});
    // Without it the node would know no client: it joins with a kubeconfig, and not with `caData` as workers do.
    document["kubelet"]["authentication"] = json!({"x509": {"clientCAFile": format!("{PKI}/ca.crt")}});
    document["kubelet"]["crashLoopBackOff"] = json!({"maxContainerRestartPeriod": RESTART_PERIOD});
    document["staticPods"] = json!(manifests::pods(plan, node, objects));
    document["files"] = json!(files);
    document
}

/// The document of every worker.
pub(super) fn worker(plan: &ClusterPlan, authority: &str, token: &str) -> Value {
    let mut document = head(plan);
    document["join"] = json!({
        "server": plan.endpoint.url(),
        "caData": base64::encode(authority.as_bytes()),
        "token": token,
    });
    document
}

/// A document's text.
pub(super) fn render(comment: &str, document: &Value) -> String {
    format!("# {comment}\n{}", yaml_emit::emit(document))
}

/// What all nodes have.
fn head(plan: &ClusterPlan) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "network": {"podNetwork": plan.network.as_str()},
        "kubelet": {"clusterDNS": [plan.dns_service()], "clusterDomain": CLUSTER_DOMAIN},
    })
}

/// Keys and certificates, with kubeadm's names.
fn pki_files(authorities: &Authorities, certificates: &NodeCertificates) -> Vec<Value> {
    let public = |name: &str, text: &str| file(&format!("{PKI}/{name}"), PUBLIC, text);
    let secret = |name: &str, text: &str| file(&format!("{PKI}/{name}"), SECRET, text);
    let mut files = vec![
        public("ca.crt", &authorities.cluster.certificate),
        // The controller manager signs nodes' certificates.
        secret("ca.key", &authorities.cluster.key),
        public("etcd/ca.crt", &authorities.etcd.certificate),
        public("front-proxy-ca.crt", &authorities.front_proxy.certificate),
        secret("sa.key", &authorities.service_account),
        public("sa.pub", &authorities.service_account_public),
    ];
    let pairs: [(&str, &KeyedCertificate); 7] = [
        ("apiserver", &certificates.apiserver),
        ("apiserver-kubelet-client", &certificates.apiserver_kubelet_client),
        ("apiserver-etcd-client", &certificates.apiserver_etcd_client),
        ("front-proxy-client", &certificates.front_proxy_client),
        ("etcd/server", &certificates.etcd_server),
        ("etcd/peer", &certificates.etcd_peer),
        ("etcd/healthcheck-client", &certificates.etcd_healthcheck_client),
    ];
    for (name, pair) in pairs {
        files.push(public(&format!("{name}.crt"), &pair.certificate));
        files.push(secret(&format!("{name}.key"), &pair.key));
    }
    files
}

fn file(path: &str, mode: &str, content: &str) -> Value {
    json!({"path": path, "mode": mode, "content": content})
}
