//! Files of CSI drivers' block devices: below a pod's directory, and in the node's directory for all pods.
//!
//! In: PersistentVolumes, pods. Out: see [`agent_linux::volumes::csi_block`]. Invariant: a volume's name is a single
//! path component.

use std::path::{Path, PathBuf};

use agent_linux::volumes::{VolumeError, csi_block, device};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::PodUid;
use agent_volumes::csi::VolumeData;

use super::PodDirs;

impl PodDirs {
    /// Path at which a driver publishes a volume for a pod.
    #[must_use]
    pub fn device_target(&self, uid: &PodUid, volume: &str) -> PathBuf {
        csi_block::published_at(self.root(), volume, uid.as_str())
    }

    /// Path at which a driver stages a volume.
    #[must_use]
    pub fn device_stage(&self, volume: &str) -> PathBuf {
        csi_block::staged_at(self.root(), volume)
    }

    /// Records the owner of a volume, and that the pod uses it. True if there was no such record before.
    ///
    /// # Errors
    /// An invalid name, or the step that failed.
    pub fn prepare_device(&self, uid: &PodUid, volume: &str, data: &VolumeData) -> Result<bool, VolumeError> {
        let own = self.own_device(uid, volume).map_err(|e| VolumeError::Refused(e.to_string()))?;
        let _one = self.lock(uid);
        csi_block::prepare(self.root(), &own, volume, data)
    }

    /// Makes the staging directory of a volume. Returns the directory, and true if it did not exist before.
    ///
    /// # Errors
    /// An invalid name, or the step that failed.
    pub fn prepare_device_stage(&self, volume: &str) -> Result<(PathBuf, bool), VolumeError> {
        name(volume).map_err(|e| VolumeError::Refused(e.to_string()))?;
        csi_block::prepare_stage(self.root(), volume)
    }

    /// Checks that the staging directory is empty after the driver has unstaged the volume.
    ///
    /// # Errors
    /// The directory is not empty.
    pub fn device_unstaged(&self, volume: &str) -> Result<(), DriverError> {
        name(volume)?;
        Ok(csi_block::unstaged(self.root(), volume)?)
    }

    /// Keeps the device that the driver published for a pod.
    ///
    /// # Errors
    /// The target is not a block device, or the step that failed.
    pub fn keep_device(&self, uid: &PodUid, volume: &str) -> Result<(), VolumeError> {
        self.own_device(uid, volume).map_err(|e| VolumeError::Refused(e.to_string()))?;
        let _one = self.lock(uid);
        let published = self.device_target(uid, volume);
        device::map(&published, &csi_block::global(self.root(), volume), uid.as_str())
    }

    /// The pod keeps it no longer.
    ///
    /// # Errors
    /// The step that failed.
    pub fn leave_device(&self, uid: &PodUid, volume: &str) -> Result<(), DriverError> {
        self.own_device(uid, volume)?;
        let _one = self.lock(uid);
        Ok(device::unmap(&csi_block::global(self.root(), volume), uid.as_str())?)
    }

    /// Removes a pod's device after the driver has unpublished the volume.
    ///
    /// # Errors
    /// The device is still in use, or the step that failed.
    pub fn release_device(&self, uid: &PodUid, volume: &str) -> Result<(), DriverError> {
        let own = self.own_device(uid, volume)?;
        let _one = self.lock(uid);
        Ok(csi_block::released(self.root(), &own, volume)?)
    }

    /// The block devices of a pod by their PersistentVolumes, with their recorded owners.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn devices(&self, uid: &PodUid) -> Result<Vec<(String, Option<VolumeData>)>, DriverError> {
        let own = self.pod_dir(uid)?;
        Ok(csi_block::of_pod(self.root(), &own)?)
    }

    /// Removes the node's files of a volume after the driver has unstaged it.
    ///
    /// # Errors
    /// The device is still in use, or the step that failed.
    pub fn forget_device(&self, volume: &str) -> Result<(), DriverError> {
        name(volume)?;
        Ok(csi_block::forget(self.root(), volume)?)
    }

    fn own_device(&self, uid: &PodUid, volume: &str) -> Result<PathBuf, DriverError> {
        name(volume)?;
        self.pod_dir(uid)
    }
}

/// Checks that the name is a single path component.
fn name(volume: &str) -> Result<(), DriverError> {
    let mut parts = Path::new(volume).components();
    let one = matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(_)), None));
    if one && !volume.contains('/') {
        return Ok(());
    }
    Err(DriverError {
        operation: "find the device of",
        object: format!("PersistentVolume {volume:?}"),
        class: Class::Invalid,
        message: "its name is no name of a directory".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn devices_are_among_what_is_here_and_names_lead_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let dirs =
            PodDirs::new(&dir.path().join("kubelet"), &dir.path().join("logs"), &dir.path().join("links"));
        let data = VolumeData { driver: "d".to_owned(), handle: "h".to_owned(), rest: BTreeMap::new() };
        dirs.prepare_device(&"u1".into(), "pv", &data).unwrap();
        let held = dirs.csi_on_disk().unwrap().remove(&data.key()).unwrap();
        assert!(held.pods.contains(&"u1".into()) && held.attached && !held.staged);
        assert_eq!(held.blocks.iter().collect::<Vec<_>>(), ["pv"]);
        dirs.release_device(&"u1".into(), "pv").unwrap();
        let held = dirs.csi_on_disk().unwrap().remove(&data.key()).unwrap();
        assert!(held.pods.is_empty() && held.blocks.len() == 1, "the driver has not let go");
        dirs.forget_device("pv").unwrap();
        assert!(dirs.csi_on_disk().unwrap().is_empty());
        for bad in ["..", ".", "", "a/b", "/a", "a/"] {
            dirs.prepare_device(&"u1".into(), bad, &data).unwrap_err();
            dirs.forget_device(bad).unwrap_err();
        }
    }
}
