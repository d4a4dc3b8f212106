//! The footer of a fixed VHD (Microsoft's Virtual Hard Disk Image Format Specification 1.0): the disk sector by sector, then
//! these 512 bytes. Pure.
//!
//! Not by `qemu-img`, which would put the present time and a random identifier there: the same disk gives the same file.

/// Bytes of it.
pub(super) const FOOTER_BYTES: usize = 512;
const SECTOR: u64 = 512;
/// Who wrote it. Readers take the size from the geometry unless they know the writer, and the geometry cannot express
/// every size; this name is QEMU's for disks whose size counts.
const CREATOR: &[u8; 4] = b"qem2";
const CHECKSUM: usize = 64;

/// The footer of a disk of `bytes` (a multiple of 512) with this identifier.
#[must_use]
pub(super) fn footer(bytes: u64, identifier: [u8; 16]) -> [u8; FOOTER_BYTES] {
    let mut footer = [0; FOOTER_BYTES];
    let (cylinders, heads, sectors) = geometry(bytes / SECTOR);
    let size = bytes.to_be_bytes();
    let fields: [(usize, &[u8]); 12] = [
        (0, b"conectix"),
        // A bit that is always set; version 1.0; no further header; 2000-01-01.
        (8, &2u32.to_be_bytes()),
        (12, &0x0001_0000u32.to_be_bytes()),
        (16, &[0xff; 8]),
        (28, CREATOR),
        (32, &0x0001_0000u32.to_be_bytes()),
        (36, b"Wi2k"),
        (40, &size),
        (48, &size),
        (56, &[cylinders.to_be_bytes()[0], cylinders.to_be_bytes()[1], heads, sectors]),
        // Fixed.
        (60, &2u32.to_be_bytes()),
        (68, &identifier),
    ];
    for (at, value) in fields {
        footer[at..at + value.len()].copy_from_slice(value);
    }
    let sum = checksum(&footer);
    footer[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum.to_be_bytes());
    footer
}

/// The complement of the sum of all bytes but the checksum's own.
#[must_use]
pub(super) fn checksum(footer: &[u8; FOOTER_BYTES]) -> u32 {
    let own = CHECKSUM..CHECKSUM + 4;
    let counted = footer.iter().enumerate().filter(|(at, _)| !own.contains(at));
    !counted.map(|(_, byte)| u32::from(*byte)).sum::<u32>()
}

/// Cylinders, heads and sectors of a track, by the specification's appendix.
fn geometry(sectors: u64) -> (u16, u8, u8) {
    let total = u32::try_from(sectors).unwrap_or(u32::MAX).min(65_535 * 16 * 255);
    if total >= 65_535 * 16 * 63 {
        return (cylinders(total / 255, 16), 16, 255);
    }
    let mut track: u8 = 17;
    let mut by_track = total / 17;
    let mut heads = by_track.div_ceil(1024).max(4);
    if by_track >= heads * 1024 || heads > 16 {
        (track, heads) = (31, 16);
        by_track = total / 31;
    }
    if by_track >= heads * 1024 {
        (track, heads) = (63, 16);
        by_track = total / 63;
    }
    (cylinders(by_track, heads), u8::try_from(heads).unwrap_or(16), track)
}

fn cylinders(by_track: u32, heads: u32) -> u16 {
    u16::try_from(by_track / heads).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_readers_look() {
        let bytes = 1_337 << 20;
        let footer = footer(bytes, [7; 16]);
        assert_eq!(&footer[..8], b"conectix");
        assert_eq!(footer[48..56], bytes.to_be_bytes());
        assert_eq!((footer[60..64].to_vec(), footer[68..84].to_vec()), (vec![0, 0, 0, 2], vec![7; 16]));
        assert_eq!(footer[64..68], checksum(&footer).to_be_bytes());
        // With the checksum's bytes counted as zero, as the specification has it.
        let mut zeroed = footer;
        zeroed[64..68].fill(0);
        let sum: u32 = zeroed.iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(u32::from_be_bytes([footer[64], footer[65], footer[66], footer[67]]), !sum);
    }

    #[test]
    fn geometries() {
        // Sectors of 10 MiB, 40 MiB, 1 GiB, the largest one with 63 sectors, more than can be expressed.
        assert_eq!(geometry(20_480), (301, 4, 17));
        assert_eq!(geometry(81_920), (963, 5, 17));
        assert_eq!(geometry(2_097_152), (2_080, 16, 63));
        assert_eq!(geometry(65_535 * 16 * 63 - 1), (65_534, 16, 63));
        assert_eq!(geometry(u64::MAX), (65_535, 16, 255));
        assert_eq!(geometry(0), (0, 4, 17));
    }
}
