//! volume: the needs of a pod's volumes, their state on the node, and the next step.
//!
//! In: a pod, the node, answers. Out: [`SetUp`]s for an executor, whether containers may start, the time of
//! the next check.
//!
//! ```text
//! pod spec ──plan──► SetUp (path, plugin's work) ──effect──► mounted ──source changed, token old──► set up again
//!                        ▲      └─ failed: 0.5 s doubling to 2m2s ─┘
//! containers ended ──► tear down: everything in the mount table below the pod's directory, deepest first
//! ```
//! The pod worker drives [`PodVolumes`], one for each pod: the plugins here share nothing between pods. A
//! set-up is idempotent: it reads the mount table and the disk first, and writes only missing parts. So a
//! restarted agent sets up the volumes of its pods again and changes nothing; there is no other
//! reconstruction.
//!
//! Invariants: no container starts before every volume of its pod is mounted; no volume is torn down before
//! the pod's containers have ended (VOL-HELD); the pod's directory is removed after its volumes. Upstream:
//! pkg/kubelet/volumemanager, pkg/volume.
#![forbid(unsafe_code)]

pub mod account;
pub mod attach;
pub mod bind;
pub mod bound;
pub mod claim;
pub mod csi;
pub mod device;
pub mod disk;
pub mod downward;
pub mod env_file;
pub mod flex;
pub mod inline;
pub mod key;
pub mod mount_table;
pub mod network_disk;
pub mod nfs;
pub mod object_table;
pub mod paths;
pub mod payload;
pub mod plan;
pub mod plugin;
pub mod pod_certificate;
pub mod project;
pub mod references;
pub mod selinux;
mod slots;
pub mod sub_path;
pub mod token;
pub mod trust_bundle;
pub mod volume_table;
pub mod watched;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use agent_types::event::ClaimId;
use agent_types::objects::ObjectRef;
use serde::{Deserialize, Serialize};

pub use slots::{DesiredVolume, PodVolumes};

use crate::bind::{Bind, Device};
use crate::bound::HostPathType;
use crate::csi::CsiVolume;
use crate::plugin::Plugin;

/// Directory of volumes below a pod's.
pub const VOLUMES_DIR: &str = "volumes";

/// How long a mount of an NFS server may take, with what a failed one leaves.
pub const NFS_TIME: Duration = Duration::from_secs(200);

/// How long a disk may take to be formatted, looked through and mounted.
pub const DISK_TIME: Duration = Duration::from_secs(900);

/// How long a driver of `flexVolume` may take with all that it is asked for a pod's volume.
pub const FLEX_TIME: Duration = Duration::from_secs(1800);

/// The step that makes a volume a pod's, in words about what failed.
pub const SET_UP: &str = "MountVolume.SetUp";
/// The step that waits until it is attached to the node.
pub const WAIT_FOR_ATTACH: &str = "MountVolume.WaitForAttach";
/// The step that makes it ready for all pods of the node.
pub const MOUNT_DEVICE: &str = "MountVolume.MountDevice";

/// The step that has a driver publish a block device.
pub const MAP_POD_DEVICE: &str = "MapVolume.MapPodDevice";
/// The step that makes a block device ready for all pods of the node.
pub const SET_UP_DEVICE: &str = "MapVolume.SetUpDevice";
/// The step that keeps a block device for a pod.
pub const MAP_BLOCK_VOLUME: &str = "MapVolume.MapBlockVolume";

/// The message about a step that failed for a volume. A message that names its step already stays as it is: several
/// steps lead to a volume, and the code of each step knows which one it is.
#[must_use]
pub fn step_failed(step: &str, volume: &str, why: &str) -> String {
    if ["MountVolume.", "MapVolume.", "AttachVolume."].iter().any(|step| why.starts_with(step)) {
        return why.to_owned();
    }
    format!("{step} failed for volume {volume:?} : {why}")
}

/// Why a volume is not set up, in upstream's words where it has some.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetUpError {
    /// It is not known who mounts it, or as what.
    #[error("{0}")]
    Unprocessed(String),
    /// It is known, and cannot be had like this.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for SetUpError {
    fn from(why: String) -> SetUpError {
        SetUpError::Failed(why)
    }
}

/// The result of making a volume's contents as large as the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resize {
    /// They are.
    Done {
        /// Name of the node.
        node: String,
        /// Whose volume it is.
        claim: ClaimId,
    },
    /// They are not, and why; the volume can be used as it is.
    Failed(String),
    /// They are not: the pod may not write to the volume, and so the node does not.
    ReadOnly {
        /// Whose volume it is.
        claim: ClaimId,
    },
}

