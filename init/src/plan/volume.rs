//! Which file system a small volume holds and what it is called: enough to find a configuration drive.

use super::{le_u16, le_u32};

/// Bytes of a volume that `probe` looks at.
pub const PROBE_BYTES: usize = 34_816;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// What to mount it as.
    pub fstype: &'static str,
    /// Its label, without padding.
    pub label: String,
}

/// Looks at the first `PROBE_BYTES` (or fewer) of a device.
#[must_use]
pub fn probe(bytes: &[u8]) -> Option<Volume> {
    iso9660(bytes).or_else(|| vfat(bytes))
}

fn label(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches([' ', '\0']).to_string()
}

fn iso9660(bytes: &[u8]) -> Option<Volume> {
    let descriptor = bytes.get(32_768..34_816)?;
    if descriptor.get(..6)? != b"\x01CD001" {
        return None;
    }
    Some(Volume { fstype: "iso9660", label: label(descriptor.get(40..72)?) })
}

fn vfat(bytes: &[u8]) -> Option<Volume> {
    if bytes.get(510..512)? != [0x55, 0xaa] || !le_u16(bytes, 11)?.is_power_of_two() {
        return None;
    }
    // FAT32 has no 16-bit FAT size; its extended fields stand 28 bytes further on.
    let fat32 = le_u16(bytes, 22)? == 0 && le_u32(bytes, 36)? != 0;
    let (label_at, kind_at) = if fat32 { (71, 82) } else { (43, 54) };
    if bytes.get(kind_at..kind_at + 3)? != b"FAT" {
        return None;
    }
    Some(Volume { fstype: "vfat", label: label(bytes.get(label_at..label_at + 11)?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fat(kind: &[u8], label: &[u8], at: (usize, usize), fat16_size: u8) -> Vec<u8> {
        let mut b = vec![0u8; 512];
        b[11..13].copy_from_slice(&512u16.to_le_bytes());
        b[22] = fat16_size;
        b[36] = 1;
        b[at.0..at.0 + label.len()].copy_from_slice(label);
        b[at.1..at.1 + kind.len()].copy_from_slice(kind);
        b[510..].copy_from_slice(&[0x55, 0xaa]);
        b
    }

    #[test]
    fn the_three_kinds() {
        let vfat = |label: &str| Some(Volume { fstype: "vfat", label: label.into() });
        assert_eq!(probe(&fat(b"FAT32   ", b"CIDATA     ", (71, 82), 0)), vfat("CIDATA"));
        assert_eq!(probe(&fat(b"FAT16   ", b"config-2   ", (43, 54), 9)), vfat("config-2"));
        let mut iso = vec![0u8; PROBE_BYTES];
        iso[32_768..32_774].copy_from_slice(b"\x01CD001");
        iso[32_808..32_840].fill(b' ');
        iso[32_808..32_814].copy_from_slice(b"cidata");
        assert_eq!(probe(&iso), Some(Volume { fstype: "iso9660", label: "cidata".into() }));
        assert_eq!(probe(&[0; 512]), None);
        assert_eq!(probe(&[]), None);
    }

    proptest! {
        #[test]
        fn any_bytes(b in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = probe(&b);
        }
    }
}
