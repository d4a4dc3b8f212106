//! Files of CSI drivers' volumes: below a pod's directory, and in the drivers' staging directories that all pods share.
//!
//! In: targets, volumes. Out: see [`agent_linux::volumes::csi`]. Invariant: all paths are inside of the pod's own
//! directory or of the driver's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agent_linux::files;
use agent_linux::volumes::{SetFsGroup, VolumeError, csi, csi_block, device, flex, network_disk};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::PodUid;
use agent_volumes::attach::OnDisk;
use agent_volumes::csi::VolumeData;
use agent_volumes::key::VolumeKey;
use agent_volumes::network_disk::{NetworkDisk, Record};
use agent_volumes::plugin::Plugin;
use agent_volumes::{SetUp, flex as flex_core};

use super::PodDirs;

impl PodDirs {
    /// Makes the parent directories of the target, and writes the record of its volume. True if there was no such
    /// record before.
    ///
    /// # Errors
    /// A target outside of the pod's directory, or the step that failed.
    pub fn prepare_target(&self, uid: &PodUid, target: &str, data: &VolumeData) -> Result<bool, VolumeError> {
        let own = self.own_target(uid, target)?;
        let _one = self.lock(uid);
        csi::prepare(&own, Path::new(target), data)
    }

    /// Changes the group of the files at the target.
    ///
    /// # Errors
    /// A target outside of the pod's directory, or the step that failed.
    pub fn give_target(
        &self,
        uid: &PodUid,
        target: &str,
        group: u32,
        by_root: bool,
        give: SetFsGroup<'_>,
    ) -> Result<(), VolumeError> {
        self.own_target(uid, target)?;
        // Takes no lock: the change may take long, and the tear-down ends it before it starts.
        csi::give(Path::new(target), group, by_root, give)
    }

    /// The targets of a pod, with the records of their volumes.
    ///
    /// # Errors
    /// A file or directory that cannot be read, or that is still in use.
    pub fn targets(&self, uid: &PodUid) -> Result<Vec<(PathBuf, VolumeData)>, DriverError> {
        let own = self.pod_dir(uid)?;
        let _one = self.lock(uid);
        Ok(csi::recorded(&own)?)
    }

    /// Removes a target after the driver has unpublished it.
    ///
    /// # Errors
    /// The target is still mounted, or the step that failed.
    pub fn release_target(&self, uid: &PodUid, target: &Path) -> Result<(), DriverError> {
        let own = self.pod_dir(uid)?;
        self.checked("release target", target, &own)?;
        let _one = self.lock(uid);
        Ok(csi::released(target)?)
    }

    /// Makes the staging directory of a volume, and writes its record. Returns the directory, and true if there was no
    /// such record before.
    ///
    /// # Errors
    /// A driver name that leads to another directory, or the step that failed.
    pub fn prepare_stage(&self, key: &VolumeKey, data: &VolumeData) -> Result<(PathBuf, bool), VolumeError> {
        self.own_stage(key).map_err(|e| VolumeError::Refused(e.to_string()))?;
        csi::prepare_stage(self.root(), key, data)
    }

    /// The staging directory of a volume, if the volume is staged.
    #[must_use]
    pub fn stage_of(&self, key: &VolumeKey) -> PathBuf {
        csi::stage_of(self.root(), key)
    }

    /// Removes the staging directory after the driver has unstaged the volume.
    ///
    /// # Errors
    /// The volume is still mounted, or the step that failed.
    pub fn unstaged(&self, key: &VolumeKey) -> Result<(), DriverError> {
        self.own_stage(key)?;
        Ok(csi::unstaged(self.root(), key)?)
    }

    /// Removes directories without a volume that an earlier agent left. Must run before the first pod is set up.
    ///
    /// # Errors
    /// A directory that cannot be read or removed.
    pub fn sweep_stages(&self) -> Result<(), DriverError> {
        csi::sweep(self.root())?;
        Ok(csi_block::sweep(self.root())?)
    }

