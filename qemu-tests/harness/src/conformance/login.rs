//! SSH access to nodes without an SSH server, for tests that need it: a privileged pod of the harness.
//!
//! ```text
//! e2e.test ── SSH, by the node's name ─► pod sshd (host's network and processes) ─► sh -c, in the root of PID 1
//! ```
//! In: a Ready node. Out: [`Login`], which extends the suite's command line. Invariant: only the suite sees the
//! node's name in its hosts file, in a mount namespace of its own.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use rcgen::KeyPair;
use serde_json::json;

use super::images::{LOGIN, REGISTRY};
use crate::cluster::plane::Cluster;
use crate::cluster::ready;

/// Limit of the pod's start: its image is pulled first, perhaps under TCG.
const LIMIT_S: u64 = 180;
const NAMESPACE: &str = "kube-system";
const NAME: &str = "sshd";
/// Tests log in as root, as on most test clusters.
const USER: &str = "root";

/// The suite's way into a node.
pub struct Login {
    key: PathBuf,
    hosts: PathBuf,
}

impl Login {
    /// Starts the pod on `node` and waits until it serves; key and hosts file go below `artefacts`.
    ///
    /// # Errors
    /// If a file cannot be written, the Node has no address, or the pod does not become Ready.
    pub fn offer(cluster: &Cluster, artefacts: &Path, node: &str) -> Result<Login> {
        let pair = KeyPair::generate().context("make a key")?;
        let (key, hosts) = (artefacts.join("ssh.key"), artefacts.join("hosts"));
        fs::write(&key, pair.serialize_pem()).with_context(|| format!("write {}", key.display()))?;
        fs::write(&hosts, hosts_file(address(cluster, node)?, node))
            .with_context(|| format!("write {}", hosts.display()))?;
        let client = cluster.client();
        let pods = client.of::<Pod>(NAMESPACE);
        client.create(
            &pods,
            json!({"metadata": {"name": NAME}, "spec": {
                "nodeName": node, "hostNetwork": true, "hostPID": true, "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": NAME,
                    "image": format!("{REGISTRY}/{}:{}", LOGIN.0, LOGIN.1),
                    "args": ["-key", pair.public_key_pem()],
                    "securityContext": {"privileged": true},
                    "readinessProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 1},
                }],
            }}),
        )?;
        client.wait::<Pod, _>(&pods, LIMIT_S, "a way into the node", |all| {
            all.get(NAME).filter(|pod| ready::pod(pod)).map(drop)
        })?;
        Ok(Login { key, hosts })
    }

    /// Puts the node's name and the key in front of the rest of the command line.
    pub fn lead(&self, command: &mut Command) {
        command.args(["unshare", "--mount", "--propagation=private", "--", "sh", "-ec"]);
        command.arg("mount --bind \"$0\" /etc/hosts; exec \"$@\"").arg(&self.hosts);
        command.env("KUBE_SSH_KEY_PATH", &self.key).env("KUBE_SSH_USER", USER);
    }
}

fn address(cluster: &Cluster, node: &str) -> Result<IpAddr> {
    let client = cluster.client();
    let node = client.get::<Node>(&client.all(), node)?.context("the Node is gone")?;
    let address = ready::internal_ip(&node).context("the Node has no address")?;
    address.parse().with_context(|| format!("address {address:?}"))
}

fn hosts_file(address: IpAddr, node: &str) -> String {
    format!("127.0.0.1 localhost\n::1 localhost\n{address} {node}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suite_runs_in_a_place_of_its_own() {
        let login = Login { key: "/k".into(), hosts: "/h".into() };
        let mut command = Command::new("nsenter");
        login.lead(&mut command);
        let args: Vec<&str> = command.arg("e2e").get_args().filter_map(|a| a.to_str()).collect();
        assert_eq!(args[..2], ["unshare", "--mount"]);
        // The hosts file is sh's `$0`, and the rest is the command that sh executes.
        assert_eq!(args[args.len() - 2..], ["/h", "e2e"]);
        assert!(hosts_file([10, 0, 0, 1].into(), "a").ends_with("\n10.0.0.1 a\n"));
    }
}
