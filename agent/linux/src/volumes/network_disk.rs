//! What the node itself keeps of a disk of another machine (`iscsi`, `fc`): where it is mounted for all pods, and what is
//! written down of it.
//!
//! In: a [`Record`], a pod's set-up. Out: directories, records, which pods have which disk. Invariants: the record is there
//! before anything of the disk is here, and is removed after all of it; who has a disk is what the mount table says,
//! and the directory of a block device; what is mounted is not looked into. Upstream: pkg/volume/iscsi, pkg/volume/fc.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use agent_types::ids::PodUid;
use agent_volumes::SetUp;
use agent_volumes::attach::OnDisk;
use agent_volumes::device::DEVICES;
use agent_volumes::mount_table::{self, MountPoint};
use agent_volumes::network_disk::{ISCSI_FILE, NetworkDisk, PLUGINS, RECORD_END, Record};
use agent_volumes::plugin::Plugin;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use super::device::{entries, gone};
use super::{VOLUMES, invalid, make_way, mounts};
use crate::files::{self, Durability, FilesError};

/// A record is some hundred bytes.
const RECORD_BYTES_MAX: u64 = 64 * 1024;
/// Mode of a record: it names portals and targets.
const RECORD_MODE: u32 = 0o600;
/// Directories of the interfaces of iSCSI sessions begin so.
const INTERFACE: &str = "iface-";

/// Directories in which records of a plugin may be.
fn directories(root: &Path, plugin: Plugin) -> Result<Vec<PathBuf>, FilesError> {
    let own = root.join("plugins").join(plugin.name());
    let both = [own.clone(), own.join(DEVICES)];
    if plugin != Plugin::Iscsi {
        return Ok(both.into());
    }
    let mut found = Vec::new();
    for directory in both {
        let all = entries(&directory)?.into_iter().filter(|name| name.starts_with(INTERFACE));
        found.extend(all.map(|name| directory.join(name)));
    }
    Ok(found)
}

/// What is written down of disks that are here, or were about to be.
///
/// # Errors
/// A directory that cannot be read, or a file that cannot be understood.
pub fn records(root: &Path) -> Result<Vec<Record>, FilesError> {
    let mut found = Vec::new();
    for plugin in PLUGINS {
        for directory in directories(root, plugin)? {
            for name in entries(&directory)? {
                let path = directory.join(&name);
                // Disks are mounted at the directories next to the records: the agent does not look at those.
                if name.starts_with('.') || !name.ends_with(RECORD_END) {
                    continue;
                }
                let bytes = match files::read_capped(&path, RECORD_BYTES_MAX) {
                    // It went meanwhile.
                    Err(e) if e.source.kind() == ErrorKind::NotFound => continue,
                    bytes => bytes?,
                };
                let record = Record::from_json(&bytes).map_err(|why| invalid("parse", &path, why))?;
                if Path::new(&record.path()) != path {
                    return Err(invalid("parse", &path, format!("it is the record of {}", record.global)));
                }
                found.push(record);
            }
        }
    }
    Ok(found)
}

/// Which pods have the disks.
///
/// # Errors
/// What cannot be read: then it is not known which disk is whose.
pub fn on_disk(root: &Path) -> Result<OnDisk, FilesError> {
    let mut all = OnDisk::new();
    let records = records(root)?;
    if records.is_empty() {
        return Ok(all);
    }
    let table = mounts()?;
    let pods = root.join("pods");
    for record in records {
        let held = all.entry(record.key()).or_default();
        (held.staged, held.attached) = (true, true);
        if record.block {
            let uids = entries(Path::new(&record.global))?.into_iter().filter(|uid| uid != ISCSI_FILE);
            held.pods
                .extend(uids.filter(|uid| pods.join(uid).is_dir()).map(|uid| PodUid::from(uid.as_str())));
        } else if let Some(device) = mount_table::device_at(&table, &record.global) {
            let uids = table.iter().filter(|mount| mount.device == device).filter_map(|m| pod_of(&pods, m));
            held.pods.extend(uids);
        }
    }
    Ok(all)
}

/// The pod that has a mount, or a part of one.
fn pod_of(pods: &Path, mount: &MountPoint) -> Option<PodUid> {
    let rest = Path::new(&mount.path).strip_prefix(pods).ok()?;
    rest.components().next()?.as_os_str().to_str().map(PodUid::from)
}

