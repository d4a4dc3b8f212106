//! File systems, and the usage of containers, images and volumes on them.
//!
//! In: numbers of `statvfs`, of directory walks and of the runtime. Out: values for [`super::summary`].

use std::collections::BTreeMap;

use agent_types::time::Wall;
use agent_volumes::csi::request::{BytesAndInodes, Usage};

/// A whole file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    /// Time of the measurement.
    pub at: Wall,
    /// Bytes that may still be written without privilege.
    pub available_bytes: u64,
    /// Its size, bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Inodes; `None` where the file system makes them as they are needed.
    pub inodes: Option<u64>,
    /// Number of free inodes.
    pub inodes_free: Option<u64>,
}

/// What a block device has done since the machine started (Linux, Documentation/block/stat.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskIo {
    /// Reads that went into others before they reached the device.
    pub reads_merged: u64,
    /// Sectors of 512 bytes read.
    pub sectors_read: u64,
    /// What reads waited in all, ms.
    pub read_ms: u64,
    /// Writes that went into others before they reached the device.
    pub writes_merged: u64,
    /// Sectors of 512 bytes written.
    pub sectors_written: u64,
    /// What writes waited in all, ms.
    pub write_ms: u64,
    /// Requests under way.
    pub in_flight: u64,
    /// How long there were any, ms.
    pub busy_ms: u64,
    /// What all requests waited in all, ms.
    pub waited_ms: u64,
}

impl DiskIo {
    /// Parses a device's file `stat` in /sys; `None` if it is malformed.
    #[must_use]
    pub fn of_stat(text: &str) -> Option<DiskIo> {
        let numbers: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let at = |place: usize| numbers.get(place).copied();
        Some(DiskIo {
            reads_merged: at(1)?,
            sectors_read: at(2)?,
            read_ms: at(3)?,
            writes_merged: at(5)?,
            sectors_written: at(6)?,
            write_ms: at(7)?,
            in_flight: at(8)?,
            busy_ms: at(9)?,
            waited_ms: at(10)?,
        })
    }
}

/// Whether an amount is exact or only a lower bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// The amount is all.
    #[default]
    Exact,
    /// The amount is a part: the count ended at its bound, or could not look into everything.
    AtLeast,
}

impl Bound {
    /// The same for the sum of two amounts.
    #[must_use]
    pub fn and(self, other: Bound) -> Bound {
        if self == Bound::Exact { other } else { self }
    }
}

/// What a tree of files takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeUsage {
    /// When it was measured.
    pub at: Wall,
    /// Blocks, as bytes.
    pub bytes: u64,
    /// Inodes; names of the same file count once.
    pub inodes: u64,
    /// Whether that is all.
    pub bound: Bound,
}

impl TreeUsage {
    /// Both together, as old as the first.
    #[must_use]
    pub fn plus(self, other: TreeUsage) -> TreeUsage {
        TreeUsage {
            at: self.at,
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
            bound: self.bound.and(other.bound),
        }
    }
}

/// A container's writable layer, or the images, as the runtime accounts for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// When the runtime measured.
    pub at: Wall,
    /// A directory on the file system.
    pub mountpoint: String,
    /// Used bytes; `None` if unknown.
    pub used_bytes: Option<u64>,
    /// Used inodes; `None` if unknown.
    pub inodes_used: Option<u64>,
}

/// Measurement of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeUse {
    /// File system of the volume.
    pub filesystem: Option<Filesystem>,
    /// What is in it.
    pub taken: Option<TreeUsage>,
    /// True if its driver reports an abnormal condition.
    pub abnormal: Option<bool>,
}

impl VolumeUse {
    /// Translates a driver's statistics of a volume.
    #[must_use]
    pub fn from_driver(usage: &Usage, at: Wall) -> VolumeUse {
        // A driver may report the condition without sizes; upstream shows these as 0.
        let BytesAndInodes { bytes, inodes } = usage.amounts.unwrap_or_default();
        let filesystem = Filesystem {
            at,
            available_bytes: bytes.available,
            capacity_bytes: bytes.total,
            used_bytes: bytes.used,
            inodes: Some(inodes.total),
            inodes_free: Some(inodes.available),
        };
        let taken = TreeUsage { at, bytes: bytes.used, inodes: inodes.used, bound: Bound::Exact };
        let abnormal = usage.condition.as_ref().map(|condition| condition.abnormal);
        VolumeUse { filesystem: Some(filesystem), taken: Some(taken), abnormal }
    }
}

/// Disk use of the node; keys are CRI ids, UIDs of pods and names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDiskUsage {
    /// The file system of the kubelet's root directory.
    pub root: Option<Filesystem>,
    /// Images, as the runtime accounts for them.
    pub images: Option<Layer>,
    /// Writable layers, by container id.
    pub layers: BTreeMap<String, Layer>,
    /// File systems, by the runtime's mountpoints.
    pub filesystems: BTreeMap<String, Filesystem>,
    /// Log files, by UID and container.
    pub logs: BTreeMap<(String, String), TreeUsage>,
    /// Files that the node made for containers to write to: hosts files and termination messages. By UID.
    pub own_files: BTreeMap<String, TreeUsage>,
    /// Volumes, by UID and name.
    pub volumes: BTreeMap<(String, String), VolumeUse>,
}
