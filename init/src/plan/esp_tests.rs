//! Tests of the ESP's directory on a small volume: each change, cut writes, renames by a firmware, any bytes.

use super::*;
use proptest::prelude::*;

const SECTOR: usize = 512;
/// Sectors before the data: boot sector, two tables.
const FRONT: usize = 3;
/// Clusters of each UKI of the volume here.
const CHAIN: u32 = 4;
const FIRST_A: u32 = 5;
const FIRST_B: u32 = FIRST_A + CHAIN;
/// Clusters of the directory; those behind the first one lie behind all others.
const CLUSTERS: [u32; 12] = [4, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30];

fn directory_entry(short: &[u8; 11], attributes: u8, cluster: u32, bytes: u32) -> Vec<u8> {
    let mut entry = vec![0; ENTRY];
    entry[..11].copy_from_slice(short);
    entry[11] = attributes;
    let [a, b, c, d] = cluster.to_le_bytes();
    (entry[26], entry[27], entry[20], entry[21]) = (a, b, c, d);
    entry[28..32].copy_from_slice(&bytes.to_le_bytes());
    entry
}

fn file(name: &str, short: &[u8; 11], cluster: u32, bytes: u32) -> Vec<u8> {
    let mut entries = long_entries(name, short).concat();
    entries.extend(directory_entry(short, 0x20, cluster, bytes));
    entries
}

fn dots() -> Vec<u8> {
    [directory_entry(b".          ", DIRECTORY, 4, 0), directory_entry(b"..         ", DIRECTORY, 3, 0)]
        .concat()
}

fn uki_file(slot: SlotName, state: EntryState) -> Vec<u8> {
    let (first, bytes) = if slot == SlotName::A { (FIRST_A, 1500) } else { (FIRST_B, 1200) };
    file(&file_name(slot, state), &short_name(slot, state), first, bytes)
}

fn put(volume: &mut [u8], cluster: u32, bytes: &[u8]) {
    let at = (FRONT + cluster as usize - 2) * SECTOR;
    volume[at..at + bytes.len()].copy_from_slice(bytes);
}

fn link(volume: &mut [u8], cluster: u32, next: u32) {
    for table in [1, 2] {
        let at = table * SECTOR + cluster as usize * 4;
        volume[at..at + 4].copy_from_slice(&next.to_le_bytes());
    }
}

/// A FAT32 volume with clusters of one sector; EFI/Linux holds these entries.
fn volume(linux: &[u8]) -> Vec<u8> {
    let mut v = vec![0; 32 * SECTOR];
    v[510..512].copy_from_slice(&[0x55, 0xaa]);
    v[11..13].copy_from_slice(&512u16.to_le_bytes());
    (v[13], v[14], v[16], v[36], v[44]) = (1, 1, 2, 1, 2);
    let label = directory_entry(b"ESP        ", LABEL, 0, 0);
    put(&mut v, 2, &[label, directory_entry(b"EFI        ", DIRECTORY, 3, 0)].concat());
    let part = long_entries("Linux", b"LINUX      ").concat();
    put(&mut v, 3, &[dots(), part, directory_entry(b"LINUX      ", DIRECTORY, 4, 0)].concat());
    for cluster in [2, 3, 4] {
        link(&mut v, cluster, 0x0fff_ffff);
    }
    for first in [FIRST_A, FIRST_B] {
        (first..first + CHAIN - 1).for_each(|cluster| link(&mut v, cluster, cluster + 1));
        link(&mut v, first + CHAIN - 1, 0x0fff_ffff);
    }
    let mut before = None;
    for (part, cluster) in linux.chunks(SECTOR).zip(CLUSTERS) {
        put(&mut v, cluster, part);
        before.into_iter().for_each(|before| link(&mut v, before, cluster));
        link(&mut v, cluster, 0x0fff_ffff);
        before = Some(cluster);
    }
    v
}

/// The volume of a new disk, with these states.
pub(crate) fn slots(a: EntryState, b: EntryState) -> Vec<u8> {
    volume(&[dots(), uki_file(SlotName::A, a), uki_file(SlotName::B, b)].concat())
}

