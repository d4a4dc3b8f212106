//! The agent's settings: what the command line and the configuration files say together.
//!
//! In: the arguments, read by [`crate::process::cli`]. Out: plain values that every folder may read. Nothing here changes while
//! the agent runs.

use std::path::PathBuf;

use orlop_config::kubelet::flags::args::Options;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};

/// Everything that the agent is told before it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Effective and validated.
    pub kubelet: KubeletConfiguration,
    /// The configuration's feature gates, resolved.
    pub gates: FeatureGates,
    /// What exists as flags only.
    pub options: Options,
    /// The cluster; `None` for a standalone node.
    pub cluster: Option<ClusterSettings>,
    /// Pods' output goes to the host channel (`console.podOutput`).
    pub pod_output: bool,
    /// The flags as they were given, name and value, for `/flagz`.
    pub given: Vec<(String, String)>,
    /// Said once the log is open.
    pub warnings: Vec<String>,
}

/// How to reach the API server, and as whom.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// The node's identity; written by the agent if it has to ask for one.
    pub kubeconfig: PathBuf,
    /// Credentials for asking.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// The join file: server, first-boot token, CA or its hashes. Read when it is needed, and again when it changes.
    pub join: Option<PathBuf>,
    /// Certificates and keys.
    pub cert_dir: PathBuf,
}
