//! GUIDs as GPT and the discoverable partitions specification use them.
//!
//! Kept in text order (the order of the hex digits a person reads), because partition UUIDs derived from a
//! root hash are defined in that order; on disk the first three fields are little-endian.

use std::fmt;

/// A GUID in text order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid(pub [u8; 16]);

/// Partition type of an EFI system partition.
pub const TYPE_ESP: Guid = Guid::from_u128(0xc12a_7328_f81f_11d2_ba4b_00a0_c93e_c93b);
/// Partition type of a root file system of this program's architecture.
pub const TYPE_ROOT: Guid = OWN.root;
/// Partition type of the dm-verity hash tree of a root file system of this program's architecture.
pub const TYPE_ROOT_VERITY: Guid = OWN.verity;
/// Partition type of `/var`, where Orlop keeps its state.
pub const TYPE_VAR: Guid = Guid::from_u128(0x4d21_b016_b534_45c2_a9fb_5c16_e091_fd2d);
/// Partition type of the boot record (`mkosi/disk/repart/50-boot-record.conf`).
pub const TYPE_BOOT_RECORD: Guid = Guid::from_u128(0x9d4b_a33e_6db4_48fd_82f3_fba1_b8f3_9790);

/// Partition types of a slot: the discoverable partitions specification has a pair for each architecture, so that a disk
/// that is moved to a machine of another one is not taken for that machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootTypes {
    /// Root file system.
    pub root: Guid,
    /// Its dm-verity hash tree.
    pub verity: Guid,
}

/// Of x86-64.
pub const ROOT_TYPES_X86_64: RootTypes = RootTypes {
    root: Guid::from_u128(0x4f68_bce3_e8cd_4db1_96e7_fbca_f984_b709),
    verity: Guid::from_u128(0x2c73_57ed_ebd2_46d9_aec1_23d4_37ec_2bf5),
};
/// Of 64-bit ARM.
pub const ROOT_TYPES_ARM64: RootTypes = RootTypes {
    root: Guid::from_u128(0xb921_b045_1df0_41c3_af44_4c6f_280d_3fae),
    verity: Guid::from_u128(0xdf33_00ce_d69f_4c92_978c_9bfb_0f38_d820),
};

const OWN: RootTypes = if cfg!(target_arch = "aarch64") { ROOT_TYPES_ARM64 } else { ROOT_TYPES_X86_64 };

impl Guid {
    /// From the digits as written, `0xc12a7328f81f11d2ba4b00a0c93ec93b`.
    #[must_use]
    pub const fn from_u128(digits: u128) -> Guid {
        Guid(digits.to_be_bytes())
    }

    /// From the mixed-endian form of a GPT.
    #[must_use]
    pub fn from_disk(bytes: &[u8]) -> Option<Guid> {
        let mut b: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
        b[0..4].reverse();
        b[4..6].reverse();
        b[6..8].reverse();
        Some(Guid(b))
    }

    /// The mixed-endian form of a GPT.
    #[must_use]
    pub fn to_disk(self) -> [u8; 16] {
        let mut b = self.0;
        b[0..4].reverse();
        b[4..6].reverse();
        b[6..8].reverse();
        b
    }

    /// From text with or without hyphens, either case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Guid> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 || !digits.is_ascii() {
            return None;
        }
        u128::from_str_radix(&digits, 16).ok().map(Guid::from_u128)
    }

    /// The same with the version for an application's own meaning (8, RFC 9562): the identity of a disk, which a first boot
    /// gives to its partition table and to the state partition's file system. Tools never make this version.
    #[must_use]
    pub fn as_identity(mut self) -> Guid {
        self.0[6] = 0x80 | self.0[6] & 0x0f;
        self.0[8] = 0x80 | self.0[8] & 0x3f;
        self
    }

    /// Is this the identity of a disk?
    #[must_use]
    pub fn is_identity(self) -> bool {
        self.0[6] >> 4 == 8 && self.0[8] >> 6 == 2
    }

    /// All zero: an unused partition entry.
    #[must_use]
    pub fn is_nil(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_form_is_mixed_endian() {
        // The ESP type as it stands in a real partition table.
        let disk =
            [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b];
        assert_eq!(Guid::from_disk(&disk), Some(TYPE_ESP));
        assert_eq!(TYPE_ESP.to_string(), "c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
        assert_eq!(Guid::from_disk(&disk[..15]), None);
    }

    #[test]
    fn identities_are_a_kind_of_their_own() {
        for digits in [0, u128::MAX, 0x0123_4567_89ab_4def_8123_4567_89ab_cdef] {
            let guid = Guid::from_u128(digits);
            assert!(guid.as_identity().is_identity() && !guid.is_identity(), "{guid}");
            assert_eq!(guid.as_identity().as_identity(), guid.as_identity());
        }
        assert!(![TYPE_ESP, TYPE_ROOT, TYPE_ROOT_VERITY, TYPE_VAR].iter().any(|g| g.is_identity()));
    }

    /// As the discoverable partitions specification writes them.
    #[test]
    fn each_architecture_has_its_types() {
        let texts = |types: RootTypes| [types.root.to_string(), types.verity.to_string()];
        assert_eq!(
            texts(ROOT_TYPES_X86_64),
            ["4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5"]
        );
        assert_eq!(
            texts(ROOT_TYPES_ARM64),
            ["b921b045-1df0-41c3-af44-4c6f280d3fae", "df3300ce-d69f-4c92-978c-9bfb0f38d820"]
        );
        let own = if cfg!(target_arch = "aarch64") { ROOT_TYPES_ARM64 } else { ROOT_TYPES_X86_64 };
        assert_eq!([TYPE_ROOT, TYPE_ROOT_VERITY], [own.root, own.verity]);
    }

    #[test]
    fn text_forms() {
        assert_eq!(Guid::parse("4D21B016-b534-45c2-a9fb-5c16e091fd2d"), Some(TYPE_VAR));
        assert_eq!(Guid::parse("4d21b016b53445c2a9fb5c16e091fd2d"), Some(TYPE_VAR));
        for bad in ["", "4d21b016", "zz21b016b53445c2a9fb5c16e091fd2d", "+d21b016b53445c2a9fb5c16e091fd2dd"] {
            assert_eq!(Guid::parse(bad), None, "{bad}");
        }
    }
}
