//! The first objects of the cluster: a token, and the permissions by which nodes join, as `kubeadm init` makes them. Pure.
//!
//! Invariant: a node gets no other permission than kubeadm's. Upstream: cmd/kubeadm/app/phases/bootstraptoken.

use jiff::Timestamp;
use orlop_config::{base64, yaml_emit};
use serde_json::{Value, json};

use super::kubeconfig;
use super::pki::{ADMINS, KUBELET_CLIENT};

/// Group of the token.
const TOKEN_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Name of the role that shows `cluster-info` to everybody.
const INFO_ROLE: &str = "kubeadm:bootstrap-signer-clusterinfo";
/// Name of the role by which a node sees whether its name is taken.
const GET_NODES: &str = "kubeadm:get-nodes";

/// What the objects have from the plan.
#[derive(Clone, Copy)]
pub(super) struct ObjectWords<'a> {
    /// URL of the API server.
    pub(super) server: &'a str,
    /// The cluster's authority, PEM.
    pub(super) authority: &'a str,
    pub(super) token: &'a str,
    /// Seconds since 1970.
    pub(super) token_ends: i64,
}

/// The objects.
pub(super) fn objects(words: &ObjectWords<'_>) -> Vec<Value> {
    let bindings = [
        ("kubeadm:cluster-admins", "cluster-admin", "Group", ADMINS),
        ("kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", "User", KUBELET_CLIENT),
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", "Group", TOKEN_GROUP),
        (
            "kubeadm:node-autoapprove-bootstrap",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            "Group",
            TOKEN_GROUP,
        ),
        (
            "kubeadm:node-autoapprove-certificate-rotation",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            "Group",
            "system:nodes",
        ),
        (GET_NODES, GET_NODES, "Group", TOKEN_GROUP),
    ];
    let mut objects: Vec<Value> =
        bindings.iter().map(|(name, role, kind, subject)| binding(name, role, kind, subject)).collect();
    objects.extend([
        json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRole",
            "metadata": {"name": GET_NODES},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "Role",
            "metadata": {"name": INFO_ROLE, "namespace": "kube-public"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"],
                "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "RoleBinding",
            "metadata": {"name": INFO_ROLE, "namespace": "kube-public"},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": INFO_ROLE},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "system:anonymous"}],
        }),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "cluster-info", "namespace": "kube-public"},
            "data": {"kubeconfig": kubeconfig::public(words.server, words.authority)},
        }),
        secret(words),
    ]);
    objects
}

/// The objects as one text for `kubectl apply`.
pub(super) fn render(objects: &[Value]) -> String {
    let documents: Vec<String> = objects.iter().map(yaml_emit::emit).collect();
    documents.join("---\n")
}

/// `kind` is that of the subject: a user or a group.
fn binding(name: &str, role: &str, kind: &str, subject: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": kind, "name": subject}],
    })
}

/// The token. The controller manager removes it when it has ended.
fn secret(words: &ObjectWords<'_>) -> Value {
    let (id, secret) = words.token.split_once('.').unwrap_or((words.token, ""));
    // Beyond the calendar a token has no end that anybody would see.
    let ends = Timestamp::from_second(words.token_ends).unwrap_or(Timestamp::MAX).to_string();
    let text = |text: &str| base64::encode(text.as_bytes());
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
        "data": {
            "token-id": text(id),
            "token-secret": text(secret),
            "expiration": text(&ends),
            "usage-bootstrap-authentication": text("true"),
            "usage-bootstrap-signing": text("true"),
            "auth-extra-groups": text(TOKEN_GROUP),
        },
    })
}
