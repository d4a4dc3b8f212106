//! What the kernel kept of its log when it died (pstore: ACPI ERST, EFI variables, reserved memory), in `/sys/fs/pstore`.
//!
//! In: that directory. Out: the texts; copies in a directory of the state partition. Invariant: a record is removed from
//! the store, which is small and has no other owner, only when its copy is on disk. Kernel:
//! Documentation/admin-guide/pstore-blk.rst, fs/pstore.

use std::fs;
use std::path::Path;

use crate::files::{self, Durability, FilesError};

/// Where the kernel shows the store.
pub const STORE: &str = "/sys/fs/pstore";
/// More of one record is not read, bytes.
const RECORD_MAX: u64 = 1 << 20;
/// Prefix of logs of a kernel that died or restarted.
const LOG: &str = "dmesg-";

/// The logs that are in the store, one after another; empty if there is none or no store.
///
/// # Errors
/// The directory or a record cannot be read.
pub fn read(store: &Path) -> Result<String, FilesError> {
    let mut all = String::new();
    for name in records(store)? {
        let bytes = files::read_capped(&store.join(name), RECORD_MAX)?;
        all.push_str(&String::from_utf8_lossy(&bytes));
        all.push('\n');
    }
    Ok(all)
}

/// Moves the logs to `archive`, which is made if there is something to keep. How many there were.
///
/// # Errors
/// The first that cannot be copied or removed; it stays in the store.
pub fn archive(store: &Path, archive: &Path) -> Result<usize, FilesError> {
    let names = records(store)?;
    for name in &names {
        let from = store.join(name);
        let bytes = files::read_capped(&from, RECORD_MAX)?;
        files::make_dir(archive, 0o750)?;
        files::write_atomic(&archive.join(name), &bytes, 0o640, Durability::Synced)?;
        fs::remove_file(&from).map_err(FilesError::at("remove", &from))?;
    }
    Ok(names.len())
}

fn records(store: &Path) -> Result<Vec<String>, FilesError> {
    if !store.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = files::visible_names(store)?;
    names.retain(|name| name.starts_with(LOG));
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read_and_moved() {
        let dir = tempfile::tempdir().unwrap();
        let (store, kept) = (dir.path().join("pstore"), dir.path().join("kept/boot"));
        assert_eq!(read(&store).unwrap(), "");
        assert_eq!(archive(&store, &kept).unwrap(), 0);
        fs::create_dir(&store).unwrap();
        fs::create_dir(dir.path().join("kept")).unwrap();
        for (name, text) in
            [("dmesg-erst-2", &b"Kernel panic\xff"[..]), ("dmesg-erst-1", b"Oops"), ("console-1", b"x")]
        {
            fs::write(store.join(name), text).unwrap();
        }
        assert_eq!(read(&store).unwrap(), "Oops\nKernel panic\u{fffd}\n");
        assert_eq!(archive(&store, &kept).unwrap(), 2);
        assert_eq!(read(&store).unwrap(), "");
        assert_eq!(fs::read(kept.join("dmesg-erst-2")).unwrap(), b"Kernel panic\xff");
        assert!(store.join("console-1").exists());
        fs::write(store.join("dmesg-erst-3"), "again").unwrap();
        fs::remove_dir_all(&kept).unwrap();
        fs::write(&kept, "in the way").unwrap();
        assert!(archive(&store, &kept).is_err());
        assert_eq!(read(&store).unwrap(), "again\n", "what could not be copied stays");
    }
}
