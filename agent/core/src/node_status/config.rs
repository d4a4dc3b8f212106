//! The constant inputs of the Node, and the decision whether the node may join.
//!
//! In: KubeletConfiguration, flags. Out: [`NodeStatusConfig`], or the unusable flag. Invariant: labels of
//! `--node-labels` win over the platform's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_types::declared_features::declared;
use agent_types::resources::node_allocatable::Reservations;
use k8s_openapi::api::core::v1::Taint;
use orlop_config::fnv::fnv32;
use orlop_config::kubelet::enums::TaintEffect;
use orlop_config::kubelet::flags::args::Options;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};

use super::addresses::AddressPolicy;
use super::inputs::Inputs;

/// What does not change while the agent runs.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatusConfig {
    /// Name of the Node.
    pub node_name: Arc<str>,
    /// `registerNode`.
    pub register: bool,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<Taint>,
    /// `providerID`; empty for none.
    pub provider_id: String,
    /// `enableControllerAttachDetach`.
    pub controller_attach_detach: bool,
    /// `--node-ip`, host name, `--cloud-provider`.
    pub addresses: AddressPolicy,
    /// Reserved amounts and numbers of pods.
    pub reservations: Reservations,
    /// `localStorageCapacityIsolation`.
    pub local_storage_capacity_isolation: bool,
    /// `nodeStatusMaxImages`; -1 for all.
    pub images_max: i32,
    /// Port of the node's HTTPS server.
    pub port: i32,
    /// `v1.36.…`.
    pub kubelet_version: String,
    /// `declaredFeatures`: only features that this node really has.
    pub declared_features: Vec<String>,
    /// `nodeStatusUpdateFrequency`.
    pub update_period: Duration,
    /// `nodeStatusReportFrequency`.
    pub report_period: Duration,
    /// For the spread of reports.
    pub seed: u64,
}

/// Why the node cannot take part in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// A part of `--node-ip` is no address.
    #[error(
        "--node-ip: {0:?} is no IP address; give one, or an IPv4 and an IPv6 address with a comma between"
    )]
    NodeIp(String),
    /// `/run/orlop/degraded` is there.
    #[error(
        "the node does not join: its state partition cannot be used ({0}), and an identity kept in memory would be \
         lost at the next boot. Repair or replace the disk and boot again"
    )]
    Degraded(String),
}

/// Decides whether this node may join. `degraded` is the content of `/run/orlop/degraded`, if it exists.
///
/// # Errors
/// [`JoinError::Degraded`], for the log, the console and the ledger.
pub fn may_join(degraded: Option<&str>) -> Result<(), JoinError> {
    degraded.map_or(Ok(()), |reason| Err(JoinError::Degraded(reason.trim().to_owned())))
}

impl NodeStatusConfig {
    /// From configuration and flags. `kubelet_version` appears in the Node, `seed` is any number.
    ///
    /// # Errors
    /// [`JoinError::NodeIp`].
    pub fn new(
        node_name: &str,
        kubelet: &KubeletConfiguration,
        gates: &FeatureGates,
        options: &Options,
        kubelet_version: &str,
        seed: u64,
    ) -> Result<NodeStatusConfig, JoinError> {
        let taint = |t: &orlop_config::kubelet::nested::Taint| Taint {
            key: t.key.clone(),
            value: Some(t.value.clone()).filter(|v| !v.is_empty()),
            effect: effect(&t.effect).to_owned(),
            time_added: None,
        };
        Ok(NodeStatusConfig {
            node_name: node_name.into(),
            register: kubelet.register_node,
            labels: options.node_labels.clone(),
            taints: kubelet.register_with_taints.iter().map(taint).collect(),
            provider_id: kubelet.provider_id.clone(),
            controller_attach_detach: kubelet.enable_controller_attach_detach,
            addresses: AddressPolicy {
                node_ips: node_ips(options.node_ip.as_deref().unwrap_or_default())?,
                hostname: node_name.to_owned(),
                external_cloud_provider: options.cloud_provider.as_deref() == Some("external"),
            },
            reservations: Reservations::new(kubelet),
            local_storage_capacity_isolation: kubelet.local_storage_capacity_isolation,
            images_max: kubelet.node_status_max_images,
            port: kubelet.port,
            kubelet_version: kubelet_version.to_owned(),
            declared_features: declared(gates),
            update_period: kubelet.node_status_update_frequency.to_std(),
            report_period: kubelet.node_status_report_frequency.to_std(),
            seed,
        })
    }

