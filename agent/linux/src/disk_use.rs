//! What trees of files take, and how full file systems are.
//!
//! In: paths. Out: amounts. Invariants: a walk stays on the file system that it began on, follows no link, and ends at its
//! [`Limits`]; what vanishes under it is not counted. Containers choose how much there is to count: an amount that is not all says
//! so ([`Bound::AtLeast`]), and is no error. Blocking. Upstream: pkg/volume/util/fs.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use agent_kubelet_api::stats::disk::{Bound, Filesystem, TreeUsage, VolumeUse};
use agent_types::time::Wall;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, lstat};
use nix::sys::statvfs::statvfs;

use crate::files::FilesError;
use crate::project_quota::{self, ProjectUsage};

/// Where a walk ends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Entries that are counted. A million are seconds of work, and megabytes of names.
    pub entries: u64,
    /// Names by which directories are opened, the sum over all directories: their number times how deep they are. A hundred million
    /// are seconds of work; a container can make directories so deep that their walk would take hours.
    pub names: u64,
}

/// The limits of a volume.
pub const LIMITS: Limits = Limits { entries: 1_000_000, names: 100_000_000 };
/// How much of a path is opened at once; the kernel takes 4096 (PATH_MAX).
const STEP_BYTES: usize = 2048;
/// `st_blocks` counts these; the block size of the file system does not matter.
const BLOCK_BYTES: u64 = 512;

/// The file system that `path` is on.
///
/// # Errors
/// `statvfs` with the path.
pub fn filesystem(path: &Path, at: Wall) -> Result<Filesystem, FilesError> {
    let stat = statvfs(path).map_err(|e| FilesError::at("statvfs", path)(e.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    let inodes = (stat.files() > 0).then_some(stat.files());
    Ok(Filesystem {
        at,
        available_bytes: bytes(stat.blocks_available()),
        capacity_bytes: bytes(stat.blocks()),
        used_bytes: bytes(stat.blocks().saturating_sub(stat.blocks_free())),
        inodes,
        inodes_free: inodes.map(|_| stat.files_free()),
    })
}

/// A volume: where it is a file system of its own that says how much is used, that is believed; else it is walked.
///
/// # Errors
/// The path cannot be looked at.
pub fn volume(path: &Path, at: Wall) -> Result<VolumeUse, FilesError> {
    let fs = filesystem(path, at)?;
    let device = |path: &Path| std::fs::metadata(path).map(|m| m.dev()).map_err(FilesError::at("stat", path));
    let own = match path.parent() {
        Some(parent) => device(path)? != device(parent)?,
        None => true,
    };
    let taken = match (own, fs.inodes.zip(fs.inodes_free)) {
        (true, Some((all, free))) => {
            TreeUsage { at, bytes: fs.used_bytes, inodes: all.saturating_sub(free), bound: Bound::Exact }
        }
        _ => tree(path, at, LIMITS)?,
    };
    Ok(VolumeUse { filesystem: Some(fs), taken: Some(taken), abnormal: None })
}

/// A volume that may have a project of its own: then its file system knows what is in it, also in files that are open and have
/// no name any more. Else it is walked. Upstream: `MetricsDu`, `GetConsumption`.
///
/// # Errors
/// As for [`volume`].
pub fn counted_volume(path: &Path, at: Wall) -> Result<VolumeUse, FilesError> {
    let counted = project_quota::counted(path).unwrap_or_else(|error| {
        tracing::debug!(path = %path.display(), %error, source = %error.source, "a volume is walked");
        None
    });
    let Some(ProjectUsage { bytes, inodes }) = counted else { return volume(path, at) };
    let taken = Some(TreeUsage { at, bytes, inodes, bound: Bound::Exact });
    Ok(VolumeUse { filesystem: Some(filesystem(path, at)?), taken, abnormal: None })
}

/// A volume that is all of the file system that it is on. Upstream: `MetricsStatFS`.
///
/// # Errors
/// The path cannot be asked.
pub fn whole_volume(path: &Path, at: Wall) -> Result<VolumeUse, FilesError> {
    let fs = filesystem(path, at)?;
    let inodes = fs.inodes.zip(fs.inodes_free).map_or(0, |(all, free)| all.saturating_sub(free));
    let taken = TreeUsage { at, bytes: fs.used_bytes, inodes, bound: Bound::Exact };
    Ok(VolumeUse { filesystem: Some(fs), taken: Some(taken), abnormal: None })
}

/// A tree with its top: all of it, or as much as was counted when the walk came to a limit or to something that it could not look
/// into.
///
/// # Errors
/// The top cannot be looked at.
pub fn tree(top: &Path, at: Wall, limits: Limits) -> Result<TreeUsage, FilesError> {
    let failed = |operation: &'static str| move |e: Errno| FilesError::at(operation, top)(e.into());
    let first = lstat(top).map_err(failed("stat"))?;
    let taken = TreeUsage { at, ..TreeUsage::default() };
    let mut walk = Walk { top, device: first.st_dev, seen: BTreeSet::new(), limits, taken };
    walk.count(&first);
    if !is_dir(&first) {
        return Ok(walk.taken);
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let root = match open(top, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(walk.taken),
        root => root.map_err(failed("read"))?,
    };
    // The container that fills a volume chooses how deep it is: a waiting directory is stored by its own
    // name, not by its path.
    let mut waiting: Vec<Option<Rc<TreeDirectory>>> = vec![None];
    while let Some(place) = waiting.pop() {
        match walk.directory(&root, place.as_ref(), &mut waiting) {
            Ok(()) => {}
            // It was removed, or is something else by now.
            Err(Stop::Kernel(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV)) => {}
            Err(Stop::Kernel(e)) => walk.missed("a directory cannot be read", e),
            Err(Stop::Limit) => {
                walk.taken.bound = Bound::AtLeast;
                break;
            }
        }
    }
    Ok(walk.taken)
}

/// Why a directory is not counted to its end.
enum Stop {
    /// The kernel refuses.
    Kernel(Errno),
    /// The walk is at one of its limits.
    Limit,
}

impl From<Errno> for Stop {
    fn from(e: Errno) -> Stop {
        Stop::Kernel(e)
    }
}

/// A directory of a tree, by its name in the one above; `None` is the top.
struct TreeDirectory {
    above: Option<Rc<TreeDirectory>>,
    name: CString,
}

impl Drop for TreeDirectory {
    /// One after the other: a chain that is dropped by itself needs a frame for each of its links.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut last) = above.and_then(Rc::into_inner) {
            above = last.above.take();
        }
    }
}

fn is_dir(found: &FileStat) -> bool {
    SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
}

/// The names of a directory of a tree, the innermost first.
fn names_of(place: Option<&Rc<TreeDirectory>>) -> Vec<&[u8]> {
    let mut names = Vec::new();
    let mut at = place;
    while let Some(below) = at {
        names.push(below.name.as_bytes());
        at = below.above.as_ref();
    }
    names
}

/// Opens a directory of a tree, in steps: all of its path may be longer than the kernel takes at once.
fn open_below(root: &OwnedFd, names: Vec<&[u8]>) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV,
    );
    // An iterator over a directory has an offset, which descriptors that are clones share: the top is opened again, too.
    let mut step = b".".to_vec();
    let mut held: Option<OwnedFd> = None;
    let go = |held: &Option<OwnedFd>, step: &[u8]| {
        openat2(held.as_ref().unwrap_or(root), OsStr::from_bytes(step), how)
    };
    for name in names.into_iter().rev() {
        if step.len() + 1 + name.len() > STEP_BYTES {
            held = Some(go(&held, &step)?);
            step.clear();
            step.push(b'.');
        }
        step.push(b'/');
        step.extend_from_slice(name);
    }
    go(&held, &step)
}

