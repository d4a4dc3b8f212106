//! Files of FlexVolume volumes below a pod's directory.
//!
//! In: set-ups; a pod to tear down. Out: see [`agent_linux::volumes::flex`]. Invariant: all paths are inside of the
//! pod's own directory or of the plugin's directory for all pods.

use std::path::{Path, PathBuf};

use agent_linux::volumes::flex::{self, FlexPodVolume, FlexVolumeState};
use agent_linux::volumes::{SetFsGroup, VolumeError};
use agent_types::failure::DriverError;
use agent_types::ids::PodUid;
use agent_volumes::SetUp;
use agent_volumes::flex::Flex;

use super::PodDirs;

impl PodDirs {
    /// The present state of a pod's volume.
    ///
    /// # Errors
    /// A path outside of the pod's directory, or a file that cannot be read.
    pub fn look_flex(&self, uid: &PodUid, volume: &SetUp, of: &Flex) -> Result<FlexVolumeState, VolumeError> {
        let own = self.own_flex(uid, volume)?;
        Ok(flex::look(&own, volume, of)?)
    }

    /// Makes the mount point; `global`: the one for all pods, too.
    ///
    /// # Errors
    /// A path outside of the pod's directory, or the step that failed.
    pub fn prepare_flex(
        &self,
        uid: &PodUid,
        volume: &SetUp,
        of: &Flex,
        global: bool,
    ) -> Result<(), VolumeError> {
        let own = self.own_flex(uid, volume)?;
        if global {
            self.checked("set up volume", Path::new(&of.global), self.root()).map_err(outside)?;
            flex::prepare_global(self.root(), of)?;
        }
        let _one = self.lock(uid);
        Ok(flex::prepare(&own, volume, of)?)
    }

    /// Binds the node's mount to the pod.
    ///
    /// # Errors
    /// A path outside of the pod's directory, or the step that failed.
    pub fn bind_flex(&self, uid: &PodUid, volume: &SetUp, of: &Flex) -> Result<(), VolumeError> {
        self.own_flex(uid, volume)?;
        let _one = self.lock(uid);
        flex::bind(volume, of)
    }

    /// Ends the set-up.
    ///
    /// # Errors
    /// A path elsewhere, or the step that failed.
    pub fn finish_flex(
        &self,
        uid: &PodUid,
        volume: &SetUp,
        of: &Flex,
        group: Option<u32>,
        give: SetFsGroup<'_>,
    ) -> Result<(), VolumeError> {
        self.own_flex(uid, volume)?;
        // Without a lock: the driver's files may take long.
        Ok(flex::finish(volume, of, group, give)?)
    }

    /// The driver did not mount it.
    ///
    /// # Errors
    /// A path elsewhere.
    pub fn abandon_flex(&self, uid: &PodUid, volume: &SetUp) -> Result<(), VolumeError> {
        self.own_flex(uid, volume)?;
        flex::abandon(volume);
        Ok(())
    }

    /// The volumes of a pod that drivers have mounted, or may have. Bind mounts of the pod are unmounted first.
    ///
    /// # Errors
    /// A file that cannot be read, or a mount that is in use.
    pub fn flex_held(&self, uid: &PodUid) -> Result<Vec<FlexPodVolume>, DriverError> {
        let own = self.pod_dir(uid)?;
        let _one = self.lock(uid);
        let held = flex::held(&own)?;
        if !held.is_empty() {
            flex::end_parts(&own)?;
        }
        Ok(held)
    }

    /// Removes the mount point after the driver has unmounted the volume.
    ///
    /// # Errors
    /// The volume is still mounted, or the step that failed.
    pub fn release_flex(&self, uid: &PodUid, path: &Path) -> Result<(), DriverError> {
        let own = self.pod_dir(uid)?;
        self.checked("release volume", path, &own)?;
        Ok(flex::released(path)?)
    }

    /// There is, or was, such a volume among the pod's.
    #[must_use]
    pub fn may_have_flex(&self, uid: &PodUid) -> bool {
        self.pod_dir(uid).is_ok_and(|own| flex::has_any(&own))
    }

    fn own_flex(&self, uid: &PodUid, volume: &SetUp) -> Result<PathBuf, VolumeError> {
        let own = self.pod_dir(uid).map_err(outside)?;
        self.checked("set up volume", Path::new(&volume.path), &own).map_err(outside)?;
        Ok(own)
    }
}

/// The path is outside of the pod's directory.
fn outside(error: DriverError) -> VolumeError {
    VolumeError::Refused(error.to_string())
}
