//! The state that survives the agent in the world of volumes: a CSI driver, and the records on the node's disk.
//!
//! In: calls in two parts, so that two of them can meet; reads and writes of records. Out: answers, violations. The
//! driver checks the node against the CSI specification: no NodePublishVolume of a volume that is not staged, no
//! NodeUnstageVolume of one that is published, one call at a time for each volume. Records are those of
//! `agent_linux::volumes::{csi, csi_block}`.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::PodUid;
use agent_volumes::attach::{OnDisk, VolumeOnDisk};
use agent_volumes::csi::failures::{CallFailed, StagedAs};
use agent_volumes::csi::{CsiVolume, Persistent, VolumeData};
use agent_volumes::key::VolumeKey;

use crate::checks::Violation;

/// The driver that stages volumes; then the driver that does not.
pub(super) const STAGER: &str = "stager";
const PLAIN: &str = "plain";

/// A volume of the run: driver, handle, and whether it is a block device.
pub(super) const VOLUMES: [(&str, &str, bool); 4] =
    [(STAGER, "a", false), (STAGER, "b", true), (PLAIN, "c", false), (PLAIN, "d", true)];

/// A broken invariant.
pub(super) fn violation(invariant: &'static str, detail: String) -> Violation {
    Violation { invariant, detail }
}

/// A volume of [`VOLUMES`] as a pod wants it.
pub(super) fn volume_of(number: usize, pod: &PodUid, label: Option<String>) -> CsiVolume {
    let (driver, handle, block) = VOLUMES[number];
    let persistent = Persistent {
        stage_secret: None,
        publish_secret: None,
        expand_secret: None,
        claim: String::new(),
        migrated: false,
        access_modes: vec!["ReadWriteMany".to_owned()],
        flags: Vec::new(),
        one_pod: false,
        label,
    };
    CsiVolume {
        driver: driver.to_owned(),
        handle: handle.to_owned(),
        volume: format!("pv-{handle}"),
        node: "node".to_owned(),
        fs_type: String::new(),
        read_only: false,
        attributes: BTreeMap::new(),
        secret: None,
        pod: ("ns".to_owned(), pod.to_string(), pod.to_string()),
        account: String::new(),
        by_root: false,
        persistent: Some(persistent),
        block: block.then(|| format!("/global/{handle}")),
        overdue: false,
    }
}

/// Target path of a volume for a pod.
pub(super) fn target(pod: &PodUid, volume: &str) -> String {
    format!("/pods/{pod}/{volume}")
}

/// A call of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Stage(VolumeKey),
    Unstage(VolumeKey),
    Publish(VolumeKey, String),
    Unpublish(VolumeKey, String),
}

impl Call {
    fn key(&self) -> &VolumeKey {
        match self {
            Call::Stage(key) | Call::Unstage(key) | Call::Publish(key, _) | Call::Unpublish(key, _) => key,
        }
    }
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    /// The driver refuses the call and changes nothing.
    Refused,
    /// The call is applied; its answer is lost.
    LostDone,
    /// The call is not applied, and there is no answer.
    LostUndone,
}

/// The driver.
#[derive(Debug, Default)]
pub(super) struct Driver {
    staged: BTreeSet<VolumeKey>,
    published: BTreeMap<VolumeKey, BTreeSet<String>>,
    under_way: BTreeSet<VolumeKey>,
}

impl Driver {
    /// A call arrives.
    pub(super) fn begin(&mut self, call: &Call) -> Result<(), Violation> {
        let key = call.key();
        if !self.under_way.insert(key.clone()) {
            return Err(violation("ONE-CALL", format!("{call:?} comes while another call is under way")));
        }
        match call {
            Call::Publish(..) if key.driver == STAGER && !self.staged.contains(key) => {
                Err(violation("STAGED-FIRST", format!("{call:?} and the volume is not staged")))
            }
            Call::Unstage(_) if self.published.contains_key(key) => {
                Err(violation("UNSTAGED-LAST", format!("{call:?} under {:?}", self.published[key])))
            }
            _ => Ok(()),
        }
    }

