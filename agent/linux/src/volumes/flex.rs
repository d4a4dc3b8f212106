//! What the node itself keeps of a volume that a driver mounts (`flexVolume`): the pod's directory and how far its set-up is,
//! where the volume is mounted for all pods, and what is written down of it.
//!
//! In: a [`SetUp`], its [`Flex`], a [`Record`]. Out: directories, marks, records, which pods have which volume. Invariants: the
//! mark is there before the driver is asked for a pod's volume, the record before it is asked to bring one here, and that one
//! goes last; what lies in a volume's directory is never removed; whether something is mounted is what the mount table says.
//! Upstream: pkg/volume/flexvolume (its directories).

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use agent_types::ids::PodUid;
use agent_volumes::attach::OnDisk;
use agent_volumes::flex::source::Driver;
use agent_volumes::flex::{Flex, RECORD_FILE, Record, records_directory};
use agent_volumes::plugin::Plugin;
use agent_volumes::sub_path::SUB_PATHS;
use agent_volumes::{SetUp, mount_table};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::device::{entries, gone};
use super::{
    READY, SetFsGroup, VOLUMES, VolumeError, invalid, make_way, mounts, ownership, refused, unmount_below,
};
use crate::files::{self, Durability, FilesError};
use crate::process::boot_id;

/// A record is some hundred bytes.
const RECORD_BYTES_MAX: u64 = 64 * 1024;
/// In a mark: the boot in which the driver was asked.
const BOOT: &str = "boot";
/// Mode of a record.
const RECORD_MODE: u32 = 0o600;

/// What there is of a pod's volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlexVolumeState {
    /// It is mounted for the pod.
    pub mounted: bool,
    /// Its set-up was finished.
    pub ready: bool,
    /// It is mounted for all pods.
    pub global: bool,
    /// Another pod has it, although it may be one pod's only.
    pub others: bool,
}

/// What there is of a pod's volume.
///
/// # Errors
/// What cannot be read.
pub fn look(pod_dir: &Path, volume: &SetUp, flex: &Flex) -> Result<FlexVolumeState, FilesError> {
    let table = mounts()?;
    let (pods, own) = (pod_dir.parent().unwrap_or(pod_dir), pod_dir.file_name().unwrap_or_default());
    let mut others = false;
    for uid in entries(pods)?.into_iter().filter(|uid| flex.one_pod && own != uid.as_str()) {
        others |= has(&pods.join(uid), &flex.driver, &flex.volume)?;
    }
    Ok(FlexVolumeState {
        mounted: mount_table::kind_at(&table, &volume.path).is_some(),
        ready: Path::new(&flex.mark).join(READY).exists(),
        global: mount_table::kind_at(&table, &flex.global).is_some(),
        others,
    })
}

/// The pod has a directory for the volume. It is not looked at: it may be a server's, which may never answer.
fn has(pod_dir: &Path, driver: &Driver, volume: &str) -> Result<bool, FilesError> {
    let below = driver.below(volume);
    let path = pod_dir.join(&below);
    let (above, name) = (path.parent().unwrap_or(pod_dir), path.file_name().unwrap_or_default());
    Ok(entries(above)?.iter().any(|found| name == found.as_str()))
}

/// Makes the mark and the directory of a pod's volume: the driver is about to be asked.
///
/// # Errors
/// The step that failed.
pub fn prepare(pod_dir: &Path, volume: &SetUp, flex: &Flex) -> Result<(), FilesError> {
    files::make_dir(pod_dir, super::DIR_MODE)?;
    let mark = Path::new(&flex.mark);
    make_way(pod_dir, mark)?;
    files::write_atomic(&mark.join(BOOT), boot_id()?.as_bytes(), 0o644, Durability::Rebuildable)?;
    // What is mounted there is not the node's to change.
    if is_mounted(&volume.path)? { Ok(()) } else { make_way(pod_dir, Path::new(&volume.path)) }
}

/// Makes the directory where the volume is mounted for all pods.
///
/// # Errors
/// The step that failed.
pub fn prepare_global(root: &Path, flex: &Flex) -> Result<(), FilesError> {
    make_way(root, Path::new(&flex.global))
}