fn reader(volume: &[u8]) -> impl Fn(u64, usize) -> Option<Vec<u8>> {
    move |at, length| {
        let at = usize::try_from(at).ok()?;
        Some(volume.get(at..at.checked_add(length)?)?.to_vec())
    }
}

fn states(volume: &[u8]) -> [Option<(EntryState, u32, u32)>; 2] {
    let directory = EspDirectory::read(reader(volume)).expect("sound");
    SlotName::ALL.map(|slot| directory.entry(slot).map(|e| (e.state, e.bytes, e.first_cluster)))
}

fn write(volume: &mut [u8], write: &DiskWrite) {
    let at = usize::try_from(write.offset).expect("small");
    volume[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
}

#[test]
fn each_state_leads_to_each_other_in_one_sector() {
    for slot in SlotName::ALL {
        for old in EntryState::ALL {
            for new in EntryState::ALL {
                let other = EntryState::Good;
                let before = match slot {
                    SlotName::A => slots(old, other),
                    SlotName::B => slots(other, old),
                };
                let directory = EspDirectory::read(reader(&before)).expect("sound");
                let (after, change) = directory.renamed(slot, new, 777).expect("a write");
                assert_eq!((change.bytes.len(), change.offset % 512), (SECTOR, 0));
                let mut volume = before.clone();
                write(&mut volume, &change);
                assert_eq!(EspDirectory::read(reader(&volume)), Ok(after));
                let (was, is) = (states(&before), states(&volume));
                let changed = usize::from(slot == SlotName::B);
                let first = was[changed].expect("there").2;
                assert_eq!(is[changed], Some((new, 777, first)));
                assert_eq!(is[1 - changed], was[1 - changed]);
                // Nothing but names and length: tables and content are the same.
                let place = usize::try_from(change.offset).expect("small")..;
                assert_eq!(before[..place.start], volume[..place.start]);
                assert_eq!(before[place.start + SECTOR..], volume[place.start + SECTOR..]);
            }
        }
    }
}

#[test]
fn chains_are_whole_or_not() {
    let mut volume = slots(EntryState::Good, EntryState::Hidden);
    let bytes = CHAIN * 512;
    let contiguous = |volume: &[u8], first, bytes| {
        let geometry = EspGeometry::read(&reader(volume)).expect("sound");
        geometry.is_contiguous(&reader(volume), first, bytes)
    };
    let directory = EspDirectory::read(reader(&volume)).expect("sound");
    let at = directory.geometry().offset(FIRST_B);
    assert_eq!(at, u64::from(FIRST_B - 2 + 3) * 512);
    for (first, length, want) in [
        (FIRST_A, bytes, true),
        (FIRST_B, bytes, true),
        (FIRST_B, bytes - 511, true),
        (FIRST_A, bytes + 1, false),
        (FIRST_A, bytes - 512, false),
        (FIRST_A + 1, bytes, false),
        (0, bytes, false),
        (1, bytes, false),
        (FIRST_A, 0, false),
        (u32::MAX, bytes, false),
    ] {
        assert_eq!(contiguous(&volume, first, length), Ok(want), "{first} {length}");
    }
    link(&mut volume, FIRST_A + 1, FIRST_A + 3);
    assert_eq!(contiguous(&volume, FIRST_A, bytes), Ok(false));
    assert_eq!(contiguous(&volume[..600], FIRST_A, 500 * 512), Err(EspError::Unreadable));
}

#[test]
fn what_a_firmware_makes_of_a_name_is_read() {
    let tried = |short| file("orlop-b_+0-1.efi", short, FIRST_B, 1200);
    let mut gone = uki_file(SlotName::B, EntryState::ToTry);
    (0..3).for_each(|n| gone[n * ENTRY] = DELETED);
    // Removed and made again behind the others, with a short name of its own; and cut between making and removing.
    for (rest, other) in [
        ([gone, tried(b"ORLOP-~2EFI")].concat(), None),
        ([uki_file(SlotName::B, EntryState::Hidden), tried(b"ORLOP-~3EFI")].concat(), Some("deleted")),
    ] {
        let mut volume = volume(&[dots(), uki_file(SlotName::A, EntryState::Good), rest].concat());
        assert_eq!(states(&volume)[1], Some((EntryState::Tried, 1200, FIRST_B)), "{other:?}");
        let directory = EspDirectory::read(reader(&volume)).expect("sound");
        let (after, change) = directory.renamed(SlotName::B, EntryState::Hidden, 2048).expect("a write");
        write(&mut volume, &change);
        assert_eq!(states(&volume)[1], Some((EntryState::Hidden, 2048, FIRST_B)));
        assert_eq!(after.entries.iter().filter(|e| e.slot == SlotName::B).count(), 1);
        assert_eq!(states(&volume)[0], Some((EntryState::Good, 1500, FIRST_A)));
    }
    // The loader counts on: a longer name has the same number of entries.
    let long = file("orlop-b_+0-10.efi", b"ORLOP-~4EFI", FIRST_B, 9);
    let volume = volume(&[dots(), long].concat());
    assert_eq!(states(&volume), [None, Some((EntryState::Tried, 9, FIRST_B))]);
    let directory = EspDirectory::read(reader(&volume)).expect("sound");
    assert_eq!(directory.renamed(SlotName::A, EntryState::Good, 1), Err(EspError::NoEntry(SlotName::A)));
    assert!(directory.renamed(SlotName::B, EntryState::Good, 1).is_ok());
}

/// Where a byte of the directory is on the volume.
fn place(at: usize) -> usize {
    (FRONT + CLUSTERS[at / SECTOR] as usize - 2) * SECTOR + at % SECTOR
}

#[test]
fn an_entry_over_two_sectors_gets_its_new_name_in_the_second() {
    // Two entries, these, and three of slot A: the first sector has 16.
    for before in [11, 12, 13, 14] {
        let filler = directory_entry(b"FILLER     ", 0x20, 0, 0).repeat(before);
        let mut spread = volume(&[dots(), filler, uki_file(SlotName::A, EntryState::Good)].concat());
        assert_eq!(states(&spread)[0], Some((EntryState::Good, 1500, FIRST_A)), "{before}");
        let directory = EspDirectory::read(reader(&spread)).expect("sound");
        let (after, change) = directory.renamed(SlotName::A, EntryState::Behind, 7).expect("a write");
        let sector = if before == 11 { 0 } else { SECTOR };
        assert_eq!(change.offset, place(sector) as u64, "{before}");
        write(&mut spread, &change);
        assert_eq!(after.entries.len(), 1, "{before}");
        assert_eq!(EspDirectory::read(reader(&spread)), Ok(after));
        assert_eq!(states(&spread), [Some((EntryState::Behind, 7, FIRST_A)), None], "{before}");
    }
    // No room next to the old name: the second sector is full, and the directory does not end there.
    let filler = |n| directory_entry(b"FILLER     ", 0x20, 0, 0).repeat(n);
    let full = [dots(), filler(13), uki_file(SlotName::A, EntryState::Good), filler(15)].concat();
    let directory = EspDirectory::read(reader(&volume(&full))).expect("sound");
    let refused = directory.renamed(SlotName::A, EntryState::Behind, 1);
    assert_eq!(refused, Err(EspError::Moved(SlotName::A)));
}

/// As EDK2's driver renames (FatPkg, `FatNewEntryPos`): the old entries are deleted, the new ones are appended, and no deleted entry is
/// used again.
fn edk2_renames(v: &mut [u8], slot: SlotName, state: EntryState) {
    let entry = *EspDirectory::read(reader(v)).expect("sound").entry(slot).expect("there");
    let end = (0..).step_by(ENTRY).find(|at| v[place(*at)] == END).expect("room");
    (entry.from..entry.to).step_by(ENTRY).for_each(|at| v[place(at)] = DELETED);
    let new = file(&file_name(slot, state), b"ORLOP_~9EFI", entry.first_cluster, entry.bytes);
    for (n, part) in new.chunks(ENTRY).enumerate() {
        let at = place(end + n * ENTRY);
        v[at..at + ENTRY].copy_from_slice(part);
    }
}

#[test]
fn trials_go_on_with_a_firmware_that_appends_each_name() {
    let mut linux =
        [dots(), uki_file(SlotName::A, EntryState::Good), uki_file(SlotName::B, EntryState::Hidden)].concat();
    linux.resize(CLUSTERS.len() * SECTOR, 0);
    let mut v = volume(&linux);
    for round in 0..50 {
        let slot = SlotName::ALL[round % 2];
        let verdict = [EntryState::Good, EntryState::Hidden, EntryState::Behind][round % 3];
        let other = states(&v)[1 - round % 2];
        for (state, renames) in [(EntryState::ToTry, true), (verdict, false)] {
            let directory = EspDirectory::read(reader(&v)).expect("sound");
            let (after, change) =
                directory.renamed(slot, state, 900).unwrap_or_else(|e| panic!("{round}: {e}"));
            assert_eq!(change.bytes.len(), SECTOR);
            write(&mut v, &change);
            assert_eq!(EspDirectory::read(reader(&v)).as_ref(), Ok(&after), "{round}");
            assert_eq!(after.entries.len(), 2, "{round}");
            if renames {
                edk2_renames(&mut v, slot, EntryState::Tried);
            }
        }
        let now = states(&v);
        assert_eq!(now[round % 2].map(|(state, bytes, _)| (state, bytes)), Some((verdict, 900)), "{round}");
        assert_eq!(now[1 - round % 2], other, "{round}");
    }
}

#[test]
fn other_volumes_are_errors() {
    let good = slots(EntryState::Good, EntryState::Hidden);
    for (at, value, want) in [
        (510, 0, EspError::Geometry),
        (11, 1, EspError::Geometry),
        (13, 3, EspError::Geometry),
        (17, 1, EspError::Geometry),
        (36, 0, EspError::Geometry),
        (44, 0, EspError::NoDirectory),
        (44, 255, EspError::Unreadable),
        ((FRONT + 1) * SECTOR + 3 * ENTRY, b'X', EspError::NoDirectory),
    ] {
        let mut volume = good.clone();
        volume[at] = value;
        assert_eq!(EspDirectory::read(reader(&volume)), Err(want), "{at}");
    }
    // A directory that goes round.
    let mut round = good.clone();
    link(&mut round, 4, 4);
    assert_eq!(EspDirectory::read(reader(&round)), Err(EspError::NoDirectory));
    assert_eq!(EspDirectory::read(|_, _| None), Err(EspError::Unreadable));
    // No UKI in it: a disk of the first layout.
    let first = volume(&[dots(), file("orlop_0.1.0.efi", b"ORLOP_~1EFI", 5, 9)].concat());
    assert_eq!(states(&first), [None, None]);
}

proptest! {
    #[test]
    fn any_volume(changes in proptest::collection::vec((0usize..32 * SECTOR, any::<u8>()), 0..60), slot in any::<bool>()) {
        let mut v = slots(EntryState::Good, EntryState::ToTry);
        for (at, value) in changes {
            // Half of them where they matter: boot sector and directories.
            v[if value & 1 == 0 { at } else { [at % 64, at % 192 + (FRONT + 2) * SECTOR][at % 2] }] = value;
        }
        if let Ok(directory) = EspDirectory::read(reader(&v)) {
            let slot = if slot { SlotName::A } else { SlotName::B };
            if let Ok((after, change)) = directory.renamed(slot, EntryState::Behind, 9) {
                prop_assert_eq!(after.entry(slot).map(|e| (e.state, e.bytes)), Some((EntryState::Behind, 9)));
                prop_assert_eq!(change.bytes.len(), directory.geometry().sector);
            }
        }
    }
}
