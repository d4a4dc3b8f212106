//! Configuration of a joining kubelet: its configuration file, its credentials, its flags. Pure except for [`lay`].
//!
//! In: a cluster, a native node. Out: files below /var/lib/kubelet and /run/e2e in the node, and the flags that name
//! them. The same files and flags serve the agent and the upstream kubelet.

use std::fs;

use anyhow::{Context, Result};
use serde_json::json;

use super::bootstrap::Token;
use super::flags::{CLUSTER_DOMAIN, DNS_ADDRESS, LOG_STREAMS_GATE};
use super::plane::{Cluster, server_url};
use crate::native::config;
use crate::native::node::NativeNode;

/// The kubeconfig that the kubelet writes.
pub const KUBECONFIG: &str = "/var/lib/kubelet/kubeconfig";
/// Directory of its certificates.
pub const CERT_DIR: &str = "/var/lib/kubelet/pki";
/// The kubeconfig with the bootstrap token.
pub const BOOTSTRAP: &str = "/var/lib/kubelet/bootstrap.kubeconfig";
/// The agent's own file for discovery: server, token, CA or its hashes.
pub const JOIN_FILE: &str = "/var/lib/kubelet/join.yaml";

/// Credentials by which a kubelet joins the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinMethod {
    /// A kubeconfig with a bootstrap token, as upstream has it.
    BootstrapKubeconfig,
    /// The agent's join file.
    JoinFile,
}

/// KubeletConfiguration of a node in the cluster: certificates by request, no anonymous access. The usage of the test
/// machine's disk must not matter: no eviction and no image collection because of it.
#[must_use]
pub fn kubelet_configuration() -> String {
    kubelet_configuration_with(LEAST)
}

/// Space on a disk at which nothing works any more: bytes and inodes.
const LEAST: [&str; 2] = ["50Mi", "1k"];

/// The same with other thresholds `nodefs.available` and `nodefs.inodesFree`.
#[must_use]
pub fn kubelet_configuration_with([available, inodes]: [&str; 2]) -> String {
    let [least, least_inodes] = LEAST;
    format!(
        "{}rotateCertificates: true\n\
         serverTLSBootstrap: true\n\
         enableSystemLogQuery: true\n\
         clusterDNS: [{DNS_ADDRESS}]\n\
         clusterDomain: {CLUSTER_DOMAIN}\n\
         authentication:\n  anonymous:\n    enabled: false\n  webhook:\n    enabled: true\n  x509:\n    \
         clientCAFile: /var/lib/kubelet/ca.crt\n\
         authorization:\n  mode: Webhook\n\
         imageGCHighThresholdPercent: 100\n\
         featureGates:\n  {LOG_STREAMS_GATE}: true\n  CSIVolumeHealth: true\n\
         evictionHard:\n  memory.available: 50Mi\n  nodefs.available: {available:?}\n  nodefs.inodesFree: {inodes:?}\n  \
         imagefs.available: {least}\n  imagefs.inodesFree: {least_inodes}\n",
        config::kubelet()
    )
}

/// Flags for a way in.
#[must_use]
pub fn flags(way: JoinMethod) -> Vec<String> {
    let mut flags = vec![format!("--kubeconfig={KUBECONFIG}"), format!("--cert-dir={CERT_DIR}")];
    flags.push(match way {
        JoinMethod::BootstrapKubeconfig => format!("--bootstrap-kubeconfig={BOOTSTRAP}"),
        JoinMethod::JoinFile => format!("--join={JOIN_FILE}"),
    });
    flags
}

/// The verification of the cluster's CA in a join file.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The certificate itself.
    Data(String),
    /// `sha256:` hashes of its public key.
    Hashes(Vec<String>),
}

/// A join file's text.
#[must_use]
pub fn join_file(server: &str, token: &Token, trust: &Trust) -> String {
    let mut file = json!({"server": server, "token": token.render()});
    match trust {
        Trust::Data(pem) => file["caData"] = json!(k8s_openapi::ByteString(pem.as_bytes().to_vec())),
        Trust::Hashes(hashes) => file["caCertHashes"] = json!(hashes),
    }
    format!("{file:#}\n")
}

