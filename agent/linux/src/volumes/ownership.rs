//! fsGroup: everything in a volume becomes a group's, and the group may read it (and write it, if the volume is no
//! read-only one).
//!
//! In: a directory, a group. Out: changed owners and modes. Invariants: a container may change names in there meanwhile, so
//! every entry is opened relative to its directory, no link is followed and no mount entered, and the owner and the mode are
//! changed by descriptor. Neither the number of entries nor the depth changes how much memory or how many descriptors the walk
//! needs: a level costs a few words, and only the innermost ones are open. The volume's own directory is the last one that is
//! given: until then it is not taken for given. A file that refuses its group or its mode is passed over and logged, as
//! upstream: pkg/volume/volume_linux.go.

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{Gid, fchownat};
use rustix::fs::{FileType, RawDir, SeekFrom, seek};

use super::within::{by_descriptor, kind};
use crate::files::FilesError;

/// Levels whose directories are open at once; the one of the volume itself is always open.
const OPEN_MAX: usize = 32;
/// Deeper directories are passed over.
const LEVELS_MAX: usize = 100_000;
/// Bytes of entries that are read at once. Little: they are read again after each directory among them.
const BUFFER: usize = 4096;

/// Gives `path` and everything in it to `group`, the innermost first.
///
/// # Errors
/// Something cannot be opened, read or looked at. What refuses its group or its mode is no error.
pub(super) fn give(path: &Path, group: u32, read_only: bool) -> Result<(), FilesError> {
    give_levels(path, Rights { group, read_only }, LEVELS_MAX)
}

/// The root of a volume is the group's already, as [`give`] leaves it. Upstream: requiresPermissionChange.
pub(super) fn is_given(path: &Path, group: u32) -> bool {
    fs::metadata(path).is_ok_and(|found| {
        let (mode, wanted) = (found.mode() & 0o7777, 0o2770);
        found.is_dir() && found.gid() == group && mode & wanted == wanted
    })
}

/// Whose everything becomes, and whether they may write.
#[derive(Clone, Copy)]
struct Rights {
    group: u32,
    read_only: bool,
}

impl Rights {
    /// The mode that a file or a directory is to have; a link's means nothing.
    fn mode(self, found: &FileStat) -> u32 {
        let read_and_write = if self.read_only { 0o440 } else { 0o660 };
        let mask = match kind(found) {
            SFlag::S_IFDIR => read_and_write | 0o2110,
            SFlag::S_IFLNK => 0,
            _ => read_and_write,
        };
        found.st_mode & 0o7777 | mask
    }

    fn are_there(self, found: &FileStat) -> bool {
        found.st_gid == self.group && self.mode(found) == found.st_mode & 0o7777
    }
}

/// A directory that the walk is in.
struct Level {
    /// `None`: it has to be opened again.
    fd: Option<OwnedFd>,
    /// Device and inode.
    id: (u64, u64),
    /// From where its entries are to be read on.
    next: u64,
}

/// What the kernel refused, for one line in the log.
struct Refused {
    operation: &'static str,
    path: PathBuf,
    error: Errno,
}

struct Walk<'p> {
    top: &'p Path,
    rights: Rights,
    refused: Option<Refused>,
    /// How many entries were passed over.
    passed_over: u64,
}

fn give_levels(path: &Path, rights: Rights, levels_max: usize) -> Result<(), FilesError> {
    let mut walk = Walk { top: path, rights, refused: None, passed_over: 0 };
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let top = match open(path, directory, Mode::empty()) {
        Err(Errno::ENOTDIR) => {
            let top = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
            walk.give(&top.map_err(|e| FilesError::at("open", path)(e.into()))?)?;
            return Ok(());
        }
        top => top.map_err(|e| FilesError::at("open", path)(e.into()))?,
    };
    let mut levels = vec![walk.level(top)?];
    while let Some(level) = levels.last_mut() {
        match walk.next_directory(level)? {
            Some(below) if levels.len() >= levels_max => {
                walk.pass_over("enter", &below, Errno::ENAMETOOLONG);
                walk.give(&below)?;
            }
            Some(below) => {
                levels.push(walk.level(below)?);
                if let Some(outer) = levels.len().checked_sub(OPEN_MAX).filter(|outer| *outer > 0) {
                    levels[outer].fd = None;
                }
            }
            None => walk.leave(&mut levels)?,
        }
    }
    walk.report();
    Ok(())
}

