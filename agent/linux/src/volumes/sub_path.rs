//! Parts of volumes, mounted where a container finds them (`subPath`).
//!
//! In: a [`SubPath`]. Out: a bind mount of the part at its target. Invariants: the path is followed by `within.rs`, so
//! a container that swaps directories for links meanwhile gains nothing: the file that was opened is the one that is
//! mounted; directories that are made on the way have the volume's mode. Upstream:
//! pkg/volume/util/subpath/subpath_linux.go.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agent_volumes::mount_table;
use agent_volumes::sub_path::{SUB_PATHS, SubPath};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};

use super::atomic_writer::Inode;
use super::within::{Volume, WalkError, by_descriptor, kind};
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
    let volume = Volume::of_host(root).map_err(at("open", root))?;
    let mode = Mode::from_bits_truncate(volume.stat().map_err(at("stat", root))?.st_mode & MODE_BITS);
    let source = volume.find(Path::new(&part.path), Some(mode)).map_err(|e| refusal(part, &e))?;
    let found = fstat(&source).map_err(at("stat", &root.join(&part.path)))?;
    let target = target(pod_dir, part)?;
    if is_mounted(&target)? {
        if is_same(&target, &found) {
            return Ok(());
        }
        umount2(&target, MntFlags::UMOUNT_NOFOLLOW).map_err(at("umount", &target))?;
    }
    make_target(&target, &found)?;
    let source = by_descriptor(&source);
    let bound = mount(Some(source.as_str()), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>);
    Ok(bound.map_err(at("bind mount", &target))?)
}

fn at(operation: &'static str, path: &Path) -> impl FnOnce(Errno) -> FilesError {
    move |e| FilesError::at(operation, path)(e.into())
}

fn refusal(part: &SubPath, e: &WalkError) -> VolumeError {
    let SubPath { volume, container, path, .. } = part;
    let step = match e {
        WalkError::Make(_) => "create subPath directory",
        _ => "prepare subPath",
    };
    refused(format!("failed to {step} for volumeMount {volume:?} of container {container:?}: {path}: {e}"))
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
    let is_directory = kind(found) == SFlag::S_IFDIR;
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
