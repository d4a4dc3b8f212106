//! What init needs to know of an ext4 superblock: is there one, whose is it, is it sound, how large is it.

use super::guid::Guid;
use super::{le_u16, le_u32};

/// Where the superblock stands in the partition, bytes.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// Bytes of it.
pub const SUPERBLOCK_BYTES: usize = 1024;

/// The options of `mkfs.ext4 -E` for the state partition.
pub const WITHOUT_QUOTAS: [&str; 1] = ["lazy_itable_init=1"];
/// The same, and what follows it, for one that counts by projects; there are no accounts of users and groups.
pub const WITH_QUOTAS: [&str; 3] = ["lazy_itable_init=1,quotatype=prjquota", "-O", "quota,project"];

/// The state bit of a file system in which the kernel found an error.
const STATE_ERROR: u16 = 2;
/// The state bit of a cleanly unmounted (or journalled) file system.
const STATE_VALID: u16 = 1;

/// The read-only compatible feature `quota`.
const FEATURE_QUOTA: u32 = 0x100;

/// Facts from a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// File system UUID.
    pub uuid: Guid,
    /// Volume label.
    pub label: String,
    /// Size, bytes.
    pub bytes: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Was it ever mounted? A file system that never was holds no data.
    pub ever_mounted: bool,
    /// Should fsck look at it before it is mounted? (A journal to replay is no reason: the kernel does that.)
    pub wants_check: bool,
    /// Does it count what users or projects have? Then the kernel mounts it with the module of such accounts only.
    pub has_quotas: bool,
}

/// Reads the superblock, or `None` if there is no ext4 file system.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Superblock> {
    if bytes.len() < SUPERBLOCK_BYTES || le_u16(bytes, 56)? != 0xef53 {
        return None;
    }
    let shift = le_u32(bytes, 24)?;
    if shift > 6 {
        return None;
    }
    let block = 1024u32 << shift;
    let has_64bit = le_u32(bytes, 96)? & 0x80 != 0;
    let high = if has_64bit { le_u32(bytes, 336)? } else { 0 };
    let blocks = u64::from(high) << 32 | u64::from(le_u32(bytes, 4)?);
    let state = le_u16(bytes, 58)?;
    let name = bytes.get(120..136)?;
    let name = &name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())];
    let mut uuid = [0; 16];
    uuid.copy_from_slice(bytes.get(104..120)?);
    Some(Superblock {
        uuid: Guid(uuid),
        label: String::from_utf8_lossy(name).into_owned(),
        bytes: blocks.checked_mul(u64::from(block))?,
        block,
        ever_mounted: le_u32(bytes, 44)? != 0,
        wants_check: state & STATE_ERROR != 0 || state & STATE_VALID == 0,
        has_quotas: le_u32(bytes, 100)? & FEATURE_QUOTA != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn mkfs(label: &str, more: &[&str]) -> Vec<u8> {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("fs");
        std::fs::File::create(&file).and_then(|f| f.set_len(16 << 20)).expect("sparse file");
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-L", label])
            .args(more)
            .arg(&file)
            .status()
            .expect("mkfs.ext4");
        assert!(made.success());
        std::fs::read(file).expect("file system")[1024..2048].to_vec()
    }

    #[test]
    fn a_fresh_file_system() {
        let sb = parse(&mkfs("orlop-state", &[])).expect("ext4");
        assert_eq!((sb.label.as_str(), sb.bytes), ("orlop-state", 16 << 20));
        assert!(!sb.ever_mounted && !sb.wants_check && !sb.has_quotas);
        let with = |more: &[&str]| {
            let sb = parse(&mkfs("orlop-state", &[&["-I", "256", "-E"], more].concat())).expect("ext4");
            (sb.bytes, sb.wants_check, sb.has_quotas)
        };
        assert_eq!(with(&WITHOUT_QUOTAS), (16 << 20, false, false));
        assert_eq!(with(&WITH_QUOTAS), (16 << 20, false, true));
    }

    #[test]
    fn state_bits_and_mount_time() {
        let mut b = mkfs("x", &[]);
        b[44] = 1;
        assert!(parse(&b).expect("ext4").ever_mounted);
        for (state, want) in [(1u16, false), (0, true), (2, true), (3, true), (5, false)] {
            b[58..60].copy_from_slice(&state.to_le_bytes());
            assert_eq!(parse(&b).expect("ext4").wants_check, want, "{state}");
        }
        b[56] = 0;
        assert_eq!(parse(&b), None);
    }

    proptest! {
        #[test]
        fn any_bytes(mut b in proptest::collection::vec(any::<u8>(), 0..1100)) {
            if b.len() > 58 {
                b[56..58].copy_from_slice(&0xef53u16.to_le_bytes());
            }
            let _ = parse(&b);
        }
    }
}
