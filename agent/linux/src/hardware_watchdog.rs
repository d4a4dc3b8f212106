//! What the machine's watchdogs report about the reset before this boot.
//!
//! In: `/sys/class/watchdog`, and whether udev is still at work: drivers of devices are loaded while the agent runs.
//! Out: the boot status of each that has one. Invariant: no watchdog is opened: that would start it, and they are the
//! service manager's. Kernel: Documentation/ABI/testing/sysfs-class-watchdog, `WDIOF_*` in linux/watchdog.h.

use std::fs;
use std::path::Path;

use crate::files::{self, FilesError};

/// Where the kernel shows them.
pub const CLASS: &str = "/sys/class/watchdog";
/// There is such a file while udev has events to carry out.
pub const UDEV_QUEUE: &str = "/run/udev/queue";
/// A number has no more, bytes.
const NUMBER_MAX: u64 = 32;

/// The boot status of each watchdog that has one, by name; none if there is no watchdog (yet).
///
/// # Errors
/// The directory or a status cannot be read.
pub fn boot_status(class: &Path) -> Result<Vec<u32>, FilesError> {
    if !class.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = files::visible_names(class)?;
    names.sort();
    let mut all = Vec::new();
    for name in names {
        let path = class.join(name).join("bootstatus");
        // A driver without the kernel's watchdog core has none.
        if !path.exists() {
            continue;
        }
        let text = files::read_capped(&path, NUMBER_MAX)?;
        all.extend(String::from_utf8_lossy(&text).trim().parse::<u32>());
    }
    Ok(all)
}

/// udev has handled every event that it got.
#[must_use]
pub fn udev_is_idle(queue: &Path) -> bool {
    fs::symlink_metadata(queue).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let class = dir.path().join("watchdog");
        assert_eq!(boot_status(&class).unwrap(), [0_u32; 0], "no such class");
        fs::create_dir(&class).unwrap();
        assert_eq!(boot_status(&class).unwrap(), [0_u32; 0]);
        for (name, text) in [("watchdog1", "0\n"), ("watchdog0", "32\n"), ("watchdog2", "x\n")] {
            fs::create_dir(class.join(name)).unwrap();
            fs::write(class.join(name).join("bootstatus"), text).unwrap();
        }
        fs::create_dir(class.join("watchdog3")).unwrap();
        assert_eq!(boot_status(&class).unwrap(), [32, 0]);
        fs::remove_file(class.join("watchdog0/bootstatus")).unwrap();
        fs::create_dir(class.join("watchdog0/bootstatus")).unwrap();
        assert!(boot_status(&class).is_err());
    }

    #[test]
    fn udev_has_a_queue_while_it_works() {
        let dir = tempfile::tempdir().unwrap();
        let queue = dir.path().join("queue");
        assert!(udev_is_idle(&queue));
        fs::write(&queue, "").unwrap();
        assert!(!udev_is_idle(&queue));
    }
}
