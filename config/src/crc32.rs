//! CRC-32 as GPT, the boot record and gzip use it.
//!
//! Why no crate: partition tables have 16 KiB and a boot record less than 4 KiB; a table of the polynomial is not worth
//! its size in init.

/// CRC-32 of the bytes (reflected, polynomial 0xEDB88320; UEFI 2.10, 5.3.2).
#[must_use]
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::crc32;

    #[test]
    fn check_values() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }
}
