//! Disks of other machines (`iscsi`, `fc`), of pods and of PersistentVolumes: their identity, their paths on
//! the node, and their records.
//!
//! ```text
//! attached ([`crate::attach`]) ──login, or search──► device ──format, fsck, mount──► plugins/<plugin>/… ──bind──► pods
//!                                                             └── `volumeMode: Block` ──► plugins/<plugin>/volumeDevices/…
//! the last pod is gone ──unmount──► SCSI devices deleted ──► logout ──► no longer in use
//! ```
//! In: the volume's source. Out: [`NetworkDisk`], names, paths, [`Record`]. Invariants: a part of a path is
//! one name only; a record exists before any part of the disk is on the node and is removed after all parts, and holds
//! no secret. Upstream: pkg/volume/iscsi, pkg/volume/fc (names and paths), `GetUniqueVolumeName` of
//! pkg/volume/util/util.go.

pub mod fc;
pub mod iscsi;
pub mod login;
pub mod source;

use agent_types::pod;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

pub use fc::Fc;
pub use iscsi::Iscsi;

use super::device::DEVICES;
use super::selinux;
use crate::bind::{Bind, Disk};
use crate::csi::source::SecretRef;
use crate::key::VolumeKey;
use crate::network_disk::source::{Source, Target};
use crate::plugin::Plugin;

/// What the plugins of these volumes are.
pub const PLUGINS: [Plugin; 2] = [Plugin::Iscsi, Plugin::Fc];
/// What an upstream kubelet writes down of an iSCSI disk, in the directory where it is mounted.
pub const ISCSI_FILE: &str = "iscsi.json";
/// The end of a record's name; the rest is that of the directory next to it.
pub const RECORD_END: &str = ".json";

/// A disk, for one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkDisk {
    /// Name of the PersistentVolume, or of the volume in its pod.
    pub volume: String,
    /// Where it is.
    pub target: Target,
    /// `fsType`; empty: what is there, else ext4.
    pub fs_type: String,
    /// The Secret that its target wants to see.
    pub secret: Option<SecretRef>,
    /// It is read-only.
    pub read_only: bool,
    /// `mountOptions` of the PersistentVolume.
    pub options: Vec<String>,
    /// No other pod may have it at the same time.
    pub one_pod: bool,
    /// `fsGroupChangePolicy: OnRootMismatch`.
    pub by_root: bool,
    /// Containers have the device, not a file system.
    pub block: bool,
    /// Where the node has it for its pods.
    pub global: String,
    /// The SELinux label that its files are to have by its mount ([`selinux`]).
    #[serde(default)]
    pub label: Option<String>,
}

impl NetworkDisk {
    /// The disk of a pod's volume, which is called `volume`, as its source says it.
    ///
    /// # Errors
    /// A name in it would lead elsewhere.
    pub fn of_pod(
        p: &Pod,
        volume: &str,
        source: &Source,
        block: bool,
        root: &str,
    ) -> Result<NetworkDisk, String> {
        let security = pod::spec(p).security_context.as_ref();
        let policy = security.and_then(|s| s.fs_group_change_policy.as_deref());
        let secret = source.secret.clone().map(|mut secret| {
            if secret.namespace.is_empty() {
                pod::namespace(p).clone_into(&mut secret.namespace);
            }
            secret
        });
        Ok(NetworkDisk {
            volume: volume.to_owned(),
            target: source.target.clone(),
            fs_type: source.fs_type.clone(),
            secret,
            read_only: source.read_only,
            options: Vec::new(),
            one_pod: false,
            by_root: policy == Some("OnRootMismatch"),
            block,
            global: global(root, volume, &source.target, block)?,
            label: None,
        })
    }

    /// Which volume it is, on this node.
    #[must_use]
    pub fn key(&self) -> VolumeKey {
        key(&self.target)
    }

    /// What is written down of it.
    #[must_use]
    pub fn record(&self) -> Record {
        let NetworkDisk { volume, target, block, global, .. } = self;
        Record { volume: volume.clone(), target: target.clone(), block: *block, global: global.clone() }
    }

    /// How the node mounts the disk that it has as `device`.
    #[must_use]
    pub fn bind(&self, device: &str) -> Bind {
        let mut options = self.options.clone();
        if self.read_only && !options.iter().any(|o| o.split(',').any(|o| o == "ro")) {
            options.push("ro".to_owned());
        }
        options.extend(self.label.as_deref().map(selinux::option));
        Bind {
            source: device.to_owned(),
            read_only: self.read_only,
            options,
            one_pod: self.one_pod,
            by_root: self.by_root,
            disk: Disk { global: self.global.clone(), fs_type: self.fs_type.clone() },
            // As upstream: the node does not grow its file system.
            claim: None,
        }
    }
}

