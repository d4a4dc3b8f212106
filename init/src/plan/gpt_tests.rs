//! Tests of the partition table reader: tables made here byte by byte, damaged in every field, and fuzzed.

use super::*;
use crate::plan::guid::{TYPE_ROOT, TYPE_VAR};
use proptest::prelude::*;

const SECTOR: usize = 512;
pub(in crate::plan) const SECTORS: u64 = 4096;
const BACKUP_HEADER: usize = 4095 * SECTOR;
const BACKUP_ENTRIES: usize = 4063 * SECTOR;

/// A disk image with a protective gap, two tables and two partitions.
pub(in crate::plan) fn image() -> Vec<u8> {
    let mut disk = vec![0u8; SECTOR * usize::try_from(SECTORS).expect("small")];
    let mut entries = vec![0u8; 128 * 128];
    entry(&mut entries[..128], TYPE_ROOT, 0x11, 2048, 3000, "orlop_1");
    entry(&mut entries[5 * 128..6 * 128], TYPE_VAR, 0x66, 3001, 4000, "orlop-state");
    put_table(&mut disk, &entries, 1, 2);
    put_table(&mut disk, &entries, SECTORS - 1, SECTORS - 33);
    disk
}

fn entry(e: &mut [u8], ty: Guid, uuid: u128, first: u64, last: u64, label: &str) {
    e[..16].copy_from_slice(&ty.to_disk());
    e[16..32].copy_from_slice(&Guid::from_u128(uuid).to_disk());
    e[32..40].copy_from_slice(&first.to_le_bytes());
    e[40..48].copy_from_slice(&last.to_le_bytes());
    for (i, unit) in label.encode_utf16().enumerate() {
        e[56 + 2 * i..58 + 2 * i].copy_from_slice(&unit.to_le_bytes());
    }
}

fn put_table(disk: &mut [u8], entries: &[u8], header_lba: u64, entries_lba: u64) {
    let at = |lba: u64| SECTOR * usize::try_from(lba).expect("small");
    let mut h = vec![0u8; SECTOR];
    h[..8].copy_from_slice(b"EFI PART");
    h[8..12].copy_from_slice(&0x0001_0000u32.to_le_bytes());
    h[12..16].copy_from_slice(&92u32.to_le_bytes());
    h[24..32].copy_from_slice(&header_lba.to_le_bytes());
    h[32..40].copy_from_slice(&(SECTORS - header_lba).to_le_bytes());
    h[40..48].copy_from_slice(&34u64.to_le_bytes());
    h[48..56].copy_from_slice(&(SECTORS - 34).to_le_bytes());
    h[56] = 0xd1;
    h[72..80].copy_from_slice(&entries_lba.to_le_bytes());
    h[80..84].copy_from_slice(&128u32.to_le_bytes());
    h[84..88].copy_from_slice(&128u32.to_le_bytes());
    h[88..92].copy_from_slice(&crc32(entries).to_le_bytes());
    reseal(&mut h);
    disk[at(header_lba)..at(header_lba) + SECTOR].copy_from_slice(&h);
    disk[at(entries_lba)..at(entries_lba) + entries.len()].copy_from_slice(entries);
}

fn reseal(header: &mut [u8]) {
    header[16..20].fill(0);
    let crc = crc32(&header[..92]);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
}

pub(in crate::plan) fn read(disk: &[u8]) -> Result<Table, GptError> {
    read_table(disk.len() as u64, 512, |offset, length| {
        let start = usize::try_from(offset).ok()?;
        disk.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
    })
}

/// What the `gpt` crate reads in a disk: the disk's GUID, and its partitions as [`Table`] has them. Both copies must be sound if
/// `whole`.
fn theirs(disk: &[u8], whole: bool) -> (Guid, Vec<Partition>) {
    let device = std::io::Cursor::new(disk.to_vec());
    let found = ::gpt::GptConfig::new().only_valid_headers(whole).open_from_device(device).expect("a table");
    let guid = |bytes: &[u8; 16]| Guid(*bytes);
    let partition = |(number, p): (&u32, &::gpt::partition::Partition)| Partition {
        number: *number,
        type_guid: guid(p.part_type_guid.guid.as_bytes()),
        partuuid: guid(p.part_guid.as_bytes()),
        label: p.name.clone(),
        start: p.first_lba * 512,
        length: (p.last_lba - p.first_lba + 1) * 512,
    };
    (guid(found.guid().as_bytes()), found.partitions().iter().map(partition).collect())
}

/// Others read in a disk with two sound copies what this reader finds in it.
pub(in crate::plan) fn others_agree(disk: &[u8]) {
    let ours = read(disk).expect("sound");
    assert_eq!(theirs(disk, true), (ours.disk, ours.partitions));
}

