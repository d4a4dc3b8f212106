//! Parts of volumes, mounted where a container finds them (`subPath`).
//!
//! In: a [`SubPath`]. Out: a bind mount of the part at its target. Invariants: the kernel walks the path and lets no link
//! leave the volume (`RESOLVE_BENEATH`), so a container that swaps directories for links meanwhile gains nothing: what was
//! opened is what is mounted; directories that are made on the way have the volume's mode. Upstream:
//! pkg/volume/util/subpath/subpath_linux.go.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agent_core::volume::mount_table;
use agent_core::volume::sub_path::{SUB_PATHS, SubPath};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, mkdirat};

use super::atomic_writer::Inode;
use super::{DIR_MODE, VolumeError, mounts, refused};
use crate::files::{self, FilesError};

/// Permission bits that a new directory takes from the volume's.
const MODE_BITS: u32 = 0o7777;

/// Mounts the part at its target, which is below `pod_dir`.
///
/// # Errors
/// The path leads out of the volume, or a step on the disk fails; calling again goes on.
pub fn mount_part(pod_dir: &Path, part: &SubPath) -> Result<(), VolumeError> {
    let root = Path::new(&part.root);
    let volume = open(root, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(at("open", root))?;
    let source = match beneath(&volume, &part.path, OFlag::O_PATH) {
        Err(Errno::ENOENT) => {
            make(&volume, part)?;
            beneath(&volume, &part.path, OFlag::O_PATH)
        }
        other => other,
    };
    let source = source.map_err(|e| unsafe_path(part, e))?;
    let found = fstat(&source).map_err(at("stat", &root.join(&part.path)))?;
    let target = target(pod_dir, part)?;
    if is_mounted(&target)? {
        if is_same(&target, &found) {
            return Ok(());
        }
        umount2(&target, MntFlags::UMOUNT_NOFOLLOW).map_err(at("umount", &target))?;
    }
    make_target(&target, &found)?;
    let by_descriptor = format!("/proc/self/fd/{}", source.as_raw_fd());
    let bound = mount(Some(by_descriptor.as_str()), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>);
    Ok(bound.map_err(at("bind mount", &target))?)
}

fn at(operation: &'static str, path: &Path) -> impl FnOnce(Errno) -> FilesError {
    move |e| FilesError::at(operation, path)(e.into())
}

/// Opens what `path` leads to inside of the volume; nothing is the volume itself.
fn beneath(volume: &OwnedFd, path: &str, flags: OFlag) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let path = if path.is_empty() { "." } else { path };
    loop {
        match openat2(volume, path, how) {
            // A directory on the way is being renamed.
            Err(Errno::EAGAIN) => {}
            other => return other,
        }
    }
}

fn unsafe_path(part: &SubPath, e: Errno) -> VolumeError {
    let SubPath { volume, container, path, .. } = part;
    let why = match e {
        Errno::EXDEV | Errno::ELOOP => "it leads out of the volume".to_owned(),
        other => std::io::Error::from(other).to_string(),
    };
    refused(format!(
        "failed to prepare subPath for volumeMount {volume:?} of container {container:?}: {path}: {why}"
    ))
}

/// Makes the directories that are missing, one by one, each inside of the one before.
fn make(volume: &OwnedFd, part: &SubPath) -> Result<(), VolumeError> {
    let failed = |e: Errno| {
        let SubPath { volume, container, path, .. } = part;
        let e = std::io::Error::from(e);
        refused(format!(
            "failed to create subPath directory for volumeMount {volume:?} of container {container:?}: {path}: {e}"
        ))
    };
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let mode = Mode::from_bits_truncate(fstat(volume).map_err(failed)?.st_mode & MODE_BITS);
    let mut so_far = PathBuf::new();
    let mut parent = beneath(volume, "", directory).map_err(failed)?;
    for name in part.path.split('/').filter(|name| !name.is_empty() && *name != ".") {
        so_far.push(name);
        let path = so_far.to_string_lossy();
        parent = match beneath(volume, &path, directory) {
            Err(Errno::ENOENT) => make_one(&parent, OsStr::new(name), mode).map_err(failed)?,
            other => other.map_err(failed)?,
        };
    }
    Ok(())
}

fn make_one(parent: &OwnedFd, name: &OsStr, mode: Mode) -> nix::Result<OwnedFd> {
    match mkdirat(parent, name, mode) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(e) => return Err(e),
    }
    // A link that somebody put there meanwhile is not followed.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = openat(parent, name, flags, Mode::empty())?;
    fchmod(&made, mode)?; // Whatever the umask.
    Ok(made)
}

/// The target's place, made if it is missing.
fn target(pod_dir: &Path, part: &SubPath) -> Result<PathBuf, VolumeError> {
    let target = PathBuf::from(&part.target);
    let own = pod_dir.join(SUB_PATHS);
    let Some(parent) = target.parent().filter(|p| p.starts_with(&own)) else {
        return Err(refused(format!("{} is not below {}", target.display(), own.display())));
    };
    for directory in [Some(own.as_path()), parent.parent(), Some(parent)].into_iter().flatten() {
        files::make_dir(directory, DIR_MODE)?;
    }
    Ok(target)
}

fn is_mounted(target: &Path) -> Result<bool, FilesError> {
    Ok(mount_table::kind_at(&mounts()?, &target.to_string_lossy()).is_some())
}

fn is_same(target: &Path, found: &FileStat) -> bool {
    fs::symlink_metadata(target).is_ok_and(|m| (m.dev(), m.ino()) == (found.st_dev, found.st_ino))
}

/// A directory for a directory, an empty file for anything else.
fn make_target(target: &Path, found: &FileStat) -> Result<(), FilesError> {
    let is_directory = SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR;
    match fs::symlink_metadata(target) {
        Ok(there) if there.is_dir() == is_directory => return Ok(()),
        Ok(there) if there.is_dir() => fs::remove_dir(target).map_err(FilesError::at("remove", target))?,
        Ok(_) => fs::remove_file(target).map_err(FilesError::at("remove", target))?,
        Err(_) => {}
    }
    if is_directory {
        return files::make_dir(target, DIR_MODE);
    }
    fs::File::create_new(target).map(drop).map_err(FilesError::at("create", target))
}

/// The files and directories that are mounted as parts of the volume `name` for containers of a pod. A target at which
/// nothing is mounted counts as itself.
pub(super) fn mounted(pod_dir: &Path, name: &str) -> Result<BTreeSet<Inode>, FilesError> {
    let mut found = BTreeSet::new();
    for container in entries(&pod_dir.join(SUB_PATHS).join(name))? {
        for target in entries(&container)? {
            let there = fs::symlink_metadata(&target).map_err(FilesError::at("stat", &target))?;
            found.insert((there.dev(), there.ino()));
        }
    }
    Ok(found)
}

/// The paths of a directory's entries; none if there is no such directory.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let at = || FilesError::at("readdir", directory);
    match fs::read_dir(directory) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        found => found.map_err(at())?.map(|entry| Ok(entry.map_err(at())?.path())).collect(),
    }
}

/// Parts that a pod has left: empty directories and files, once nothing is mounted there.
pub(super) fn remove(pod_dir: &Path) -> Result<(), FilesError> {
    crate::remove_tree::remove_tree(&pod_dir.join(SUB_PATHS))
}

#[cfg(test)]
mod tests;
