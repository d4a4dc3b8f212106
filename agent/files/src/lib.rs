//! orlop-files: a small file is replaced whole; the record of configuration changes is one ([`change_record`]).
//!
//! In: path, contents, mode, and what must be on disk before the call returns. Out: the file, or the step that failed. Invariant: a
//! reader sees the old file or the new one, never a part; a call that fails leaves the old file as it was.
//!
//! Why no crate: the order of writes and syncs is all of the content, and `tempfile` chooses neither the neighbour's name (a
//! leftover must be found again) nor the syncs.
#![forbid(unsafe_code)]

pub mod change_record;

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use orlop_config::fnv::fnv64;

/// What is on disk when the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The file under its name: write-ahead records.
    Synced,
    /// The contents, before the name is given: after a power cut the file is the old or the new one, never an empty one.
    Contents,
    /// Nothing yet: what can be made again from its source, or lies in memory.
    Rebuildable,
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}", path.display())]
pub struct ReplaceError {
    /// System call or step.
    pub operation: &'static str,
    /// On which path.
    pub path: PathBuf,
    /// The system's words.
    #[source]
    pub source: io::Error,
}

/// Name of the neighbour through which a file of this name is written.
///
/// It has a leading dot, so that readers of directories of manifests and drop-ins pass over a leftover. It is the same for the
/// same name, so that the next write finds a leftover and removes it; and short, because the name itself may have all the bytes
/// that a name can have.
#[must_use]
pub fn temporary_name(name: &OsStr) -> String {
    format!(".orlop-new-{:016x}", fnv64(name.as_encoded_bytes()))
}

/// Replaces `path` with `contents`. The directory must be there. One writer of a path at a time.
///
/// # Errors
/// The step that failed. Only after a failed sync of the directory (`sync`) the new file has its name already.
pub fn replace(path: &Path, contents: &[u8], mode: u32, durability: Durability) -> Result<(), ReplaceError> {
    let at = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| ReplaceError { operation, path, source }
    };
    let (Some(name), Some(directory)) = (path.file_name(), path.parent()) else {
        return Err(at("write", path)(ErrorKind::InvalidInput.into()));
    };
    let temporary = directory.join(temporary_name(name));
    // A leftover of a crash may be a longer file or have another mode: start from nothing.
    match std::fs::remove_file(&temporary) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(at("unlink", &temporary)(e)),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(at("create", &temporary))?;
    let written = file.write_all(contents).and_then(|()| file.set_permissions(Permissions::from_mode(mode)));
    let synced = written.and_then(|()| match durability {
        Durability::Synced | Durability::Contents => file.sync_all(),
        Durability::Rebuildable => Ok(()),
    });
    if let Err(e) = synced.and_then(|()| std::fs::rename(&temporary, path)) {
        // Best effort: the next write starts by removing it.
        let _ = std::fs::remove_file(&temporary);
        return Err(at("write", path)(e));
    }
    if durability == Durability::Synced {
        // The directory of a relative path may be the empty one.
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        File::open(directory).and_then(|d| d.sync_all()).map_err(at("sync", directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_over_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(dir.path().join(temporary_name("a".as_ref())), "left by a crash, longer").unwrap();
        for (contents, mode, durability) in [
            ("one", 0o600, Durability::Synced),
            ("two", 0o644, Durability::Contents),
            ("", 0o640, Durability::Rebuildable),
        ] {
            replace(&path, contents.as_bytes(), mode, durability).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), contents);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, mode);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_name_may_have_all_the_bytes_that_a_name_can_have() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a".repeat(255), "b".repeat(255), "a".repeat(254)];
        for name in &names {
            let path = dir.path().join(name);
            replace(&path, name.as_bytes(), 0o600, Durability::Contents).unwrap();
            replace(&path, name.as_bytes(), 0o600, Durability::Synced).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), *name);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), names.len());
        let too_long = replace(&dir.path().join("a".repeat(256)), b"x", 0o600, Durability::Contents);
        assert_eq!(too_long.unwrap_err().operation, "write");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), names.len(), "no neighbour is left");
    }

    #[test]
    fn a_failure_names_the_step_and_leaves_no_neighbour() {
        let dir = tempfile::tempdir().unwrap();
        let missing = replace(&dir.path().join("no/a"), b"x", 0o600, Durability::Synced).unwrap_err();
        assert_eq!((missing.operation, missing.source.kind()), ("create", ErrorKind::NotFound));
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let taken = replace(&dir.path().join("a"), b"x", 0o600, Durability::Synced).unwrap_err();
        assert_eq!(taken.operation, "write");
        assert!(!dir.path().join(temporary_name("a".as_ref())).exists());
        assert_eq!(replace(Path::new("/"), b"", 0, Durability::Synced).unwrap_err().operation, "write");
    }
}
