//! What trees of files take, and how full file systems are.
//!
//! In: paths. Out: amounts. Invariants: a walk stays on the file system that it began on, follows no link, and ends after
//! [`ENTRIES_MAX`] entries; what vanishes under it is not counted. Blocking. Upstream: pkg/volume/util/fs.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use agent_kubelet_api::stats::disk::{Filesystem, Taken, VolumeUse};
use agent_types::time::Wall;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, lstat};
use nix::sys::statvfs::statvfs;

use crate::files::FilesError;
use crate::project_quota::{self, Counted};

/// More than this are not walked: seconds of work, and megabytes of names.
pub const ENTRIES_MAX: u64 = 1_000_000;
/// How much of a path is opened at once; the kernel takes 4096 (PATH_MAX).
const STEP_BYTES: usize = 2048;
/// `st_blocks` counts these, whatever the file system's blocks are.
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
/// The path cannot be read, or there is too much in it.
pub fn volume(path: &Path, at: Wall) -> Result<VolumeUse, FilesError> {
    let fs = filesystem(path, at)?;
    let device = |path: &Path| std::fs::metadata(path).map(|m| m.dev()).map_err(FilesError::at("stat", path));
    let own = match path.parent() {
        Some(parent) => device(path)? != device(parent)?,
        None => true,
    };
    let taken = match (own, fs.inodes.zip(fs.inodes_free)) {
        (true, Some((all, free))) => Taken { at, bytes: fs.used_bytes, inodes: all.saturating_sub(free) },
        _ => tree(path, at, ENTRIES_MAX)?,
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
    let Some(Counted { bytes, inodes }) = counted else { return volume(path, at) };
    let taken = Some(Taken { at, bytes, inodes });
    Ok(VolumeUse { filesystem: Some(filesystem(path, at)?), taken, abnormal: None })
}

/// A volume that is all of the file system that it is on. Upstream: `MetricsStatFS`.
///
/// # Errors
/// The path cannot be asked.
pub fn whole_volume(path: &Path, at: Wall) -> Result<VolumeUse, FilesError> {
    let fs = filesystem(path, at)?;
    let inodes = fs.inodes.zip(fs.inodes_free).map_or(0, |(all, free)| all.saturating_sub(free));
    let taken = Taken { at, bytes: fs.used_bytes, inodes };
    Ok(VolumeUse { filesystem: Some(fs), taken: Some(taken), abnormal: None })
}

/// A tree with its top.
///
/// # Errors
/// A directory cannot be read, or there are more than `entries_max` entries.
pub fn tree(top: &Path, at: Wall, entries_max: u64) -> Result<Taken, FilesError> {
    let failed = |operation: &'static str| move |e: Errno| FilesError::at(operation, top)(e.into());
    let first = lstat(top).map_err(failed("stat"))?;
    let mut walk = Walk {
        device: first.st_dev,
        seen: BTreeSet::new(),
        entries: 0,
        taken: Taken { at, ..Taken::default() },
    };
    walk.count(&first);
    if !is_dir(&first) {
        return Ok(walk.taken);
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let root = match open(top, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(walk.taken),
        root => root.map_err(failed("read"))?,
    };
    // Whoever fills a volume chooses how deep it is: a directory that waits has its own name and no other.
    let mut waiting: Vec<Option<Rc<Below>>> = vec![None];
    while let Some(place) = waiting.pop() {
        let mut dir = match open_below(&root, place.as_deref()).and_then(Dir::from_fd) {
            // It went, or is something else by now.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => continue,
            dir => dir.map_err(failed("read"))?,
        };
        let mut names = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(failed("read"))?;
            if [c".", c".."].contains(&entry.file_name()) {
                continue;
            }
            walk.entries += 1;
            if walk.entries > entries_max {
                let many = format!("more than {entries_max} entries: it is not measured");
                return Err(FilesError::at("walk", top)(io::Error::new(io::ErrorKind::FileTooLarge, many)));
            }
            names.push(entry.file_name().to_owned());
        }
        for name in names {
            let found = fstatat(&dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
            let Some(found) = found.ok().filter(|found| found.st_dev == walk.device) else { continue };
            walk.count(&found);
            if is_dir(&found) {
                waiting.push(Some(Rc::new(Below { above: place.clone(), name })));
            }
        }
    }
    Ok(walk.taken)
}

/// A directory of a tree, by its name in the one above; `None` is the top.
struct Below {
    above: Option<Rc<Below>>,
    name: CString,
}

impl Drop for Below {
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

/// Opens a directory of a tree, in steps: all of its path may be longer than the kernel takes at once.
fn open_below(root: &OwnedFd, place: Option<&Below>) -> Result<OwnedFd, Errno> {
    let mut names = Vec::new();
    let mut at = place;
    while let Some(below) = at {
        names.push(below.name.as_bytes());
        at = below.above.as_deref();
    }
    let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV,
    );
    // An iterator over a directory has an offset, which descriptors that are clones share: the top is opened anew, too.
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
pub fn files_of(dir: &Path, at: Wall) -> Option<Taken> {
    let mut taken = Taken { at, ..Taken::default() };
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        // Links in a log directory lead to the same logs or to somebody else's.
        if let Ok(found) = entry.metadata()
            && !found.is_dir()
        {
            taken.bytes = taken.bytes.saturating_add(found.blocks().saturating_mul(BLOCK_BYTES));
            taken.inodes += 1;
        }
    }
    Some(taken)
}

struct Walk {
    device: u64,
    seen: BTreeSet<u64>,
    entries: u64,
    taken: Taken,
}

impl Walk {
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
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_counted_once_and_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        let file = top.join("a/b/file");
        std::fs::write(&file, vec![7_u8; 1 << 20]).unwrap();
        let before = tree(&top, Wall(5), 100).unwrap();
        assert!(before.bytes >= 1 << 20 && before.bytes < 2 << 20, "{before:?}");
        assert_eq!((before.inodes, before.at), (4, Wall(5)));
        std::fs::hard_link(&file, top.join("again")).unwrap();
        std::os::unix::fs::symlink("/usr", top.join("link")).unwrap();
        let after = tree(&top, Wall(5), 100).unwrap();
        assert_eq!(after.inodes, 5, "the link itself, not where it leads, and no second name");
        assert!(tree(&top, Wall(5), 4).unwrap_err().to_string().starts_with("walk "));
        assert_eq!(tree(&dir.path().join("none"), Wall(5), 4).unwrap_err().operation, "stat");
        assert_eq!(volume(&top, Wall(5)).unwrap().taken.unwrap(), after, "no file system of its own");
        let own = files_of(&top, Wall(5)).unwrap();
        assert_eq!(own.inodes, 2, "not what is below");
        assert_eq!(files_of(&dir.path().join("none"), Wall(5)), None);
    }

    #[test]
    fn a_tree_is_counted_however_deep_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        crate::remove_tree::tests::deep_tree(&top);
        let found = tree(&top, Wall(5), 1_000).unwrap();
        assert!(found.bytes >= 1 << 20, "{found:?}");
        // The top, four times a hundred and the one above them, and the file.
        assert_eq!(found.inodes, 1 + 4 * 101 + 1);
        crate::remove_tree::remove_tree(&top).unwrap();
    }

    #[test]
    fn file_systems_have_a_size() {
        let fs = filesystem(Path::new("/"), Wall(5)).unwrap();
        assert!(fs.capacity_bytes > 0 && fs.capacity_bytes >= fs.used_bytes && fs.at == Wall(5));
        let dev = volume(Path::new("/dev"), Wall(5)).unwrap().taken.unwrap();
        assert!(dev.inodes > 1, "a file system of its own: {dev:?}");
    }
}
