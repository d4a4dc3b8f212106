//! The files a node's services read, from its effective configuration.

use super::{bridges, environment_files, hostname, hosts, hosts_files, joins, networks, node_name, swaps};
use crate::kubelet;
use crate::node::credential_provider;
use crate::node::effective::Effective;
use crate::node::types::NodeConfig;
use crate::node::update::Update;
use crate::yaml_emit;
use std::fmt::Write;

/// Which cluster to join, with the token; memory only.
pub const JOIN_FILE: &str = "/run/orlop/join.yaml";
/// Makes containerd write a bridge's CNI configuration when it hears the Node's ranges.
pub const POD_NETWORK_FILE: &str = "/run/orlop/containerd/pod-network.toml";
/// What it makes that from; in the image.
const POD_NETWORK_TEMPLATE: &str = "/usr/share/orlop/pod-network.conflist";
/// Opens the management API's port; absent without administrators.
const API_PORT_FILE: &str = "/run/systemd/system/sockets.target.d/10-orlop-api.conf";
/// Size of the swap file, bytes; absent without one.
pub const SWAP_FILE: &str = "/run/orlop/swap";
/// `update` of the configuration as JSON, for the updater; absent if it is the default.
pub const UPDATE_FILE: &str = "/run/orlop/update.json";
/// The agent's credential-provider plugins; absent without any.
pub const CREDENTIAL_PROVIDERS_FILE: &str = "/run/orlop/credential-providers.yaml";
/// Where their programs are looked for: on the state partition, because `/usr` is read-only and carries none.
pub const CREDENTIAL_PROVIDER_DIR: &str = "/var/lib/kubelet/credential-providers";
/// The agent's identity, kept.
pub const KUBECONFIG: &str = "/var/lib/kubelet/kubeconfig";

/// A file to write; `Debug` does not show its content.
#[derive(Clone, PartialEq, Eq)]
pub struct RunFile {
    /// Absolute.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Content.
    pub text: String,
}

impl std::fmt::Debug for RunFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:o}, {} bytes)", self.path, self.mode, self.text.len())
    }
}

/// Every file below `/run` (and containerd's registry hosts below `/var`) that follows from the configuration.
#[must_use]
pub fn run_files(effective: &Effective, machine_id: &str) -> Vec<RunFile> {
    let config = &effective.config;
    let file = |path: &str, mode: u32, text: String| RunFile { path: path.to_owned(), mode, text };
    let mut files = vec![
        file("/run/orlop/hostname", 0o644, format!("{}\n", hostname(config, machine_id))),
        file("/run/orlop/hosts", 0o644, hosts(config, machine_id)),
        // It may hold the headers of staticPodURL, which are secret.
        file("/run/orlop/kubelet.yaml", 0o600, kubelet_yaml(effective)),
        file("/run/orlop/agent.env", 0o644, agent_env(config, &node_name(config, machine_id))),
        file("/run/orlop/node-config.json", 0o644, effective.document()),
    ];
    let join = config.join.as_ref().filter(|join| joins(config) && !crate::join::has_kubeconfig(join));
    if let Some(join) = join {
        files.push(file(JOIN_FILE, 0o600, crate::join::render(join)));
    }
    if bridges(config) {
        files.push(file(POD_NETWORK_FILE, 0o644, pod_network_toml()));
    }
    let providers = &config.registries.credential_providers;
    if !providers.is_empty() {
        // Their environment may hold secrets.
        files.push(file(CREDENTIAL_PROVIDERS_FILE, 0o600, credential_provider::file(providers)));
    }
    if swaps(config) {
        files.push(file(SWAP_FILE, 0o644, format!("{}\n", config.swap.size.value())));
    }
    if config.update != Update::default() {
        let text = serde_json::to_string(&config.update).unwrap_or_default();
        files.push(file(UPDATE_FILE, 0o644, text + "\n"));
    }
    if !config.api.admins.is_empty() || config.api.cluster_identities {
        let wants = "[Unit]\nWants=orlop-node-api-tcp.socket\n".to_owned();
        files.push(file(API_PORT_FILE, 0o644, wants));
    }
    files.extend(environment_files(effective));
    files.extend(networks(config));
    let optional = [
        ("/run/sysctl.d/90-orlop.conf", sysctl_conf(config)),
        ("/run/modules-load.d/90-orlop.conf", modules_conf(config)),
        ("/run/systemd/timesyncd.conf.d/10-orlop.conf", timesyncd_conf(config)),
    ];
    files.extend(optional.into_iter().filter_map(|(path, text)| Some(file(path, 0o644, text?))));
    files.extend(hosts_files(config));
    files
}

