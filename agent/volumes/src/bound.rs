//! The source behind a claim: what a PersistentVolumeClaim is bound to, and the claims of a pod.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::csi::source::CsiSource;
use crate::plugin::Plugin;
use crate::{flex, network_disk};

/// `hostPath.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostPathType {
    /// Not looked at.
    Unset,
    /// Made with 0755 if nothing is there.
    DirectoryOrCreate,
    /// Must be there.
    Directory,
    /// Made with 0644 if nothing is there; its directory must be there.
    FileOrCreate,
    /// Must be there.
    File,
    /// Must be there.
    Socket,
    /// Must be there.
    CharDevice,
    /// Must be there.
    BlockDevice,
}

/// A claim's volume, and what it takes to have it here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Name of the PersistentVolume: its directory is called so, and it is in the words about it.
    pub volume: String,
    /// What it is.
    pub source: Source,
    /// The pod asked for it so.
    pub read_only: bool,
    /// `mountOptions`.
    pub options: Vec<String>,
    /// No other pod may have it at the same time.
    pub one_pod: bool,
    /// `volumeMode: Block`: containers have the device, not a file system.
    #[serde(default)]
    pub block: bool,
    /// The group that the volume itself names (annotation `pv.beta.kubernetes.io/gid`): the pod's containers are in it.
    #[serde(default)]
    pub group: Option<i64>,
    /// Its mount says what its files are labelled ([`super::selinux`]): the runtime leaves them alone.
    #[serde(default)]
    pub labelled: bool,
}

/// What a PersistentVolume is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// `local`: a directory of this node, or a block device.
    Local {
        /// Path on the node.
        path: String,
        /// `fsType`: what is on a block device.
        fs_type: String,
    },
    /// `hostPath`.
    HostPath {
        /// Path on the node.
        path: String,
        /// What it must be.
        kind: HostPathType,
    },
    /// `nfs`: a directory of a server.
    Nfs {
        /// Its name or address.
        server: String,
        /// Path on the server.
        path: String,
    },
    /// `csi`: a driver's.
    Csi(Box<CsiSource>),
    /// `iscsi` and `fc`: a disk that another machine keeps.
    NetworkDisk(Box<network_disk::source::Source>),
    /// `flexVolume`: a driver's.
    Flex(Box<flex::source::Source>),
}

impl Bound {
    /// Whose business it is.
    #[must_use]
    pub fn plugin(&self) -> Plugin {
        match &self.source {
            Source::Local { .. } => Plugin::Local,
            Source::HostPath { .. } => Plugin::HostPath,
            Source::Csi(_) => Plugin::Csi,
            Source::Nfs { .. } => Plugin::Nfs,
            Source::NetworkDisk(source) => source.plugin(),
            Source::Flex(_) => Plugin::Flex,
        }
    }
}

/// The claims of a pod's volumes that are bound, by the volumes' names.
pub type Claims = BTreeMap<String, Bound>;

pub(super) fn host_path_type(name: &str) -> Result<HostPathType, String> {
    Ok(match name {
        "" => HostPathType::Unset,
        "DirectoryOrCreate" => HostPathType::DirectoryOrCreate,
        "Directory" => HostPathType::Directory,
        "FileOrCreate" => HostPathType::FileOrCreate,
        "File" => HostPathType::File,
        "Socket" => HostPathType::Socket,
        "CharDevice" => HostPathType::CharDevice,
        "BlockDevice" => HostPathType::BlockDevice,
        other => return Err(format!("{other} is an invalid volume type")),
    })
}
