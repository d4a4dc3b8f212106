//! Block devices of the CSI driver of cases: loop devices over files of the node.
//!
//! In: a volume's handle. Out: a device, its node in the file system. Invariant: dropping the value removes the loop
//! device.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use nix::sys::stat::{Mode, SFlag, mknod};

/// Size of a new device, bytes.
pub const DEVICE_BYTES: u64 = 1 << 20;

/// The devices, by the handles of their volumes.
#[derive(Debug, Default)]
pub struct Devices(Mutex<BTreeMap<String, Device>>);

#[derive(Debug)]
struct Device {
    file: PathBuf,
    /// The node of it in the host's `/dev`.
    node: PathBuf,
}

impl Drop for Device {
    fn drop(&mut self) {
        // Another device may use it: then it is removed when that one is.
        let _ = losetup(&["-d".as_ref(), self.node.as_ref()]);
        let _ = fs::remove_file(&self.file);
    }
}

/// CAP_SYS_RESOURCE (linux/capability.h).
const SYS_RESOURCE: u32 = 24;

/// Programs of this machine's nodes may make a file system larger while it is mounted.
///
/// # Errors
/// If `/proc` does not say.
pub fn may_grow() -> Result<bool> {
    let status = fs::read_to_string("/proc/self/status").context("read what this process may do")?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).context("no CapBnd")?;
    Ok(u64::from_str_radix(line.trim(), 16).context("CapBnd")? >> SYS_RESOURCE & 1 == 1)
}

fn losetup(arguments: &[&std::ffi::OsStr]) -> Result<String> {
    let done = Command::new("losetup").args(arguments).output().context("run losetup")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "losetup {arguments:?}: {said}");
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

impl Devices {
    /// Makes the volume's device, over a file in `directory`.
    ///
    /// # Errors
    /// If the file or the loop device cannot be made.
    pub fn make(&self, directory: &Path, handle: &str) -> Result<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.contains_key(handle) {
            return Ok(());
        }
        let file = directory.join(format!("disk-of-{handle}"));
        fs::create_dir_all(directory)?;
        File::create(&file).and_then(|f| f.set_len(DEVICE_BYTES)).context("make the disk")?;
        let node = losetup(&["-f".as_ref(), "--show".as_ref(), file.as_os_str()])?;
        all.insert(handle.to_owned(), Device { file, node: node.into() });
        Ok(())
    }

    /// The device itself.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn node(&self, handle: &str) -> Result<PathBuf> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(all.get(handle).context("there is no device")?.node.clone())
    }

    /// Makes the device available at `target`, too.
    ///
    /// # Errors
    /// If there is no such device, or its node cannot be made.
    pub fn publish(&self, handle: &str, target: &Path) -> Result<()> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let device = all.get(handle).context("there is no device")?;
        if fs::symlink_metadata(target).is_ok_and(|found| found.file_type().is_block_device()) {
            return Ok(());
        }
        let number = fs::metadata(&device.node)?.rdev();
        let made = mknod(target, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, number);
        made.with_context(|| format!("make {}", target.display()))
    }

    /// Removes the device from the target.
    pub(crate) fn unpublish(target: &Path) -> Result<()> {
        match fs::remove_file(target) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// The device is as large as this at least.
    ///
    /// # Errors
    /// If there is no such device, or it does not grow.
    pub fn grow(&self, handle: &str, bytes: u64) -> Result<()> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let device = all.get(handle).context("there is no device")?;
        File::options().write(true).open(&device.file)?.set_len(bytes)?;
        losetup(&["-c".as_ref(), device.node.as_ref()]).map(drop)
    }

    /// There is no device of this volume.
    pub fn remove(&self, handle: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(handle);
    }
}
