//! Removes a directory tree without ever leaving its filesystem or following a link.
//!
//! Each directory is opened relative to its parent with `openat2` (RESOLVE_NO_XDEV: not even a bind mount
//! of the same filesystem is entered; RESOLVE_NO_SYMLINKS), so that nothing a pod does to names in there
//! can make the agent remove something elsewhere. What lies too deep for one walk is moved to the top of the tree and
//! removed from there, so that no tree is too deep; names are read a few at a time, so that none is too wide. Upstream
//! term: remove all on one filesystem.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Iter, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, RenameFlags, ResolveFlag, openat2, renameat2};
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::files::FilesError;

/// The walk keeps a descriptor and a frame for each level; what is deeper is moved up.
const DEPTH_MAX: usize = 64;
/// Names of one directory that are in memory at once: a pod decides how many it has.
const BATCH: usize = 2000;

/// One walk through a tree.
struct Walk {
    top: OwnedFd,
    device: u64,
    /// Directories that were moved to the top.
    moved: u64,
}

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
    while !remove_levels(parent_fd.as_fd(), &name, path)? {}
    Ok(())
}

/// Removes as much of the tree as one walk can; true once it is gone.
fn remove_levels(parent: BorrowedFd<'_>, name: &CStr, path: &Path) -> Result<bool, FilesError> {
    let fd = match open_directory(parent, name) {
        Ok(fd) => fd,
        // Not a directory, or a link: unlink the name itself.
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            return unlink(parent, name, path, UnlinkatFlags::NoRemoveDir).map(|()| true);
        }
        Err(Errno::ENOENT) => return Ok(true),
        Err(e) => return Err(FilesError::at("open", path)(e.into())),
    };
    let stat: FileStat = fstat(&fd).map_err(|e| FilesError::at("stat", path)(e.into()))?;
    let top = fd.try_clone().map_err(FilesError::at("open", path))?;
    let mut walk = Walk { top, device: stat.st_dev, moved: 0 };
    walk.empty_directory(fd, path, 0)?;
    if walk.moved > 0 {
        return Ok(false);
    }
    unlink(parent, name, path, UnlinkatFlags::RemoveDir).map(|()| true)
}

impl Walk {
    /// Removes one name in `parent`, which lies `depth` directories below the top.
    fn remove_entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        path: PathBuf,
        depth: usize,
    ) -> Result<(), FilesError> {
        if depth > DEPTH_MAX {
            return self.move_up(parent, name, &path);
        }
        match open_directory(parent, name) {
            Ok(fd) => {
                let stat: FileStat = fstat(&fd).map_err(|e| FilesError::at("stat", &path)(e.into()))?;
                if self.device != stat.st_dev {
                    return Err(FilesError::at("remove", &path)(Errno::EXDEV.into()));
                }
                self.empty_directory(fd, &path, depth)?;
                unlink(parent, name, &path, UnlinkatFlags::RemoveDir)
            }
            Err(Errno::ENOTDIR | Errno::ELOOP) => unlink(parent, name, &path, UnlinkatFlags::NoRemoveDir),
            Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(FilesError::at("open", &path)(e.into())),
        }
    }

    fn empty_directory(&mut self, fd: OwnedFd, path: &Path, depth: usize) -> Result<(), FilesError> {
        let parent = fd.try_clone().map_err(FilesError::at("open", path))?;
        let mut directory = Dir::from_fd(fd).map_err(|e| FilesError::at("readdir", path)(e.into()))?;
        loop {
            // Each `iter` begins with the first entry.
            let mut entries = directory.iter();
            let mut removed = 0;
            loop {
                let names = next_names(&mut entries, path)?;
                if names.is_empty() {
                    break;
                }
                removed += names.len();
                for (name, kind) in names {
                    let below = path.join(OsStr::from_bytes(name.to_bytes()));
                    if matches!(kind, Some(Type::Directory) | None) {
                        self.remove_entry(parent.as_fd(), &name, below, depth + 1)?;
                    } else {
                        unlink(parent.as_fd(), &name, &below, UnlinkatFlags::NoRemoveDir)?;
                    }
                }
            }
            // Some file systems skip entries where others are removed between two reads: then all is read again.
            if removed < BATCH {
                return Ok(());
            }
        }
    }

    /// Moves it to the top, under a name that is free there; the next walk finds it. A mount point stays where it is.
    fn move_up(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: &Path) -> Result<(), FilesError> {
        loop {
            self.moved += 1;
            let there = c_name(path, OsStr::new(&format!(".deep-{}", self.moved)))?;
            let flags = RenameFlags::RENAME_NOREPLACE;
            match renameat2(parent, name, self.top.as_fd(), there.as_c_str(), flags) {
                Ok(()) | Err(Errno::ENOENT) => return Ok(()),
                Err(Errno::EEXIST) => {}
                Err(e) => return Err(FilesError::at("rename", path)(e.into())),
            }
        }
    }
}

