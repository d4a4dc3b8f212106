//! Has the kernel announce once more the devices that udev has rules for: those that were there before it (coldplug).
//!
//! The same as `udevadm trigger --type=devices --action=add` for these subsystems, without a service of its own. The
//! kernel keeps the announcements for systemd-udevd's socket, which is bound before bringup starts.

use super::error::InitError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What brings a driver, a network card, the power button or the management API's port; the rest has no rule in the image.
const BUSES: [&str; 9] = ["acpi", "pci", "platform", "usb", "virtio", "scsi", "vmbus", "xen", "mmc"];
const CLASSES: [&str; 4] = ["block", "net", "input", "virtio-ports"];

/// Announces all of them.
///
/// # Errors
/// The list of a subsystem that is there cannot be read. A device that is gone or refuses is passed over: it has none
/// to announce any more, or will never have.
pub fn run() -> Result<String, InitError> {
    let devices = devices(Path::new("/sys"))?;
    let told = devices.iter().filter(|device| fs::write(device.join("uevent"), "add").is_ok()).count();
    Ok(format!("{told} devices"))
}

/// Real directories of the devices, parents before what hangs on them.
fn devices(sys: &Path) -> Result<Vec<PathBuf>, InitError> {
    let buses = BUSES.iter().map(|bus| sys.join("bus").join(bus).join("devices"));
    let classes = CLASSES.iter().map(|class| sys.join("class").join(class));
    let mut out = Vec::new();
    for list in buses.chain(classes) {
        let unreadable =
            |source| InitError::File { action: "read", path: list.display().to_string(), source };
        match fs::read_dir(&list) {
            Ok(entries) => {
                out.extend(entries.flatten().filter_map(|entry| fs::canonicalize(entry.path()).ok()))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(unreadable(e)),
        }
    }
    out.sort();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn devices_of_buses_and_classes_parents_first() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let sys = fs::canonicalize(dir.path()).expect("real path");
        let (card, port) = (sys.join("devices/pci0/1"), sys.join("devices/pci0/1/virtio0/net/eth0"));
        fs::create_dir_all(&port).expect("fixture");
        for (list, name, target) in [("class/net", "eth0", &port), ("bus/pci/devices", "1", &card)] {
            fs::create_dir_all(sys.join(list)).expect("fixture");
            symlink(target, sys.join(list).join(name)).expect("fixture");
        }
        symlink("nowhere", sys.join("class/net/gone")).expect("fixture");
        assert_eq!(devices(&sys).expect("readable"), [card, port]);
        fs::write(sys.join("class/input"), "no directory").expect("fixture");
        assert!(devices(&sys).expect_err("unreadable").to_string().contains("class/input"));
    }
}
