//! Writes a volume's files so that a reader sees either all old or all new files.
//!
//! ```text
//! volume/..2026_11_22_02_30_00.0/a/b   the files of one version
//! volume/..data -> ..2026_11_22_02_30_00.0      replaced by a rename of ..data_tmp: the moment of the change
//! volume/a -> ..data/a                          one link for each first part of a path
//! ```
//! In: a directory, files by clean paths. Out: the layout above. Invariants: an unchanged volume is not
//! written; a crash at any point leaves one complete version, and the next write removes the remains; an old
//! version stays as long as a part of it is mounted by `subPath`. Upstream: pkg/volume/util/atomic_writer.go;
//! containers that watch `..data` rely on this layout.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use agent_types::time::Wall;
use agent_volumes::paths;
use agent_volumes::payload::Payload;

use super::invalid;
use crate::files::FilesError;
use crate::remove_tree::remove_tree;

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// The device and the inode of a file or a directory.
pub(super) type Inode = (u64, u64);

/// Makes `files` what `volume` holds. `own` is called with the volume's directory before a new version is shown; `mounted`
/// says which files and directories are mounted by `subPath`, and is asked only if an old version is there.
///
/// # Errors
/// The step that failed; calling again goes on.
pub(super) fn write(
    volume: &Path,
    files: &Payload,
    now: Wall,
    own: impl Fn(&Path) -> Result<(), FilesError>,
    mounted: impl FnOnce() -> Result<BTreeSet<Inode>, FilesError>,
) -> Result<(), FilesError> {
    for path in files.keys() {
        // A path that is not clean was not checked: nothing may be written there.
        if paths::clean(path).as_deref() != Ok(path) {
            return Err(invalid("write", &volume.join(path), "is no clean path".to_owned()));
        }
    }
    let data = volume.join(DATA);
    let current = match std::fs::read_link(&data) {
        Ok(target) => Some(version(volume, &target)?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(FilesError::at("readlink", &data)(e)),
    };
    let unchanged = match &current {
        Some(current) => is_same(current, files)?,
        None => false,
    };
    if !unchanged {
        let new = new_version(volume, now)?;
        write_version(&new, files)?;
        own(volume)?;
        show(volume, &new)?;
    }
    link(volume, files)?;
    let old = clean_up(volume, files)?;
    if old.is_empty() {
        return Ok(());
    }
    let mounted = mounted()?;
    for version in old {
        if !holds_one_of(&version, &mounted)? {
            remove_tree(&version)?;
        }
    }
    Ok(())
}

/// The directory that `..data` names: a version of this volume and nothing else.
fn version(volume: &Path, target: &Path) -> Result<PathBuf, FilesError> {
    let name = target.to_str().filter(|name| name.starts_with("..") && name.len() > 2 && !name.contains('/'));
    match name {
        Some(name) => Ok(volume.join(name)),
        None => Err(invalid("readlink", &volume.join(DATA), format!("{} is no version", target.display()))),
    }
}

/// The version holds these files, with the same bytes, and no others.
fn is_same(version: &Path, files: &Payload) -> Result<bool, FilesError> {
    for (path, content) in files {
        let path = version.join(path);
        match std::fs::read(&path) {
            Ok(bytes) if bytes == content.data => {}
            Ok(_) => return Ok(false),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(false);
            }
            Err(e) => return Err(FilesError::at("read", &path)(e)),
        }
    }
    let mut there = BTreeSet::new();
    match list(version, Path::new(""), &mut there) {
        Ok(()) => Ok(there.iter().all(|path| files.contains_key(path))),
        Err(e) if e.source.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// All files of a version, by their paths in it.
fn list(directory: &Path, below: &Path, found: &mut BTreeSet<String>) -> Result<(), FilesError> {
    let at = FilesError::at("readdir", directory);
    for entry in std::fs::read_dir(directory).map_err(at)? {
        let entry = entry.map_err(FilesError::at("readdir", directory))?;
        let path = below.join(entry.file_name());
        let kind = entry.file_type().map_err(FilesError::at("stat", directory))?;
        if kind.is_dir() {
            list(&entry.path(), &path, found)?;
        } else {
            found.insert(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn new_version(volume: &Path, now: Wall) -> Result<PathBuf, FilesError> {
    let stem = paths::version_directory(now);
    for number in 0..u32::MAX {
        let path = volume.join(format!("{stem}{number}"));
        match DirBuilder::new().mode(0o755).create(&path) {
            Ok(()) => {
                let mode = Permissions::from_mode(0o755);
                std::fs::set_permissions(&path, mode).map_err(FilesError::at("chmod", &path))?;
                return Ok(path);
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(FilesError::at("mkdir", &path)(e)),
        }
    }
    Err(invalid("mkdir", volume, "has no name left for a version".to_owned()))
}

fn write_version(version: &Path, files: &Payload) -> Result<(), FilesError> {
    for (path, content) in files {
        let path = version.join(path);
        if let Some(parent) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o777).create(parent);
            made.map_err(FilesError::at("mkdir", parent))?;
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(FilesError::at("create", &path))?;
        file.write_all(&content.data).map_err(FilesError::at("write", &path))?;
        if let Some(user) = content.user {
            chown(&path, Some(user), None).map_err(FilesError::at("chown", &path))?;
        }
        // After the owner: changing it takes bits away.
        let mode = Permissions::from_mode(content.mode & 0o7777);
        file.set_permissions(mode).map_err(FilesError::at("chmod", &path))?;
    }
    Ok(())
}

/// The moment of the change.
fn show(volume: &Path, new: &Path) -> Result<(), FilesError> {
    let (link, data) = (volume.join(DATA_NEW), volume.join(DATA));
    let Some(name) = new.file_name() else { return Err(invalid("symlink", new, "has no name".to_owned())) };
    match std::fs::remove_file(&link) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(FilesError::at("unlink", &link)(e)),
        _ => {}
    }
    symlink(name, &link).map_err(FilesError::at("symlink", &link))?;
    std::fs::rename(&link, &data).map_err(FilesError::at("rename", &data))
}

fn first(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

/// One link for each first part of a path.
fn link(volume: &Path, files: &Payload) -> Result<(), FilesError> {
    let names: BTreeSet<&str> = files.keys().map(|path| first(path)).collect();
    for name in names {
        let path = volume.join(name);
        match symlink(Path::new(DATA).join(name), &path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(FilesError::at("symlink", &path)(e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes links into the data that lead nowhere any more. Answers with every version but the current one.
fn clean_up(volume: &Path, files: &Payload) -> Result<Vec<PathBuf>, FilesError> {
    let data = volume.join(DATA);
    let current = std::fs::read_link(&data).map_err(FilesError::at("readlink", &data))?;
    let names: BTreeSet<&str> = files.keys().map(|path| first(path)).collect();
    let mut old = Vec::new();
    for entry in std::fs::read_dir(volume).map_err(FilesError::at("readdir", volume))? {
        let entry = entry.map_err(FilesError::at("readdir", volume))?;
        let (name, path) = (entry.file_name(), entry.path());
        let shown = name.to_string_lossy();
        if shown.starts_with("..") {
            // `..data` itself is a link.
            let is_dir = entry.file_type().map_err(FilesError::at("stat", &path))?.is_dir();
            if is_dir && Path::new(&name) != current {
                old.push(path);
            }
            continue;
        }
        let into_data = std::fs::read_link(&path).is_ok_and(|target| target.starts_with(DATA));
        if into_data && !names.contains(shown.as_ref()) {
            std::fs::remove_file(&path).map_err(FilesError::at("unlink", &path))?;
        }
    }
    Ok(old)
}

/// `path` or something below it is one of these. The kernel refuses to mount a file again once its name was removed, and
/// the runtime mounts it when it starts the container: later than the agent, and in another process.
fn holds_one_of(path: &Path, inodes: &BTreeSet<Inode>) -> Result<bool, FilesError> {
    if inodes.is_empty() {
        return Ok(false);
    }
    let found = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found.map_err(FilesError::at("stat", path))?,
    };
    if inodes.contains(&(found.dev(), found.ino())) {
        return Ok(true);
    }
    if !found.is_dir() {
        return Ok(false);
    }
    for entry in std::fs::read_dir(path).map_err(FilesError::at("readdir", path))? {
        let entry = entry.map_err(FilesError::at("readdir", path))?;
        if holds_one_of(&entry.path(), inodes)? {
            return Ok(true);
        }
    }
    Ok(false)
}
