//! FNV-1a, the hash of names and checksums: quick and spread, no secret.
//!
//! In: bytes. Out: 32, 64 or 128 bits. Invariant: the published test vectors hold. Files and names depend on the values: checkpoints and
//! container hashes as upstream writes them, UIDs of static pods, names of network interfaces.
//!
//! Why no crate: `fnv` has 64 bits only, and no kept crate has 32 and 128.

/// 32 bits: checksums of upstream's checkpoints, hashes of containers.
#[must_use]
pub fn fnv32(bytes: &[u8]) -> u32 {
    let mut hash = Fnv32::default();
    hash.write(bytes);
    hash.finish()
}

/// 64 bits.
#[must_use]
pub fn fnv64(bytes: &[u8]) -> u64 {
    let mut hash = Fnv64::default();
    hash.write(bytes);
    hash.finish()
}

/// 128 bits.
#[must_use]
pub fn fnv128(bytes: &[u8]) -> u128 {
    let mut hash = Fnv128::default();
    hash.write(bytes);
    hash.finish()
}

/// 32 bits, of bytes that come one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv32(u32);

impl Default for Fnv32 {
    fn default() -> Self {
        Fnv32(0x811c_9dc5)
    }
}

impl Fnv32 {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    /// The hash of all bytes so far.
    #[must_use]
    pub fn finish(self) -> u32 {
        self.0
    }
}

/// 64 bits, of bytes that come one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv64(u64);

impl Default for Fnv64 {
    fn default() -> Self {
        Fnv64(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv64 {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The hash of all bytes so far.
    #[must_use]
    pub fn finish(self) -> u64 {
        self.0
    }
}

/// 128 bits, of bytes that come one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv128(u128);

impl Default for Fnv128 {
    fn default() -> Self {
        Fnv128(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv128 {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    /// The hash of all bytes so far.
    #[must_use]
    pub fn finish(self) -> u128 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_test_vectors_hold() {
        for (text, of32, of64, of128) in [
            ("", 0x811c_9dc5, 0xcbf2_9ce4_8422_2325, 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128),
            ("a", 0xe40c_292c, 0xaf63_dc4c_8601_ec8c, 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964),
            ("foobar", 0xbf9c_f968, 0x8594_4171_f739_67e8, 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18),
        ] {
            let bytes = text.as_bytes();
            assert_eq!((fnv32(bytes), fnv64(bytes), fnv128(bytes)), (of32, of64, of128), "{text}");
        }
    }

    #[test]
    fn parts_are_as_good_as_the_whole() {
        let (mut of32, mut of64, mut of128) = (Fnv32::default(), Fnv64::default(), Fnv128::default());
        for part in ["foo", "", "bar"] {
            of32.write(part.as_bytes());
            of64.write(part.as_bytes());
            of128.write(part.as_bytes());
        }
        assert_eq!(of32.finish(), fnv32(b"foobar"));
        assert_eq!((of64.finish(), of128.finish()), (fnv64(b"foobar"), fnv128(b"foobar")));
    }
}
