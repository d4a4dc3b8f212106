//! What is kept of CSI drivers' volumes below a pod's directory.
//!
//! In: targets. Out: see [`agent_linux::volumes::csi`]. Invariant: nothing outside of the pod's own directory.

use std::path::{Path, PathBuf};

use agent_core::csi::inline::VolumeData;
use agent_core::drivers::DriverError;
use agent_core::runtime::PodUid;
use agent_linux::volumes::{VolumeError, csi};

use super::PodDirs;

impl PodDirs {
    /// Makes what is above the target, and writes whose it is.
    ///
    /// # Errors
    /// A target elsewhere, or the step that failed.
    pub fn prepare_target(&self, uid: &PodUid, target: &str, data: &VolumeData) -> Result<(), VolumeError> {
        let own = self.own_target(uid, target)?;
        let _one = self.lock(uid);
        csi::prepare(&own, Path::new(target), data)
    }

    /// Gives what is at the target to a group.
    ///
    /// # Errors
    /// A target elsewhere, or the step that failed.
    pub fn give_target(
        &self,
        uid: &PodUid,
        target: &str,
        group: u32,
        by_root: bool,
    ) -> Result<(), VolumeError> {
        self.own_target(uid, target)?;
        let _one = self.lock(uid);
        csi::give(Path::new(target), group, by_root)
    }

    /// The targets of a pod, and whose they are.
    ///
    /// # Errors
    /// What cannot be read, or is still in use.
    pub fn targets(&self, uid: &PodUid) -> Result<Vec<(PathBuf, VolumeData)>, DriverError> {
        let own = self.pod_dir(uid)?;
        let _one = self.lock(uid);
        Ok(csi::recorded(&own)?)
    }

    /// The driver has let go of a target.
    ///
    /// # Errors
    /// It has not, or the step that failed.
    pub fn release_target(&self, uid: &PodUid, target: &Path) -> Result<(), DriverError> {
        let own = self.pod_dir(uid)?;
        self.checked("release target", target, &own)?;
        let _one = self.lock(uid);
        Ok(csi::released(target)?)
    }

    fn own_target(&self, uid: &PodUid, target: &str) -> Result<PathBuf, VolumeError> {
        let outside = |e: DriverError| VolumeError::Refused(e.to_string());
        let own = self.pod_dir(uid).map_err(outside)?;
        self.checked("set up volume", Path::new(target), &own).map_err(outside)?;
        Ok(own)
    }
}
