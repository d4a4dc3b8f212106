//! What the node itself keeps of a CSI driver's block device: where it is staged and published, and whose it is.
//!
//! ```text
//! plugins/kubernetes.io/csi/volumeDevices/staging/<volume>         the driver's, for the node
//!                                        /publish/<volume>/<uid>   the driver's, for a pod
//!                                        /<volume>/data/vol_data.json   whose it is
//!                                        /<volume>/dev/<uid>       the pod's device, held
//! ```
//! In: PersistentVolume, pod. Out: directories, `vol_data.json`, the pod's link. Invariants: the file and the link are there
//! before the driver is asked for anything; the link is removed after the driver has let go for the pod, the file after
//! it has let go for the node. Upstream: pkg/volume/csi/csi_block.go.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use agent_volumes::csi::{DATA_FILE, VolumeData};
use agent_volumes::device::{self, DATA, DEV, PUBLISH, STAGING};
use agent_volumes::plugin::Plugin;

use super::csi::{read, record, remove_unwritten};
use super::device::{entries, gone, link, linked};
use super::{VolumeError, make_way};
use crate::files::FilesError;

fn directory(root: &Path) -> PathBuf {
    PathBuf::from(device::directory(&root.to_string_lossy(), Plugin::Csi))
}

/// Where a volume is published for a pod.
#[must_use]
pub fn published_at(root: &Path, volume: &str, uid: &str) -> PathBuf {
    directory(root).join(PUBLISH).join(volume).join(uid)
}

/// Where a volume is staged, if it is.
#[must_use]
pub fn staged_at(root: &Path, volume: &str) -> PathBuf {
    directory(root).join(STAGING).join(volume)
}

/// Where the node keeps a volume for its pods.
#[must_use]
pub fn global(root: &Path, volume: &str) -> PathBuf {
    directory(root).join(volume).join(DEV)
}

/// Writes whose a volume is, and that the pod has it. True if that was not written there before.
///
/// # Errors
/// The step that failed.
pub fn prepare(root: &Path, pod_dir: &Path, volume: &str, data: &VolumeData) -> Result<bool, VolumeError> {
    let uid = pod_dir.file_name().unwrap_or_default().to_string_lossy();
    let (own, published) = (directory(root).join(volume).join(DATA), published_at(root, volume, &uid));
    make_way(root, &own)?;
    record(&own, data)?;
    make_way(root, published.parent().unwrap_or(root))?;
    Ok(link(pod_dir, &pod_dir.join(device::below(Plugin::Csi, volume)), &published)?)
}

/// Makes the place where a volume is staged. True if it was not there.
///
/// # Errors
/// The step that failed.
pub fn prepare_stage(root: &Path, volume: &str) -> Result<(PathBuf, bool), VolumeError> {
    let path = staged_at(root, volume);
    let new = !path.is_dir();
    make_way(root, &path)?;
    Ok((path, new))
}

/// The driver holds nothing where the volume is staged.
///
/// # Errors
/// Something lies there.
pub fn unstaged(root: &Path, volume: &str) -> Result<(), FilesError> {
    let path = staged_at(root, volume);
    gone(fs::remove_dir(&path), &path)
}

/// The pod's devices, by their PersistentVolumes, and whose they are as far as that is written down.
///
/// # Errors
/// What cannot be read.
pub fn of_pod(root: &Path, pod_dir: &Path) -> Result<Vec<(String, Option<VolumeData>)>, FilesError> {
    let data = |volume: String| {
        let data = read(&directory(root).join(&volume).join(DATA))?;
        Ok((volume, data))
    };
    linked(pod_dir, Plugin::Csi)?.into_iter().map(data).collect()
}

/// The driver has let go of a volume for a pod: removes the node's own files of it.
///
/// # Errors
/// Something is still there.
pub fn released(root: &Path, pod_dir: &Path, volume: &str) -> Result<(), FilesError> {
    let uid = pod_dir.file_name().unwrap_or_default().to_string_lossy();
    let published = published_at(root, volume, &uid);
    // Drivers remove it themselves, or should; it may be a file or a directory.
    match fs::symlink_metadata(&published) {
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Ok(found) if found.is_dir() => gone(fs::remove_dir(&published), &published)?,
        _ => gone(fs::remove_file(&published), &published)?,
    }
    let link = pod_dir.join(device::below(Plugin::Csi, volume));
    gone(fs::remove_file(&link), &link)
}

