//! Kubeconfigs with a client certificate. Pure.
//!
//! Invariant: certificates and key are inside, so that a copy of the file works anywhere; the file is for its owner alone.

use orlop_config::{base64, yaml_emit};
use serde_json::{Value, json};

use super::pki::KeyedCertificate;

/// Name of the cluster, as kubeadm has it.
pub(super) const CLUSTER: &str = "kubernetes";

/// A kubeconfig's text. `user` is its name in the file.
pub(super) fn render(server: &str, authority: &str, user: &str, credentials: &KeyedCertificate) -> String {
    let context = format!("{user}@{CLUSTER}");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER, "cluster": cluster(server, authority)}],
        "users": [{"name": user, "user": {
            "client-certificate-data": base64::encode(credentials.certificate.as_bytes()),
            "client-key-data": base64::encode(credentials.key.as_bytes()),
        }}],
        "contexts": [{"name": context, "context": {"cluster": CLUSTER, "user": user}}],
        "current-context": context,
    });
    yaml_emit::emit(&config)
}

/// One without credentials: what anybody may know about the cluster.
pub(super) fn public(server: &str, authority: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": cluster(server, authority)}],
    });
    yaml_emit::emit(&config)
}

fn cluster(server: &str, authority: &str) -> Value {
    json!({"server": server, "certificate-authority-data": base64::encode(authority.as_bytes())})
}
