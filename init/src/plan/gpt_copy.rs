//! The partition table of a disk's copy: entries of the original with another identity, for a disk of another size.
//!
//! In: the original's table as bytes. Out: writes, in the order in which they must reach the new disk: the entries, the
//! protective MBR, then the header in sector 1, which alone makes a table of it; the backup last. Invariants: before the
//! third write there is no table on a disk that had none; after it the table is whole.

use super::gpt::{ENTRIES_BYTES_MAX, Header, crc32, parse_entry};
use super::gpt_change::ChangeError;
use super::gpt_header::{ALTERNATE_LBA, DISK, ENTRIES_LBA, FIRST_USABLE, LAST_USABLE, MY_LBA, sealed};
use super::guid::Guid;
use super::le_u64;
use super::step::DiskWrite;

/// A field of an entry.
const PARTUUID: usize = 16;
/// Bytes of an MBR that are code.
const BOOT_CODE: usize = 440;
/// Where the entries of the first copy stand, sectors.
const FIRST_ENTRIES: u64 = 2;

/// What distinguishes the copy from the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyIdentity {
    /// Disk GUID.
    pub disk: Guid,
    /// Number of the ESP.
    pub esp: u32,
    /// Its PARTUUID.
    pub esp_partuuid: Guid,
}

/// The writes for a disk of `target_bytes`, from the table of one of `source_bytes`, both with logical sectors of
/// `sector` bytes. Only partitions with these numbers are kept.
///
/// # Errors
/// The original's table is damaged, or the copy has not room for its partitions.
pub fn copy_table(
    source_bytes: u64,
    sector: u32,
    mut read: impl FnMut(u64, usize) -> Option<Vec<u8>>,
    target_bytes: u64,
    keep: &[u32],
    identity: &CopyIdentity,
) -> Result<Vec<DiskWrite>, ChangeError> {
    let sector = u64::from(sector.clamp(512, 1 << 16));
    let (source_sectors, sectors) = (source_bytes / sector, target_bytes / sector);
    let code = read(0, BOOT_CODE).unwrap_or_default();
    let last = source_sectors.checked_sub(1).ok_or(ChangeError::Unsound)?;
    let mut sound = |lba: u64| {
        let header = read(lba.checked_mul(sector)?, usize::try_from(sector).ok()?)?;
        let h = Header::parse(&header, lba, source_sectors).ok()?;
        let length = u64::from(h.entry_count) * u64::from(h.entry_size);
        if length == 0 || length > ENTRIES_BYTES_MAX {
            return None;
        }
        let entries = read(h.entries_lba.checked_mul(sector)?, usize::try_from(length).ok()?)?;
        (crc32(&entries) == h.entries_crc).then_some((header, h, entries))
    };
    let (header, h, mut entries) = sound(1).or_else(|| sound(last)).ok_or(ChangeError::Unsound)?;
    let array = (entries.len() as u64).div_ceil(sector);
    let first_usable = le_u64(&header, FIRST_USABLE).unwrap_or(0);
    // Backup header and entries at the end; a disk that cannot hold them is much too small.
    let no_room = |wanted: u64| ChangeError::NoRoom { free: target_bytes, wanted };
    let behind = sectors.checked_sub(1 + array).filter(|lba| *lba > FIRST_ENTRIES + array);
    let behind = behind.ok_or(no_room(2 * (1 + array) * sector))?;
    if first_usable < FIRST_ENTRIES + array {
        return Err(ChangeError::Unsound);
    }
    let size = usize::try_from(h.entry_size).map_err(|_| ChangeError::Unsound)?;
    for (number, entry) in (1u32..).zip(entries.chunks_exact_mut(size)) {
        if !keep.contains(&number) {
            entry.fill(0);
            continue;
        }
        if number == identity.esp {
            entry[PARTUUID..PARTUUID + 16].copy_from_slice(&identity.esp_partuuid.to_disk());
        }
        let parsed = parse_entry(number, entry, source_sectors, sector).map_err(|_| ChangeError::Unsound)?;
        let end = parsed.map_or(0, |p| p.start + p.length);
        if end > behind * sector {
            return Err(no_room(end + (1 + array) * sector));
        }
    }
    let crc = crc32(&entries);
    let copy = |lba: u64, alternate: u64, entries_lba: u64| {
        let mut header = header.clone();
        header[DISK..DISK + 16].copy_from_slice(&identity.disk.to_disk());
        let fields = [
            (MY_LBA, lba),
            (ALTERNATE_LBA, alternate),
            (LAST_USABLE, behind - 1),
            (ENTRIES_LBA, entries_lba),
        ];
        DiskWrite { offset: lba * sector, bytes: sealed(header, h.size, &fields, crc) }
    };
    let end = sectors - 1;
    let (primary, backup) = (copy(1, end, FIRST_ENTRIES), copy(end, 1, behind));
    let entries_at = |lba: u64| DiskWrite { offset: lba * sector, bytes: entries.clone() };
    let mbr = DiskWrite { offset: 0, bytes: protective(sectors, &code) };
    Ok(vec![entries_at(FIRST_ENTRIES), mbr, primary, entries_at(behind), backup])
}

