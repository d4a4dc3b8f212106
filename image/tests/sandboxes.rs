//! Sandboxes of the image's units, compared with the system calls of their programs.

use std::fs;
use std::path::Path;

/// Units whose programs open files below a directory by openat2(2), so that no link leads out of it. systemd answers ENOSYS to
/// openat2 where RestrictSUIDSGID= is on: a filter cannot read the mode in the call's structure.
const OPEN_BELOW: [&str; 2] = ["kubelet.service", "orlop-node-api.service"];

#[test]
fn programs_that_open_files_below_a_directory_may() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("rootfs/common/usr/lib/systemd/system");
    for unit in OPEN_BELOW {
        let text = fs::read_to_string(units.join(unit)).expect(unit);
        assert!(text.contains("ExecStart="), "{unit}");
        assert!(!text.lines().any(|line| line.trim_end() == "RestrictSUIDSGID=yes"), "{unit}");
    }
}
