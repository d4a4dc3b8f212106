//! Whether a FAT volume has a name in its root directory, without mounting it: vfat, fat and two code pages are four
//! modules, whose signatures take the kernel longer to check than anything that could stand there.
//!
//! Why no crate: `fatfs` had its last release in January 2023, and it reads and writes; this only looks, and everything is bounded.
//!
//! Format: Microsoft's FAT specification 1.03. Every entry has a short name in upper case, those with a long one as
//! well.

use super::{le_u16, le_u32};

/// Bytes of a directory entry.
const ENTRY: usize = 32;
/// Of a root directory, bytes that are looked at; one that goes on may hold anything.
const DIRECTORY_MAX: usize = 1 << 20;
/// Attributes of an entry: a volume's label, or a part of a long name.
const LABEL: u8 = 0x08;

/// False if no entry of the root directory has a short name that begins with `name` (letters only, case does not
/// matter); true if one has, and if that is unknown. `read` returns that many bytes at an offset.
pub fn may_hold(name: &str, read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> bool {
    root_directory(read).is_none_or(|directory| holds(&directory, name.as_bytes()).unwrap_or(true))
}

fn root_directory(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let boot = read(0, 512)?;
    if boot.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let sector = u64::from(le_u16(&boot, 11)?);
    let cluster = u64::from(*boot.get(13)?) * sector;
    if !sector.is_power_of_two() || !(512..=4096).contains(&sector) || !cluster.is_power_of_two() {
        return None;
    }
    let fat = u64::from(le_u16(&boot, 14)?) * sector;
    let fats = u64::from(*boot.get(16)?);
    let entries = usize::from(le_u16(&boot, 17)?);
    if entries > 0 {
        // FAT12 and FAT16: the directory stands behind the tables.
        let length = u64::from(le_u16(&boot, 22)?) * sector;
        return read(fat + fats * length, (entries * ENTRY).min(DIRECTORY_MAX));
    }
    let length = u64::from(le_u32(&boot, 36)?) * sector;
    let data = fat + fats * length;
    let mut number = u64::from(le_u32(&boot, 44)?);
    let mut directory = Vec::new();
    while (2..0x0fff_fff7).contains(&number) && directory.len() < DIRECTORY_MAX {
        directory.extend(read(data + (number - 2) * cluster, usize::try_from(cluster).ok()?)?);
        number = u64::from(le_u32(&read(fat + number * 4, 4)?, 0)? & 0x0fff_ffff);
    }
    Some(directory)
}

// None if the directory goes on behind what was read.
fn holds(directory: &[u8], name: &[u8]) -> Option<bool> {
    for entry in directory.chunks_exact(ENTRY) {
        let (short, attributes) = (entry.get(..11)?, entry.get(11)?);
        if short.first() == Some(&0) {
            return Some(false);
        }
        if attributes & LABEL == 0 && short.get(..name.len())?.eq_ignore_ascii_case(name) {
            return Some(true);
        }
    }
    (directory.len() < DIRECTORY_MAX && !directory.is_empty()).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECTOR: usize = 512;

    fn entry(short: &[u8; 11], attributes: u8) -> Vec<u8> {
        let mut entry = vec![0; ENTRY];
        entry[..11].copy_from_slice(short);
        entry[11] = attributes;
        entry
    }

    /// One reserved sector, two tables of a sector, clusters of a sector.
    fn volume(fat32: bool, directory: &[u8]) -> Vec<u8> {
        let mut v = vec![0; 64 * SECTOR];
        v[510..512].copy_from_slice(&[0x55, 0xaa]);
        v[11..13].copy_from_slice(&512u16.to_le_bytes());
        (v[13], v[14], v[16]) = (1, 1, 2);
        if !fat32 {
            (v[17], v[22]) = (64, 1);
            v[3 * SECTOR..][..directory.len()].copy_from_slice(directory);
            return v;
        }
        (v[36], v[44]) = (1, 5);
        // The root directory is in every second cluster from 5 on.
        let clusters: Vec<&[u8]> = directory.chunks(SECTOR).collect();
        for (i, part) in clusters.iter().enumerate() {
            let (number, next) = (5 + 2 * i, if i + 1 < clusters.len() { 7 + 2 * i } else { 0x0fff_ffff });
            v[SECTOR + number * 4..][..4].copy_from_slice(&u32::try_from(next).expect("small").to_le_bytes());
            v[(3 + number - 2) * SECTOR..][..part.len()].copy_from_slice(part);
        }
        v
    }

    fn asked(volume: &[u8]) -> bool {
        may_hold("orlop", |at, length| {
            let at = usize::try_from(at).ok()?;
            Some(volume.get(at..at.checked_add(length)?)?.to_vec())
        })
    }

    #[test]
    fn names_of_the_root_directory() {
        let others =
            || [entry(b"ESP        ", 8), entry(b"EFI        ", 16), entry(b"LOADER     ", 16)].concat();
        for fat32 in [false, true] {
            assert!(!asked(&volume(fat32, &others())), "{fat32}");
            for own in [b"ORLOP      ", b"ORLOP~1    ", b"orlop      "] {
                let with = [others(), entry(b"LONG NAME  ", 15), entry(own, 16)].concat();
                assert!(asked(&volume(fat32, &with)), "{fat32}");
            }
            // A volume's label, an entry that is gone, one behind the end.
            for not in [
                entry(b"ORLOP      ", 8),
                entry(b"\xe5RLOP      ", 16),
                [entry(&[0; 11], 0), entry(b"ORLOP      ", 16)].concat(),
            ] {
                assert!(!asked(&volume(fat32, &[others(), not].concat())), "{fat32}");
            }
        }
    }

    #[test]
    fn a_directory_of_several_clusters() {
        let many = entry(b"FILE       ", 0).repeat(40);
        assert!(!asked(&volume(true, &many)));
        assert!(asked(&volume(true, &[many, entry(b"ORLOP      ", 16)].concat())));
    }

    #[test]
    fn what_cannot_be_told_is_for_the_kernel() {
        let good = volume(true, &entry(b"EFI        ", 16));
        assert!(!asked(&good));
        for (at, value) in [(510, 0), (11, 1), (13, 3), (44, 0), (44, 255)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(asked(&bad), "{at}");
        }
        let mut circle = volume(true, &entry(b"FILE       ", 0).repeat(16));
        circle[SECTOR + 20..SECTOR + 24].copy_from_slice(&5u32.to_le_bytes());
        assert!(asked(&circle));
        assert!(asked(&[]));
    }

    proptest! {
        #[test]
        fn any_volume(changes in proptest::collection::vec((0usize..64 * SECTOR, any::<u8>()), 0..40), fat32 in any::<bool>()) {
            let mut v = volume(fat32, &entry(b"EFI        ", 16));
            for (at, value) in changes {
                // Half of them where they matter.
                v[if value & 1 == 0 { at } else { at % 64 }] = value;
            }
            let _ = asked(&v);
        }
    }
}
