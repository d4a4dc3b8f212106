//! fsGroup: everything in a volume becomes a group's, and the group may read it (and write it, if the volume is no
//! read-only one).
//!
//! In: a directory, a group. Out: changed owners and modes, how far the walk is. Invariants: a container may change names in there
//! meanwhile, so every entry is opened relative to its directory, no link is followed and no mount entered, and the owner and the
//! mode are changed by descriptor. Neither the number of entries nor the depth changes how much memory or how many descriptors the
//! walk needs: a level costs a few words, and only the innermost ones are open, each with the names of one read. A directory is read
//! from its beginning to its end, and only one that had to be closed meanwhile is read on from a place in it. The volume's own
//! directory is the last one that is given: until then it is not taken for given. A file that refuses its group or its mode is
//! passed over and logged, as upstream: pkg/volume/volume_linux.go. The caller may end the walk at any entry.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::fs::{self, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
/// Bytes of entries that are read at once: some hundred names.
const BUFFER: usize = 32 * 1024;

/// How far a walk is, and whether it is to go on.
#[derive(Debug, Default)]
pub struct Progress {
    entries: AtomicU64,
    ended: AtomicBool,
}

impl Progress {
    /// How many entries the walk has seen so far.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// The walk ends at its next entry, with an error of [`io::ErrorKind::Interrupted`].
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// [`Self::end`] was said.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The walk sees another entry.
    pub fn step(&self) {
        self.entries.fetch_add(1, Ordering::Relaxed);
    }
}

/// Gives `path` and everything in it to `group`, the innermost first.
///
/// # Errors
/// Something cannot be opened, read or looked at, or the walk was ended. What refuses its group or its mode is no error.
pub fn give(path: &Path, group: u32, read_only: bool, progress: &Progress) -> Result<(), FilesError> {
    give_levels(path, Rights { group, read_only }, LEVELS_MAX, progress)
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

/// A name that was read.
struct DirectoryEntry {
    name: CString,
    kind: FileType,
    /// Where the directory is to be read on after it; on some file systems no place that can be gone to.
    next: u64,
}

/// A directory that the walk is in.
struct Level {
    /// `None`: it has to be opened again.
    fd: Option<OwnedFd>,
    /// Device and inode.
    id: (u64, u64),
    /// Names that were read, and are next.
    batch: VecDeque<DirectoryEntry>,
    /// How many names were taken.
    taken: u64,
    /// What comes after the last of them.
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
    progress: &'p Progress,
    buffer: Vec<MaybeUninit<u8>>,
}

fn give_levels(
    path: &Path,
    rights: Rights,
    levels_max: usize,
    progress: &Progress,
) -> Result<(), FilesError> {
    let mut walk = Walk::new(path, rights, progress);
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
                    levels[outer].close();
                }
            }
            None => walk.leave(&mut levels)?,
        }
    }
    walk.report();
    Ok(())
}

impl Level {
    /// Too many are open: its names are read again later.
    fn close(&mut self) {
        self.fd = None;
        self.batch = VecDeque::new();
    }
}

impl<'p> Walk<'p> {
    fn new(top: &'p Path, rights: Rights, progress: &'p Progress) -> Walk<'p> {
        let buffer = vec![MaybeUninit::uninit(); BUFFER];
        Walk { top, rights, refused: None, passed_over: 0, progress, buffer }
    }

    fn level(&self, fd: OwnedFd) -> Result<Level, FilesError> {
        let found = fstat(&fd).map_err(|e| self.failed("stat", &fd, e))?;
        let id = (found.st_dev, found.st_ino);
        Ok(Level { fd: Some(fd), id, batch: VecDeque::new(), taken: 0, next: 0 })
    }

    /// The next names of a directory; none at its end.
    fn read(&mut self, fd: &OwnedFd) -> Result<VecDeque<DirectoryEntry>, FilesError> {
        let mut batch = VecDeque::new();
        let mut entries = RawDir::new(fd, &mut self.buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return Err(self.failed("readdir", fd, Errno::from_raw(e.raw_os_error()))),
            };
            let (name, kind) = (entry.file_name().to_owned(), entry.file_type());
            batch.push_back(DirectoryEntry { name, kind, next: entry.next_entry_cookie() });
            if entries.is_buffer_empty() {
                break;
            }
        }
        Ok(batch)
    }

    /// A directory that was closed is open again: it is read on after the last name that was taken. Where a file system has no
    /// place to go to (NFS gives out some that are beyond what seeking takes) as many names are passed over as were taken.
    fn reopen(&mut self, level: &mut Level, fd: OwnedFd) -> Result<(), FilesError> {
        if seek(&fd, SeekFrom::Start(level.next)).is_err() {
            let mut left = level.taken;
            while left > 0 {
                let mut batch = self.read(&fd)?;
                if batch.is_empty() {
                    break;
                }
                let passed = batch.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                batch.drain(..passed);
                left = left.saturating_sub(passed as u64);
                level.batch = batch;
            }
        }
        level.fd = Some(fd);
        Ok(())
    }

    /// Gives the entries of a directory up to the next one that is a directory itself.
    fn next_directory(&mut self, level: &mut Level) -> Result<Option<OwnedFd>, FilesError> {
        let Some(fd) = &level.fd else { return Ok(None) };
        loop {
            let Some(DirectoryEntry { name, kind, next }) = level.batch.pop_front() else {
                level.batch = self.read(fd)?;
                if level.batch.is_empty() {
                    return Ok(None);
                }
                continue;
            };
            (level.taken, level.next) = (level.taken.saturating_add(1), next);
            if [c".", c".."].contains(&name.as_c_str()) {
                continue;
            }
            if self.progress.is_ended() {
                return Err(FilesError::at("give", self.top)(io::ErrorKind::Interrupted.into()));
            }
            self.progress.step();
            if let Some(directory) = self.entry(fd, &name, kind)? {
                return Ok(Some(directory));
            }
        }
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
            Ok((found, up)) if (found.st_dev, found.st_ino) == above.id => self.reopen(above, up)?,
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
