//! dm-verity: the superblock of the hash partition in, the device-mapper table out.
//!
//! The superblock is not signed and need not be: it only says how to compute. The kernel refuses data that
//! does not lead up to the root hash, for every content of the superblock. Upstream: cryptsetup's on-disk format.

use super::cmdline::RootHash;
use super::{le_u16, le_u32, le_u64};
use std::fmt::Write as _;

/// Bytes of the superblock that are read.
pub const SUPERBLOCK_BYTES: usize = 512;

/// What a root hash of 256 bits may be made with. The superblock chooses and has no signature, so each must be one
/// for which no attacker finds other data with the same root hash.
const ALGORITHMS: [&str; 2] = ["blake2b-256", "sha256"];

/// The dm-verity superblock, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the hash device, raw.
    pub uuid: [u8; 16],
    /// One of `ALGORITHMS`.
    pub algorithm: String,
    /// Bytes of a data block.
    pub data_block: u32,
    /// Bytes of a hash block.
    pub hash_block: u32,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// Salt.
    pub salt: Vec<u8>,
}

/// Why the hash partition cannot be used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum VerityError {
    /// No magic.
    #[error("it has no dm-verity superblock")]
    NoSuperblock,
    /// A field that this format or this kernel does not have.
    #[error("its dm-verity superblock is damaged: {field} is {value}")]
    Field {
        /// Which field.
        field: &'static str,
        /// What stands there.
        value: String,
    },
    /// The data partition is smaller than the superblock says.
    #[error("its dm-verity superblock speaks of {need} bytes, the root partition has {have}")]
    TooSmall {
        /// Bytes the tree covers.
        need: u64,
        /// Bytes the data partition has.
        have: u64,
    },
}

fn field(field: &'static str, value: impl ToString) -> VerityError {
    VerityError::Field { field, value: value.to_string() }
}

impl Superblock {
    /// Reads the superblock from the first bytes of the hash partition.
    ///
    /// # Errors
    /// No superblock, or a field out of range.
    pub fn parse(bytes: &[u8]) -> Result<Superblock, VerityError> {
        if bytes.len() < SUPERBLOCK_BYTES || bytes.get(..8) != Some(b"verity\0\0") {
            return Err(VerityError::NoSuperblock);
        }
        let u32_at = |at| le_u32(bytes, at).unwrap_or(0);
        if u32_at(8) != 1 {
            return Err(field("version", u32_at(8)));
        }
        if u32_at(12) != 1 {
            return Err(field("hash type", u32_at(12)));
        }
        let name = &bytes[32..64];
        let name = &name[..name.iter().position(|b| *b == 0).unwrap_or(name.len())];
        let algorithm = String::from_utf8_lossy(name).into_owned();
        if !ALGORITHMS.contains(&algorithm.as_str()) {
            return Err(field("algorithm", algorithm));
        }
        let (data_block, hash_block) = (u32_at(64), u32_at(68));
        for (what, size) in [("data block size", data_block), ("hash block size", hash_block)] {
            if !size.is_power_of_two() || !(512..=65_536).contains(&size) {
                return Err(field(what, size));
            }
        }
        let data_blocks = le_u64(bytes, 72).unwrap_or(0);
        if data_blocks == 0 || data_blocks.checked_mul(u64::from(data_block)).is_none() {
            return Err(field("number of data blocks", data_blocks));
        }
        let salt_size = usize::from(le_u16(bytes, 80).unwrap_or(0));
        if salt_size > 256 {
            return Err(field("salt size", salt_size));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        let salt = bytes[88..88 + salt_size].to_vec();
        Ok(Superblock { uuid, algorithm, data_block, hash_block, data_blocks, salt })
    }

    /// Bytes of data that the tree covers.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.data_blocks * u64::from(self.data_block)
    }

    /// The UUID other device-mapper tools know verity devices by.
    #[must_use]
    pub fn dm_uuid(&self, name: &str) -> String {
        let mut s = String::from("CRYPT-VERITY-");
        for b in self.uuid {
            let _ = write!(s, "{b:02x}");
        }
        let _ = write!(s, "-{name}");
        s
    }
}

/// One device-mapper target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Length in 512-byte sectors.
    pub sectors: u64,
    /// Target type.
    pub kind: &'static str,
    /// Parameters, as the kernel documents them.
    pub params: String,
}

