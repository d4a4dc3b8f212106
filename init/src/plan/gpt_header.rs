//! A header of a partition table as bytes: where its fields are, and the checksum that seals them (UEFI 2.10, 5.3.2).
//!
//! In: a header that was read. Out: the same header with other fields. Invariant: a header that leaves here has a right
//! checksum.

use super::gpt::crc32;

/// Fields, bytes from the header's start.
const CRC: usize = 16;
/// Sector of this copy.
pub const MY_LBA: usize = 24;
/// Sector of the other copy.
pub const ALTERNATE_LBA: usize = 32;
/// First sector that partitions may have.
pub const FIRST_USABLE: usize = 40;
/// Last sector that partitions may have.
pub const LAST_USABLE: usize = 48;
/// GUID of the disk.
pub const DISK: usize = 56;
/// First sector of the entries.
pub const ENTRIES_LBA: usize = 72;
/// Checksum of the entries.
const ENTRIES_CRC: usize = 88;

/// The checksum of a header's first `size` bytes, in which the field for it counts as zero. The header is at least that long.
#[must_use]
pub fn header_crc(header: &[u8], size: usize) -> u32 {
    let mut bytes = header[..size].to_vec();
    bytes[CRC..CRC + 4].fill(0);
    crc32(&bytes)
}

/// The header with other values in these fields of eight bytes, and with this checksum of its entries.
#[must_use]
pub fn sealed(mut header: Vec<u8>, size: usize, fields: &[(usize, u64)], entries_crc: u32) -> Vec<u8> {
    for (at, value) in fields {
        header[*at..*at + 8].copy_from_slice(&value.to_le_bytes());
    }
    header[ENTRIES_CRC..ENTRIES_CRC + 4].copy_from_slice(&entries_crc.to_le_bytes());
    let crc = header_crc(&header, size);
    header[CRC..CRC + 4].copy_from_slice(&crc.to_le_bytes());
    header
}
