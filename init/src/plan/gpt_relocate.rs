//! The backup partition table of a disk that has become larger: from where it stands to the disk's end.
//!
//! An image written to a larger disk has its backup table in the middle, and a header that calls the rest of the
//! disk unusable, so that there is no room for a new partition. In: the device. Out: writes, in
//! the order in which they must reach the disk. Invariant: a power cut between any two of them leaves a valid
//! primary table; no partition's bytes are touched.

use super::gpt::{ENTRIES_BYTES_MAX, Header, crc32};
use super::gpt_header::{ALTERNATE_LBA, ENTRIES_LBA, LAST_USABLE, MY_LBA, sealed};
use super::{le_u64, step::DiskWrite};

/// The writes, or `None` if the backup is at the end already or the primary is not sound (then nothing is
/// touched: the backup may be all there is).
#[must_use]
pub fn relocate(
    device_bytes: u64,
    sector: u32,
    mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>,
) -> Option<Vec<DiskWrite>> {
    let sector = u64::from(sector.clamp(512, 1 << 16));
    let sectors = device_bytes / sector;
    let primary = read(sector, usize::try_from(sector).ok()?)?;
    let header = Header::parse(&primary, 1, sectors).ok()?;
    let length = u64::from(header.entry_count) * u64::from(header.entry_size);
    if length == 0 || length > ENTRIES_BYTES_MAX {
        return None;
    }
    let mut entries = read(header.entries_lba.checked_mul(sector)?, usize::try_from(length).ok()?)?;
    if crc32(&entries) != header.entries_crc || le_u64(&primary, ALTERNATE_LBA)? >= sectors - 1 {
        return None;
    }
    let backup_lba = sectors - 1;
    let entries_lba = backup_lba.checked_sub(length.div_ceil(sector))?;
    // A disk that grew by less than a table would have the two overlap.
    if entries_lba <= le_u64(&primary, ALTERNATE_LBA)? {
        return None;
    }
    entries.resize(usize::try_from((backup_lba - entries_lba) * sector).ok()?, 0);
    let sealed = |fields: &[(usize, u64)]| sealed(primary.clone(), header.size, fields, header.entries_crc);
    let last_usable = (LAST_USABLE, entries_lba - 1);
    let backup = sealed(&[(MY_LBA, backup_lba), (ALTERNATE_LBA, 1), (ENTRIES_LBA, entries_lba), last_usable]);
    let primary = sealed(&[(ALTERNATE_LBA, backup_lba), last_usable]);
    let write = |lba: u64, bytes| DiskWrite { offset: lba * sector, bytes };
    Some(vec![write(entries_lba, entries), write(backup_lba, backup), write(1, primary)])
}

#[cfg(test)]
mod tests {
    use super::super::gpt::tests::{SECTORS, image, read};
    use super::super::gpt::{Copy, Table, read_table};
    use super::*;
    use proptest::prelude::*;

    fn grown(sectors: u64) -> Vec<u8> {
        let mut disk = image();
        disk.resize(usize::try_from(sectors * 512).expect("small"), 0);
        disk
    }

    fn plan(disk: &[u8]) -> Option<Vec<DiskWrite>> {
        relocate(disk.len() as u64, 512, |offset, length| {
            let start = usize::try_from(offset).ok()?;
            disk.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
        })
    }

    fn apply(disk: &mut [u8], write: &DiskWrite) {
        let at = usize::try_from(write.offset).expect("small");
        disk[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }

    fn partitions(table: &Table) -> Vec<(u32, u64, u64)> {
        table.partitions.iter().map(|p| (p.number, p.start, p.length)).collect()
    }

    #[test]
    fn each_prefix_of_the_writes_is_a_sound_table() {
        let mut disk = grown(SECTORS * 2);
        let before = partitions(&read(&disk).expect("sound"));
        for write in plan(&disk).expect("relocated") {
            apply(&mut disk, &write);
            let table = read(&disk).expect("sound");
            assert_eq!((table.copy, partitions(&table)), (Copy::Primary, before.clone()));
        }
        assert_eq!(plan(&disk), None, "done once");
        disk[512] ^= 1;
        let table = read(&disk).expect("the new backup");
        assert_eq!((table.copy, partitions(&table)), (Copy::Backup, before));
    }

    #[test]
    fn what_is_not_sound_or_not_grown_is_left_alone() {
        assert_eq!(plan(&image()), None);
        assert_eq!(plan(&grown(SECTORS + 20)), None, "the two tables would overlap");
        for at in [512, 512 + 40, 1024] {
            let mut disk = grown(SECTORS * 2);
            disk[at] ^= 1;
            assert_eq!(plan(&disk), None, "byte {at}");
        }
        assert!(read_table(0, 512, |_, _| None).is_err() && relocate(0, 512, |_, _| None).is_none());
    }

    proptest! {
        #[test]
        fn no_partition_is_touched(extra in 1u64..9000) {
            let mut disk = grown(SECTORS + extra);
            let table = read(&disk).expect("sound");
            let kept: Vec<Vec<u8>> = table.partitions.iter().map(|p| slice(&disk, p.start, p.length)).collect();
            for write in plan(&disk).unwrap_or_default() {
                apply(&mut disk, &write);
            }
            for (p, bytes) in table.partitions.iter().zip(kept) {
                prop_assert_eq!(slice(&disk, p.start, p.length), bytes);
            }
        }
    }

    fn slice(disk: &[u8], start: u64, length: u64) -> Vec<u8> {
        let start = usize::try_from(start).expect("small");
        disk[start..start + usize::try_from(length).expect("small")].to_vec()
    }
}
