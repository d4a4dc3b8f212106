//! Makes the swap file and takes it into use; `plan::swap` decides. It is done before the agent starts, which reads how
//! much swap the machine has, and again at each boot, also if a power cut ended the last one.

use super::error::InitError;
use super::reserve::space;
use super::steps::{read, remove_file};
use crate::plan::swap::{FILE, Plan, Room, UNFINISHED, header, is_on, plan, wanted};
use crate::sys::swap;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{SysconfVar, sysconf};
use orlop_config::node::derive;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The size that the configuration asks for, text; `None` if it asks for none.
#[must_use]
pub fn asked() -> Option<String> {
    fs::read_to_string(derive::SWAP_FILE).ok()
}

/// Swaps to a file of the size that `text` asks for; answers what the ledger says. `var` is where the state partition is
/// mounted.
///
/// # Errors
/// There is no room for it, it cannot be made, or the kernel refuses it.
pub fn turn_on(var: &Path, text: &str) -> Result<String, InitError> {
    let page = page_size()?;
    let wanted = wanted(text, page)
        .ok_or_else(|| InitError::Refused(format!("{}: {text:?} is no size", derive::SWAP_FILE)))?;
    let path = var.join(FILE);
    let swaps = read("/proc/swaps")?;
    if is_on(&swaps, &path.display().to_string()) {
        return Ok("in use already".into());
    }
    // What a boot left that was cut off.
    remove_file(&var.join(UNFINISHED)).map_err(failed(var))?;
    let made = provide(var, wanted, page, room(var)?)?;
    swap::on(&path).map_err(|e| InitError::File {
        action: "swap to",
        path: path.display().to_string(),
        source: e.into(),
    })?;
    Ok(format!("{} MiB {}", wanted >> 20, if made { "made" } else { "kept" }))
}

fn room(var: &Path) -> Result<Room, InitError> {
    let (total, available) = space(var).map_err(failed(var))?;
    Ok(Room { total, available, there: fs::metadata(var.join(FILE)).ok().map(|of| of.len()) })
}

fn failed(var: &Path) -> impl Fn(io::Error) -> InitError {
    let path = var.join(FILE).display().to_string();
    move |source| InitError::File { action: "make the swap file", path: path.clone(), source }
}

/// A swap file of `wanted` bytes is there when this returns; true if it was made.
fn provide(var: &Path, wanted: u64, page: u64, room: Room) -> Result<bool, InitError> {
    let (path, unfinished) = (var.join(FILE), var.join(UNFINISHED));
    match plan(wanted, room).map_err(|no| InitError::Refused(no.to_string()))? {
        Plan::Keep => return Ok(false),
        Plan::Make(_) => remove_file(&path).map_err(failed(var))?,
    }
    let made = write(&unfinished, wanted, page).and_then(|()| fs::rename(&unfinished, &path));
    made.map_err(|e| {
        // What was allocated of it is of no use.
        let _ = fs::remove_file(&unfinished);
        failed(var)(e)
    })?;
    Ok(true)
}

fn write(path: &Path, bytes: u64, page: u64) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    // Memory of anybody may be in it.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // A swap file must not have holes.
    fallocate(&file, FallocateFlags::empty(), 0, i64::try_from(bytes).map_err(io::Error::other)?)?;
    let mut uuid = [0; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut uuid)?;
    file.write_all_at(&header(bytes, page, uuid), 0)?;
    file.sync_all()
}

fn page_size() -> Result<u64, InitError> {
    let size =
        sysconf(SysconfVar::PAGE_SIZE).map_err(|e| InitError::Kernel("ask for the size of a page", e))?;
    Ok(size.and_then(|size| u64::try_from(size).ok()).unwrap_or(4096))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    const MIB: u64 = 1 << 20;

    /// As if there were room on a disk of 1 TiB; this machine's disk does not matter.
    fn roomy(var: &Path) -> Room {
        Room { total: 1 << 40, available: 1 << 39, ..room(var).expect("its size") }
    }

    #[test]
    fn made_whole_kept_and_made_anew_in_another_size() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (var, path) = (dir.path(), dir.path().join(FILE));
        assert!(provide(var, 2 * MIB, 4096, roomy(var)).expect("made"));
        let of = fs::metadata(&path).expect("made");
        assert_eq!((of.len(), of.permissions().mode() & 0o777), (2 * MIB, 0o600));
        assert!(of.blocks() * 512 >= 2 * MIB, "it has holes");
        let first = fs::read(&path).expect("read");
        assert_eq!(&first[4086..4096], b"SWAPSPACE2");
        assert!(!provide(var, 2 * MIB, 4096, roomy(var)).expect("kept"));
        assert_eq!(fs::read(&path).expect("read"), first);
        assert!(provide(var, MIB, 4096, roomy(var)).expect("made anew"));
        assert_eq!(fs::metadata(&path).expect("made").len(), MIB);
        assert!(!var.join(UNFINISHED).exists());
    }

    #[test]
    fn what_does_not_fit_is_refused_and_nothing_is_lost() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let var = dir.path();
        provide(var, MIB, 4096, roomy(var)).expect("made");
        let full = Room { available: 1 << 30, ..roomy(var) };
        let refused = provide(var, 2 * MIB, 4096, full).expect_err("no room");
        assert!(refused.to_string().contains("make swap.size smaller"), "{refused}");
        assert_eq!(fs::metadata(var.join(FILE)).expect("still there").len(), MIB);
        // The disk has less than it said: what was begun is taken away.
        let endless = Room { total: 1 << 62, available: u64::MAX, there: None };
        provide(var, 1 << 60, 4096, endless).expect_err("no disk has that");
        assert!(!var.join(UNFINISHED).exists());
        let nonsense = turn_on(var, "much").expect_err("no size");
        assert!(nonsense.to_string().contains("/run/orlop/swap"), "{nonsense}");
    }
}