/// The files of one directory, without those below it; `None` if there is none.
#[must_use]
pub fn files_of(dir: &Path, at: Wall) -> Option<TreeUsage> {
    let mut taken = TreeUsage { at, ..TreeUsage::default() };
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        // Links in a log directory lead to the same logs or to files outside the directory.
        if let Ok(found) = entry.metadata()
            && !found.is_dir()
        {
            taken.bytes = taken.bytes.saturating_add(found.blocks().saturating_mul(BLOCK_BYTES));
            taken.inodes += 1;
        }
    }
    Some(taken)
}

struct Walk<'p> {
    top: &'p Path,
    device: u64,
    seen: BTreeSet<u64>,
    /// What is left of them.
    limits: Limits,
    taken: TreeUsage,
}

impl Walk<'_> {
    /// Counts what is in a directory; the directories in it wait.
    fn directory(
        &mut self,
        root: &OwnedFd,
        place: Option<&Rc<TreeDirectory>>,
        waiting: &mut Vec<Option<Rc<TreeDirectory>>>,
    ) -> Result<(), Stop> {
        let way = names_of(place);
        let steps = u64::try_from(way.len()).unwrap_or(u64::MAX);
        self.limits.names = self.limits.names.checked_sub(steps).ok_or(Stop::Limit)?;
        let mut dir = open_below(root, way).and_then(Dir::from_fd)?;
        let mut names = Vec::new();
        let mut end = Ok(());
        for entry in dir.iter() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    end = Err(Stop::Kernel(e));
                    break;
                }
            };
            if [c".", c".."].contains(&entry.file_name()) {
                continue;
            }
            let Some(left) = self.limits.entries.checked_sub(1) else {
                end = Err(Stop::Limit);
                break;
            };
            self.limits.entries = left;
            names.push(entry.file_name().to_owned());
        }
        // What was read is counted, also if there is more.
        for name in names {
            match fstatat(&dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(found) if found.st_dev == self.device => {
                    self.count(&found);
                    if is_dir(&found) {
                        waiting.push(Some(Rc::new(TreeDirectory { above: place.cloned(), name })));
                    }
                }
                Ok(_) | Err(Errno::ENOENT) => {}
                Err(e) => self.missed("an entry cannot be looked at", e),
            }
        }
        end
    }

    fn missed(&mut self, what: &'static str, error: Errno) {
        if self.taken.bound == Bound::Exact {
            tracing::warn!(path = %self.top.display(), %error, what, "a tree counts as at least what could be counted");
        }
        self.taken.bound = Bound::AtLeast;
    }

    fn count(&mut self, found: &FileStat) {
        if !is_dir(found) && found.st_nlink > 1 && !self.seen.insert(found.st_ino) {
            return;
        }
        let blocks = u64::try_from(found.st_blocks).unwrap_or_default();
        self.taken.bytes = self.taken.bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
        self.taken.inodes += 1;
    }
}

#[cfg(test)]
mod tests;
