//! Directories of a CSI driver that runs in the node itself, mounted at the requested paths.
//!
//! In: a directory of the driver, a path of the kubelet, a label. Out: a mount, or none. Invariant: every call is
//! idempotent, as CSI requires.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use orlop_config::procfs;

/// Makes a directory of the driver's.
pub(super) fn make(disk: &Path) -> Result<()> {
    fs::create_dir_all(disk).with_context(|| format!("make {}", disk.display()))
}

fn is_mounted(at: &Path) -> Result<bool> {
    let text = fs::read_to_string("/proc/self/mounts").context("read the mount table")?;
    Ok(procfs::mounts(&text).iter().any(|mounted| Some(mounted.target) == at.to_str()))
}

/// Mounts a directory, unless something is mounted there.
pub(super) fn bind(from: &Path, at: &Path) -> Result<()> {
    make(at)?;
    if is_mounted(at)? {
        return Ok(());
    }
    let none: Option<&str> = None;
    mount(Some(from), at, none, MsFlags::MS_BIND, none).with_context(|| format!("mount {}", at.display()))
}

/// Mounts an empty file system whose files all have the SELinux label of the option, unless the path is a mount point.
pub(super) fn labelled(option: &str, at: &Path) -> Result<()> {
    make(at)?;
    if is_mounted(at)? {
        return Ok(());
    }
    let kind = Some("tmpfs");
    mount(kind, at, kind, MsFlags::empty(), Some(option))
        .with_context(|| format!("mount {} with {option}", at.display()))
}

/// Unmounts the directory and removes it.
pub(super) fn unbind(at: &Path) -> Result<()> {
    match umount2(at, MntFlags::empty()) {
        // The path is not a mount point, or does not exist.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(error) => return Err(error).with_context(|| format!("unmount {}", at.display())),
    }
    match fs::remove_dir(at) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {}", at.display()))
        }
        _ => Ok(()),
    }
}
