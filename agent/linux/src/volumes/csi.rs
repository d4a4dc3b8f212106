//! What the node itself keeps of a CSI driver's volume: the directory above its target, the one where it is staged for all
//! pods, and the file in each that says whose it is.
//!
//! In: a target below a pod's directory, a volume. Out: directories, `vol_data.json`, groups. Invariants: the file is there
//! before the driver is asked for anything, and is removed after the driver has let go; what is in a target or where a
//! volume is staged is never removed. Upstream: pkg/volume/csi/csi_mounter.go, csi_attacher.go, csi_util.go.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use agent_volumes::csi::{DATA_FILE, TARGET, VolumeData};
use agent_volumes::key::VolumeKey;
use agent_volumes::plugin::Plugin;
use agent_volumes::sub_path::SUB_PATHS;

use super::{
    DIR_MODE, SetFsGroup, VOLUMES, VolumeError, invalid, make_way, ownership, refused, unmount_below,
};
use crate::files::{self, Durability, FilesError};

/// The file is some hundred bytes.
const DATA_BYTES_MAX: u64 = 64 * 1024;
/// Mode of the file.
const DATA_MODE: u32 = 0o644;
/// Where volumes are staged, below the kubelet's root.
const STAGING: [&str; 3] = ["plugins", "kubernetes.io", "csi"];
/// The directory of block devices, next to the drivers' directories.
const DEVICES: &str = "volumeDevices";
/// Where a volume is staged, in its directory.
const STAGED: &str = "globalmount";

/// Makes what is above the target, and writes whose it is. True if that was not written there before.
///
/// # Errors
/// The step that failed.
pub fn prepare(pod_dir: &Path, target: &Path, data: &VolumeData) -> Result<bool, VolumeError> {
    let Some(own) = target.parent() else { return Err(refused("a target without a directory".to_owned())) };
    for directory in
        [Some(pod_dir), Some(&pod_dir.join(VOLUMES)), own.parent(), Some(own)].into_iter().flatten()
    {
        files::make_dir(directory, DIR_MODE)?;
    }
    record(own, data)
}

/// Makes the place where a volume is staged, and writes whose it is. The answer is that place, and whether that was not
/// written there before.
///
/// # Errors
/// The step that failed.
pub fn prepare_stage(
    root: &Path,
    key: &VolumeKey,
    data: &VolumeData,
) -> Result<(PathBuf, bool), VolumeError> {
    let own = stage_directory(root, key);
    make_way(root, &own)?;
    let new = record(&own, data)?;
    files::make_dir(&own.join(STAGED), DIR_MODE)?;
    Ok((own.join(STAGED), new))
}

/// The directory of a volume that all pods of the node share.
fn stage_directory(root: &Path, key: &VolumeKey) -> PathBuf {
    let all = STAGING.iter().fold(root.to_owned(), |path, part| path.join(part));
    all.join(key.directory())
}

/// Where a volume is staged, if it is.
#[must_use]
pub fn stage_of(root: &Path, key: &VolumeKey) -> PathBuf {
    stage_directory(root, key).join(STAGED)
}

/// Writes whose a directory is; true if it did not say so before. A driver that was asked must be asked to let go, also after
/// a power cut.
pub(super) fn record(own: &Path, data: &VolumeData) -> Result<bool, VolumeError> {
    let path = own.join(DATA_FILE);
    let new = match fs::symlink_metadata(&path) {
        Ok(_) => false,
        Err(e) if e.kind() == ErrorKind::NotFound => true,
        Err(e) => return Err(FilesError::at("stat", &path)(e).into()),
    };
    let text = data.to_json().map_err(|e| invalid("write", &path, e))?;
    files::write_atomic(&path, &text, DATA_MODE, Durability::Synced)?;
    Ok(new)
}

/// The volumes that are written down as staged.
///
/// # Errors
/// A directory that cannot be read, or a file that cannot be understood.
pub fn staged(root: &Path) -> Result<Vec<VolumeData>, FilesError> {
    let all = stage_directories(root)?.into_iter().filter_map(|own| read(&own).transpose());
    all.collect()
}

/// Removes the empty directories of an agent that died after it made them and before it wrote the file with their
/// volume, or after it removed that file and before it removed them. No driver holds anything there, and no other code
/// would remove them. Call it before the first volume is staged.
///
/// # Errors
/// A directory that cannot be read or removed.
pub fn sweep(root: &Path) -> Result<(), FilesError> {
    for own in stage_directories(root)? {
        remove_unwritten(&own.join(DATA_FILE), &[own.join(STAGED), own])?;
    }
    Ok(())
}

/// Removes those of the directories that are empty, unless the file is there.
pub(super) fn remove_unwritten(data: &Path, directories: &[PathBuf]) -> Result<(), FilesError> {
    match fs::symlink_metadata(data) {
        Ok(_) => return Ok(()),
        // The path leads through a file, which belongs to no volume.
        Err(e) if e.kind() == ErrorKind::NotADirectory => return Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(FilesError::at("stat", data)(e)),
    }
    for directory in directories {
        match fs::remove_dir(directory) {
            Ok(()) => {
                tracing::info!(path = %directory.display(), "an empty directory of nobody's volume was removed")
            }
            // What lies there, or is mounted there, is not the node's to remove.
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy
                ) => {}
            Err(e) => return Err(FilesError::at("remove", directory)(e)),
        }
    }
    Ok(())
}

/// The directories of volumes that all pods of the node share.
fn stage_directories(root: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let all = STAGING.iter().fold(root.to_owned(), |path, part| path.join(part));
    let mut found = Vec::new();
    for driver in entries(&all)? {
        if driver.file_name().is_none_or(|name| name != DEVICES) {
            found.extend(entries(&driver)?);
        }
    }
    Ok(found)
}