    /// Labels with the machine's operating system and architecture.
    pub(super) fn platform_labels(&self, inputs: &Inputs) -> Vec<(&'static str, String)> {
        let mut labels = vec![("kubernetes.io/os", "linux".to_owned())];
        if let Ok(machine) = inputs.machine() {
            labels.push(("kubernetes.io/arch", machine.architecture.clone()));
        }
        labels
    }

    /// Labels at registration; the configured ones win.
    pub(super) fn all_labels(&self, inputs: &Inputs) -> BTreeMap<String, String> {
        let mut labels =
            BTreeMap::from([("kubernetes.io/hostname".to_owned(), hostname_label(&self.addresses.hostname))]);
        for (name, value) in self.platform_labels(inputs) {
            labels.insert(format!("beta.{name}"), value.clone());
            labels.insert(name.to_owned(), value);
        }
        labels.extend(self.labels.clone());
        labels
    }
}

/// Longest value of a label, bytes.
const LABEL_VALUE_MAX: usize = 63;

/// The value of the label `kubernetes.io/hostname` for a node's name. A name may have 253 bytes (clouds have such), a
/// value 63: the API server would refuse the Node. A longer name is cut and ends with its hash, so that the names of two
/// nodes stay different; upstream does not register such a node.
#[must_use]
pub fn hostname_label(name: &str) -> String {
    if name.len() <= LABEL_VALUE_MAX {
        return name.to_owned();
    }
    let hash = format!("-{:08x}", fnv32(name.as_bytes()));
    let start: String = name.chars().take(LABEL_VALUE_MAX - hash.len()).collect();
    format!("{}{hash}", start.trim_end_matches(['-', '.']))
}

fn effect(effect: &TaintEffect) -> &'static str {
    match effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    }
}

fn node_ips(text: &str) -> Result<Vec<IpAddr>, JoinError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(|_| JoinError::NodeIp(part.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_a_policy() {
        let options = Options {
            node_ip: Some("192.0.2.1, 2001:db8::1".to_owned()),
            cloud_provider: Some("external".to_owned()),
            ..Options::default()
        };
        let kubelet = KubeletConfiguration {
            register_with_taints: vec![orlop_config::kubelet::nested::Taint {
                key: "k".to_owned(),
                effect: TaintEffect::NoExecute,
                ..Default::default()
            }],
            ..KubeletConfiguration::default()
        };
        let gates = FeatureGates::default();
        let config = NodeStatusConfig::new("n1", &kubelet, &gates, &options, "v1.36.0", 1).unwrap();
        assert_eq!(config.addresses.node_ips.len(), 2);
        assert!(config.addresses.external_cloud_provider && config.register);
        assert_eq!((config.taints[0].effect.as_str(), config.taints[0].value.clone()), ("NoExecute", None));
        assert_eq!((config.port, config.images_max), (10250, 50));
        assert_eq!(config.report_period, Duration::from_secs(300));
        let bad = Options { node_ip: Some("eth0".to_owned()), ..Options::default() };
        let error = NodeStatusConfig::new("n1", &kubelet, &gates, &bad, "v1.36.0", 1).unwrap_err();
        assert_eq!(error, JoinError::NodeIp("eth0".to_owned()));
    }

    #[test]
    fn a_name_of_any_length_has_a_label() {
        let long = "ip-10-0-123-123.some-long-region-name-1.compute.internal.example.corpor";
        let label = hostname_label(long);
        assert!(label.starts_with("ip-10-0-123-123.some-long-region-name-1.compute.intern-"), "{label}");
        assert_eq!(label.len(), 63);
        assert_ne!(label, hostname_label(&long.replace("corpor", "corpora")));
        let dot = format!("{}.{}", "a".repeat(53), "b".repeat(20));
        for name in ["n1".to_owned(), "a".repeat(63), "a".repeat(64), dot, "a.".repeat(126)] {
            let label = hostname_label(&name);
            assert!(orlop_config::formats::is_label_value(&label), "{name}: {label}");
            assert_eq!(label == name, name.len() <= 63, "{name}: {label}");
        }
    }

    #[test]
    fn a_node_that_forgets_does_not_join() {
        assert_eq!(may_join(None), Ok(()));
        let refusal = may_join(Some("ext4: bad superblock\n")).unwrap_err().to_string();
        assert!(refusal.contains("(ext4: bad superblock)") && refusal.contains("Repair"), "{refusal}");
    }
}