/// What is mounted for all pods is mounted for this one.
///
/// # Errors
/// Nothing is there, or the kernel's refusal.
pub fn bind(volume: &SetUp, flex: &Flex) -> Result<(), VolumeError> {
    let (source, path) = (Path::new(&flex.global), Path::new(&volume.path));
    if !source.exists() {
        return Err(refused(format!(
            "the driver {} mounts nothing, and nothing is at {}",
            flex.driver.name(),
            flex.global
        )));
    }
    let bound = mount(Some(source), path, None::<&str>, MsFlags::MS_BIND, None::<&str>);
    Ok(bound.map_err(|e| FilesError::at("bind mount", path)(e.into()))?)
}

/// The pod has its volume: it becomes a group's, if one is named, and that is the end of its set-up.
///
/// # Errors
/// The step that failed, or that the walk was ended. As upstream, a group that cannot be given is none: the volume may be
/// read-only.
pub fn finish(
    volume: &SetUp,
    flex: &Flex,
    group: Option<u32>,
    give: SetFsGroup<'_>,
) -> Result<(), FilesError> {
    let path = Path::new(&volume.path);
    if let Some(group) = group.filter(|group| !(flex.by_root && ownership::is_given(path, *group)))
        && let Err(error) = give(path, group)
    {
        if error.source.kind() == ErrorKind::Interrupted {
            return Err(error);
        }
        let FilesError { operation, path, source } = &error;
        tracing::warn!(volume = volume.name, group, operation, path = %path.display(), error = %source, "a volume is not its group's");
    }
    files::write_atomic(&Path::new(&flex.mark).join(READY), b"", 0o644, Durability::Rebuildable)
}

/// The driver did not mount it: removes the directory if it is empty.
pub fn abandon(volume: &SetUp) {
    // As upstream: if something is there it stays, and the next attempt finds it.
    let _ = fs::remove_dir(&volume.path);
}

/// A volume of a driver's that a pod has, or had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlexPodVolume {
    /// Whose it is.
    pub driver: Driver,
    /// Where it is.
    pub path: PathBuf,
    /// Something is mounted there.
    pub mounted: bool,
    /// This node had asked the driver for it.
    pub asked: bool,
    /// It had done so before the machine booted again.
    pub before_boot: bool,
}

/// The volumes of a pod that are drivers'.
///
/// # Errors
/// What cannot be read.
pub fn held(pod_dir: &Path) -> Result<Vec<FlexPodVolume>, FilesError> {
    let mut found = Vec::new();
    for directory in drivers_of(pod_dir)? {
        let Some(driver) = Driver::of_directory(&directory) else { continue };
        let at = pod_dir.join(VOLUMES).join(&directory);
        for volume in entries(&at)? {
            let mark = pod_dir.join(driver.mark_below(&volume));
            let boot = fs::read_to_string(mark.join(BOOT)).ok();
            let before_boot = boot.is_some_and(|boot| boot_id().is_ok_and(|now| now != boot));
            let (driver, path, asked) = (driver.clone(), at.join(volume), mark.exists());
            found.push(FlexPodVolume { driver, path, mounted: false, asked, before_boot });
        }
    }
    if !found.is_empty() {
        let table = mounts()?;
        for held in &mut found {
            held.mounted = mount_table::kind_at(&table, &held.path.to_string_lossy()).is_some();
        }
    }
    Ok(found)
}

/// Nothing of the pod's volumes is mounted elsewhere in its directory: a driver could not unmount what is in use.
///
/// # Errors
/// A mount that is in use.
pub fn end_parts(pod_dir: &Path) -> Result<(), FilesError> {
    unmount_below(&pod_dir.join(SUB_PATHS))
}

/// There is, or was, such a volume among the pod's.
#[must_use]
pub fn has_any(pod_dir: &Path) -> bool {
    drivers_of(pod_dir).is_ok_and(|all| !all.is_empty())
}