/// Which volume a disk is, on this node: pods that name it alike share it.
#[must_use]
pub fn key(target: &Target) -> VolumeKey {
    match target {
        Target::Iscsi(iscsi) => VolumeKey::of_plugin(Plugin::Iscsi, iscsi.handle()),
        Target::Fc(fc) => VolumeKey::of_plugin(Plugin::Fc, fc.handle()),
    }
}

/// Where the node has a disk for its pods.
///
/// # Errors
/// A name in it would lead elsewhere.
pub fn global(root: &str, volume: &str, target: &Target, block: bool) -> Result<String, String> {
    let (plugin, parts) = match target {
        Target::Iscsi(iscsi) => (Plugin::Iscsi, iscsi.directory(volume)),
        Target::Fc(fc) => (Plugin::Fc, vec![fc.directory()]),
    };
    for part in &parts {
        let plain = !part.is_empty() && !part.contains('/') && !part.chars().any(char::is_control);
        // Longer names have no directory, and the record's is longer by its end.
        if !plain || part.starts_with('.') || part.len() + RECORD_END.len() > 255 {
            return Err(format!(
                "{part:?} is no name of a directory: the volume cannot be mounted by this name"
            ));
        }
    }
    let devices = if block { format!("/{DEVICES}") } else { String::new() };
    Ok(format!("{root}/plugins/{}{devices}/{}", plugin.name(), parts.join("/")))
}

/// The record of a disk that is here, or about to be: enough to let go of it. The record lies next to the directory
/// where the disk is mounted, because files inside that directory cannot be read while the disk is mounted there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the PersistentVolume, or of the volume in the first pod that had it.
    pub volume: String,
    /// Where it is.
    pub target: Target,
    /// Pods have it as a block device.
    pub block: bool,
    /// Where the node has it for its pods.
    pub global: String,
}

impl Record {
    /// Its file.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}{RECORD_END}", self.global)
    }

    /// Which volume it is, on this node.
    #[must_use]
    pub fn key(&self) -> VolumeKey {
        key(&self.target)
    }

    /// The text of its file.
    ///
    /// # Errors
    /// None that can be thought of.
    pub fn to_json(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|e| e.to_string())
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// It is no such text.
    pub fn from_json(text: &[u8]) -> Result<Record, String> {
        serde_json::from_slice(text).map_err(|e| e.to_string())
    }

    /// What an upstream kubelet would want to read of it, if it has any: [`ISCSI_FILE`].
    #[must_use]
    pub fn for_upstream(&self) -> Option<Vec<u8>> {
        match &self.target {
            Target::Iscsi(iscsi) => Some(iscsi.for_upstream(&self.volume)),
            Target::Fc(_) => None,
        }
    }
}

/// A session of an iSCSI disk ends with it, unless one of these, which are still here, goes through it too.
#[must_use]
pub fn shares_session(record: &Record, others: &[Record]) -> bool {
    let Target::Iscsi(iscsi) = &record.target else { return false };
    others.iter().filter(|other| other.path() != record.path()).any(|other| match &other.target {
        Target::Iscsi(theirs) => {
            theirs.iqn == iscsi.iqn
                && theirs.interface(&other.volume) == iscsi.interface(&record.volume)
                && theirs.portals.iter().any(|portal| iscsi.portals.contains(portal))
        }
        Target::Fc(_) => false,
    })
}

/// The devices of a disk are removed with it, unless one of these, which are still here, is the same disk by
/// another name.
#[must_use]
pub fn shares_unit(record: &Record, others: &[Record]) -> bool {
    let common = |a: &[String], b: &[String]| a.iter().any(|name| b.contains(name));
    others.iter().filter(|other| other.path() != record.path()).any(|other| {
        match (&record.target, &other.target) {
            (Target::Iscsi(a), Target::Iscsi(b)) => (&a.iqn, a.lun) == (&b.iqn, b.lun),
            (Target::Fc(Fc::Ports { wwns: a, lun: x }), Target::Fc(Fc::Ports { wwns: b, lun: y })) => {
                x == y && common(a, b)
            }
            (Target::Fc(Fc::Ids { wwids: a }), Target::Fc(Fc::Ids { wwids: b })) => common(a, b),
            _ => false,
        }
    })
}

/// A program is not on the node: what to do.
#[must_use]
pub fn missing_program(program: &str) -> String {
    let (volumes, package) = match program {
        "iscsiadm" => ("iSCSI volumes", "open-iscsi, with its service iscsid"),
        _ => ("disks with several paths", "multipath-tools"),
    };
    format!(
        "this node has no program {program:?}, which {volumes} need: put {package} into the node's image, or have the volume \
         mounted by a CSI driver"
    )
}

#[cfg(test)]
mod tests;