/// Writes a node's files: configuration, CA, both ways in.
///
/// # Errors
/// Which file could not be written.
pub fn lay(cluster: &Cluster, node: &NativeNode) -> Result<()> {
    let trust = Trust::Hashes(vec![cluster.pki().ca.public_key_hash.clone()]);
    for (path, text) in [
        ("/run/e2e/kubelet.yaml", kubelet_configuration()),
        ("/var/lib/kubelet/ca.crt", cluster.pki().ca.pem.clone()),
        (BOOTSTRAP, cluster.bootstrap_kubeconfig(cluster.token())),
        (JOIN_FILE, join_file(&server_url(), cluster.token(), &trust)),
    ] {
        write(node, path, &text)?;
    }
    Ok(())
}

/// Writes a file of the node.
///
/// # Errors
/// If it cannot be written.
pub fn write(node: &NativeNode, path: &str, text: &str) -> Result<()> {
    fs::write(node.inside(path), text).with_context(|| format!("write {path} in node {}", node.name()))
}

/// Lets so many pods of the node share a shim, from the agent's next start on. The upstream kubelet does not know of it.
///
/// # Errors
/// If the file cannot be written.
pub fn share_shims(node: &NativeNode, pods_per_shim: u32) -> Result<()> {
    write(node, config::NODE_CONFIG, &config::sharing_shims(pods_per_shim))
}

/// Removes every file by which a cluster knows the node.
///
/// # Errors
/// If a file cannot be removed.
pub fn forget(node: &NativeNode) -> Result<()> {
    for path in [KUBECONFIG, BOOTSTRAP, JOIN_FILE] {
        match fs::remove_file(node.inside(path)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("remove {path} in node {}", node.name()));
            }
            _ => {}
        }
    }
    match fs::remove_dir_all(node.inside(CERT_DIR)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {CERT_DIR} in node {}", node.name()))
        }
        _ => Ok(()),
    }
}

/// Starts the node's kubelet; does not wait for anything.
///
/// # Errors
/// If it cannot be started.
pub fn start_kubelet(node: &mut NativeNode, way: JoinMethod) -> Result<()> {
    start_kubelet_with(node, way, &[])
}

/// The same, with more flags.
///
/// # Errors
/// If it cannot be started.
pub fn start_kubelet_with(node: &mut NativeNode, way: JoinMethod, more: &[String]) -> Result<()> {
    let mut flags = flags(way);
    flags.extend_from_slice(more);
    node.start_agent_with(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_file_has_one_kind_of_trust() {
        let token = Token { id: "abcdef".into(), secret: "0123456789abcdef".into() };
        let text = join_file("https://172.30.0.1:6443", &token, &Trust::Hashes(vec!["sha256:00".into()]));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["token"], "abcdef.0123456789abcdef");
        assert_eq!(value["caCertHashes"][0], "sha256:00");
        assert!(value.get("caData").is_none());
        let text = join_file("https://172.30.0.1:6443", &token, &Trust::Data("pem".into()));
        assert!(text.contains("\"caData\": \"cGVt\""), "{text}");
    }

    #[test]
    fn thresholds_are_those_that_were_asked_for() {
        let text = kubelet_configuration_with(["12%", "34"]);
        assert!(text.contains("\n  nodefs.available: \"12%\"\n  nodefs.inodesFree: \"34\"\n"), "{text}");
        assert!(text.ends_with("\n  imagefs.available: 50Mi\n  imagefs.inodesFree: 1k\n"), "{text}");
    }

    #[test]
    fn the_flags_are_upstreams() {
        let flags = flags(JoinMethod::BootstrapKubeconfig);
        assert!(flags.iter().all(|f| f.starts_with("--")) && flags.len() == 3, "{flags:?}");
        assert!(kubelet_configuration().contains("\nserverTLSBootstrap: true\n"));
    }
}