    /// True if the pod uses this network disk.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn has_network_disk(
        &self,
        uid: &PodUid,
        volume: &SetUp,
        disk: &NetworkDisk,
    ) -> Result<bool, VolumeError> {
        let own = self.pod_dir(uid).map_err(|e| VolumeError::Refused(e.to_string()))?;
        Ok(network_disk::has(&own, volume, disk)?)
    }

    /// True if the pod has or had a network disk among its volumes.
    #[must_use]
    pub fn may_have_network_disks(&self, uid: &PodUid) -> bool {
        self.pod_dir(uid).is_ok_and(|own| network_disk::has_any(&own))
    }

    /// The records of network disks.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn network_disks(&self) -> Result<Vec<Record>, DriverError> {
        Ok(network_disk::records(self.root())?)
    }

    /// The records of FlexVolume volumes.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn flex_records(&self) -> Result<Vec<flex_core::Record>, DriverError> {
        Ok(flex::records(self.root())?)
    }

    /// The shared volumes on this node's disk: staged, attached or mounted for pods.
    ///
    /// # Errors
    /// A file that cannot be read: then the owners of the volumes are not known.
    pub fn csi_on_disk(&self) -> Result<OnDisk, DriverError> {
        let mut all = network_disk::on_disk(self.root())?;
        all.extend(flex::on_disk(self.root())?);
        for data in csi::staged(self.root())? {
            let held = all.entry(data.key()).or_default();
            held.staged = true;
            held.attached |= data.is_attached();
            data.label().clone_into(&mut held.stage_label);
        }
        let devices = csi_block::written(self.root())?;
        for (volume, data) in &devices {
            let held = all.entry(data.key()).or_default();
            held.blocks.insert(volume.clone());
            held.attached |= data.is_attached();
        }
        let devices: BTreeMap<String, VolumeData> = devices.into_iter().collect();
        let pods = match files::visible_names(&self.pods) {
            Err(e) if e.class() == Class::NotFound => Vec::new(),
            names => names?,
        };
        for name in pods {
            for volume in device::linked(&self.pods.join(&name), Plugin::Csi)? {
                if let Some(data) = devices.get(&volume) {
                    all.entry(data.key()).or_default().pods.insert(PodUid::from(name.as_str()));
                }
            }
            let written = csi::written(&self.pods.join(&name))?;
            for (_, data) in written.into_iter().filter(|(_, data)| data.is_persistent()) {
                let held = all.entry(data.key()).or_default();
                let uid = PodUid::from(name.as_str());
                if !data.label().is_empty() {
                    held.labels.insert(uid.clone(), data.label().to_owned());
                }
                held.pods.insert(uid);
                held.attached |= data.is_attached();
            }
        }
        Ok(all)
    }

    fn own_stage(&self, key: &VolumeKey) -> Result<(), DriverError> {
        let at = csi::stage_of(self.root(), key);
        self.checked("stage volume", &at, self.root()).map(drop)
    }

    fn own_target(&self, uid: &PodUid, target: &str) -> Result<PathBuf, VolumeError> {
        let outside = |e: DriverError| VolumeError::Refused(e.to_string());
        let own = self.pod_dir(uid).map_err(outside)?;
        self.checked("set up volume", Path::new(target), &own).map_err(outside)?;
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here_of_a_volume_is_read_from_all_pods_and_from_where_it_is_staged() {
        let dir = tempfile::tempdir().unwrap();
        let dirs =
            PodDirs::new(&dir.path().join("kubelet"), &dir.path().join("logs"), &dir.path().join("links"));
        assert_eq!(dirs.csi_on_disk().unwrap(), OnDisk::new());
        let data = |handle: &str, life: &str| VolumeData {
            driver: "d".to_owned(),
            handle: handle.to_owned(),
            rest: BTreeMap::from([("volumeLifecycleMode".to_owned(), life.to_owned())]),
        };
        let put = |uid: &str, data: &VolumeData| {
            let target = dir
                .path()
                .join(format!("kubelet/pods/{uid}/volumes/kubernetes.io~csi/{}/mount", data.handle));
            dirs.prepare_target(&uid.into(), target.to_str().unwrap(), data).unwrap();
        };
        let shared = data("h", "Persistent");
        dirs.prepare_stage(&shared.key(), &shared).unwrap();
        put("u1", &shared);
        put("u2", &shared);
        put("u2", &data("inline", "Ephemeral"));
        let mut apart = data("p", "Persistent");
        apart.rest.insert("attachRequired".to_owned(), "false".to_owned());
        put("u1", &apart);
        let all = dirs.csi_on_disk().unwrap();
        let pods = |of: &VolumeData| all[&of.key()].pods.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            (all.len(), pods(&shared), pods(&apart)),
            (2, vec!["u1".into(), "u2".into()], vec!["u1".into()])
        );
        assert!(all[&shared.key()].staged && all[&shared.key()].attached);
        assert!(!all[&apart.key()].staged && !all[&apart.key()].attached);
        let elsewhere = VolumeKey { driver: "../../..".to_owned(), handle: "h".to_owned() };
        dirs.prepare_stage(&elsewhere, &shared).unwrap_err();
        dirs.unstaged(&elsewhere).unwrap_err();
        dirs.unstaged(&shared.key()).unwrap();
        assert!(!dirs.csi_on_disk().unwrap()[&shared.key()].staged);
    }
}