/// The next names of a directory, and what they are names of, as far as the file system says.
fn next_names(entries: &mut Iter<'_>, path: &Path) -> Result<Vec<(CString, Option<Type>)>, FilesError> {
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| FilesError::at("readdir", path)(e.into()))?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push((name.to_owned(), entry.file_type()));
            if names.len() == BATCH {
                break;
            }
        }
    }
    Ok(names)
}

fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_RDONLY | OFlag::O_NOFOLLOW)
        .resolve(
            ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH,
        );
    openat2(parent, name, how)
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
pub(crate) mod tests {
    use super::*;
    use agent_types::failure::Class;
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

    /// Makes `top`, four times a hundred and one directories under each other in it, and a file of a mebibyte in the innermost.
    /// Each hundred goes below the one before it, so that no call ever names all of them: a path is shorter than that.
    pub(crate) fn deep_tree(top: &Path) {
        let (new, piece) = (top.with_extension("new"), ["a-directory-with-a-long-name"; 100].join("/"));
        std::fs::create_dir(top).unwrap();
        for round in 0..4 {
            std::fs::create_dir_all(new.join(&piece)).unwrap();
            if round == 0 {
                std::fs::write(new.join(&piece).join("file"), vec![7_u8; 1 << 20]).unwrap();
            } else {
                std::fs::rename(top.join("next"), new.join(&piece).join("next")).unwrap();
            }
            std::fs::rename(&new, top.join("next")).unwrap();
        }
    }

    #[test]
    fn no_directory_is_too_wide() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("wide");
        std::fs::create_dir_all(tree.join("sub")).unwrap();
        for at in [&tree, &tree.join("sub")] {
            for number in 0..2 * BATCH + 1 {
                std::fs::write(at.join(format!("f{number}")), "").unwrap();
            }
        }
        let mut directory = Dir::open(&tree, OFlag::O_RDONLY, nix::sys::stat::Mode::empty()).unwrap();
        let mut entries = directory.iter();
        let read = [(); 4].map(|()| next_names(&mut entries, &tree).unwrap().len());
        assert_eq!(read, [BATCH, BATCH, 2, 0], "never more at once");
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn no_tree_is_too_deep() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("deep");
        // Longer than a path may be, and several walks deep; another file has a name that the walk would use.
        deep_tree(&tree);
        std::fs::write(tree.join(".deep-1"), "x").unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn a_mount_that_lies_deep_is_named_and_left() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious"), "x").unwrap();
        let target = dir.path().join("deep").join(["d"; DEPTH_MAX + 1].join("/"));
        std::fs::create_dir_all(&target).unwrap();
        if bind(&outside, &target).is_none() {
            eprintln!("skipped: this machine does not let the test mount");
            return;
        }
        let e = remove_tree(&dir.path().join("deep")).unwrap_err();
        assert_eq!((e.class(), e.path), (Class::Conflict, target.clone()));
        assert!(outside.join("precious").exists());
        umount2(&target, MntFlags::MNT_DETACH).unwrap();
        remove_tree(&dir.path().join("deep")).unwrap();
        assert!(!dir.path().join("deep").exists() && outside.join("precious").exists());
    }
}