/// Directories of volumes that none of the node's own plugins has.
fn drivers_of(pod_dir: &Path) -> Result<Vec<String>, FilesError> {
    let own = |name: &String| Plugin::ALL.iter().any(|plugin| plugin.directory() == name);
    Ok(entries(&pod_dir.join(VOLUMES))?.into_iter().filter(|name| !own(name)).collect())
}

/// Unmounts all that is mounted there, where its driver does not do it.
///
/// # Errors
/// It is in use.
pub fn unmount(path: &Path) -> Result<(), FilesError> {
    loop {
        match umount2(path, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(FilesError::at("umount", path)(e.into())),
        }
    }
}

/// Nothing is mounted there any more: removes the directory, if the driver has left it.
///
/// # Errors
/// Something lies in it, or is mounted there.
pub fn released(path: &Path) -> Result<(), FilesError> {
    gone(fs::remove_dir(path), path)
}

/// Something is mounted there.
///
/// # Errors
/// The mount table cannot be read.
pub fn is_mounted(path: &str) -> Result<bool, FilesError> {
    Ok(mount_table::kind_at(&mounts()?, path).is_some())
}

/// What is written down of volumes that are attached to the node, or were about to be.
///
/// # Errors
/// A directory that cannot be read, or a file that cannot be understood.
pub fn records(root: &Path) -> Result<Vec<Record>, FilesError> {
    let all = PathBuf::from(records_directory(&root.to_string_lossy()));
    let mut found = Vec::new();
    for driver in entries(&all)? {
        for volume in entries(&all.join(&driver))? {
            let path = all.join(&driver).join(volume).join(RECORD_FILE);
            let bytes = match files::read_capped(&path, RECORD_BYTES_MAX) {
                // It went meanwhile, or the agent died before it was there.
                Err(e) if matches!(e.source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    continue;
                }
                bytes => bytes?,
            };
            let record = Record::from_json(&bytes).map_err(|why| invalid("parse", &path, why))?;
            if Path::new(&record.path(&root.to_string_lossy())) != path {
                return Err(invalid("parse", &path, format!("it is the record of {}", record.volume)));
            }
            found.push(record);
        }
    }
    Ok(found)
}

/// The record of a volume, if there is one.
///
/// # Errors
/// See [`records`].
pub fn record_like(root: &Path, record: &Record) -> Result<Option<Record>, FilesError> {
    Ok(records(root)?.into_iter().find(|found| found.key() == record.key()))
}

/// Writes a record, durably.
///
/// # Errors
/// The step that failed.
pub fn write(root: &Path, record: &Record) -> Result<(), FilesError> {
    let path = PathBuf::from(record.path(&root.to_string_lossy()));
    make_way(root, path.parent().unwrap_or(root))?;
    let text = record.to_json().map_err(|e| invalid("write", &path, e))?;
    files::write_atomic(&path, &text, RECORD_MODE, Durability::Synced)
}

/// Nothing of the volume is here any more.
///
/// # Errors
/// The step that failed.
pub fn forget(root: &Path, record: &Record) -> Result<(), FilesError> {
    let path = PathBuf::from(record.path(&root.to_string_lossy()));
    gone(fs::remove_file(&path), &path)?;
    let Some(own) = path.parent() else { return Ok(()) };
    gone(fs::remove_dir(own), own)?;
    let Some(driver) = own.parent() else { return Ok(()) };
    match File::open(driver).and_then(|d| d.sync_all()) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        synced => synced.map_err(FilesError::at("sync", driver)),
    }
}

/// Which pods have the volumes that are attached to the node.
///
/// # Errors
/// What cannot be read: then it is not known which volume is whose.
pub fn on_disk(root: &Path) -> Result<OnDisk, FilesError> {
    let mut all = OnDisk::new();
    let records = records(root)?;
    if records.is_empty() {
        return Ok(all);
    }
    let pods = root.join("pods");
    let uids = entries(&pods)?;
    for record in records {
        let held = all.entry(record.key()).or_default();
        (held.staged, held.attached) = (true, record.attached_by.is_none());
        for uid in &uids {
            if has(&pods.join(uid), &record.driver, &record.volume)? {
                held.pods.insert(PodUid::from(uid.as_str()));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
