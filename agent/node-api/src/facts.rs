//! What was looked at on the node, at one time: the snapshot from which every answer is made.
//!
//! Texts are as their files have them; a file that is not there is an empty text. Sources that may hang or fail by themselves
//! ([`Facts::services`], [`Facts::mounts`], [`Facts::processes`], [`Facts::operations`]) have their refusals here, so that the other kinds
//! are answered without them.

use std::net::IpAddr;

use orlop_proto::node_api::v1alpha1::{DiskStatus, LinkStatus, MountStatus, OperationStatus, ProcessStatus};

use crate::guard::AdminKey;
use crate::refusal::Refusal;

/// The snapshot.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// When, RFC 3339 by the node's clock.
    pub observed_at: String,
    /// `/usr/lib/os-release`.
    pub os_release: String,
    /// `/proc/sys/kernel/hostname`.
    pub hostname: String,
    /// `/proc/sys/kernel/osrelease`.
    pub kernel: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// `/proc/uptime`.
    pub uptime: String,
    /// `/run/orlop/boot.json`.
    pub ledger: String,
    /// `/run/orlop/node-config.json`.
    pub node_config: String,
    /// `/run/orlop/degraded`.
    pub degraded: String,
    /// `/run/orlop/agent-problems.json`.
    pub agent_problems: String,
    /// `/run/orlop/change-problems.json`.
    pub change_problems: String,
    /// `/run/orlop/update-problems.json`.
    pub update_problems: String,
    /// `/proc/meminfo`.
    pub meminfo: String,
    /// `/proc/pressure/memory`.
    pub memory_pressure: String,
    /// `/run/systemd/timesync/synchronized` exists.
    pub ntp_synchronized: bool,
    /// `/run/orlop/clock/ntp-refused` exists.
    pub ntp_refused: bool,
    /// Interfaces and their addresses, loopback included.
    pub addresses: Vec<(String, IpAddr)>,
    /// The node's own addresses, the primary first.
    pub node_addresses: Vec<IpAddr>,
    /// Interfaces by name.
    pub links: Vec<(String, LinkStatus)>,
    /// Block devices by name.
    pub disks: Vec<(String, DiskStatus)>,
    /// What `systemctl show` printed; `None`: nobody asked for it.
    pub services: Option<Result<String, Refusal>>,
    /// File systems by their place; `None`: nobody asked for them.
    pub mounts: Option<Result<Vec<(String, MountStatus)>, Refusal>>,
    /// Processes, the largest first; `None`: nobody asked for them.
    pub processes: Option<Result<Vec<ProcessStatus>, Refusal>>,
    /// Operations, the oldest first; `None`: the request did not ask for them.
    pub operations: Option<Result<Vec<OperationStatus>, Refusal>>,
}

impl Facts {
    /// The value of a key of os-release, without its quotes; empty if it has none.
    #[must_use]
    pub fn os_release_value(&self, key: &str) -> String {
        let value = self.os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value.unwrap_or_default().trim().trim_matches(['"', '\'']).to_owned()
    }

    /// The node's name: that of the configuration, else the host name.
    #[must_use]
    pub fn node_name(&self) -> String {
        let configured = self.config()["config"]["node"]["name"].as_str().unwrap_or_default().to_owned();
        if configured.is_empty() { self.hostname.trim().to_owned() } else { configured }
    }

    /// The effective configuration; null if there is none that can be read.
    #[must_use]
    pub fn config(&self) -> serde_json::Value {
        serde_json::from_str(&self.node_config).unwrap_or_default()
    }
}

/// Whether the effective configuration trusts the machine's host on vsock. A text that cannot be read trusts nobody.
#[must_use]
pub fn trusts_vsock_host(node_config: &str) -> bool {
    let document: serde_json::Value = serde_json::from_str(node_config).unwrap_or_default();
    document["config"]["api"]["vsock"]["trustHost"] == true
}

/// Whether users of the cluster may ask, by the effective configuration. A text that cannot be read has none.
#[must_use]
pub fn accepts_cluster(node_config: &str) -> bool {
    let document: serde_json::Value = serde_json::from_str(node_config).unwrap_or_default();
    document["config"]["api"]["clusterIdentities"] == true
}

/// The administrators of the effective configuration. A text that cannot be read has none.
#[must_use]
pub fn admins(node_config: &str) -> Vec<AdminKey> {
    let document: serde_json::Value = serde_json::from_str(node_config).unwrap_or_default();
    let word = |admin: &serde_json::Value, key: &str| admin[key].as_str().map(str::to_owned);
    let list = document["config"]["api"]["admins"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .filter_map(|admin| Some(AdminKey { name: word(admin, "name")?, key: word(admin, "key")? }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_configured_one_or_the_host_s() {
        let named = |node_config: &str| {
            let facts = Facts {
                node_config: node_config.to_owned(),
                hostname: "host\n".to_owned(),
                ..Facts::default()
            };
            facts.node_name()
        };
        assert_eq!(named(r#"{"config":{"node":{"name":"edge-7"}}}"#), "edge-7");
        for other in [r#"{"config":{"node":{"name":""}}}"#, "{}", "", "{", "[1]"] {
            assert_eq!(named(other), "host", "{other}");
        }
    }

    #[test]
    fn values_of_os_release() {
        let facts =
            Facts { os_release: "NAME=\"Orlop\"\nIMAGE_VERSION=0.4.0\n".to_owned(), ..Facts::default() };
        let value = |key: &str| facts.os_release_value(key);
        assert_eq!(
            (value("IMAGE_VERSION"), value("NAME"), value("ID")),
            ("0.4.0".into(), "Orlop".into(), String::new())
        );
    }

    #[test]
    fn administrators_have_name_and_key() {
        let text = r#"{"config":{"api":{"admins":[{"name":"a","key":"ed25519:x"},{"name":"b"},7]}}}"#;
        assert_eq!(admins(text), [AdminKey { name: "a".to_owned(), key: "ed25519:x".to_owned() }]);
        assert_eq!((admins("{"), admins("{}")), (Vec::new(), Vec::new()));
    }

    #[test]
    fn users_of_the_cluster_may_ask_if_the_configuration_says_so() {
        assert!(accepts_cluster(r#"{"config":{"api":{"clusterIdentities":true}}}"#));
        for other in
            [r#"{"config":{"api":{"clusterIdentities":"true"}}}"#, r#"{"config":{"api":{}}}"#, "", "{"]
        {
            assert!(!accepts_cluster(other), "{other}");
        }
    }

    #[test]
    fn the_host_is_trusted_by_the_key_alone() {
        assert!(trusts_vsock_host(r#"{"config":{"api":{"vsock":{"trustHost":true}}}}"#));
        for other in [r#"{"config":{"api":{"vsock":{"trustHost":"true"}}}}"#, r#"{"api":{}}"#, "", "{"] {
            assert!(!trusts_vsock_host(other), "{other}");
        }
    }
}
