//! Directories and devices of the node that a pod gets as they are: bind mounts and block devices.

use serde::{Deserialize, Serialize};

/// The claim whose volume it is, as far as it takes to make what the volume holds larger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfClaim {
    /// The pod's namespace.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// Name of the node.
    pub node: String,
    /// The pod may not write to the volume: the node reports that it has grown, and leaves it as it is.
    #[serde(default)]
    pub read_only: bool,
}

/// A directory of this node that is mounted at a volume's path, or a disk with a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Absolute path of the directory, or of the disk.
    pub source: String,
    /// It is read-only.
    pub read_only: bool,
    /// `mountOptions` of the PersistentVolume.
    pub options: Vec<String>,
    /// No other pod may have it mounted.
    pub one_pod: bool,
    /// `fsGroupChangePolicy: OnRootMismatch`: what is in it is left alone if its root is right.
    pub by_root: bool,
    /// Where the node has it, if it is a disk.
    pub disk: Disk,
    /// Its claim, with which its file system may grow, if it is a disk.
    #[serde(default)]
    pub claim: Option<OfClaim>,
}

/// A block device of this node that containers of a pod have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Absolute path of the device.
    pub source: String,
    /// Directory in which the node keeps it for its pods ([`crate::device::global`]).
    pub global: String,
    /// No other pod may have it.
    pub one_pod: bool,
}

/// Where a disk goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Where the node mounts it, if the source is one.
    pub global: String,
    /// `local.fsType`; empty: what is there, else ext4.
    pub fs_type: String,
}