/// The volumes that are written down, by their PersistentVolumes.
///
/// # Errors
/// A directory that cannot be read, or a file that cannot be understood.
pub fn written(root: &Path) -> Result<Vec<(String, VolumeData)>, FilesError> {
    let all = directory(root);
    let mut found = Vec::new();
    for volume in entries(&all)? {
        if let Some(data) = read(&all.join(&volume).join(DATA))? {
            found.push((volume, data));
        }
    }
    Ok(found)
}

/// Takes away the empty directories of volumes of which nothing is written down; see [`super::csi::sweep`].
///
/// # Errors
/// A directory that cannot be read or removed.
pub fn sweep(root: &Path) -> Result<(), FilesError> {
    let all = directory(root);
    for volume in entries(&all)?.into_iter().filter(|name| name != STAGING && name != PUBLISH) {
        let (own, data) = (all.join(&volume), all.join(&volume).join(DATA));
        remove_unwritten(&data.join(DATA_FILE), &[own.join(DEV), data, own])?;
    }
    Ok(())
}

/// The driver has let go of a volume for the node: removes the node's own files of it.
///
/// # Errors
/// Something is still there.
pub fn forget(root: &Path, volume: &str) -> Result<(), FilesError> {
    let (own, published) = (directory(root).join(volume), directory(root).join(PUBLISH).join(volume));
    gone(fs::remove_dir(&published), &published)?;
    unstaged(root, volume)?;
    let (dev, data) = (own.join(DEV), own.join(DATA));
    gone(fs::remove_dir(&dev), &dev)?;
    gone(fs::remove_file(data.join(DATA_FILE)), &data.join(DATA_FILE))?;
    gone(fs::remove_dir(&data), &data)?;
    gone(fs::remove_dir(&own), &own)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn whose_a_device_is_is_known_until_its_driver_has_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let (root, pod) = (dir.path(), dir.path().join("pods/u"));
        let data = VolumeData { driver: "d".to_owned(), handle: "h".to_owned(), rest: BTreeMap::new() };
        assert!(written(root).unwrap().is_empty() && of_pod(root, &pod).unwrap().is_empty());
        for new in [true, false] {
            assert_eq!(prepare(root, &pod, "pv", &data).unwrap(), new);
        }
        let published = root.join("plugins/kubernetes.io/csi/volumeDevices/publish/pv/u");
        assert_eq!(fs::read_link(pod.join("volumeDevices/kubernetes.io~csi/pv")).unwrap(), published);
        assert!(published.parent().unwrap().is_dir() && !published.exists(), "that one is the driver's");
        for new in [true, false] {
            let staging = root.join("plugins/kubernetes.io/csi/volumeDevices/staging/pv");
            assert_eq!(prepare_stage(root, "pv").unwrap(), (staging, new));
        }
        for left in ["begun/data", "ended/dev", "theirs/dev/precious"] {
            fs::create_dir_all(directory(root).join(left)).unwrap();
        }
        sweep(root).unwrap();
        let mut left = entries(&directory(root)).unwrap();
        left.sort();
        assert_eq!(
            left,
            ["publish", "pv", "staging", "theirs"],
            "what nobody wrote down and is empty is gone"
        );
        fs::remove_dir_all(directory(root).join("theirs")).unwrap();
        assert_eq!(written(root).unwrap(), [("pv".to_owned(), data.clone())]);
        assert_eq!(of_pod(root, &pod).unwrap(), [("pv".to_owned(), Some(data))]);
        fs::write(&published, "").unwrap();
        forget(root, "pv").unwrap_err();
        assert_eq!(written(root).unwrap().len(), 1, "it is not forgotten");
        for _ in 0..2 {
            released(root, &pod, "pv").unwrap();
        }
        assert!(of_pod(root, &pod).unwrap().is_empty() && !published.exists());
        fs::write(staged_at(root, "pv").join("precious"), "x").unwrap();
        forget(root, "pv").unwrap_err();
        fs::remove_file(staged_at(root, "pv").join("precious")).unwrap();
        for _ in 0..2 {
            forget(root, "pv").unwrap();
        }
        assert!(written(root).unwrap().is_empty());
        assert_eq!(entries(&directory(root)).unwrap().len(), 2, "staging and publish stay");
    }
}
