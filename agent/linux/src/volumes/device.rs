//! Block devices of pods: a link below the pod's directory, and a bind mount that a loop device holds.
//!
//! In: a device, the places of [`agent_volumes::device`]. Out: link, mount, loop device. Invariants: the link is made
//! first and removed last, so that what there is of a pod's devices is known by its links alone; what is there already
//! stays. Upstream: pkg/volume/util/util.go MapBlockVolume, UnmapBlockVolume.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;

use agent_volumes::SetUp;
use agent_volumes::bind::Device;
use agent_volumes::device::{self, DEVICES};
use agent_volumes::network_disk::{ISCSI_FILE, PLUGINS as NETWORK_PLUGINS};
use agent_volumes::plugin::Plugin;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{DIR_MODE, VolumeError, network_disk, no_way_up, refused};
use crate::files::{self, FilesError};
use crate::loop_device;

/// Plugins whose volumes may be block devices, in a directory by the volume's name.
const PLUGINS: [Plugin; 2] = [Plugin::Csi, Plugin::Local];

/// A device of the node becomes a pod's.
pub(super) fn set_up(pod_dir: &Path, volume: &SetUp, work: &Device) -> Result<(), VolumeError> {
    let (source, global) = (Path::new(&work.source), Path::new(&work.global));
    no_way_up(source)?;
    let uid = pod_dir.file_name().unwrap_or_default().to_string_lossy();
    if work.one_pod && entries(global)?.iter().any(|name| *name != uid && name != ISCSI_FILE) {
        return Err(refused(
            "volume uses the ReadWriteOncePod access mode and is already in use by another pod".to_owned(),
        ));
    }
    is_device(source)?;
    link(pod_dir, Path::new(&volume.path), source)?;
    map(source, global, &uid)
}

/// There is a block device.
fn is_device(path: &Path) -> Result<u64, VolumeError> {
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => Ok(found.rdev()),
        Ok(_) => Err(refused(format!("{} is not a block device", path.display()))),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            Err(refused(format!("path {:?} does not exist", path.to_string_lossy())))
        }
        Err(e) => Err(FilesError::at("stat", path)(e).into()),
    }
}

/// Containers of the pod find the device by `path`, durably. True if it was not there.
///
/// # Errors
/// The step that failed.
pub fn link(pod_dir: &Path, path: &Path, device: &Path) -> Result<bool, FilesError> {
    let own = path.parent().unwrap_or(pod_dir);
    for directory in [pod_dir, &pod_dir.join(DEVICES), own] {
        files::make_dir(directory, DIR_MODE)?;
    }
    let at = FilesError::at("link", path);
    match fs::read_link(path) {
        Ok(target) if target == device => return Ok(false),
        // Of a device that had another name before a reboot.
        Ok(_) => fs::remove_file(path).map_err(FilesError::at("remove", path))?,
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(at(e)),
    }
    symlink(device, path).map_err(at)?;
    fs::File::open(own).and_then(|d| d.sync_all()).map_err(FilesError::at("sync", own))?;
    Ok(true)
}

/// Keeps a device for a pod: it stays what it is until [`unmap`].
///
/// # Errors
/// It is no block device, or the step that failed.
pub fn map(device: &Path, global: &Path, uid: &str) -> Result<(), VolumeError> {
    let is = is_device(device)?;
    let path = global.join(uid);
    files::make_dir(global, DIR_MODE)?;
    match fs::symlink_metadata(&path) {
        Ok(found) if found.file_type().is_block_device() && found.rdev() == is => {
            return Ok(loop_device::attach(&path)?);
        }
        Ok(_) => unmap(global, uid)?,
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(FilesError::at("stat", &path)(e).into()),
    }
    files::make_dir(global, DIR_MODE)?;
    fs::File::create(&path).map_err(FilesError::at("create", &path))?;
    mount(Some(device), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|e| FilesError::at("bind mount", &path)(e.into()))?;
    Ok(loop_device::attach(&path)?)
}

/// The pod no longer keeps a device.
///
/// # Errors
/// The step that failed; calling again goes on.
pub fn unmap(global: &Path, uid: &str) -> Result<(), FilesError> {
    let path = global.join(uid);
    loop_device::detach(&path)?;
    loop {
        match umount2(&path, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => break,
            Err(e) => return Err(FilesError::at("umount", &path)(e.into())),
        }
    }
    gone(fs::remove_file(&path), &path)?;
    // Other pods' may be there still.
    match fs::remove_dir(global) {
        Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => Ok(()),
        removed => removed.map_err(FilesError::at("remove", global)),
    }
}

/// The pod's devices of a plugin: names of volumes.
///
/// # Errors
/// A directory that cannot be read.
pub fn linked(pod_dir: &Path, plugin: Plugin) -> Result<Vec<String>, FilesError> {
    entries(&pod_dir.join(DEVICES).join(plugin.directory()))
}

/// Takes all devices of a pod away.
///
/// # Errors
/// The step that failed; calling again goes on.
pub(super) fn tear_down(pod_dir: &Path) -> Result<(), FilesError> {
    // `<root>/pods/<uid>`
    let root = pod_dir.ancestors().nth(2).unwrap_or(pod_dir);
    let (root, uid) = (root.to_string_lossy(), pod_dir.file_name().unwrap_or_default().to_string_lossy());
    for plugin in PLUGINS {
        for volume in linked(pod_dir, plugin)? {
            unmap(Path::new(&device::global(&root, plugin, &volume)), &uid)?;
            let link = pod_dir.join(device::below(plugin, &volume));
            gone(fs::remove_file(&link), &link)?;
        }
    }
    for plugin in NETWORK_PLUGINS {
        let all = linked(pod_dir, plugin)?;
        if all.is_empty() {
            continue;
        }
        // Which disk a volume is, the link does not say: the pod is taken from all of them.
        for global in network_disk::globals(Path::new(&*root), plugin)? {
            if fs::symlink_metadata(global.join(&*uid)).is_ok() {
                unmap(&global, &uid)?;
            }
        }
        for volume in all {
            let link = pod_dir.join(device::below(plugin, &volume));
            gone(fs::remove_file(&link), &link)?;
        }
    }
    Ok(())
}

/// Names in a directory; none, if it is not there.
pub(crate) fn entries(directory: &Path) -> Result<Vec<String>, FilesError> {
    let at = FilesError::at("readdir", directory);
    match fs::read_dir(directory) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(e) => Err(at(e)),
        Ok(all) => {
            let name =
                |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
            all.map(name).collect::<io::Result<_>>().map_err(at)
        }
    }
}

pub(super) fn gone(removed: io::Result<()>, path: &Path) -> Result<(), FilesError> {
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(FilesError::at("remove", path)(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
