//! What trees of files take, and how full file systems are.
//!
//! In: paths. Out: amounts. Invariants: a walk stays on the file system that it began on, follows no link, and ends after
//! [`ENTRIES_MAX`] entries; what vanishes under it is not counted. Blocking. Upstream: pkg/volume/util/fs.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agent_core::stats::disk::{Filesystem, Taken, VolumeUse};
use agent_core::time::Wall;
use nix::sys::statvfs::statvfs;

use crate::files::FilesError;
use crate::project_quota::{self, Counted};

/// More than this are not walked: seconds of work, and megabytes of names.
pub const ENTRIES_MAX: u64 = 1_000_000;
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
    let first = std::fs::symlink_metadata(top).map_err(FilesError::at("stat", top))?;
    let mut walk = Walk {
        device: first.dev(),
        seen: BTreeSet::new(),
        entries: 0,
        taken: Taken { at, ..Taken::default() },
    };
    walk.count(&first);
    let mut waiting: Vec<PathBuf> = first.is_dir().then(|| top.to_owned()).into_iter().collect();
    while let Some(dir) = waiting.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(FilesError::at("read", &dir))?,
        };
        for entry in entries {
            let Ok(entry) = entry else { continue };
            let Ok(found) = entry.metadata() else { continue };
            if found.dev() != walk.device {
                continue;
            }
            walk.entries += 1;
            if walk.entries > entries_max {
                let many = format!("more than {entries_max} entries: it is not measured");
                return Err(FilesError::at("walk", top)(io::Error::new(io::ErrorKind::FileTooLarge, many)));
            }
            walk.count(&found);
            if found.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    Ok(walk.taken)
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
    fn count(&mut self, found: &std::fs::Metadata) {
        if !found.is_dir() && found.nlink() > 1 && !self.seen.insert(found.ino()) {
            return;
        }
        self.taken.bytes = self.taken.bytes.saturating_add(found.blocks().saturating_mul(BLOCK_BYTES));
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
    fn file_systems_have_a_size() {
        let fs = filesystem(Path::new("/"), Wall(5)).unwrap();
        assert!(fs.capacity_bytes > 0 && fs.capacity_bytes >= fs.used_bytes && fs.at == Wall(5));
        let dev = volume(Path::new("/dev"), Wall(5)).unwrap().taken.unwrap();
        assert!(dev.inodes > 1, "a file system of its own: {dev:?}");
    }
}
