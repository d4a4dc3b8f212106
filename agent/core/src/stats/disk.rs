//! File systems, and what on them belongs to whom.
//!
//! In: numbers of `statvfs`, of walks and of the runtime. Out: values for [`super::summary`].

use std::collections::BTreeMap;

use crate::csi::request::Usage;
use crate::time::Wall;

/// A whole file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    /// When it was asked.
    pub at: Wall,
    /// Bytes that may still be written without privilege.
    pub available_bytes: u64,
    /// Its size, bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Inodes; `None` where the file system makes them as they are needed.
    pub inodes: Option<u64>,
    /// Of them free ones.
    pub inodes_free: Option<u64>,
}

/// What a tree of files takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// When it was measured.
    pub at: Wall,
    /// Blocks, as bytes.
    pub bytes: u64,
    /// Inodes; names of the same file count once.
    pub inodes: u64,
}

/// A container's writable layer, or the images, as the runtime accounts for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// When the runtime measured.
    pub at: Wall,
    /// A directory on the file system.
    pub mountpoint: String,
    /// Bytes; `None` if it does not say.
    pub used_bytes: Option<u64>,
    /// Inodes; `None` if it does not say.
    pub inodes_used: Option<u64>,
}

/// A volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeUse {
    /// The file system that it is on.
    pub filesystem: Option<Filesystem>,
    /// What is in it.
    pub taken: Option<Taken>,
}

impl VolumeUse {
    /// What a driver says of a volume.
    #[must_use]
    pub fn told(usage: &Usage, at: Wall) -> VolumeUse {
        let Usage { bytes, inodes } = usage;
        let filesystem = Filesystem {
            at,
            available_bytes: bytes.available,
            capacity_bytes: bytes.total,
            used_bytes: bytes.used,
            inodes: Some(inodes.total),
            inodes_free: Some(inodes.available),
        };
        let taken = Taken { at, bytes: bytes.used, inodes: inodes.used };
        VolumeUse { filesystem: Some(filesystem), taken: Some(taken) }
    }
}

/// Disk use of the node; keys are CRI ids, UIDs of pods and names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The file system of the kubelet's root directory.
    pub root: Option<Filesystem>,
    /// Images, as the runtime accounts for them.
    pub images: Option<Layer>,
    /// Writable layers, by container id.
    pub layers: BTreeMap<String, Layer>,
    /// File systems, by the runtime's mountpoints.
    pub filesystems: BTreeMap<String, Filesystem>,
    /// Log files, by UID and container.
    pub logs: BTreeMap<(String, String), Taken>,
    /// Managed hosts files, by UID.
    pub hosts_files: BTreeMap<String, Taken>,
    /// Volumes, by UID and name.
    pub volumes: BTreeMap<(String, String), VolumeUse>,
}
