//! Volume plugins by their upstream names.

use serde::{Deserialize, Serialize};

/// What a volume plugin is called in paths and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Plugin {
    /// `kubernetes.io/empty-dir`
    EmptyDir,
    /// `kubernetes.io/host-path`
    HostPath,
    /// `kubernetes.io/configmap`
    ConfigMap,
    /// `kubernetes.io/secret`
    Secret,
    /// `kubernetes.io/downward-api`
    DownwardApi,
    /// `kubernetes.io/projected`
    Projected,
    /// `kubernetes.io/local-volume`
    Local,
    /// `kubernetes.io/csi`
    Csi,
    /// `kubernetes.io/nfs`
    Nfs,
    /// `kubernetes.io/git-repo`: it says that it is turned off.
    GitRepo,
    /// `kubernetes.io/iscsi`
    Iscsi,
    /// `kubernetes.io/fc`
    Fc,
    /// `kubernetes.io/flexvolume`: a driver's, whose name is in paths and in the names of volumes.
    Flex,
}

impl Plugin {
    /// All of them.
    pub const ALL: [Plugin; 13] = [
        Plugin::EmptyDir,
        Plugin::HostPath,
        Plugin::ConfigMap,
        Plugin::Secret,
        Plugin::DownwardApi,
        Plugin::Projected,
        Plugin::Local,
        Plugin::Csi,
        Plugin::Nfs,
        Plugin::GitRepo,
        Plugin::Iscsi,
        Plugin::Fc,
        Plugin::Flex,
    ];

    /// Name of the plugin.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Plugin::EmptyDir => "kubernetes.io/empty-dir",
            Plugin::HostPath => "kubernetes.io/host-path",
            Plugin::ConfigMap => "kubernetes.io/configmap",
            Plugin::Secret => "kubernetes.io/secret",
            Plugin::DownwardApi => "kubernetes.io/downward-api",
            Plugin::Projected => "kubernetes.io/projected",
            Plugin::Local => "kubernetes.io/local-volume",
            Plugin::Csi => "kubernetes.io/csi",
            Plugin::Nfs => "kubernetes.io/nfs",
            Plugin::GitRepo => "kubernetes.io/git-repo",
            Plugin::Iscsi => "kubernetes.io/iscsi",
            Plugin::Fc => "kubernetes.io/fc",
            Plugin::Flex => "kubernetes.io/flexvolume",
        }
    }

    /// As a directory name: the slash of the plugin's name is a tilde.
    #[must_use]
    pub fn directory(self) -> &'static str {
        match self {
            Plugin::EmptyDir => "kubernetes.io~empty-dir",
            Plugin::HostPath => "kubernetes.io~host-path",
            Plugin::ConfigMap => "kubernetes.io~configmap",
            Plugin::Secret => "kubernetes.io~secret",
            Plugin::DownwardApi => "kubernetes.io~downward-api",
            Plugin::Projected => "kubernetes.io~projected",
            Plugin::Local => "kubernetes.io~local-volume",
            Plugin::Csi => "kubernetes.io~csi",
            Plugin::Nfs => "kubernetes.io~nfs",
            Plugin::GitRepo => "kubernetes.io~git-repo",
            Plugin::Iscsi => "kubernetes.io~iscsi",
            Plugin::Fc => "kubernetes.io~fc",
            Plugin::Flex => "kubernetes.io~flexvolume",
        }
    }

    /// Containers never write to it, also if their mount allows it.
    #[must_use]
    pub fn is_read_only(self) -> bool {
        matches!(self, Plugin::ConfigMap | Plugin::Secret | Plugin::DownwardApi | Plugin::Projected)
    }
}

/// The words about a volume that no plugin mounts.
pub const NO_PLUGIN: &str = "no volume plugin matched";