impl Walk<'_> {
    fn level(&self, fd: OwnedFd) -> Result<Level, FilesError> {
        let found = fstat(&fd).map_err(|e| self.failed("stat", &fd, e))?;
        Ok(Level { fd: Some(fd), id: (found.st_dev, found.st_ino), next: 0 })
    }

    /// Gives the entries of a directory up to the next one that is a directory itself.
    fn next_directory(&mut self, level: &mut Level) -> Result<Option<OwnedFd>, FilesError> {
        let Some(fd) = &level.fd else { return Ok(None) };
        let read = |e: rustix::io::Errno| self.failed("readdir", fd, Errno::from_raw(e.raw_os_error()));
        seek(fd, SeekFrom::Start(level.next)).map_err(read)?;
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|e| self.failed("readdir", fd, Errno::from_raw(e.raw_os_error())))?;
            level.next = entry.next_entry_cookie();
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if let Some(directory) = self.entry(fd, name, entry.file_type())? {
                return Ok(Some(directory));
            }
        }
        Ok(None)
    }

    /// Gives one entry, unless it is a directory that is to be walked through first.
    fn entry(
        &mut self,
        parent: &OwnedFd,
        name: &CStr,
        kind: FileType,
    ) -> Result<Option<OwnedFd>, FilesError> {
        if matches!(kind, FileType::Directory | FileType::Unknown) {
            let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
            match open_below(parent.as_fd(), name, directory) {
                Ok(directory) => return Ok(Some(directory)),
                // Another file system, or gone.
                Err(Errno::EXDEV | Errno::ENOENT) => return Ok(None),
                // It is given itself.
                Err(e @ (Errno::EACCES | Errno::EPERM)) => self.pass_over("open", parent, e),
                Err(Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(e) => return Err(self.failed("open in", parent, e)),
            }
        }
        // Most entries of a volume that was given before are right.
        match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) if self.rights.are_there(&found) => return Ok(None),
            Ok(_) => {}
            Err(Errno::ENOENT) => return Ok(None),
            Err(e @ (Errno::EACCES | Errno::EPERM)) => {
                self.pass_over("stat in", parent, e);
                return Ok(None);
            }
            Err(e) => return Err(self.failed("stat in", parent, e)),
        }
        match open_below(parent.as_fd(), name, OFlag::O_PATH) {
            Ok(entry) => self.give(&entry)?,
            Err(Errno::EXDEV | Errno::ENOENT) => {}
            Err(e @ (Errno::EACCES | Errno::EPERM)) => self.pass_over("open in", parent, e),
            Err(e) => return Err(self.failed("open in", parent, e)),
        }
        Ok(None)
    }

    /// Everything in the innermost directory is given: gives the directory, and goes back to the one above.
    fn leave(&mut self, levels: &mut Vec<Level>) -> Result<(), FilesError> {
        let Some(fd) = levels.pop().and_then(|level| level.fd) else { return Ok(()) };
        self.give(&fd)?;
        let Some(above) = levels.last_mut().filter(|above| above.fd.is_none()) else { return Ok(()) };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = openat(&fd, "..", flags, Mode::empty()).and_then(|up| Ok((fstat(&up)?, up)));
        match opened {
            Ok((found, up)) if (found.st_dev, found.st_ino) == above.id => above.fd = Some(up),
            // A container moved the directory: the way back is lost, what is left of it is passed over.
            Ok(_) => {
                self.pass_over("leave", &fd, Errno::ESTALE);
                levels.truncate(1);
            }
            Err(e) => {
                self.pass_over("leave", &fd, e);
                levels.truncate(1);
            }
        }
        Ok(())
    }

    /// Gives the file or directory that was opened. The owner comes first: changing it takes bits of the mode away.
    fn give(&mut self, opened: &OwnedFd) -> Result<(), FilesError> {
        let found = fstat(opened).map_err(|e| self.failed("stat", opened, e))?;
        if self.rights.are_there(&found) {
            return Ok(());
        }
        if found.st_gid != self.rights.group {
            let group = Some(Gid::from_raw(self.rights.group));
            if let Err(e) = fchownat(opened, c"", None, group, AtFlags::AT_EMPTY_PATH) {
                self.pass_over("chown", opened, e);
            }
        }
        if kind(&found) == SFlag::S_IFLNK {
            return Ok(());
        }
        // The kernel changes no mode by a descriptor that is only a path's; this name is the descriptor's file itself.
        let mode = Permissions::from_mode(self.rights.mode(&found));
        if let Err(e) = fs::set_permissions(by_descriptor(opened), mode) {
            self.pass_over("chmod", opened, Errno::from_raw(e.raw_os_error().unwrap_or_default()));
        }
        Ok(())
    }

    /// Where something that was opened is, for people.
    fn place(&self, opened: &OwnedFd) -> PathBuf {
        fs::read_link(by_descriptor(opened)).unwrap_or_else(|_| self.top.to_owned())
    }

    fn failed(&self, operation: &'static str, opened: &OwnedFd, e: Errno) -> FilesError {
        FilesError::at(operation, &self.place(opened))(e.into())
    }

    fn pass_over(&mut self, operation: &'static str, opened: &OwnedFd, error: Errno) {
        self.passed_over = self.passed_over.saturating_add(1);
        if self.refused.is_none() {
            self.refused = Some(Refused { operation, path: self.place(opened), error });
        }
    }

    fn report(&self) {
        let Some(Refused { operation, path, error }) = &self.refused else { return };
        tracing::warn!(
            volume = %self.top.display(), group = self.rights.group, passed_over = self.passed_over,
            operation, path = %path.display(), error = %io::Error::from(*error),
            "files of a volume are not their group's: the first of those that were passed over"
        );
    }
}

fn open_below(parent: BorrowedFd<'_>, name: &CStr, flags: OFlag) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new().flags(flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).resolve(
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV,
    );
    openat2(parent, name, how)
}

#[cfg(test)]
mod tests;
