//! Makes and gives up the emergency reserve; `plan::reserve` decides.

use super::error::InitError;
use crate::plan::reserve::{FILE, bytes, has_room};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Gives it up; answers its size, or none if there is none. `var` is where the state partition is mounted.
#[must_use]
pub fn release(var: &Path) -> Option<u64> {
    let path = var.join(FILE);
    let length = fs::metadata(&path).ok()?.len();
    fs::remove_file(&path).ok().map(|()| length)
}

/// Makes it if it is absent and there is room; answers what the ledger says.
///
/// # Errors
/// It cannot be made although there is room.
pub fn make(var: &Path) -> Result<String, InitError> {
    let path = var.join(FILE);
    let failed = |source: io::Error| InitError::File {
        action: "make the emergency reserve",
        path: path.display().to_string(),
        source,
    };
    if let Ok(there) = fs::metadata(&path) {
        return Ok(format!("{} MiB kept", there.len() >> 20));
    }
    let (total, available) = space(var).map_err(failed)?;
    if !has_room(available, total) {
        return Ok(format!("none: only {} MiB are free", available >> 20));
    }
    let size = bytes(total);
    allocate(&path, size).map_err(|e| {
        // What was allocated of it is of no use.
        let _ = fs::remove_file(&path);
        failed(e)
    })?;
    Ok(format!("{} MiB made", size >> 20))
}

/// Size of a file system, and what is free on it, bytes.
pub(super) fn space(at: &Path) -> io::Result<(u64, u64)> {
    let stat = statvfs(at)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    Ok((bytes(stat.blocks()), bytes(stat.blocks_available())))
}

fn allocate(path: &Path, size: u64) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let length = i64::try_from(size).map_err(io::Error::other)?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, length)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_and_given_up_once() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert_eq!(release(dir.path()), None);
        let made = make(dir.path()).expect("made");
        assert!(made.ends_with(" MiB made"), "this machine's disk has room: {made}");
        assert!(make(dir.path()).expect("kept").ends_with(" MiB kept"));
        let size = release(dir.path()).expect("there is one");
        assert!(size > 0 && !dir.path().join(FILE).exists());
        assert_eq!(release(dir.path()), None);
    }
}