/// What has to be done so that one volume is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetUp {
    /// Name of the volume in its pod.
    pub name: String,
    /// Whose business it is.
    pub plugin: Plugin,
    /// Host path of the volume.
    pub path: String,
    /// The plugin's part.
    pub work: Work,
    /// Directories inside the volume where other volumes are mounted, relative to it.
    pub nested: Vec<String>,
    /// `securityContext.fsGroup`: everything in the volume becomes that group's.
    pub fs_group: Option<u32>,
}

/// The plugin's part of a set-up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// A directory for everybody.
    EmptyDir {
        /// Where it lives.
        medium: Medium,
        /// Directory whose file `ready` says that ownership was set.
        marker: String,
        /// It is to have a [`project`] of its own, where its file system can count by it.
        counted: bool,
    },
    /// Something of the host's that is only looked at, or made if the type says so.
    HostPath(HostPathType),
    /// A directory of this node, mounted at the volume's path.
    Bind(Bind),
    /// A block device of this node, which containers have as such.
    Device(Device),
    /// What a CSI driver makes for this pod.
    Csi(Box<CsiVolume>),
    /// A directory of a server.
    Nfs(nfs::Nfs),
    /// A disk that another machine keeps.
    NetworkDisk(Box<network_disk::NetworkDisk>),
    /// What a driver of `flexVolume` mounts for this pod.
    Flex(Box<flex::Flex>),
    /// Files written by the agent.
    Files {
        /// Where they live.
        medium: Medium,
        /// See [`Work::EmptyDir`].
        marker: String,
        /// What they are made from; later ones win.
        sources: Vec<FileSource>,
        /// The sources are those of a projected volume, whose mistakes are collected.
        projected: bool,
    },
}

impl Work {
    /// Where the node keeps the volume for its pods, if it is a block device.
    #[must_use]
    pub fn global(&self) -> Option<&str> {
        match self {
            Work::Device(device) => Some(&device.global),
            Work::Csi(volume) => volume.block.as_deref(),
            Work::NetworkDisk(disk) if disk.block => Some(&disk.global),
            _ => None,
        }
    }

    /// Sets whether to find out why the volume is not attached. Only drivers' volumes have a VolumeAttachment that
    /// says it.
    pub fn say_why(&mut self, overdue: bool) {
        if let Work::Csi(volume) = self {
            volume.overdue = overdue;
        }
    }
}

/// Where a volume's files live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Medium {
    /// The file system of the kubelet's root.
    Disk,
    /// A tmpfs of at most this many bytes; 0 leaves it to the kernel.
    Memory(u64),
    /// A hugetlbfs whose pages have this many bytes.
    HugePages(u64),
}

/// Where the files of a volume come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileSource {
    /// Keys of an object.
    Object {
        /// Object to read.
        object: ObjectRef,
        /// Which keys under which paths; empty is all of them under their own names.
        items: Vec<Item>,
        /// It may be missing, and so may its keys.
        optional: bool,
        /// Mode of files whose item names none.
        mode: u32,
    },
    /// What the downward API says.
    Known(BTreeMap<String, FileContent>),
    /// A token of the pod's service account.
    Token {
        /// Which token.
        token: token::TokenRef,
        /// Path in the volume.
        path: String,
        /// Mode of the file.
        mode: u32,
        /// Owner of the file.
        user: Option<u32>,
    },
    /// Trust anchors of the cluster.
    Anchors {
        /// Trust bundles to read.
        choice: trust_bundle::Choice,
        /// There may be none.
        optional: bool,
        /// UID of the pod, which has an order of its own.
        uid: String,
        /// Path in the volume.
        path: String,
        /// Mode of the file.
        mode: u32,
        /// Owner of the file.
        user: Option<u32>,
    },
    /// A certificate for the pod, and its key.
    Certificate {
        /// Place of the certificate in the pod.
        of: pod_certificate::CertificateSource,
        /// Paths in the volume.
        paths: pod_certificate::Paths,
        /// Mode of the files.
        mode: u32,
        /// Owner of the files.
        user: Option<u32>,
    },
}

/// One key of an object as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Key.
    pub key: String,
    /// Path in the volume.
    pub path: String,
    /// Mode, if not the volume's.
    pub mode: Option<u32>,
}

/// One file of a volume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContent {
    /// Its bytes.
    pub data: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Its owner, if not root.
    pub user: Option<u32>,
}

/// It may be a secret: only its size is shown.
impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileContent({} bytes, {:o}, {:?})", self.data.len(), self.mode, self.user)
    }
}
