//! What the kernel calls the disk behind a device number, by names that no other disk gets.
//!
//! In: a device number, sysfs. Out: lines of names. Invariant: neither `sdX` nor the number is among them: the next disk that is
//! attached may have both. Kernel: Documentation/ABI (sysfs-block: `diskseq`, `partition`, `start`, `size`; `wwid` and `uuid` of
//! SCSI and NVMe), `dm/uuid` of the device mapper.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Files below a disk's directory that name the disk, wherever it is attached.
const NAMES: [&str; 7] = ["wwid", "uuid", "serial", "dm/uuid", "device/wwid", "device/serial", "device/cid"];
/// Names one attachment of a disk, in one boot (Linux 5.15).
const ATTACHMENT: &str = "diskseq";
/// What makes a partition this one.
const PART: [&str; 3] = ["partition", "start", "size"];

/// All names; `None` if there is none.
pub(super) fn of(sys: &Path, number: u64) -> Option<String> {
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let own = fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}"))).ok()?;
    let part = PART.map(|name| read(&own, name));
    let whole = if part[0].is_some() { own.parent()? } else { &own };
    let mut lines = String::new();
    for name in NAMES.iter().chain([&ATTACHMENT]) {
        if let Some(value) = read(whole, name) {
            // A String takes everything.
            let _ = writeln!(lines, "{name} {value}");
        }
    }
    if lines.is_empty() {
        return None;
    }
    if let [Some(partition), Some(start), Some(size)] = part {
        let _ = writeln!(lines, "partition {partition} at {start} of {size}");
    }
    Some(lines)
}

fn read(directory: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(directory.join(name)).ok()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs with a disk 8:16 that has these files, and its first partition 8:17.
    fn sys(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("devices/pci/block/sdb");
        let part = disk.join("sdb1");
        fs::create_dir_all(dir.path().join("dev/block")).unwrap();
        fs::create_dir_all(&part).unwrap();
        for (name, text) in files {
            let path = disk.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        for (name, text) in [("partition", "1\n"), ("start", "2048\n"), ("size", "4096\n")] {
            fs::write(part.join(name), text).unwrap();
        }
        for (number, to) in [("8:16", &disk), ("8:17", &part)] {
            std::os::unix::fs::symlink(to, dir.path().join("dev/block").join(number)).unwrap();
        }
        dir
    }

    fn identity_of(files: &[(&str, &str)], minor: u64) -> Option<String> {
        of(sys(files).path(), nix::sys::stat::makedev(8, minor))
    }

    #[test]
    fn a_disk_is_known_by_what_it_calls_itself_and_by_its_attachment() {
        let of_scsi: [(&str, &str); 2] = [("device/wwid", "t10.ATA  QEMU   HD\n"), ("diskseq", "7\n")];
        assert_eq!(identity_of(&of_scsi, 16).as_deref(), Some("device/wwid t10.ATA QEMU HD\ndiskseq 7\n"));
        assert_eq!(
            identity_of(&of_scsi, 17).as_deref(),
            Some("device/wwid t10.ATA QEMU HD\ndiskseq 7\npartition 1 at 2048 of 4096\n")
        );
        // The same name, attached again; and another disk that got the name of this one.
        assert_ne!(identity_of(&of_scsi, 16), identity_of(&[of_scsi[0], ("diskseq", "8\n")], 16));
        assert_ne!(identity_of(&of_scsi, 16), identity_of(&[("device/wwid", "other\n"), of_scsi[1]], 16));
        assert_eq!(identity_of(&[("dm/uuid", "mpath-3600\n")], 16).as_deref(), Some("dm/uuid mpath-3600\n"));
    }

    #[test]
    fn a_disk_without_a_name_is_not_known() {
        assert_eq!(identity_of(&[], 16), None);
        assert_eq!(identity_of(&[("serial", "\n"), ("size", "4096\n")], 17), None);
        assert_eq!(identity_of(&[("serial", "x")], 18), None, "there is no such disk");
    }
}
