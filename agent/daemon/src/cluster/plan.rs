//! The cluster's part of the plan, from configuration and flags.
//!
//! In: [`Settings`], the node's name. Out: [`ClusterPlan`], options of the client, requirements for the client
//! certificate. Pure except for the seeds, which come from the operating system.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use agent_apiserver::{Observer, Options, Protocol};
use agent_core::events::Rate;
use agent_core::lease::LeaseConfig;
use agent_core::node_status::{JoinError, NodeStatusConfig};
use agent_types::certificates::{CertConfig, CertKind};
use agent_types::time::Wall;
use orlop_config::kubelet::KubeletConfiguration;

use super::ClusterPlan;
use crate::pods::pod_values::ObjectPolicy;
use crate::settings::Settings;

/// The Kubernetes release whose behaviour this agent has, as the Node's `kubeletVersion`. The agent's own version
/// follows a plus sign, as build metadata: after a hyphen it would be a pre-release version (Semantic Versioning 2.0,
/// 9, 10).
pub const KUBELET_VERSION: &str = concat!("v1.36.0+orlop.", env!("CARGO_PKG_VERSION"));
/// No clock that shows less than this file's time is right (systemd's own convention).
const CLOCK_EPOCH: &str = "/usr/lib/clock-epoch";

/// Plans the owners of the cluster's part.
///
/// # Errors
/// A flag that cannot be used.
pub fn plan(settings: &Settings, node_name: &str) -> Result<ClusterPlan, JoinError> {
    let kubelet = &settings.kubelet;
    let gates = &settings.gates;
    Ok(ClusterPlan {
        node: NodeStatusConfig::new(node_name, kubelet, gates, &settings.options, KUBELET_VERSION, seed())?,
        lease: LeaseConfig {
            node_name: Arc::from(node_name),
            duration_s: u32::try_from(kubelet.node_lease_duration_seconds).unwrap_or(40),
            seed: seed(),
        },
        events: Rate {
            per_second: u32::try_from(kubelet.event_record_qps).unwrap_or(0),
            burst: u32::try_from(kubelet.event_burst).unwrap_or(0),
        },
        objects: ObjectPolicy::new(kubelet),
        trust_bundles: gates.cluster_trust_bundle_projection,
        pod_certificates: gates.pod_certificate_request.then(seed),
    })
}

/// Options that every request has.
#[must_use]
pub fn client_options(kubelet: &KubeletConfiguration, protocol: Protocol, observer: Observer) -> Options {
    Options {
        protocol,
        observer,
        api_rate: (kubelet.kube_api_qps, kubelet.kube_api_burst),
        event_rate: (kubelet.event_record_qps, kubelet.event_burst),
        ..Options::new(env!("CARGO_PKG_VERSION"))
    }
}

/// The node's identity.
#[must_use]
pub fn client_certificate(kubelet: &KubeletConfiguration, node_name: &str) -> CertConfig {
    CertConfig {
        kind: CertKind::Client,
        node_name: Arc::from(node_name),
        rotate: kubelet.rotate_certificates,
        clock_floor: clock_floor(),
        seed: seed(),
    }
}

/// Requirements for the certificate of the node's HTTPS server, if `serverTLSBootstrap` is set.
#[must_use]
pub fn serving_certificate(node_name: &str) -> CertConfig {
    CertConfig {
        kind: CertKind::Serving,
        node_name: Arc::from(node_name),
        rotate: true,
        clock_floor: clock_floor(),
        seed: seed(),
    }
}

/// Build time of the image; 1970 on a host without that file.
#[must_use]
pub fn clock_floor() -> Wall {
    let seconds = std::fs::metadata(CLOCK_EPOCH).map_or(0, |metadata| metadata.mtime());
    Wall(seconds.saturating_mul(1_000_000_000))
}

/// A number that differs from that of other nodes; the hasher's keys come from the operating system.
fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use orlop_config::kubelet::FeatureGates;
    use orlop_config::kubelet::flags::args::Options as Flags;

    use super::*;

    #[test]
    fn the_plan_follows_configuration_and_flags() {
        let kubelet: KubeletConfiguration = orlop_config::kubelet::load_kubelet_config(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nnodeLeaseDurationSeconds: 20\n\
             registerWithTaints: [{key: a, value: b, effect: NoSchedule}]\neventRecordQPS: 5\n",
            "k.yaml",
        )
        .unwrap();
        let options = Flags {
            node_ip: Some("10.0.0.1,fd00::1".to_owned()),
            cloud_provider: Some("external".to_owned()),
            ..Flags::default()
        };
        let (given, gates) = (Vec::new(), FeatureGates::of(&kubelet));
        let settings = Settings {
            kubelet,
            gates,
            options,
            cluster: None,
            pod_output: false,
            pods_per_shim: 1,
            given,
            warnings: Vec::new(),
        };
        let plan = plan(&settings, "n1").unwrap();
        assert_eq!(plan.lease.duration_s, 20);
        assert_eq!(plan.events.per_second, 5);
        assert_eq!(plan.node.taints[0].effect, "NoSchedule");
        assert_eq!(plan.node.addresses.node_ips.len(), 2);
        assert!(plan.node.addresses.external_cloud_provider && plan.node.register);
        assert_ne!(plan.node.seed, plan.lease.seed);
    }
}
