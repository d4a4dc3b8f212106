//! Tests of the partition table's changes: every prefix of the writes, torn writes, damaged copies, any disk.

use super::*;
use crate::plan::gpt::tests::{image, others_agree, read};
use crate::plan::guid::TYPE_VAR;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn new(bytes_min: u64) -> NewPartition<'static> {
    NewPartition { type_guid: TYPE_VAR, partuuid: Guid::from_u128(7), label: "orlop-state", bytes_min }
}

fn grown(sectors: u64) -> Vec<u8> {
    let mut disk = image();
    disk.resize(usize::try_from(sectors * 512).expect("small"), 0);
    let writes =
        crate::plan::gpt_relocate::relocate(disk.len() as u64, 512, reader(&disk)).expect("relocated");
    writes.iter().for_each(|w| apply(&mut disk, w));
    others_agree(&disk);
    disk
}

fn reader(disk: &[u8]) -> impl Fn(u64, usize) -> Option<Vec<u8>> + use<> {
    let disk = disk.to_vec();
    move |offset, length| {
        let start = usize::try_from(offset).ok()?;
        disk.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
    }
}

fn editor(disk: &[u8]) -> Result<Editor, ChangeError> {
    Editor::read(disk.len() as u64, 512, reader(disk))
}

fn apply(disk: &mut [u8], write: &DiskWrite) {
    let at = usize::try_from(write.offset).expect("small");
    disk[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
}

fn spans(disk: &[u8]) -> Vec<(u32, u64, u64)> {
    read(disk).expect("sound").partitions.iter().map(|p| (p.number, p.start, p.length)).collect()
}

// A power cut may hit between any two writes, and in the middle of one.
fn old_or_new_at_every_cut(mut disk: Vec<u8>, editor: &Editor) -> Vec<u8> {
    let before = spans(&disk);
    let writes = editor.writes();
    let mut after = disk.clone();
    writes.iter().for_each(|w| apply(&mut after, w));
    let after = spans(&after);
    for write in &writes {
        let mut torn = disk.clone();
        let half =
            DiskWrite { offset: write.offset, bytes: write.bytes[..write.bytes.len() / 1024 * 512].to_vec() };
        apply(&mut torn, &half);
        assert!([&before, &after].contains(&&spans(&torn)), "torn at {}", write.offset);
        apply(&mut disk, write);
        assert!([&before, &after].contains(&&spans(&disk)), "cut behind {}", write.offset);
    }
    assert_eq!(spans(&disk), after);
    others_agree(&disk);
    disk
}

#[test]
fn appended_behind_all_others_up_to_the_end() {
    let disk = grown(40_960);
    let mut table = editor(&disk).expect("sound");
    let made = table.append(&new(MIB)).expect("room");
    // Entry 2 is the first free one; 4001 sectors end at 2,048,512 bytes.
    assert_eq!((made.number, made.start, made.length % GRAIN), (2, 2_048_512_u64.next_multiple_of(GRAIN), 0));
    assert!(made.start + made.length <= (40_960 - 33) * 512 && made.length > 17 * MIB);
    let disk = old_or_new_at_every_cut(disk, &table);
    let found = read(&disk).expect("sound").partitions.into_iter().find(|p| p.number == 2);
    assert_eq!(found, Some(made));
}

#[test]
fn taken_out_and_made_again() {
    let mut table = editor(&grown(40_960)).expect("sound");
    table.append(&new(MIB)).expect("room");
    let disk = old_or_new_at_every_cut(grown(40_960), &table);
    let before = spans(&disk);
    let mut table = editor(&disk).expect("sound");
    assert_eq!(table.remove(77), Err(ChangeError::Missing(77)));
    table.remove(2).expect("there");
    assert_eq!(table.remove(2), Err(ChangeError::Missing(2)));
    let disk = old_or_new_at_every_cut(disk, &table);
    assert_eq!(spans(&disk).len() + 1, before.len());
    let mut table = editor(&disk).expect("sound");
    table.append(&new(MIB)).expect("room");
    assert_eq!(spans(&old_or_new_at_every_cut(disk, &table)), before);
}

#[test]
fn the_last_one_grows() {
    let disk = grown(40_960);
    let mut table = editor(&disk).expect("sound");
    assert_eq!(table.grow(1), Err(ChangeError::NotLast(1)));
    let now = table.grow(6).expect("room");
    assert_eq!((now.number, now.start), (6, 3001 * 512));
    assert!(now.length > 17 * MIB && now.length.is_multiple_of(GRAIN));
    let disk = old_or_new_at_every_cut(disk, &table);
    assert!(matches!(editor(&disk).expect("sound").grow(6), Err(ChangeError::NoRoom { .. })));
}

#[test]
fn disk_and_partitions_get_other_guids_together_with_a_new_partition() {
    let disk = grown(40_960);
    let before = read(&disk).expect("sound");
    let (identity, esp) = (Guid::from_u128(u128::MAX), Guid::from_u128(99));
    let mut table = editor(&disk).expect("sound");
    table.append(&new(MIB)).expect("room");
    table.identify_disk(identity);
    table.identify(1, esp).expect("there");
    assert_eq!(table.identify(3, esp), Err(ChangeError::Missing(3)));
    // Both GUIDs and the partition, or none of it, at each cut.
    let seen = |disk: &[u8]| {
        let table = read(disk).expect("sound");
        (table.disk == identity, table.partitions[0].partuuid == esp, table.partitions.len() == 3)
    };
    let mut now = disk.clone();
    for write in table.writes() {
        let mut torn = now.clone();
        let half = write.bytes.len() / 1024 * 512;
        apply(&mut torn, &DiskWrite { offset: write.offset, bytes: write.bytes[..half].to_vec() });
        apply(&mut now, &write);
        for disk in [&torn, &now] {
            assert!([(false, false, false), (true, true, true)].contains(&seen(disk)), "at {}", write.offset);
        }
    }
    others_agree(&now);
    let after = read(&now).expect("sound");
    assert_eq!(after.disk, identity);
    let others = |t: &crate::plan::gpt::Table| t.partitions.iter().find(|p| p.number == 6).cloned();
    assert_eq!((after.partitions[0].partuuid, others(&after)), (esp, others(&before)));
    // The backup says the same.
    now[512] ^= 1;
    let backup = read(&now).expect("backup");
    assert_eq!((backup.disk, backup.partitions), (after.disk, after.partitions));
}

#[test]
fn a_damaged_copy_is_mended_and_the_sound_one_written_last() {
    for at in [512, 1024, 40_959 * 512, 40_930 * 512] {
        let mut disk = grown(40_960);
        disk[at] ^= 1;
        let mut table = editor(&disk).expect("one copy is sound");
        table.append(&new(MIB)).expect("room");
        let disk = old_or_new_at_every_cut(disk, &table);
        for header in [512, 40_959 * 512] {
            let mut one = disk.clone();
            one[header] ^= 1;
            assert_eq!(spans(&one), spans(&disk), "byte {at}");
        }
    }
}

#[test]
fn the_protective_mbr_covers_the_disk() {
    let mut disk = grown(40_960);
    (disk[MBR_TYPE], disk[MBR_LENGTH], disk[510], disk[511]) = (0xee, 1, 0x55, 0xaa);
    let mut table = editor(&disk).expect("sound");
    table.append(&new(MIB)).expect("room");
    let mut disk = old_or_new_at_every_cut(disk, &table);
    assert_eq!(disk[MBR_LENGTH..MBR_LENGTH + 4], 40_959_u32.to_le_bytes());
    let again = || editor(&disk).expect("sound").writes().len();
    assert_eq!((again(), protective(vec![0; 511], 9)), (4, None));
    disk[MBR_TYPE] = 0x83;
    disk[MBR_LENGTH] = 1;
    assert_eq!(editor(&disk).expect("sound").writes().len(), 4, "a partition of somebody's");
}

#[test]
fn what_does_not_fit_or_is_not_sound_is_refused() {
    let disk = grown(40_960);
    let too_much = editor(&disk).expect("sound").append(&new(1 << 30));
    assert!(matches!(too_much, Err(ChangeError::NoRoom { wanted: 1_073_741_824, .. })), "{too_much:?}");
    let mut both = disk.clone();
    (both[512], both[40_959 * 512]) = (0, 0);
    assert_eq!(editor(&both).map(|_| ()), Err(ChangeError::Unsound));
    let mut moved = image();
    moved.resize(moved.len() * 2, 0);
    assert_eq!(editor(&moved).map(|_| ()), Err(ChangeError::Unsound), "the backup is in the middle");
    let mut full = editor(&disk).expect("sound");
    full.entries.chunks_exact_mut(128).for_each(|e| e[0] = 1);
    assert_eq!(full.append(&new(0)), Err(ChangeError::Full));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_disk_panics(flips in proptest::collection::vec((0usize..17_000, any::<u8>()), 1..8), sector in any::<u32>()) {
        let mut disk = grown(8192);
        let bytes = disk.len();
        for (at, value) in flips {
            disk[at] = value;
            disk[bytes - 1 - at] = value;
        }
        for sector in [512, sector] {
            if let Ok(mut table) = Editor::read(bytes as u64, sector, reader(&disk)) {
                let _ = (table.append(&new(0)), table.grow(6), table.writes());
            }
        }
    }

    #[test]
    fn no_other_partition_is_touched(extra in 100u64..3000) {
        let disk = grown(4096 + extra);
        let before = spans(&disk);
        let mut table = editor(&disk).expect("sound");
        if table.append(&new(0)).is_ok() {
            let mut changed = disk.clone();
            for write in table.writes() {
                let end = write.offset + write.bytes.len() as u64;
                prop_assert!(before.iter().all(|(_, s, l)| end <= *s || write.offset >= s + l));
                apply(&mut changed, &write);
            }
            prop_assert_eq!(spans(&changed).into_iter().filter(|p| before.contains(p)).count(), before.len());
        }
    }
}

#[test]
fn another_label_takes_the_place_of_the_whole_old_one() {
    let disk = image();
    let long = "x".repeat(50);
    for (label, want) in [("a", "a"), ("", ""), (long.as_str(), &long[..36])] {
        let mut table = editor(&disk).expect("sound");
        table.relabel(1, &long).expect("there");
        table.relabel(1, label).expect("there");
        assert_eq!(table.relabel(3, label), Err(ChangeError::Missing(3)));
        let mut now = disk.clone();
        table.writes().iter().for_each(|write| apply(&mut now, write));
        others_agree(&now);
        let (before, after) = (read(&disk).expect("sound"), read(&now).expect("sound"));
        assert_eq!(after.partitions[0].label, want);
        // Nothing else of it, and nothing of the other partition.
        let label = before.partitions[0].label.clone();
        let first = Partition { label, ..after.partitions[0].clone() };
        assert_eq!((first, &after.partitions[1..]), (before.partitions[0].clone(), &before.partitions[1..]));
    }
}