/// The table of the root: data and hash device as `major:minor`, `data_device_bytes` from the kernel.
///
/// No optional argument: the kernel's default on corruption is an I/O error for the reader and one line in
/// kmsg. See docs/reference/boot.md, "Corruption", for why neither `restart_on_corruption` nor `panic_on_corruption`.
///
/// # Errors
/// The data partition is too small for the tree.
pub fn table(
    sb: &Superblock,
    root: &RootHash,
    data: (u64, u64),
    hash: (u64, u64),
    data_device_bytes: u64,
) -> Result<Target, VerityError> {
    if sb.data_bytes() > data_device_bytes {
        return Err(VerityError::TooSmall { need: sb.data_bytes(), have: data_device_bytes });
    }
    let mut salt = String::new();
    for b in &sb.salt {
        let _ = write!(salt, "{b:02x}");
    }
    if salt.is_empty() {
        salt.push('-');
    }
    // The tree begins at the first whole hash block after the superblock.
    let hash_start = SUPERBLOCK_BYTES.div_ceil(usize::try_from(sb.hash_block).unwrap_or(4096));
    let params = format!(
        "1 {}:{} {}:{} {} {} {} {hash_start} {} {root} {salt}",
        data.0, data.1, hash.0, hash.1, sb.data_block, sb.hash_block, sb.data_blocks, sb.algorithm
    );
    Ok(Target { sectors: sb.data_bytes() / 512, kind: "verity", params })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Vec<u8> {
        let mut b = vec![0u8; 512];
        b[..8].copy_from_slice(b"verity\0\0");
        b[8] = 1;
        b[12] = 1;
        b[16..32].copy_from_slice(&[0xab; 16]);
        b[32..38].copy_from_slice(b"sha256");
        b[64..68].copy_from_slice(&4096u32.to_le_bytes());
        b[68..72].copy_from_slice(&4096u32.to_le_bytes());
        b[72..80].copy_from_slice(&10u64.to_le_bytes());
        b[80..82].copy_from_slice(&4u16.to_le_bytes());
        b[88..92].copy_from_slice(&[1, 2, 3, 0xff]);
        b
    }

    fn hash() -> RootHash {
        RootHash::parse(&"5a".repeat(32)).expect("64 digits")
    }

    #[test]
    fn table_as_the_kernel_wants_it() {
        let sb = Superblock::parse(&sample()).expect("valid");
        let t = table(&sb, &hash(), (254, 2), (254, 3), 40_960).expect("fits");
        let want = format!("1 254:2 254:3 4096 4096 10 1 sha256 {} 010203ff", "5a".repeat(32));
        assert_eq!((t.sectors, t.kind, t.params), (80, "verity", want));
        assert_eq!(sb.dm_uuid("root"), format!("CRYPT-VERITY-{}-root", "ab".repeat(16)));
        assert!(matches!(table(&sb, &hash(), (1, 1), (1, 2), 40_959), Err(VerityError::TooSmall { .. })));
    }

    #[test]
    fn only_digests_that_hold() {
        for (name, taken) in [
            ("blake2b-256", true),
            ("sha256", true),
            ("md5", false),
            ("crc32c", false),
            ("blake2b-160", false),
        ] {
            let mut b = sample();
            b[32..64].fill(0);
            b[32..32 + name.len()].copy_from_slice(name.as_bytes());
            assert_eq!(Superblock::parse(&b).map(|sb| sb.algorithm).ok().as_deref(), taken.then_some(name));
        }
    }

    #[test]
    fn no_salt_is_a_dash() {
        let mut b = sample();
        b[80] = 0;
        let sb = Superblock::parse(&b).expect("valid");
        let t = table(&sb, &hash(), (1, 1), (1, 2), 40_960).expect("fits");
        assert!(t.params.ends_with(" -"), "{}", t.params);
    }

    #[test]
    fn each_damaged_field_is_named() {
        let cases: &[(usize, u8, &str)] = &[
            (8, 2, "version"),
            (12, 0, "hash type"),
            (32, b'x', "algorithm"),
            (64, 1, "data block size"),
            (70, 0xff, "hash block size"),
            (79, 0xff, "number of data blocks"),
            (81, 2, "salt size"),
        ];
        for (at, value, name) in cases {
            let mut b = sample();
            b[*at] = *value;
            match Superblock::parse(&b) {
                Err(VerityError::Field { field, .. }) => assert_eq!(field, *name),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert_eq!(Superblock::parse(&sample()[..511]), Err(VerityError::NoSuperblock));
    }

    proptest! {
        #[test]
        fn any_superblock(mut tail in proptest::collection::vec(any::<u8>(), 504), flips in any::<bool>()) {
            let mut b = b"verity\0\0".to_vec();
            if flips {
                tail = sample()[8..].iter().zip(&tail).map(|(a, t)| if *t < 8 { *t } else { *a }).collect();
            }
            b.append(&mut tail);
            if let Ok(sb) = Superblock::parse(&b) {
                let _ = table(&sb, &hash(), (1, 1), (1, 2), u64::MAX);
            }
        }
    }
}
