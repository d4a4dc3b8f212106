//! A node of a cluster: `kubectl` knows its address, its key and a token for it.
//!
//! ```text
//! --node NAME ─► kubectl get node ─► InternalIP, annotation node.orlop.dev/api-key
//!             └► kubectl create token SERVICEACCOUNT --audience orlop.dev/node-api/NAME
//! ```
//! Invariants: the API server, over kubectl's own TLS, says which key the node has, so a token is shown to that node alone; a token is for
//! this API of this node, and no other token of a kubeconfig is ever sent to a node; nothing is asked of a person.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use orlop_config::admin_key::NODE_ANNOTATION;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::cli::address;
use crate::failure::CtlError;
use crate::target::{BearerToken, NodeCredential, Target};

/// Audience of tokens; that of one node has its name behind it.
const AUDIENCE: &str = "orlop.dev/node-api";
/// Life of a token: a wait for a reboot has its end within it.
const TOKEN_LIFE: &str = "1h";
/// Bytes of kubectl's words about a failure.
const WORDS_MAX: usize = 2048;

/// A node of a cluster, and how it is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterNode {
    /// Name of the Node.
    pub(crate) name: String,
    /// Host and port, in place of the Node's address.
    pub(crate) host: Option<String>,
    /// Fingerprint, in place of the Node's annotation; empty: none.
    pub(crate) pin: String,
    /// File of an administrator's key, in place of a token.
    pub(crate) key: Option<PathBuf>,
    /// `namespace/name` of the ServiceAccount whose token is asked for.
    pub(crate) service_account: Option<String>,
    /// kubectl's own flags.
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) context: Option<String>,
}

impl ClusterNode {
    /// The way to the node.
    ///
    /// # Errors
    /// kubectl's words, a Node without key or address, or no credential.
    pub(crate) async fn find(&self, limit: Duration) -> Result<Target, CtlError> {
        let missing = "--node needs --service-account NAMESPACE/NAME, or --key";
        let credential = match (&self.key, &self.service_account) {
            (Some(key), _) => NodeCredential::Key(key.clone()),
            (None, Some(account)) => NodeCredential::Token(BearerToken::new(
                &self.kubectl(&token_arguments(account, &self.name)?, limit).await?,
            )?),
            (None, None) => return Err(CtlError::Usage(missing.to_owned())),
        };
        let found = self.contact(limit).await?;
        let host = self.host.clone().or(found.host).ok_or_else(|| {
            CtlError::NotFound(format!("InternalIP in the Node {}: pass its address as --tcp", self.name))
        })?;
        let pin = Some(self.pin.clone()).filter(|pin| !pin.is_empty()).or(found.pin).ok_or_else(|| {
            CtlError::NotFound(format!(
                "annotation {NODE_ANNOTATION} in the Node {}: the node's configuration needs api.clusterIdentities or api.admins",
                self.name
            ))
        })?;
        Ok(Target::Tcp { address: address(&host), credential, pin })
    }

    /// What the Node says.
    async fn contact(&self, limit: Duration) -> Result<NodeContact, CtlError> {
        let arguments = ["get", "node", "-o", "json", "--", self.name.as_str()].map(str::to_owned);
        of_node(&self.kubectl(&arguments, limit).await?)
    }

    /// What kubectl prints.
    async fn kubectl(&self, arguments: &[String], limit: Duration) -> Result<String, CtlError> {
        let mut command = Command::new("kubectl");
        if let Some(kubeconfig) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        if let Some(context) = &self.context {
            command.arg(format!("--context={context}"));
        }
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let failed = |why: String| CtlError::Kubectl(format!("{}: {why}", arguments[..2].join(" ")));
        let Ok(ran) = timeout(limit, command.output()).await else {
            return Err(CtlError::TimedOut { what: "kubectl".to_owned(), limit });
        };
        let ran = ran.map_err(|error| failed(error.to_string()))?;
        if !ran.status.success() {
            let words = ran.stderr.get(..WORDS_MAX).unwrap_or(&ran.stderr);
            return Err(failed(String::from_utf8_lossy(words).trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }
}

/// A way to a node, and the node of a cluster that it leads to, if it is one.
#[derive(Clone, Debug)]
pub(crate) struct FoundNode {
    pub(crate) target: Target,
    pub(crate) node: Option<ClusterNode>,
}

impl FoundNode {
    /// Looks whether the Node has another address, as a machine may have after its reboot. Key and credential stay: who answers there
    /// without the node's key learns nothing.
    pub(crate) async fn find_again(&mut self, limit: Duration) {
        let (Some(node), Target::Tcp { address: present, .. }) = (&self.node, &mut self.target) else {
            return;
        };
        if node.host.is_some() {
            return;
        }
        // A kubectl that does not answer is asked again at the next try.
        let Ok(NodeContact { host: Some(host), .. }) = node.contact(limit).await else { return };
        *present = address(&host);
    }
}

/// Arguments for a token of `namespace/name` that is for one node.
fn token_arguments(account: &str, node: &str) -> Result<Vec<String>, CtlError> {
    let named = account.split_once('/').filter(|(namespace, name)| is_name(namespace) && is_name(name));
    let Some((namespace, name)) = named else {
        return Err(CtlError::Usage(format!("{account:?} is no NAMESPACE/NAME of a ServiceAccount")));
    };
    let audience = format!("{AUDIENCE}/{node}");
    let words = [
        "create",
        "token",
        name,
        "--namespace",
        namespace,
        "--audience",
        &audience,
        "--duration",
        TOKEN_LIFE,
    ];
    Ok(words.map(str::to_owned).to_vec())
}

/// A name of Kubernetes, which cannot be an option.
fn is_name(name: &str) -> bool {
    let is_right = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_right)
}

/// What a Node says about the way to it.
#[derive(Debug, PartialEq, Eq)]
struct NodeContact {
    host: Option<String>,
    pin: Option<String>,
}

fn of_node(text: &str) -> Result<NodeContact, CtlError> {
    let node: Value = serde_json::from_str(text)
        .map_err(|error| CtlError::Kubectl(format!("get node: its answer is no JSON: {error}")))?;
    let addresses = node["status"]["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let internal = addresses.iter().find(|address| address["type"] == "InternalIP");
    let host = internal.and_then(|address| address["address"].as_str()).map(str::to_owned);
    let pin = node["metadata"]["annotations"][NODE_ANNOTATION].as_str().map(str::to_owned);
    Ok(NodeContact { host, pin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_an_address_and_a_key() {
        let text = r#"{"metadata":{"annotations":{"node.orlop.dev/api-key":"SHA256:k"}},"status":{"addresses":[
            {"type":"Hostname","address":"n1"},{"type":"InternalIP","address":"2001:db8::1"}]}}"#;
        let expected = NodeContact { host: Some("2001:db8::1".to_owned()), pin: Some("SHA256:k".to_owned()) };
        assert_eq!(of_node(text).unwrap(), expected);
        assert_eq!(of_node("{}").unwrap(), NodeContact { host: None, pin: None });
        assert_eq!(of_node("Forbidden").unwrap_err().exit_code(), 1);
    }

    #[test]
    fn a_service_account_is_two_names() {
        let words = token_arguments("ops/reader", "n1").unwrap();
        assert_eq!(words[..5], ["create", "token", "reader", "--namespace", "ops"]);
        assert!(words.contains(&"orlop.dev/node-api/n1".to_owned()));
        for other in ["", "reader", "a/b/c", "/b", "a/", "-a/b", "a/--all", "a/B"] {
            assert_eq!(token_arguments(other, "n1").unwrap_err().exit_code(), 2, "{other}");
        }
    }
}
