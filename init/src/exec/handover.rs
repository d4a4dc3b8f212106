//! The hand-over: mounts moved, initramfs freed, root switched, systemd executed.

use super::error::InitError;
use super::steps::apply_all;
use crate::plan::mounts::{self, SYSROOT};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use nix::unistd::{chdir, chroot, execve};
use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Magic of ramfs, which nix does not name: the initramfs of a kernel without tmpfs or with `root=` given.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// What PID 1 may be in the root, in order of preference.
const INITS: [&CStr; 2] = [c"/usr/lib/systemd/systemd", c"/sbin/init"];

/// Is `/` an initramfs? Anything else is a file system with data, and freeing it would be wiping it.
#[must_use]
pub fn root_is_initramfs() -> bool {
    statfs("/").is_ok_and(|s| [RAMFS_MAGIC, TMPFS_MAGIC].contains(&s.filesystem_type()))
}

/// Moves the API file systems, frees the initramfs and makes /sysroot the root.
///
/// # Errors
/// A mount could not be moved.
pub fn switch_root() -> Result<(), InitError> {
    apply_all(&mounts::handover())?;
    if root_is_initramfs() {
        free(Path::new("/"));
    }
    let kernel = |what| move |e| InitError::Kernel(what, e);
    chdir(SYSROOT).map_err(kernel("enter /sysroot"))?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)
        .map_err(kernel("move /sysroot to /"))?;
    chroot(".").map_err(kernel("change root"))?;
    chdir("/").map_err(kernel("enter the new root"))
}

/// Executes systemd; returns only if it cannot.
///
/// # Errors
/// No init program could be executed.
pub fn execute() -> Result<Infallible, InitError> {
    let mut last = nix::Error::ENOENT;
    let environment = [CString::from(c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")];
    for program in INITS {
        match execve(program, &[program], &environment) {
            Ok(never) => return Ok(never),
            Err(e) => last = e,
        }
    }
    Err(InitError::Kernel("execute /usr/lib/systemd/systemd", last))
}

/// Deletes what is on the initramfs itself: the memory is free for pods. Mount points are other devices and
/// are left; what cannot be deleted stays, which costs memory and nothing else.
fn free(dir: &Path) {
    let Ok(device) = fs::symlink_metadata(dir).map(|m| m.dev()) else { return };
    free_below(dir, device);
}

fn free_below(dir: &Path, device: u64) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.dev() != device {
            continue;
        }
        if metadata.is_dir() {
            free_below(&path, device);
            let _ = fs::remove_dir(&path);
        } else {
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freeing_takes_everything_but_follows_no_link() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let outside = dir.path().join("outside");
        let inside = dir.path().join("root/a/b");
        fs::create_dir_all(&inside).and_then(|()| fs::write(&outside, "kept")).expect("fixture");
        fs::write(inside.join("file"), "x").expect("fixture");
        std::os::unix::fs::symlink(&outside, inside.join("link")).expect("fixture");
        free(&dir.path().join("root"));
        assert_eq!(fs::read_dir(dir.path().join("root")).expect("root").count(), 0);
        assert_eq!(fs::read_to_string(outside).expect("kept"), "kept");
    }
}
