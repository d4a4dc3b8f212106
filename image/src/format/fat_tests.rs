//! Tests of FAT32: a tree that is written and read back with both sector sizes, and damaged volumes.

use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn raw(name: &[u8; 11], attributes: u8, size: usize) -> [u8; ENTRY] {
    let mut raw = [0; ENTRY];
    raw[..11].copy_from_slice(name);
    raw[11] = attributes;
    // Times, which are taken over.
    raw[22..26].copy_from_slice(&[1, 2, 3, 4]);
    raw[28..32].copy_from_slice(&u32::try_from(size).expect("small").to_le_bytes());
    raw
}

fn file(name: &[u8; 11], content: &[u8]) -> FatEntry {
    FatEntry::File(raw(name, 0x20, content.len()), content.to_vec(), content.len().next_multiple_of(512))
}

fn dots() -> [FatEntry; 2] {
    [FatEntry::Itself(raw(b".          ", DIRECTORY, 0)), FatEntry::Above(raw(b"..         ", DIRECTORY, 0))]
}

/// A boot loader's volume: a label, long names, an empty file, directories in directories, one of several clusters.
pub(crate) fn volume() -> Volume {
    let mut boot = vec![0; 512];
    boot[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
    boot[21] = 0xf8;
    boot[66] = 0x29;
    boot[71..82].copy_from_slice(b"ESP        ");
    boot[82..90].copy_from_slice(b"FAT32   ");
    boot[510..].copy_from_slice(&[0x55, 0xaa]);
    let kernel: Vec<u8> = (0..100_000u32).map(|n| n.to_le_bytes()[0]).collect();
    let mut linux = dots().to_vec();
    linux.push(FatEntry::Plain([
        b'L',
        0,
        b'o',
        0,
        b'n',
        0,
        b'g',
        0,
        0,
        0,
        0,
        LABEL | 7,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]));
    linux.push(file(b"ORLOP_~1EFI", &kernel));
    let mut many = dots().to_vec();
    many.extend((0..200u8).map(|n| file(b"FILE       ", &[n])));
    let mut efi = dots().to_vec();
    efi.push(FatEntry::Directory(raw(b"LINUX      ", DIRECTORY, 0), linux));
    efi.push(FatEntry::Directory(raw(b"MANY       ", DIRECTORY, 0), many));
    let root = vec![
        FatEntry::Plain(raw(b"ESP        ", LABEL, 0)),
        file(b"EMPTY   TXT", b""),
        FatEntry::Directory(raw(b"EFI        ", DIRECTORY, 0), efi),
    ];
    Volume { boot, root }
}

/// The same tree without numbers of clusters, and without what depends on the sectors in the boot sector.
pub(crate) fn plain(volume: &Volume) -> Volume {
    fn bare(raw: &[u8; ENTRY]) -> [u8; ENTRY] {
        let mut raw = *raw;
        raw[20..22].fill(0);
        raw[26..28].fill(0);
        raw
    }
    fn directory(entries: &Directory) -> Directory {
        let one = |entry: &FatEntry| match entry {
            FatEntry::Plain(raw) => FatEntry::Plain(*raw),
            FatEntry::Itself(raw) => FatEntry::Itself(bare(raw)),
            FatEntry::Above(raw) => FatEntry::Above(bare(raw)),
            FatEntry::File(raw, content, chain) => {
                FatEntry::File(bare(raw), content.clone(), chain.next_multiple_of(4096))
            }
            FatEntry::Directory(raw, below) => FatEntry::Directory(bare(raw), directory(below)),
        };
        entries.iter().map(one).collect()
    }
    let mut boot = volume.boot.clone();
    boot[11..17].fill(0);
    boot[32..52].fill(0);
    Volume { boot, root: directory(&volume.root) }
}

/// Reads pieces as if they were a volume.
fn on(pieces: &[Piece]) -> impl Fn(u64, usize) -> std::io::Result<Vec<u8>> + '_ {
    move |offset: u64, length: usize| {
        let mut out = vec![0; length];
        for piece in pieces {
            let end = piece.offset + piece.bytes.len() as u64;
            let (from, to) = (piece.offset.max(offset), end.min(offset + length as u64));
            if from < to {
                let [a, b, c, d] = [from - offset, to - offset, from - piece.offset, to - piece.offset]
                    .map(|n| usize::try_from(n).expect("small"));
                out[a..b].copy_from_slice(&piece.bytes[c..d]);
            }
        }
        Ok(out)
    }
}

