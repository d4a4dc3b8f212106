//! The agent's settings: the command line and the configuration files together.
//!
//! In: the arguments, read by [`crate::process::cli`]. Out: plain values that every folder may read. The settings do
//! not change while the agent runs.

use std::path::PathBuf;

use orlop_config::kubelet::flags::args::Options;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};

/// All settings of the agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Effective and validated.
    pub kubelet: KubeletConfiguration,
    /// The configuration's feature gates, resolved.
    pub gates: FeatureGates,
    /// Settings that exist as flags only.
    pub options: Options,
    /// The cluster; `None` for a standalone node.
    pub cluster: Option<ClusterSettings>,
    /// Pods' output goes to the host channel (`console.podOutput`).
    pub pod_output: bool,
    /// At most so many pods share a shim (`runtime.podsPerShim`).
    pub pods_per_shim: u32,
    /// The flags as they were given, name and value, for `/flagz`.
    pub given: Vec<(String, String)>,
    /// Logged when the log is open.
    pub warnings: Vec<String>,
}

/// The API server, and the node's credentials.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// The node's identity; the agent writes the file if it has to request an identity.
    pub kubeconfig: PathBuf,
    /// Credentials for asking.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// The join file: server, first-boot token, CA or its hashes. Read when it is needed, and again when it changes.
    pub join: Option<PathBuf>,
    /// Certificates and keys.
    pub cert_dir: PathBuf,
}
