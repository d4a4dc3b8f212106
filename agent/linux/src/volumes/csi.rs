//! What the node itself keeps of a CSI driver's volume: the directory above its target, and the file that says whose it is.
//!
//! In: a target below a pod's directory. Out: directories, `vol_data.json`, groups. Invariants: the file is there before the
//! driver is asked for anything, and goes after the driver has let go; what is in a target is never removed.
//! Upstream: pkg/volume/csi/csi_mounter.go, csi_util.go.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use agent_core::csi::inline::{DATA_FILE, TARGET, VolumeData};
use agent_core::volume::Plugin;
use agent_core::volume::sub_path::SUB_PATHS;

use super::{DIR_MODE, VOLUMES, VolumeError, invalid, ownership, refused, unmount_below};
use crate::files::{self, Durability, FilesError};

/// The file is some hundred bytes.
const DATA_BYTES_MAX: u64 = 64 * 1024;
/// Mode of the file.
const DATA_MODE: u32 = 0o644;

/// Makes what is above the target, and writes whose it is.
///
/// # Errors
/// The step that failed.
pub fn prepare(pod_dir: &Path, target: &Path, data: &VolumeData) -> Result<(), VolumeError> {
    let Some(own) = target.parent() else { return Err(refused("a target without a directory".to_owned())) };
    for directory in
        [Some(pod_dir), Some(&pod_dir.join(VOLUMES)), own.parent(), Some(own)].into_iter().flatten()
    {
        files::make_dir(directory, DIR_MODE)?;
    }
    let text = data.to_json().map_err(|e| invalid("write", &own.join(DATA_FILE), e))?;
    // A driver that was asked must be asked to let go, also after a power cut.
    files::write_atomic(&own.join(DATA_FILE), &text, DATA_MODE, Durability::Synced)?;
    Ok(())
}

/// Gives what is at the target to a group.
///
/// # Errors
/// The step that failed.
pub fn give(target: &Path, group: u32, by_root: bool) -> Result<(), VolumeError> {
    if by_root && ownership::is_given(target, group) {
        return Ok(());
    }
    Ok(ownership::give(target, group, false)?)
}

/// The targets below a pod's directory, and whose they are. Nothing of them is mounted elsewhere in it afterwards.
///
/// # Errors
/// A mount that is in use, or a directory that cannot be read. A file that cannot be understood is an error too: what it
/// names would stay with its driver.
pub fn recorded(pod_dir: &Path) -> Result<Vec<(PathBuf, VolumeData)>, FilesError> {
    let all = pod_dir.join(VOLUMES).join(Plugin::Csi.directory());
    let entries = match fs::read_dir(&all) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(FilesError::at("readdir", &all))?,
    };
    unmount_below(&pod_dir.join(SUB_PATHS))?;
    let mut found = Vec::new();
    for entry in entries {
        let own = entry.map_err(FilesError::at("readdir", &all))?.path();
        let path = own.join(DATA_FILE);
        let text = match files::read_capped(&path, DATA_BYTES_MAX) {
            // The agent died before it wrote it, or after it removed it: the driver holds nothing.
            Err(e) if e.source.kind() == ErrorKind::NotFound => continue,
            text => text?,
        };
        let data = VolumeData::from_json(&text).map_err(|e| invalid("parse", &path, e))?;
        found.push((own.join(TARGET), data));
    }
    Ok(found)
}

/// The driver has let go of the target: what the node kept of it goes, too.
///
/// # Errors
/// Something is still mounted there or lies in it.
pub fn released(target: &Path) -> Result<(), FilesError> {
    let gone = |removed: std::io::Result<()>, path: &Path| match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(FilesError::at("remove", path)(e)),
        _ => Ok(()),
    };
    // Drivers remove it themselves, or should.
    gone(fs::remove_dir(target), target)?;
    let Some(own) = target.parent() else { return Ok(()) };
    gone(fs::remove_file(own.join(DATA_FILE)), &own.join(DATA_FILE))?;
    gone(fs::remove_dir(own), own)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn whose_a_target_is_is_known_until_its_driver_has_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pods/u");
        assert!(recorded(&pod).unwrap().is_empty());
        let target = pod.join("volumes/kubernetes.io~csi/v/mount");
        let rest = BTreeMap::from([("specVolID".to_owned(), "v".to_owned())]);
        let data = VolumeData { driver: "d".to_owned(), handle: "h".to_owned(), rest };
        for _ in 0..2 {
            prepare(&pod, &target, &data).unwrap();
            assert_eq!(recorded(&pod).unwrap(), [(target.clone(), data.clone())]);
        }
        fs::create_dir(&target).unwrap();
        fs::write(target.join("precious"), "x").unwrap();
        released(&target).unwrap_err();
        assert_eq!(recorded(&pod).unwrap().len(), 1, "it is not forgotten");
        fs::remove_file(target.join("precious")).unwrap();
        for _ in 0..2 {
            released(&target).unwrap();
        }
        assert!(recorded(&pod).unwrap().is_empty());
        prepare(&pod, &target, &data).unwrap();
        fs::write(target.with_file_name(DATA_FILE), "{").unwrap();
        assert!(recorded(&pod).unwrap_err().to_string().contains(DATA_FILE));
    }
}