#[test]
fn others_read_the_same_in_both_copies() {
    others_agree(&image());
    let ours = read(&image()).expect("sound");
    let mut disk = image();
    disk[512 + 40] ^= 1;
    assert_eq!(theirs(&disk, false), (ours.disk, ours.partitions));
}

#[test]
fn a_table_that_others_write_is_read() {
    let device = std::io::Cursor::new(vec![0; 8 << 20]);
    let config = ::gpt::GptConfig::new().writable(true);
    let mut table = config.create_from_device(device, None).expect("a table");
    let linux = ::gpt::partition_types::LINUX_FS;
    for name in ["one", "zwei", "три"] {
        table.add_partition(name, 1 << 20, linux.clone(), 0, None).expect("room");
    }
    let disk = table.write().expect("written").into_inner();
    others_agree(&disk);
    let ours = read(&disk).expect("sound");
    let labels: Vec<&str> = ours.partitions.iter().map(|p| p.label.as_str()).collect();
    assert_eq!((labels, ours.copy), (vec!["one", "zwei", "три"], Copy::Primary));
}

#[test]
fn crc_of_the_standard_check_string() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

#[test]
fn a_sound_table() {
    let table = read(&image()).expect("sound");
    assert_eq!(table.copy, Copy::Primary);
    let state = &table.partitions[1];
    assert_eq!((state.number, state.label.as_str(), state.type_guid), (6, "orlop-state", TYPE_VAR));
    assert_eq!((state.start, state.length), (3001 * 512, 1000 * 512));
}

#[test]
fn backup_stands_in_for_a_damaged_primary() {
    let sound = read(&image()).expect("sound").partitions;
    // Header signature, header body, header checksum, an entry.
    for at in [512, 512 + 40, 512 + 16, 1024 + 3] {
        let mut disk = image();
        disk[at] ^= 1;
        let table = read(&disk).expect("backup");
        assert_eq!((table.copy, &table.partitions), (Copy::Backup, &sound), "byte {at}");
    }
}

#[test]
fn two_damaged_copies_are_refused_with_both_reasons() {
    let mut disk = image();
    disk[512 + 40] ^= 1;
    disk[BACKUP_ENTRIES] ^= 1;
    let want = GptError::Damaged { primary: "header checksum wrong", backup: "entry checksum wrong" };
    assert_eq!(read(&disk), Err(want));
    assert_eq!(read(&vec![0; SECTOR * 100]), Err(GptError::None));
    assert_eq!(read(&[]), Err(GptError::None));
    assert_eq!(read_table(1 << 20, 512, |_, _| None), Err(GptError::Unreadable));
}

#[test]
fn sealed_lies_are_refused() {
    // (offset in header, bytes): right checksum, impossible content.
    let lies: &[(usize, u64, &str)] = &[
        (24, 7, "header is not where it says"),
        (48, SECTORS, "usable range beyond the device"),
        (72, u64::MAX, "entry array out of bounds"),
    ];
    for (at, value, why) in lies {
        let mut disk = image();
        disk[BACKUP_HEADER] = 0;
        disk[512 + at..512 + at + 8].copy_from_slice(&value.to_le_bytes());
        reseal(&mut disk[512..1024]);
        let want = GptError::Damaged { primary: why, backup: "no signature" };
        assert_eq!(read(&disk), Err(want));
    }
}

#[test]
fn a_partition_beyond_the_device_is_refused() {
    let mut disk = image();
    let mut entries = vec![0u8; 128 * 128];
    entry(&mut entries[..128], TYPE_ROOT, 0x11, 2048, SECTORS, "too long");
    put_table(&mut disk, &entries, 1, 2);
    assert_eq!(read(&disk).expect("backup").copy, Copy::Backup);
}

proptest! {
    #[test]
    fn any_flips_give_the_true_table_or_an_error(flips in proptest::collection::vec((0usize..18_000, 1u8..), 1..40)) {
        let sound = read(&image()).expect("sound").partitions;
        let mut disk = image();
        for (at, mask) in flips {
            disk[at] ^= mask;
        }
        if let Ok(table) = read(&disk) {
            prop_assert_eq!(table.partitions, sound);
        }
    }

    #[test]
    fn any_sealed_header(fields in proptest::collection::vec(any::<u8>(), 68), entries in any::<u64>()) {
        let mut disk = image();
        disk[512 + 24..512 + 92].copy_from_slice(&fields);
        disk[512 + 24..512 + 32].copy_from_slice(&1u64.to_le_bytes());
        disk[512 + 40..512 + 48].copy_from_slice(&34u64.to_le_bytes());
        disk[512 + 48..512 + 56].copy_from_slice(&100u64.to_le_bytes());
        disk[512 + 72..512 + 80].copy_from_slice(&(entries % 5000).to_le_bytes());
        reseal(&mut disk[512..1024]);
        let _ = read(&disk);
    }
}