    /// A call ends.
    pub(super) fn end(&mut self, call: &Call, fate: Fate) -> Result<(), CallFailed> {
        self.under_way.remove(call.key());
        if matches!(fate, Fate::Done | Fate::LostDone) {
            match call {
                Call::Stage(key) => {
                    self.staged.insert(key.clone());
                }
                Call::Unstage(key) => {
                    self.staged.remove(key);
                }
                Call::Publish(key, target) => {
                    self.published.entry(key.clone()).or_default().insert(target.clone());
                }
                Call::Unpublish(key, target) => {
                    if let Some(targets) = self.published.get_mut(key) {
                        targets.remove(target);
                    }
                    self.published.retain(|_, targets| !targets.is_empty());
                }
            }
        }
        match fate {
            Fate::Done => Ok(()),
            fate => Err(CallFailed { words: format!("{fate:?}"), is_final: fate == Fate::Refused }),
        }
    }

    pub(super) fn has(&self, key: &VolumeKey, target: &str) -> bool {
        self.published.get(key).is_some_and(|targets| targets.contains(target))
    }

    /// The machine loses power: all mounts are gone.
    pub(super) fn power_lost(&mut self) {
        *self = Driver::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.published.is_empty() && self.under_way.is_empty()
    }
}

/// Records on the disk.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// Records of pods, by pod and PersistentVolume.
    targets: BTreeMap<(PodUid, String), VolumeData>,
    stages: BTreeMap<VolumeKey, VolumeData>,
    /// Records of block devices, by PersistentVolume.
    devices: BTreeMap<String, VolumeData>,
    device_stages: BTreeSet<String>,
    links: BTreeSet<(PodUid, String)>,
}

impl Disk {
    /// Volumes on disk with their pods; see `PodDirs::csi_on_disk`.
    pub(super) fn on_disk(&self) -> OnDisk {
        let mut all = OnDisk::new();
        for (key, data) in &self.stages {
            let held = all.entry(key.clone()).or_default();
            held.staged = true;
            held.attached |= data.is_attached();
            data.label().clone_into(&mut held.stage_label);
        }
        for (volume, data) in &self.devices {
            let held = all.entry(data.key()).or_default();
            held.blocks.insert(volume.clone());
            held.attached |= data.is_attached();
            let pods = self.links.iter().filter(|(_, of)| of == volume).map(|(pod, _)| pod.clone());
            held.pods.extend(pods);
        }
        for ((pod, _), data) in &self.targets {
            let held: &mut VolumeOnDisk = all.entry(data.key()).or_default();
            if !data.label().is_empty() {
                held.labels.insert(pod.clone(), data.label().to_owned());
            }
            held.pods.insert(pod.clone());
            held.attached |= data.is_attached();
        }
        all
    }

    /// Writes the pod's record; true if it is new.
    pub(super) fn record(&mut self, pod: &PodUid, csi: &CsiVolume, data: VolumeData) -> bool {
        let of = (pod.clone(), csi.volume.clone());
        if csi.block.is_none() {
            return self.targets.insert(of, data).is_none();
        }
        self.devices.insert(csi.volume.clone(), data);
        self.links.insert(of)
    }

    pub(super) fn release(&mut self, pod: &PodUid, volume: &str) {
        let of = (pod.clone(), volume.to_owned());
        self.targets.remove(&of);
        self.links.remove(&of);
    }

    /// Writes the node's record; true if it is new.
    pub(super) fn record_stage(&mut self, staged: &StagedAs, data: VolumeData) -> bool {
        match staged {
            StagedAs::Files => self.stages.insert(data.key(), data).is_none(),
            StagedAs::Device(volume) => self.device_stages.insert(volume.clone()),
        }
    }

    pub(super) fn forget_stage(&mut self, staged: &StagedAs, key: &VolumeKey) {
        match staged {
            StagedAs::Files => {
                self.stages.remove(key);
            }
            StagedAs::Device(volume) => {
                self.device_stages.remove(volume);
            }
        }
    }

    pub(super) fn is_device_staged(&self, volume: &str) -> bool {
        self.device_stages.contains(volume)
    }

    /// Removes the node's record of a block device.
    pub(super) fn forget_device(&mut self, volume: &str) {
        self.device_stages.remove(volume);
        self.devices.remove(volume);
    }

    /// The records of a pod: PersistentVolume, the data of its record, and whether it is a block device.
    pub(super) fn of_pod(&self, pod: &PodUid) -> Vec<(String, Option<VolumeData>, bool)> {
        let files = self.targets.iter().filter(|((of, _), _)| of == pod);
        let files = files.map(|((_, volume), data)| (volume.clone(), Some(data.clone()), false));
        let devices = self.links.iter().filter(|(of, _)| of == pod);
        files.chain(devices.map(|(_, v)| (v.clone(), self.devices.get(v).cloned(), true))).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.on_disk().is_empty() && self.device_stages.is_empty() && self.links.is_empty()
    }
}