/// What is in a directory; nothing, if it is not there or is none.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let at = FilesError::at("readdir", directory);
    match fs::read_dir(directory) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(e) => Err(at(e)),
        Ok(all) => all.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>().map_err(at),
    }
}

/// Whose a directory is, if it says so.
pub(super) fn read(own: &Path) -> Result<Option<VolumeData>, FilesError> {
    let path = own.join(DATA_FILE);
    let text = match files::read_capped(&path, DATA_BYTES_MAX) {
        // The agent died before it wrote it, or after it removed it: the driver holds nothing.
        Err(e) if matches!(e.source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        text => text?,
    };
    VolumeData::from_json(&text).map(Some).map_err(|e| invalid("parse", &path, e))
}

/// The driver has let go of a volume on this node: removes the node's own files of it.
///
/// # Errors
/// Something is still mounted there or lies in it.
pub fn unstaged(root: &Path, key: &VolumeKey) -> Result<(), FilesError> {
    released(&stage_of(root, key))
}

/// Gives what is at the target to a group.
///
/// # Errors
/// The step that failed.
pub fn give(target: &Path, group: u32, by_root: bool, give: SetFsGroup<'_>) -> Result<(), VolumeError> {
    if by_root && ownership::is_given(target, group) {
        return Ok(());
    }
    Ok(give(target, group)?)
}

/// The targets below a pod's directory, and whose they are. Nothing of them is mounted elsewhere in it afterwards.
///
/// # Errors
/// A mount that is in use, or a directory that cannot be read. A file that cannot be understood is an error too: what it
/// names would stay with its driver.
pub fn recorded(pod_dir: &Path) -> Result<Vec<(PathBuf, VolumeData)>, FilesError> {
    let found = written(pod_dir)?;
    if !found.is_empty() {
        unmount_below(&pod_dir.join(SUB_PATHS))?;
    }
    Ok(found)
}

/// The same, and nothing is unmounted.
///
/// # Errors
/// A directory that cannot be read, or a file that cannot be understood.
pub fn written(pod_dir: &Path) -> Result<Vec<(PathBuf, VolumeData)>, FilesError> {
    let mut found = Vec::new();
    for own in entries(&pod_dir.join(VOLUMES).join(Plugin::Csi.directory()))? {
        found.extend(read(&own)?.map(|data| (own.join(TARGET), data)));
    }
    Ok(found)
}

/// The driver has let go of the target: removes the node's own files of it.
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
    fn where_a_volume_is_staged_says_whose_it_is_until_its_driver_has_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let key = VolumeKey { driver: "d".to_owned(), handle: "h/..".to_owned() };
        let data = VolumeData { driver: "d".to_owned(), handle: "h/..".to_owned(), rest: BTreeMap::new() };
        assert!(staged(root).unwrap().is_empty());
        unstaged(root, &key).unwrap();
        for new in [true, false] {
            assert_eq!(prepare_stage(root, &key, &data).unwrap(), (stage_of(root, &key), new));
        }
        assert!(stage_of(root, &key).starts_with(root.join("plugins/kubernetes.io/csi/d")));
        // Other entries belong to no volume.
        fs::create_dir_all(root.join("plugins/kubernetes.io/csi/volumeDevices/staging/pv")).unwrap();
        fs::create_dir_all(root.join("plugins/kubernetes.io/csi/d/begun")).unwrap();
        fs::write(root.join("plugins/kubernetes.io/csi/d/file"), "x").unwrap();
        assert_eq!(staged(root).unwrap(), std::slice::from_ref(&data));
        fs::create_dir_all(root.join("plugins/kubernetes.io/csi/d/ended/globalmount")).unwrap();
        fs::create_dir_all(root.join("plugins/kubernetes.io/csi/d/theirs/globalmount/precious")).unwrap();
        sweep(root).unwrap();
        let mut left = entries(&root.join("plugins/kubernetes.io/csi/d")).unwrap();
        left.sort();
        let of = |name: &str| root.join("plugins/kubernetes.io/csi/d").join(name);
        let mut expected = vec![stage_directory(root, &key), of("file"), of("theirs")];
        expected.sort();
        assert_eq!(left, expected, "what nobody wrote down and is empty is gone");
        assert!(stage_of(root, &key).is_dir() && of("theirs/globalmount/precious").is_dir());
        fs::write(stage_of(root, &key).join("precious"), "x").unwrap();
        unstaged(root, &key).unwrap_err();
        assert_eq!(staged(root).unwrap(), [data], "it is not forgotten");
        fs::remove_file(stage_of(root, &key).join("precious")).unwrap();
        unstaged(root, &key).unwrap();
        assert!(staged(root).unwrap().is_empty());
        prepare_stage(
            root,
            &key,
            &VolumeData { rest: BTreeMap::new(), driver: "d".to_owned(), handle: "h".to_owned() },
        )
        .unwrap();
        fs::write(stage_of(root, &key).with_file_name(DATA_FILE), "{").unwrap();
        assert!(staged(root).unwrap_err().to_string().contains(DATA_FILE));
    }

    #[test]
    fn whose_a_target_is_is_known_until_its_driver_has_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pods/u");
        assert!(recorded(&pod).unwrap().is_empty());
        let target = pod.join("volumes/kubernetes.io~csi/v/mount");
        let rest = BTreeMap::from([("specVolID".to_owned(), "v".to_owned())]);
        let data = VolumeData { driver: "d".to_owned(), handle: "h".to_owned(), rest };
        for new in [true, false] {
            assert_eq!(prepare(&pod, &target, &data).unwrap(), new);
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
