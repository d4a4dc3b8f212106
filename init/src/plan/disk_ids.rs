//! The lasting names of a disk: serial number, WWN, and the names that udev's rules make of them for /dev/disk/by-id.
//!
//! There is no udev in the initrd, so init makes the names from the facts of /sys. Names of disks at USB are not among
//! them: their serial numbers are those of the adapter. A name is compared in [`normal`] form.

/// Where udev's links are.
const BY_ID: &str = "/dev/disk/by-id/";
/// Before model and serial number in a designator of libata (SAT), 8 characters of vendor.
const ATA: &[u8] = b"ATA     ";
/// Characters of a model and of a serial number in that designator.
const ATA_MODEL: usize = 40;

/// What the kernel shows of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskFacts {
    /// Kernel name, `nvme0n1`.
    pub name: String,
    /// Vendor, of SCSI.
    pub vendor: String,
    /// Model; of an SD card or eMMC its name.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// World-wide name with the kernel's prefix: `naa.5000c500…`, `eui.…`, `nvme.…`, `t10.…`.
    pub wwid: String,
    /// VPD page 0x80 (serial number) of SCSI, as read.
    pub page80: Vec<u8>,
    /// VPD page 0x83 (designators) of SCSI, as read.
    pub page83: Vec<u8>,
}

/// The form in which names are compared: udev's characters, no blanks around, lower case, without the directory.
#[must_use]
pub fn normal(name: &str) -> String {
    let name = name.trim();
    let words: Vec<&str> = name.strip_prefix(BY_ID).unwrap_or(name).split_whitespace().collect();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c);
    words.join("_").chars().map(|c| if allowed(c) { c.to_ascii_lowercase() } else { '_' }).collect()
}

/// Its serial number, if it has one.
#[must_use]
pub fn serial(facts: &DiskFacts) -> String {
    if !facts.serial.trim().is_empty() {
        return facts.serial.trim().to_owned();
    }
    page_text(&facts.page80).unwrap_or_default()
}

/// All its names in normal form, without repetition.
#[must_use]
pub fn names(facts: &DiskFacts) -> Vec<String> {
    let serial = serial(facts);
    let mut names = Vec::new();
    let mut add = |name: String| {
        let name = normal(&name);
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    };
    if !serial.is_empty() {
        add(serial.clone());
        let (vendor, model) = (facts.vendor.trim(), facts.model.trim());
        match facts.name.get(..2) {
            Some("nv") => {
                add(format!("nvme-{model}_{serial}"));
                if let Some((_, namespace)) = facts.name.get(4..).and_then(|rest| rest.split_once('n')) {
                    add(format!("nvme-{model}_{serial}_{namespace}"));
                }
            }
            Some("vd") => add(format!("virtio-{serial}")),
            Some("mm") => add(format!("mmc-{model}_{serial}")),
            _ => {
                add(format!("scsi-0{vendor}_{model}_{serial}"));
                add(format!("scsi-S{vendor}_{model}_{serial}"));
            }
        }
    }
    if let Some(number) = facts.wwid.strip_prefix("naa.") {
        for name in [format!("naa.{number}"), format!("0x{number}"), number.to_owned()] {
            add(name);
        }
        add(format!("wwn-0x{number}"));
        add(format!("scsi-3{number}"));
    } else if !facts.wwid.is_empty() {
        add(facts.wwid.clone());
        add(format!("nvme-{}", facts.wwid));
        if let Some((_, number)) = facts.wwid.split_once('.') {
            add(number.to_owned());
        }
    }
    for (model, serial) in ata(&facts.page83) {
        add(format!("ata-{model}_{serial}"));
        add(serial);
    }
    names
}

/// The text of a VPD page: four bytes of header with the length in two of them, then the text.
fn page_text(page: &[u8]) -> Option<String> {
    let length = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
    let text = page.get(4..4 + length)?;
    Some(String::from_utf8_lossy(text).trim_matches(['\0', ' ']).to_owned())
}