/// Part of containerd's configuration, which imports the files of that directory.
fn pod_network_toml() -> String {
    format!(
        "version = 3\n\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_template = '{POD_NETWORK_TEMPLATE}'\n"
    )
}

/// `/run/orlop/kubelet.yaml`, every field, readable by `load_kubelet_config`.
fn kubelet_yaml(effective: &Effective) -> String {
    let document = yaml_emit::emit(&kubelet::to_value(&effective.kubelet));
    format!(
        "# The agent's effective configuration. Where each key is from: /run/orlop/node-config.json\n{document}"
    )
}

/// `/run/orlop/agent.env`: flags that are no configuration.
#[must_use]
pub fn agent_env(config: &NodeConfig, node_name: &str) -> String {
    let mut flags = vec![format!("--hostname-override={node_name}")];
    if !config.node.addresses.is_empty() {
        flags.push(format!("--node-ip={}", config.node.addresses.join(",")));
    }
    if let Some(provider) = config.node.cloud_provider.filter(|_| joins(config)) {
        // Only a node with a Node object takes it.
        flags.push(format!("--cloud-provider={}", provider.as_str()));
    }
    if let Some(join) = config.join.as_ref().filter(|_| joins(config)) {
        match (&join.kubeconfig, &join.bootstrap_kubeconfig) {
            (Some(own), _) => flags.push(format!("--kubeconfig={own}")),
            (None, Some(first)) => flags.push(format!("--bootstrap-kubeconfig={first}")),
            (None, None) => flags.push(format!("--join={JOIN_FILE}")),
        }
        if join.kubeconfig.is_none() {
            // On the state partition: the identity outlives the token.
            flags.push(format!("--kubeconfig={KUBECONFIG}"));
        }
    }
    if !config.registries.credential_providers.is_empty() {
        flags.push(format!("--image-credential-provider-config={CREDENTIAL_PROVIDERS_FILE}"));
        flags.push(format!("--image-credential-provider-bin-dir={CREDENTIAL_PROVIDER_DIR}"));
    }
    if !config.labels.is_empty() {
        // Neither keys nor values of labels can hold blanks, quotes or commas.
        let labels: Vec<String> = config.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        flags.push(format!("--node-labels={}", labels.join(",")));
    }
    format!("ORLOP_AGENT_ARGS={}\n", flags.join(" "))
}

/// `sysctl.d` file; none without settings.
#[must_use]
pub fn sysctl_conf(config: &NodeConfig) -> Option<String> {
    let mut text = String::new();
    for (name, value) in &config.kernel.sysctls {
        let _ = writeln!(text, "{name} = {}", value.0);
    }
    (!text.is_empty()).then_some(text)
}

/// `modules-load.d` file; none without modules.
#[must_use]
pub fn modules_conf(config: &NodeConfig) -> Option<String> {
    let modules = &config.kernel.modules;
    (!modules.is_empty()).then(|| format!("{}\n", modules.join("\n")))
}

/// `timesyncd.conf.d` file; none without servers.
#[must_use]
pub fn timesyncd_conf(config: &NodeConfig) -> Option<String> {
    let servers = &config.time.servers;
    (!servers.is_empty()).then(|| format!("[Time]\nNTP={}\n", servers.join(" ")))
}

/// Name and text of each manifest for the static pod directory.
#[must_use]
pub fn static_pod_files(config: &NodeConfig) -> Vec<(String, String)> {
    config.static_pods.iter().map(crate::node::static_pod::StaticPod::file).collect()
}