/// The protective MBR of a disk of so many sectors, with the code that a BIOS starts.
fn protective(sectors: u64, code: &[u8]) -> Vec<u8> {
    let mut mbr = vec![0; 512];
    mbr[..code.len()].copy_from_slice(code);
    let length = u32::try_from(sectors - 1).unwrap_or(u32::MAX);
    // Not active, from sector 1 on, in cylinders and heads, which no firmware reads.
    mbr[446..454].copy_from_slice(&[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff]);
    mbr[454..458].copy_from_slice(&1u32.to_le_bytes());
    mbr[458..462].copy_from_slice(&length.to_le_bytes());
    mbr[510..].copy_from_slice(&[0x55, 0xaa]);
    mbr
}

#[cfg(test)]
mod tests {
    use super::super::gpt::tests::{SECTORS, image, read};
    use super::super::gpt::{Copy, GptError};
    use super::*;
    use proptest::prelude::*;

    const IDENTITY: CopyIdentity =
        CopyIdentity { disk: Guid::from_u128(0xd), esp: 1, esp_partuuid: Guid::from_u128(0xe) };

    fn plan(source: &[u8], sectors: u64) -> Result<Vec<DiskWrite>, ChangeError> {
        let read = |offset, length| {
            let start = usize::try_from(offset).ok()?;
            source.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
        };
        copy_table(source.len() as u64, 512, read, sectors * 512, &[1], &IDENTITY)
    }

    fn disk(sectors: u64) -> Vec<u8> {
        vec![0; usize::try_from(sectors * 512).expect("small")]
    }

    fn apply(disk: &mut [u8], write: &DiskWrite) {
        let at = usize::try_from(write.offset).expect("small");
        disk[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }

    #[test]
    fn the_header_in_sector_1_makes_the_table() {
        let before = read(&image()).expect("sound");
        let mut copy = disk(SECTORS * 2);
        for (n, write) in plan(&image(), SECTORS * 2).expect("a plan").iter().enumerate() {
            apply(&mut copy, write);
            let Ok(table) = read(&copy) else {
                assert!(n < 2, "{n}");
                continue;
            };
            assert!(n >= 2, "{n}");
            assert_eq!((table.disk, table.copy, table.partitions.len()), (IDENTITY.disk, Copy::Primary, 1));
            let (new, old) = (&table.partitions[0], &before.partitions[0]);
            assert_eq!(new.partuuid, IDENTITY.esp_partuuid);
            assert_eq!(
                (new.number, new.start, new.length, &new.label),
                (1, old.start, old.length, &old.label)
            );
        }
        copy[512] ^= 1;
        assert_eq!(read(&copy).expect("the backup").copy, Copy::Backup);
    }

    #[test]
    fn the_code_that_a_bios_starts_goes_along() {
        let mut source = image();
        source[..440].fill(0x90);
        source[440..446].fill(0x77);
        let mut copy = disk(SECTORS);
        plan(&source, SECTORS).expect("a plan").iter().for_each(|write| apply(&mut copy, write));
        assert!(copy[..440].iter().all(|byte| *byte == 0x90) && copy[440..446] == [0; 6]);
        assert_eq!((copy[450], &copy[510..512]), (0xee, &[0x55, 0xaa][..]));
    }

    #[test]
    fn other_tools_read_it() {
        let mut copy = disk(SECTORS + 77);
        plan(&image(), SECTORS + 77).expect("a plan").iter().for_each(|write| apply(&mut copy, write));
        let device = std::io::Cursor::new(copy);
        let found = ::gpt::GptConfig::new().only_valid_headers(true).open_from_device(device).expect("sound");
        assert_eq!(Guid(*found.guid().as_bytes()), IDENTITY.disk);
        assert_eq!(found.partitions().len(), 1);
    }

    #[test]
    fn a_backup_is_an_original_too_and_damage_is_none() {
        let mut source = image();
        source[512] ^= 1;
        let mut copy = disk(SECTORS * 2);
        plan(&source, SECTORS * 2).expect("the backup").iter().for_each(|write| apply(&mut copy, write));
        assert_eq!(read(&copy).expect("sound").copy, Copy::Primary);
        let end = source.len();
        source[end - 512] ^= 1;
        assert_eq!(plan(&source, SECTORS * 2), Err(ChangeError::Unsound));
        assert_eq!(read(&disk(SECTORS)), Err(GptError::None));
    }

    #[test]
    fn too_small_is_said_with_what_is_needed() {
        // The one partition ends with sector 3000.
        let Err(ChangeError::NoRoom { wanted, .. }) = plan(&image(), 3001 + 32) else { panic!("no room") };
        assert_eq!(wanted, (3001 + 33) * 512);
        assert!(plan(&image(), 3001 + 33).is_ok());
        assert!(plan(&image(), 0).is_err() && plan(&image(), 40).is_err());
    }

    proptest! {
        #[test]
        fn any_damage(changes in proptest::collection::vec((0usize..40 * 512, any::<u8>()), 0..20), sectors in 0u64..9000) {
            let mut source = image();
            for (at, value) in changes {
                source[at] = value;
            }
            let _ = plan(&source, sectors);
        }
    }
}
