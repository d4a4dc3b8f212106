//! Removes a directory tree without ever leaving its filesystem or following a link.
//!
//! Each directory is opened relative to its parent with `openat2` (RESOLVE_NO_XDEV: not even a bind mount
//! of the same filesystem is entered; RESOLVE_NO_SYMLINKS), so that nothing a pod does to names in there
//! can make the agent remove something elsewhere. Upstream term: remove all on one filesystem.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::files::FilesError;

/// Deeper trees are refused: they are no work of a kubelet, and the walk keeps one descriptor a level.
const DEPTH_MAX: usize = 128;

/// Removes `path` and everything below it; a missing `path` is a success.
///
/// # Errors
/// `CrossesDevices` or `ResourceBusy` names the mount point that is in the way. What is not below it may be
/// gone already; calling again after the unmount finishes the work.
pub fn remove_tree(path: &Path) -> Result<(), FilesError> {
    let Some(parent) = path.parent() else {
        return Err(FilesError::at("remove", path)(io::Error::from(io::ErrorKind::InvalidInput)));
    };
    let name = path.file_name().ok_or_else(|| {
        FilesError::at("remove", path)(io::Error::new(io::ErrorKind::InvalidInput, "has no last component"))
    })?;
    let how = OpenHow::new().flags(OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY);
    let parent_fd = match openat2(AT_FDCWD, parent, how) {
        Ok(fd) => fd,
        Err(Errno::ENOENT) => return Ok(()),
        Err(e) => return Err(FilesError::at("open", parent)(e.into())),
    };
    let name = c_name(path, name)?;
    remove_entry(parent_fd.as_fd(), &name, path.to_owned(), None, 0)
}

/// Removes one name in `parent`. `device` is the tree's device, once known.
fn remove_entry(
    parent: BorrowedFd<'_>,
    name: &CStr,
    path: PathBuf,
    device: Option<u64>,
    depth: usize,
) -> Result<(), FilesError> {
    if depth > DEPTH_MAX {
        let e = io::Error::new(io::ErrorKind::InvalidInput, format!("deeper than {DEPTH_MAX} directories"));
        return Err(FilesError::at("remove", &path)(e));
    }
    match open_directory(parent, name) {
        Ok(fd) => {
            let stat: FileStat = fstat(&fd).map_err(|e| FilesError::at("stat", &path)(e.into()))?;
            if device.is_some_and(|d| d != stat.st_dev) {
                return Err(FilesError::at("remove", &path)(Errno::EXDEV.into()));
            }
            empty_directory(fd, &path, stat.st_dev, depth)?;
            unlink(parent, name, &path, UnlinkatFlags::RemoveDir)
        }
        // Not a directory, or a link: unlink the name itself.
        Err(Errno::ENOTDIR | Errno::ELOOP) => unlink(parent, name, &path, UnlinkatFlags::NoRemoveDir),
        Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(FilesError::at("open", &path)(e.into())),
    }
}

fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY | OFlag::O_NOFOLLOW)
        .resolve(
            ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH,
        );
    openat2(parent, name, how)
}

fn empty_directory(fd: OwnedFd, path: &Path, device: u64, depth: usize) -> Result<(), FilesError> {
    let mut directory = Dir::from_fd(fd).map_err(|e| FilesError::at("readdir", path)(e.into()))?;
    // Names first: removing while reading a directory may skip entries on some filesystems.
    let mut entries = Vec::new();
    for entry in directory.iter() {
        let entry = entry.map_err(|e| FilesError::at("readdir", path)(e.into()))?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            entries.push((name.to_owned(), entry.file_type()));
        }
    }
    for (name, kind) in entries {
        let below = path.join(OsStr::from_bytes(name.to_bytes()));
        if matches!(kind, Some(Type::Directory) | None) {
            remove_entry(directory.as_fd(), &name, below, Some(device), depth + 1)?;
        } else {
            unlink(directory.as_fd(), &name, &below, UnlinkatFlags::NoRemoveDir)?;
        }
    }
    Ok(())
}

fn unlink(parent: BorrowedFd<'_>, name: &CStr, path: &Path, flags: UnlinkatFlags) -> Result<(), FilesError> {
    match unlinkat(parent, name, flags) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(FilesError::at("unlink", path)(e.into())),
    }
}

fn c_name(path: &Path, name: &OsStr) -> Result<CString, FilesError> {
    CString::new(name.as_bytes())
        .map_err(|e| FilesError::at("remove", path)(io::Error::new(io::ErrorKind::InvalidInput, e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::drivers::Class;
    use nix::mount::{MntFlags, MsFlags, mount, umount2};

    #[test]
    fn removes_everything_but_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious"), "x").unwrap();
        let tree = dir.path().join("pods/uid");
        std::fs::create_dir_all(tree.join("volumes/empty-dir/data")).unwrap();
        std::fs::write(tree.join("volumes/empty-dir/data/file"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        nix::unistd::mkfifo(&tree.join("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(tree.parent().unwrap().exists());
        assert!(outside.join("precious").exists());
        remove_tree(&tree).unwrap();
        remove_tree(&dir.path().join("never/was/here")).unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_the_tree_is_unlinked_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious"), "x").unwrap();
        let tree = dir.path().join("uid");
        std::os::unix::fs::symlink(&outside, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(outside.join("precious").exists());
        assert!(!tree.is_symlink());
    }

    /// Mounts a bind of `source` over `target`; `None` where the test machine does not let us mount.
    fn bind(source: &Path, target: &Path) -> Option<()> {
        mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).ok()
    }

    #[test]
    fn a_bind_mount_of_the_same_filesystem_is_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious"), "x").unwrap();
        let tree = dir.path().join("uid");
        let target = tree.join("volumes/host");
        std::fs::create_dir_all(&target).unwrap();
        if bind(&outside, &target).is_none() {
            eprintln!("skipped: this machine does not let the test mount");
            return;
        }
        let e = remove_tree(&tree).unwrap_err();
        assert_eq!(e.class(), Class::Conflict, "{e:?}");
        assert_eq!(e.path, target);
        assert!(outside.join("precious").exists());
        umount2(&target, MntFlags::MNT_DETACH).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn too_deep_a_tree_is_refused_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("deep");
        let mut path = tree.clone();
        for _ in 0..=DEPTH_MAX + 1 {
            path.push("d");
        }
        std::fs::create_dir_all(&path).unwrap();
        assert_eq!(remove_tree(&tree).unwrap_err().class(), Class::Invalid);
    }
}