/// Model and serial number of an ATA disk, from the designators of VPD page 0x83 (SPC-4, 7.8.6).
fn ata(page: &[u8]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = page.get(4..).unwrap_or_default();
    while let Some(length) = rest.get(3).map(|length| usize::from(*length)) {
        let Some(designator) = rest.get(4..4 + length) else { break };
        let of_the_unit = rest[1] & 0x30 == 0;
        let t10 = rest[1] & 0x0f == 1;
        let whole = designator.strip_prefix(ATA).filter(|text| of_the_unit && t10 && text.len() > ATA_MODEL);
        if let Some((model, serial)) = whole.map(|text| text.split_at(ATA_MODEL)) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_matches(['\0', ' ']).to_owned();
            found.push((text(model), text(serial)));
        }
        rest = &rest[4 + length..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn has(facts: &DiskFacts, name: &str) -> bool {
        names(facts).contains(&normal(name))
    }

    #[test]
    fn nvme_and_virtio() {
        let nvme = DiskFacts {
            name: "nvme0n1".into(),
            model: "QEMU NVMe Ctrl                          ".into(),
            serial: "target ".into(),
            wwid: "nvme.1b36-746172676574-51454d55204e564d65204374726c-00000001".into(),
            ..DiskFacts::default()
        };
        for name in [
            "target",
            "TARGET",
            "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_target",
            "nvme-QEMU_NVMe_Ctrl_target_1",
            "nvme-nvme.1b36-746172676574-51454d55204e564d65204374726c-00000001",
        ] {
            assert!(has(&nvme, name), "{name}: {:?}", names(&nvme));
        }
        assert!(!has(&nvme, "nvme-QEMU_NVMe_Ctrl") && !has(&nvme, "nvme0n1"));
        let eui = DiskFacts { name: "nvme0n1".into(), wwid: "eui.0025385b01".into(), ..DiskFacts::default() };
        assert!(has(&eui, "nvme-eui.0025385b01") && has(&eui, "0025385b01"));
        let virtio = DiskFacts { name: "vdb".into(), serial: "s-1".into(), ..DiskFacts::default() };
        assert_eq!(names(&virtio), ["s-1", "virtio-s-1"]);
    }

    #[test]
    fn sata_has_its_whole_model_in_a_designator() {
        let mut t10 = ATA.to_vec();
        t10.extend(format!("{:<40}{:<20}", "QEMU HARDDISK", "QM00005").bytes());
        let designator = |code: u8, kind: u8, bytes: &[u8]| {
            [&[code, kind, 0, u8::try_from(bytes.len()).expect("short")][..], bytes].concat()
        };
        let all =
            [designator(2, 0, b"QM00005"), designator(2, 1, &t10), designator(1, 3, &[0x50; 8])].concat();
        let page83 = [&[0, 0x83, 0, u8::try_from(all.len()).expect("short")][..], &all].concat();
        let page80 = [&[0, 0x80, 0, 20][..], b"             QM00005"].concat();
        let sata = DiskFacts {
            name: "sda".into(),
            vendor: "ATA     ".into(),
            model: "QEMU HARDDISK   ".into(),
            wwid: "naa.5050505050505050".into(),
            page80,
            page83,
            ..DiskFacts::default()
        };
        for name in [
            "QM00005",
            "ata-QEMU_HARDDISK_QM00005",
            "wwn-0x5050505050505050",
            "0x5050505050505050",
            "naa.5050505050505050",
        ] {
            assert!(has(&sata, name), "{name}: {:?}", names(&sata));
        }
    }

    #[test]
    fn a_disk_without_a_number_has_no_name() {
        let model = DiskFacts { name: "sda".into(), model: "QEMU HARDDISK".into(), ..DiskFacts::default() };
        assert!(names(&model).is_empty(), "{:?}", names(&model));
    }

    proptest! {
        #[test]
        fn any_pages(page80 in proptest::collection::vec(any::<u8>(), 0..40), page83 in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = names(&DiskFacts { name: "sda".into(), page80, page83, ..DiskFacts::default() });
        }
    }
}
