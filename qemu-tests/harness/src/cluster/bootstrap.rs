//! The objects of `kubeadm init` by which nodes can join a cluster: token, permissions, cluster-info.
//!
//! In: an empty cluster. Out: a bootstrap token's secret, the role bindings of its group, the public ConfigMap
//! `cluster-info`, which the bootstrap signer signs, and service accounts `default` whose token is not mounted.
//! Invariant: a node gets only kubeadm's permissions.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde_json::{Value, json};

use super::client::ClusterClient;

/// Group of the tokens made here.
pub const TOKEN_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";

/// A bootstrap token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Public half: six letters and digits.
    pub id: String,
    /// Secret half: sixteen letters and digits.
    pub secret: String,
}

impl Token {
    /// A new one, from the kernel's randomness.
    ///
    /// # Errors
    /// If the kernel gives none.
    pub fn random() -> Result<Token> {
        use std::io::Read;
        let mut bytes = [0_u8; 22];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut bytes))
            .context("read randomness")?;
        let letters = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let text: String =
            bytes.iter().map(|b| char::from(letters[usize::from(*b) % letters.len()])).collect();
        Ok(Token { id: text[..6].to_owned(), secret: text[6..].to_owned() })
    }

    /// The token as text.
    #[must_use]
    pub fn render(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// Name of its secret in namespace kube-system.
    #[must_use]
    pub fn secret_name(&self) -> String {
        format!("bootstrap-token-{}", self.id)
    }
}

/// Lays everything.
///
/// # Errors
/// If the API server refuses it.
pub fn lay(client: &ClusterClient, server: &str, ca_pem: &str) -> Result<()> {
    for (name, role, group) in [
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", TOKEN_GROUP),
        (
            "kubeadm:node-autoapprove-bootstrap",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            TOKEN_GROUP,
        ),
        (
            "kubeadm:node-autoapprove-certificate-rotation",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            "system:nodes",
        ),
        ("kubeadm:get-nodes", "kubeadm:get-nodes", TOKEN_GROUP),
        ("kubeadm:cluster-admins", "cluster-admin", "kubeadm:cluster-admins"),
    ] {
        client.create::<ClusterRoleBinding>(
            &client.all(),
            json!({"metadata": {"name": name}, "roleRef": role_ref("ClusterRole", role),
                "subjects": [subject("Group", group)]}),
        )?;
    }
    client.create::<ClusterRole>(
        &client.all(),
        json!({"metadata": {"name": "kubeadm:get-nodes"},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]}),
    )?;
    await_namespace(client, "kube-public")?;
    cluster_info(client, server, ca_pem)?;
    await_account(client, "default")
}

fn role_ref(kind: &str, name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name})
}

fn subject(kind: &str, name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name})
}

fn await_namespace(client: &ClusterClient, name: &str) -> Result<()> {
    client.wait::<Namespace, _>(&client.all(), 60, &format!("namespace {name}"), |all| {
        all.contains_key(name).then_some(())
    })
}

fn cluster_info(client: &ClusterClient, server: &str, ca_pem: &str) -> Result<()> {
    let role = "kubeadm:bootstrap-signer-clusterinfo";
    let ca = k8s_openapi::ByteString(ca_pem.as_bytes().to_vec());
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "",
        "cluster": {"server": server, "certificate-authority-data": ca}}]});
    client.create::<ConfigMap>(
        &client.of("kube-public"),
        json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": kubeconfig.to_string()}}),
    )?;
    client.create::<Role>(
        &client.of("kube-public"),
        json!({"metadata": {"name": role}, "rules": [{"apiGroups": [""], "resources": ["configmaps"],
            "resourceNames": ["cluster-info"], "verbs": ["get"]}]}),
    )?;
    client.create::<RoleBinding>(
        &client.of("kube-public"),
        json!({"metadata": {"name": role}, "roleRef": role_ref("Role", role),
            "subjects": [subject("User", "system:anonymous")]}),
    )?;
    Ok(())
}

/// Makes a token; `valid_s` seconds from now it expires (negative: it has expired).
///
/// # Errors
/// If the API server refuses it.
pub fn add_token(client: &ClusterClient, token: &Token, valid_s: i64) -> Result<()> {
    add_token_of(client, token, valid_s, TOKEN_GROUP)
}

/// The same for another group.
///
/// # Errors
/// If the API server refuses it.
pub fn add_token_of(client: &ClusterClient, token: &Token, valid_s: i64, group: &str) -> Result<()> {
    let expiration = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + valid_s)
        .context("a token's expiration")?;
    client.create::<Secret>(
        &client.of("kube-system"),
        json!({"metadata": {"name": token.secret_name()}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": token.id, "token-secret": token.secret,
            "expiration": expiration.to_string(),
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
            "auth-extra-groups": group,
        }}),
    )?;
    Ok(())
}

/// A group whose tokens may request certificates, and whose requests must be approved by hand.
///
/// # Errors
/// If the API server refuses it.
pub fn add_unapproved_group(client: &ClusterClient, group: &str) -> Result<()> {
    client.create::<ClusterRoleBinding>(
        &client.all(),
        json!({"metadata": {"name": "e2e:unapproved"}, "roleRef": role_ref("ClusterRole", "system:node-bootstrapper"),
            "subjects": [subject("Group", group)]}),
    )?;
    Ok(())
}

/// Waits until the bootstrap signer has signed cluster-info for `token`.
///
/// # Errors
/// At the deadline.
pub fn await_signature(client: &ClusterClient, token: &Token) -> Result<()> {
    let key = format!("jws-kubeconfig-{}", token.id);
    client.wait::<ConfigMap, _>(&client.of("kube-public"), 60, "cluster-info to be signed", |all| {
        all.get("cluster-info")?.data.as_ref()?.get(&key).map(|_| ())
    })
}

/// Without it no pod is admitted to the namespace.
///
/// # Errors
/// If the controller does not make the service account.
pub fn await_account(client: &ClusterClient, namespace: &str) -> Result<()> {
    let accounts = client.of::<ServiceAccount>(namespace);
    client.wait(&accounts, 60, "service account default", |all| all.contains_key("default").then_some(()))
}

/// Makes a namespace for a case.
///
/// # Errors
/// If the API server refuses it.
pub fn add_namespace(client: &ClusterClient, name: &str) -> Result<()> {
    client.create::<Namespace>(&client.all(), json!({"metadata": {"name": name}}))?;
    await_account(client, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_form_upstream_wants() {
        let token = Token::random().unwrap();
        let text = token.render();
        assert_eq!((token.id.len(), token.secret.len(), text.len()), (6, 16, 23));
        assert!(text.bytes().all(|b| b == b'.' || b.is_ascii_digit() || b.is_ascii_lowercase()), "{text}");
        assert_ne!(text, Token::random().unwrap().render());
    }
}
