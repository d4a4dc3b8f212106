//! metrics-server next to a cluster's control plane, behind the API server's aggregation.
//!
//! In: a cluster. Out: `metrics.k8s.io`, the source of `kubectl top`. Invariants: it has a service account with the
//! permissions of upstream's manifest and no others; it verifies the nodes' certificates.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::libc::SIGTERM;
use serde_json::{Value, json};

use super::kubeconfig::{Credentials, render};
use super::plane::{Cluster, server_url};
use super::{flags, pki, programs};

const NAME: &str = "metrics-server";
const NAMESPACE: &str = "kube-system";
const API: &str = "v1beta1.metrics.k8s.io";
/// On the plane's address.
const PORT: u16 = 4443;

/// Starts it and waits until it listens; it has values of nodes and pods after two requests to each node.
///
/// # Errors
/// If it cannot be built, is refused, or ends.
pub fn start(cluster: &mut Cluster) -> Result<()> {
    let program = programs::metrics_server(cluster.run())?;
    let dir = cluster.dir().join(NAME);
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    let (file, kubeconfig) = (dir.join("objects.json"), dir.join("kubeconfig"));
    fs::write(&file, objects().to_string()).with_context(|| format!("write {}", file.display()))?;
    cluster.kubectl(&["apply", "--filename", &file.display().to_string()])?;
    let token = cluster.kubectl(&["create", "token", NAME, "--namespace", NAMESPACE])?;
    let credentials = Credentials::Token(token.trim().to_owned());
    pki::write_private(&kubeconfig, &render(&server_url(), &cluster.pki().ca.pem, &credentials))?;
    let kubeconfigs = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"];
    let mut argv = vec![program.display().to_string()];
    argv.extend(kubeconfigs.map(|flag| format!("--{flag}={}", kubeconfig.display())));
    argv.extend([
        format!("--bind-address={}", flags::ADDRESS),
        format!("--secure-port={PORT}"),
        format!("--cert-dir={}", dir.display()),
        format!("--kubelet-certificate-authority={}", cluster.pki().ca.certificate.display()),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--kubelet-use-node-status-port".to_owned(),
        // The shortest allowed period, and a time limit of a request below it.
        "--metric-resolution=10s".to_owned(),
        "--kubelet-request-timeout=5s".to_owned(),
    ]);
    let plane = cluster.plane()?;
    plane.start_program(NAME, &argv, &[])?;
    plane.await_ready(NAME, Duration::from_secs(60))
}

/// Ends it and its APIService, so that the API server does not ask a missing server.
///
/// # Errors
/// If it does not end.
pub fn stop(cluster: &mut Cluster) -> Result<()> {
    cluster.kubectl(&["delete", "apiservice", API])?;
    let plane = cluster.plane()?;
    plane.signal(NAME, SIGTERM)?;
    plane.await_exit(NAME).map(|_| ())
}

/// The objects of upstream's manifest, except the service: there is no pod, so the address is the plane's.
fn objects() -> Value {
    let rbac = |kind: &str, name: &str, mut more: Value| {
        more["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
        more["kind"] = json!(kind);
        more["metadata"] = json!({"name": name});
        if kind == "RoleBinding" {
            more["metadata"]["namespace"] = json!(NAMESPACE);
        }
        more
    };
    let bound = |kind: &str, role: &str| {
        json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        })
    };
    let role = "system:metrics-server";
    let see = json!({"rules": [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]});
    let reader = "extension-apiserver-authentication-reader";
    let metadata = json!({"name": NAME, "namespace": NAMESPACE});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        rbac("RoleBinding", "metrics-server-auth-reader", bound("Role", reader)),
        rbac("ClusterRoleBinding", "metrics-server:system:auth-delegator", bound("ClusterRole", "system:auth-delegator")),
        rbac("ClusterRole", role, see),
        rbac("ClusterRoleBinding", role, bound("ClusterRole", role)),
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"type": "ExternalName", "externalName": flags::ADDRESS}},
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": API}, "spec": {
            "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true,
            "service": {"name": NAME, "namespace": NAMESPACE, "port": PORT},
        }},
    ]})
}