/// It is written down that the disk is here, and there is a place for it. To be done before anything else. True if the node
/// has it mounted there already.
///
/// # Errors
/// The step that failed.
pub fn prepare(root: &Path, record: &Record) -> Result<bool, FilesError> {
    let (global, path) = (PathBuf::from(&record.global), PathBuf::from(record.path()));
    make_way(root, global.parent().unwrap_or(root))?;
    match fs::symlink_metadata(&path) {
        // Of the first pod that has it.
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let text = record.to_json().map_err(|e| invalid("write", &path, e))?;
            files::write_atomic(&path, &text, RECORD_MODE, Durability::Synced)?;
        }
        Err(e) => return Err(FilesError::at("stat", &path)(e)),
    }
    if is_mounted(record)? {
        return Ok(true);
    }
    make_way(root, &global)?;
    if let Some(text) = record.for_upstream() {
        files::write_atomic(&global.join(ISCSI_FILE), &text, RECORD_MODE, Durability::Rebuildable)?;
    }
    Ok(false)
}

fn is_mounted(record: &Record) -> Result<bool, FilesError> {
    Ok(mount_table::device_at(&mounts()?, &record.global).is_some())
}

/// The disk may be mounted with this SELinux label, or is. `None`: it may; else the label (empty: none) with which another
/// pod has it mounted. What no pod has is unmounted if it has another label: a file system has one at a time.
///
/// # Errors
/// What cannot be read, or the step that failed.
pub fn fit_label(
    root: &Path,
    record: &Record,
    uid: &PodUid,
    label: Option<&str>,
) -> Result<Option<String>, FilesError> {
    let table = mounts()?;
    if mount_table::device_at(&table, &record.global).is_none() {
        return Ok(None);
    }
    let there = mount_table::label_at(&table, &record.global);
    if there == label {
        return Ok(None);
    }
    let all = on_disk(root)?;
    if all.get(&record.key()).is_some_and(|held| held.pods.iter().any(|pod| pod != uid)) {
        return Ok(Some(there.unwrap_or_default().to_owned()));
    }
    unmount(record).map(|()| None)
}

/// The label with which a pod has a volume mounted, if it has one.
///
/// # Errors
/// The mount table cannot be read.
pub fn label_of(volume: &SetUp) -> Result<Option<String>, FilesError> {
    Ok(mount_table::label_at(&mounts()?, &volume.path).map(str::to_owned))
}

/// The pod has the volume: mounted, or linked and held.
///
/// # Errors
/// What cannot be read.
pub fn has(pod_dir: &Path, volume: &SetUp, disk: &NetworkDisk) -> Result<bool, FilesError> {
    if !disk.block {
        return Ok(mount_table::device_at(&mounts()?, &volume.path).is_some());
    }
    let uid = pod_dir.file_name().unwrap_or_default();
    let number = |path: &Path| {
        let found = fs::metadata(path).ok().filter(|found| found.file_type().is_block_device());
        found.map(|found| found.rdev())
    };
    let (linked, held) = (number(Path::new(&volume.path)), number(&Path::new(&disk.global).join(uid)));
    Ok(linked.is_some() && linked == held)
}

/// The pod has a directory for such volumes.
#[must_use]
pub fn has_any(pod_dir: &Path) -> bool {
    let both = |plugin: &Plugin| [VOLUMES, DEVICES].map(|d| pod_dir.join(d).join(plugin.directory()));
    PLUGINS.iter().flat_map(both).any(|directory| directory.exists())
}

/// Unmounts a disk that no pod has, and takes its place away.
///
/// # Errors
/// It is in use, or the step that failed.
pub fn unmount(record: &Record) -> Result<(), FilesError> {
    let global = Path::new(&record.global);
    loop {
        match umount2(global, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(e) => return Err(FilesError::at("umount", global)(e.into())),
        }
    }
    let file = global.join(ISCSI_FILE);
    gone(fs::remove_file(&file), &file)?;
    gone(fs::remove_dir(global), global)
}

/// Nothing of the disk is here any more.
///
/// # Errors
/// The step that failed.
pub fn forget(record: &Record) -> Result<(), FilesError> {
    let path = PathBuf::from(record.path());
    gone(fs::remove_file(&path), &path)?;
    let Some(directory) = path.parent() else { return Ok(()) };
    match File::open(directory).and_then(|d| d.sync_all()) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        synced => synced.map_err(FilesError::at("sync", directory))?,
    }
    let interface = directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(INTERFACE));
    if !interface {
        return Ok(());
    }
    // Other disks may be there still.
    match fs::remove_dir(directory) {
        Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => Ok(()),
        removed => removed.map_err(FilesError::at("remove", directory)),
    }
}

/// Where the node has block devices of these plugins for its pods.
///
/// # Errors
/// A directory that cannot be read.
pub(super) fn globals(root: &Path, plugin: Plugin) -> Result<Vec<PathBuf>, FilesError> {
    let own = root.join("plugins").join(plugin.name()).join(DEVICES);
    let mut found = Vec::new();
    for directory in directories(root, plugin)?.into_iter().filter(|d| d.starts_with(&own)) {
        let all = entries(&directory)?.into_iter().map(|name| directory.join(name));
        found.extend(all.filter(|path| path.is_dir()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
