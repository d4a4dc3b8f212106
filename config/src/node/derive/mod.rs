//! What follows from an effective NodeConfig: the agent's configuration, files, settings, names.
//!
//! Pure: texts and values out; init writes them (docs/internals/architecture.md, "Run-time files").

mod environment;
mod files;
mod hosts;
mod netdev;
mod network;
mod node_files;
mod registries;

pub use environment::{ENVIRONMENT_FILE, environment_files};
pub use files::{
    CREDENTIAL_PROVIDER_DIR, CREDENTIAL_PROVIDERS_FILE, JOIN_FILE, KUBECONFIG, POD_NETWORK_FILE, RunFile,
    SWAP_FILE, UPDATE_FILE, agent_env, modules_conf, run_files, static_pod_files, sysctl_conf,
    timesyncd_conf,
};
pub use hosts::hosts;
pub(super) use network::{LINKS_MAX, route_metric};
pub use network::{networks, resolv_conf};
pub use node_files::{named_files, placed_files};
pub use registries::{hosts_file_paths, hosts_files, is_own_hosts, is_unmarked_hosts};

use super::network::PodNetwork;
use super::types::NodeConfig;
use crate::field::{self, NoLines};
use crate::kubelet::{self, KubeletConfiguration, unread, validate};
use crate::merge;
use crate::path;
use crate::problem::Problem;
use serde_json::{Value, json};

/// Directory of static pod manifests on the appliance.
pub const STATIC_POD_DIR: &str = "/etc/kubernetes/manifests";

/// Longest host name that the kernel takes (`HOST_NAME_MAX` of limits.h), bytes.
const HOST_NAME_MAX: usize = 64;

/// How long a machine that stops waits for its pods.
const SHUTDOWN_PERIODS: [&str; 3] =
    ["shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority"];

/// What the appliance sets in the agent's configuration where it differs from upstream's defaults; any source may
/// say otherwise.
#[must_use]
pub fn appliance(config: &NodeConfig) -> Value {
    let mut kubelet = json!({
        "apiVersion": kubelet::API_VERSION,
        "kind": kubelet::KIND,
        // systemd is the one writer of cgroups here.
        "cgroupDriver": "systemd",
        "staticPodPath": STATIC_POD_DIR,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        // /usr is read-only: add-ons bring their drivers to the state partition.
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        // A standalone node has no API server that knows callers and their permissions, so it serves no callers.
        "enableServer": joins(config),
        // There is no shell to look into the journal with.
        "enableSystemLogQuery": true,
        "readOnlyPort": 0,
        "registerNode": joins(config),
        "rotateCertificates": true,
        // A container without a seccomp profile runs under the runtime's; one that needs more calls says `Unconfined`.
        "seccompDefault": true,
    });
    let said = |key: &str| config.kubelet.0.contains_key(key);
    if !SHUTDOWN_PERIODS.iter().any(|key| said(key)) {
        // A machine that has to stop waits for its pods; a document that sets one of these keys sets the time.
        kubelet["shutdownGracePeriod"] = "30s".into();
        kubelet["shutdownGracePeriodCriticalPods"] = "10s".into();
    }
    if swaps(config) {
        kubelet["failSwapOn"] = false.into();
    }
    if !config.taints.is_empty() {
        kubelet["registerWithTaints"] = serde_json::to_value(&config.taints).unwrap_or_default();
    }
    kubelet
}

/// Whether the configuration is enough to join a cluster.
#[must_use]
pub fn joins(config: &NodeConfig) -> bool {
    config.join.as_ref().is_some_and(|join| crate::join::missing(join).is_empty())
}

/// Whether the node makes the pod network from the ranges of its Node object.
#[must_use]
pub fn bridges(config: &NodeConfig) -> bool {
    joins(config) && config.network.pod_network == PodNetwork::Bridge
}

/// Whether the node has a swap file.
#[must_use]
pub fn swaps(config: &NodeConfig) -> bool {
    config.swap.size.signum() > 0
}

/// The agent's effective configuration, and what is wrong with it (paths below `kubelet.`).
///
/// With problems, the configuration is the appliance's own, which has none.
#[must_use]
pub fn kubelet(config: &NodeConfig, source: &str) -> (KubeletConfiguration, Vec<Problem>) {
    let mut document = appliance(config);
    merge::apply(&mut document, Value::Object(config.kubelet.0.clone()));
    let head = [("apiVersion", kubelet::API_VERSION), ("kind", kubelet::KIND)];
    let mut problems: Vec<Problem> = head
        .into_iter()
        .filter(|(key, want)| document.get(key).and_then(Value::as_str) != Some(*want))
        .map(|(key, want)| Problem {
            source: source.to_owned(),
            path: key.to_owned(),
            value: document.get(key).map(field::shown),
            reason: format!("must be {want}, or left out"),
            ..Problem::default()
        })
        .collect();
    let typed = match kubelet::from_value(document, source, &NoLines) {
        Ok(typed) => {
            problems.extend(validate::validate(&typed, source));
            problems.extend(unread::refused(&typed, source));
            Some(typed)
        }
        Err(error) => {
            problems.extend_from_slice(error.problems());
            None
        }
    };
    // A taint given as `taints` is wrong there.
    let own_taints = !config.taints.is_empty() && !config.kubelet.0.contains_key("registerWithTaints");
    for problem in &mut problems {
        problem.path = match problem.path.strip_prefix("registerWithTaints") {
            Some(rest) if own_taints => format!("taints{rest}"),
            _ if problem.path.is_empty() => "kubelet".to_owned(),
            _ => format!("{}.{}", path::child("", "kubelet"), problem.path),
        };
    }
    match typed {
        Some(typed) if problems.is_empty() => (typed, problems),
        _ => {
            let own = appliance(&NodeConfig::default());
            (kubelet::from_value(own, source, &NoLines).unwrap_or_default(), problems)
        }
    }
}

/// The node's name: as configured, else `orlop-` and the machine id's first 8 digits.
#[must_use]
pub fn node_name(config: &NodeConfig, machine_id: &str) -> String {
    if !config.node.name.is_empty() {
        return config.node.name.clone();
    }
    let id: String = machine_id.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    if id.is_empty() { "orlop".to_owned() } else { format!("orlop-{}", id.to_ascii_lowercase()) }
}

/// The kernel's host name: the node's name, or its first label if the whole is longer than the kernel takes (clouds
/// have such names).
#[must_use]
pub fn hostname(config: &NodeConfig, machine_id: &str) -> String {
    let name = node_name(config, machine_id);
    if name.len() <= HOST_NAME_MAX {
        return name;
    }
    let label = name.split('.').next().unwrap_or_default();
    let label: String = label.chars().take(HOST_NAME_MAX).collect();
    label.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod flags_tests;
#[cfg(test)]
mod tests;
