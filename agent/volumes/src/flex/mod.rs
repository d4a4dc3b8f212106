//! Volumes that programs of the node mount (`flexVolume`), of pods and of PersistentVolumes: the program, the
//! paths, and the records.
//!
//! ```text
//! no `attach`: mount ──► pods/<uid>/volumes/<vendor~driver>/<volume> ──► unmount
//! `attach`:    (attach) ─► waitforattach ─► mountdevice, once ─► mount, for each pod ─► unmount ─► unmountdevice ─► (detach)
//! ```
//! In: the volume's source. Out: [`Flex`], names, paths, [`Record`], [`Release`]. Invariants: a part of a
//! path is one name only, and no driver has the directory of one of the node's own plugins; a record exists
//! before a program gets a call that brings a part of the volume to the node, goes after all parts are gone,
//! and holds no secret. The calls of a program and the meanings of its answers are in [`call`], [`answer`]
//! and [`mounting`]. Upstream: pkg/volume/flexvolume.

pub mod answer;
pub mod call;
pub mod mounting;
pub mod source;

use std::collections::BTreeMap;

use agent_types::pod;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::bind::{Bind, Disk, OfClaim};
use crate::csi::source::SecretRef;
use crate::flex::source::{Driver, Source};
use crate::key::VolumeKey;
use crate::plugin::Plugin;

/// Longest name of a directory.
pub(super) const NAME_MAX: usize = 255;
/// Directory of records, below the plugin's. No driver's begins with a dot.
const RECORDS: &str = ".records";
/// Name of a record, in its volume's directory.
pub const RECORD_FILE: &str = "record.json";

/// A driver's volume, for one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flex {
    /// Whose it is.
    pub driver: Driver,
    /// Name of the PersistentVolume, or of the volume in its pod.
    pub volume: String,
    /// `fsType`.
    pub fs_type: String,
    /// `options`.
    pub options: BTreeMap<String, String>,
    /// The Secret that the driver is given.
    pub secret: Option<SecretRef>,
    /// It is read-only.
    pub read_only: bool,
    /// No other pod may have it at the same time.
    pub one_pod: bool,
    /// `fsGroupChangePolicy: OnRootMismatch`.
    pub by_root: bool,
    /// Name of the pod.
    pub pod: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Its service account.
    pub account: String,
    /// Name of the node.
    pub node: String,
    /// Where the node has it for its pods, if it is one of those that are attached.
    pub global: String,
    /// Directory that says how far the pod's set-up is ([`Driver::mark_below`]).
    pub mark: String,
    /// Its claim, with which it may grow.
    #[serde(default)]
    pub claim: Option<OfClaim>,
}

impl Flex {
    /// The volume of a pod, which is called `volume`, as its source says it; `None`: there can be no such driver.
    #[must_use]
    pub fn of_pod(p: &Pod, volume: &str, source: &Source, (root, node): (&str, &str)) -> Option<Flex> {
        let driver = Driver::new(&source.driver)?;
        let security = pod::spec(p).security_context.as_ref();
        let policy = security.and_then(|s| s.fs_group_change_policy.as_deref());
        let secret = source.secret.clone().filter(|secret| !secret.name.is_empty()).map(|mut secret| {
            if secret.namespace.is_empty() {
                pod::namespace(p).clone_into(&mut secret.namespace);
            }
            secret
        });
        Some(Flex {
            global: global(root, &driver, volume),
            mark: format!("{root}/pods/{}/{}", pod::uid(p), driver.mark_below(volume)),
            driver,
            volume: volume.to_owned(),
            fs_type: source.fs_type.clone(),
            options: source.options.clone(),
            secret,
            read_only: source.read_only,
            one_pod: false,
            by_root: policy == Some("OnRootMismatch"),
            pod: pod::name(p).to_owned(),
            namespace: pod::namespace(p).to_owned(),
            uid: pod::uid(p).to_owned(),
            account: pod::spec(p).service_account_name.clone().unwrap_or_default(),
            node: node.to_owned(),
            claim: None,
        })
    }

    /// Which volume it is on this node, if it is one of those that are attached: as upstream, by its name alone.
    #[must_use]
    pub fn key(&self) -> VolumeKey {
        VolumeKey::of_flex(&self.driver, &self.volume)
    }

    /// What is written down of it before the driver is asked to bring it here. `attaches`: the cluster does that.
    #[must_use]
    pub fn record(&self, attaches: bool) -> Record {
        Record {
            driver: self.driver.clone(),
            volume: self.volume.clone(),
            global: self.global.clone(),
            attached_by: (!attaches).then(|| self.node.clone()),
            device: None,
        }
    }

    /// How the node mounts the device, where the driver does not do it.
    #[must_use]
    pub fn bind(&self, device: &str) -> Bind {
        Bind {
            source: device.to_owned(),
            read_only: self.read_only,
            options: vec![if self.read_only { "ro" } else { "rw" }.to_owned()],
            one_pod: false,
            by_root: self.by_root,
            disk: Disk { global: self.global.clone(), fs_type: self.fs_type.clone() },
            claim: None,
        }
    }
}

/// Where the node has a volume for its pods.
fn global(root: &str, driver: &Driver, volume: &str) -> String {
    let volume = volume.replace('/', "~");
    format!("{root}/plugins/{}/{}/mounts/{volume}", Plugin::Flex.name(), driver.name())
}

/// Directory of all records.
#[must_use]
pub fn records_directory(root: &str) -> String {
    format!("{root}/plugins/{}/{RECORDS}", Plugin::Flex.name())
}

/// What is written down of a volume that is attached to this node, or about to be: enough to let go of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Whose it is.
    pub driver: Driver,
    /// What it is called.
    pub volume: String,
    /// Where the node has it for its pods.
    pub global: String,
    /// The name by which this node itself has it attached; `None`: the cluster does that.
    pub attached_by: Option<String>,
    /// The device as which it was attached by this node.
    pub device: Option<String>,
}

impl Record {
    /// Its file.
    #[must_use]
    pub fn path(&self, root: &str) -> String {
        let volume = self.volume.replace('/', "~");
        format!("{}/{}/{volume}/{RECORD_FILE}", records_directory(root), self.driver.directory())
    }

    /// Which volume it is, on this node.
    #[must_use]
    pub fn key(&self) -> VolumeKey {
        VolumeKey::of_flex(&self.driver, &self.volume)
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
}

/// How something that a driver may have mounted is ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// The driver is asked.
    Ask,
    /// The node does it.
    Own,
    /// The volume waits: the driver is not there.
    Wait(String),
}

/// How a volume is ended; `driver`: it is there, or why not; `asked`: this node had asked it to mount it. A volume that
/// is not mounted needs no driver. For a volume of another kubelet without a driver there is no one to ask.
#[must_use]
pub fn release(driver: Result<(), &str>, mounted: bool, asked: bool) -> Release {
    match driver {
        Ok(()) => Release::Ask,
        Err(why) if mounted && asked => Release::Wait(why.to_owned()),
        Err(_) => Release::Own,
    }
}

#[cfg(test)]
mod tests;
