//! Rules of the installer's disk: its name must be one that is of this disk alone, in every boot.

use super::Rules;
use crate::node::types::Install;

/// Where the names are that udev gives to a disk by its own identity.
const BY_ID: &str = "/dev/disk/by-id/";

impl Rules<'_> {
    pub(super) fn install(&mut self, install: &Install) {
        let name = install.disk.strip_prefix(BY_ID).unwrap_or(&install.disk);
        self.rule(
            is_lasting(name),
            "install.disk",
            &install.disk,
            "must be the disk's name below /dev/disk/by-id, its serial number or its WWN: a name such as sda is another \
             disk's in the next boot",
        );
    }
}

/// Not a path, not empty, and no name that the kernel gives in order of discovery.
fn is_lasting(name: &str) -> bool {
    let letters = |prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| (1..=2).contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_lowercase()))
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let numbered = |prefix: &str| name.strip_prefix(prefix).is_some_and(digits);
    let namespace = name
        .strip_prefix("nvme")
        .and_then(|rest| rest.split_once('n'))
        .is_some_and(|(controller, namespace)| digits(controller) && digits(namespace));
    let of_the_kernel = ["sd", "vd", "xvd", "hd"].into_iter().any(letters)
        || numbered("mmcblk")
        || numbered("sr")
        || namespace;
    let printable = name.bytes().all(|b| b.is_ascii_graphic() && b != b'/' || b == b' ');
    !name.trim().is_empty() && printable && !of_the_kernel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_stay() {
        for lasting in [
            "S5GXNX0R123456",
            "nvme-QEMU_NVMe_Ctrl_target",
            "wwn-0x5000c500a1b2c3d4",
            "eui.0025385b",
            "hdd-1",
            "sdabc",
        ] {
            assert!(is_lasting(lasting), "{lasting}");
        }
        for passing in
            ["", " ", "sda", "sdab", "vdb", "nvme0n1", "nvme12n3", "mmcblk0", "sr0", "a/b", "a\nb", "ä"]
        {
            assert!(!is_lasting(passing), "{passing:?}");
        }
    }
}