#[test]
fn a_tree_stays_the_same_with_other_sectors() {
    let small = write(&volume(), 40 * MIB, 512, 512).expect("fits");
    let read_back = read(on(&small)).expect("sound");
    assert_eq!(plain(&read_back), plain(&volume()));
    let large = write(&read_back, 264 * MIB, 4096, 4096).expect("fits");
    let again = read(on(&large)).expect("sound");
    assert_eq!(plain(&again), plain(&volume()));
    let boot = &again.boot;
    assert_eq!((boot[11..14].to_vec(), le32(boot, 32).expect("there")), (vec![0, 16, 1], 264 * 256));
    // The directory itself, and the one above: 0 where that is the root.
    let FatEntry::Directory(efi, below) = &again.root[2] else { panic!("{:?}", again.root[2]) };
    let (FatEntry::Itself(dot), FatEntry::Above(above)) = (&below[0], &below[1]) else { panic!("{below:?}") };
    assert_eq!((dot[26..28].to_vec(), above[26..28].to_vec()), (efi[26..28].to_vec(), vec![0, 0]));
    let FatEntry::Directory(_, linux) = &below[2] else { panic!("{below:?}") };
    let FatEntry::Above(above) = &linux[1] else { panic!("{linux:?}") };
    assert_eq!(above[26..28], efi[26..28]);
}

#[test]
fn a_chain_may_be_longer_than_its_file() {
    let mut volume = volume();
    let FatEntry::Directory(_, efi) = &mut volume.root[2] else { panic!("EFI") };
    let FatEntry::Directory(_, linux) = &mut efi[2] else { panic!("Linux") };
    linux[3] = FatEntry::File(raw(b"ORLOP~1 EFI", 0x20, 700), vec![7; 700], 64 * 1024);
    // All of it is zeros, and none of them is written.
    linux.push(FatEntry::File(raw(b"ORLOP~2 EFX", 0x20, 64 * 1024), Vec::new(), 64 * 1024));
    for (bytes, sector, cluster) in [(40 * MIB, 512, 512), (264 * MIB, 512, 4096), (264 * MIB, 4096, 4096)] {
        let pieces = write(&volume, bytes, sector, cluster).expect("fits");
        let again = read(on(&pieces)).expect("sound");
        let FatEntry::Directory(_, efi) = &again.root[2] else { panic!("EFI") };
        let FatEntry::Directory(_, linux) = &efi[2] else { panic!("Linux") };
        let (FatEntry::File(a, content, chain), FatEntry::File(b, hidden, room)) = (&linux[3], &linux[4])
        else {
            panic!("{linux:?}")
        };
        assert_eq!(
            (content, *chain, hidden, *room),
            (&vec![7; 700], 64 * 1024, &vec![0; 64 * 1024], 64 * 1024)
        );
        // One behind the other.
        let first = |raw: &[u8; ENTRY]| u32::from(le16(raw, 26).expect("there"));
        assert_eq!(first(b) - first(a), 64 * 1024 / cluster);
        assert!(pieces.iter().all(|piece| piece.bytes.iter().any(|byte| *byte != 0)));
    }
}

#[test]
fn pieces_lie_apart_and_in_the_volume() {
    let mut pieces = write(&volume(), 264 * MIB, 4096, 4096).expect("fits");
    pieces.sort_by_key(|piece| piece.offset);
    let end = |piece: &Piece| piece.offset + piece.bytes.len() as u64;
    assert!(pieces.windows(2).all(|two| end(&two[0]) <= two[1].offset));
    assert!(pieces.iter().all(|piece| piece.offset.is_multiple_of(4096) && end(piece) <= 264 * MIB));
    // The copy of the boot sector, where the boot sector says.
    assert_eq!((pieces[2].offset, &pieces[2].bytes), (6 * 4096, &pieces[0].bytes));
}

#[test]
fn clusters_are_blocks_of_the_disk() {
    for (bytes, sector, cluster) in [(40 * MIB, 512, 512), (264 * MIB, 512, 4096), (264 * MIB, 4096, 4096)] {
        let pieces = write(&volume(), bytes, sector, cluster).expect("fits");
        let boot = &pieces[0].bytes;
        let reserved = u64::from(le16(boot, 14).expect("there"));
        let tables = 2 * u64::from(le32(boot, 36).expect("there"));
        let data = (reserved + tables) * u64::from(sector);
        assert!(reserved >= 32 && data.is_multiple_of(u64::from(cluster)), "{sector} {cluster}: {data}");
        // The root directory has the first cluster.
        assert!(pieces.iter().any(|piece| piece.offset == data), "{sector} {cluster}");
    }
}

#[test]
fn what_would_be_no_fat32_is_refused() {
    assert!(
        write(&volume(), 256 * MIB, 4096, 4096).expect_err("too few clusters").to_string().contains("65525")
    );
    assert!(
        write(&volume(), 264 * MIB, 512, 1536).is_err() && write(&volume(), 264 * MIB, 4096, 512).is_err()
    );
    assert!(read(|_, length| Ok(vec![0; length])).is_err());
    assert!(read(|_, _| Ok(Vec::new())).is_err());
    assert!(read(|_, _| Err(std::io::Error::other("no"))).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn damage_gives_an_error_or_a_tree(changes in proptest::collection::vec((0usize..3, 0usize..2000, any::<u8>()), 1..20)) {
        let mut pieces = write(&volume(), 40 * MIB, 512, 512).expect("fits");
        let last = pieces.len() - 1;
        // The boot sector, the table that is read, the root directory.
        let places = [0, 4, last];
        for (place, at, value) in changes {
            let bytes = &mut pieces[places[place]].bytes;
            let length = bytes.len();
            bytes[at % length] = value;
        }
        let _ = read(on(&pieces));
    }
}
