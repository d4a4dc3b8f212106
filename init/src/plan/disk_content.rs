//! What a disk holds already, before the installer may write to it: a table, file systems, or bytes that no rule knows.
//!
//! In: the first and the last bytes of the disk, its table, and the kinds of its partitions' content. Out: what a person
//! has to read before anything is lost. Invariant: a disk with a byte other than zero in its first or last MiB is not
//! empty, unless an earlier installation was cut short there and no table and no file system was made since.

use super::gpt::{GptError, Table};

/// As much is looked at at each end, bytes; partitions begin behind it.
pub const EDGE: u64 = 1 << 20;
/// As much of a partition is enough to name its content, bytes.
pub const PROBE_BYTES: usize = 68 << 10;
/// What stands in sector 1 while an installation is under way: the place of the table's header, so that one write
/// takes it away and makes the table.
pub const UNFINISHED: &[u8; 32] = b"orlop: this copy is not finished";
/// Type of the MBR's entry before a GUID partition table.
const PROTECTIVE: u8 = 0xee;
/// More partitions than these are only counted.
const NAMED_MAX: usize = 8;

/// Where a signature stands, its bytes, and whose it is.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0, b"LUKS\xba\xbe", "LUKS"),
    (0, b"XFSB", "XFS"),
    (0, b"hsqs", "squashfs"),
    (0, b"bluestore block device", "Ceph"),
    (0, &[0xfc, 0x4e, 0x2b, 0xa9], "Linux RAID"),
    (3, b"NTFS    ", "NTFS"),
    (3, b"EXFAT   ", "exFAT"),
    (24, b"LVM2 001", "LVM"),
    (54, b"FAT1", "FAT"),
    (82, b"FAT32", "FAT"),
    (536, b"LVM2 001", "LVM"),
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "erofs"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "F2FS"),
    (1080, &[0x53, 0xef], "ext4"),
    (4086, b"SWAPSPACE2", "swap"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "Linux RAID"),
    (32_769, b"CD001", "ISO 9660"),
    (65_600, b"_BHRfS_M", "btrfs"),
];

/// What is on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskContent {
    /// Nothing.
    Empty,
    /// An installation that was cut short: nothing that anybody would miss.
    Unfinished,
    /// This, each with its name.
    Holds(Vec<String>),
}

/// The kind of content that begins with these bytes, if it has a known signature.
#[must_use]
pub fn signature(bytes: &[u8]) -> Option<&'static str> {
    let stands = |at: usize, magic: &[u8]| bytes.get(at..at + magic.len()) == Some(magic);
    SIGNATURES.iter().find(|(at, magic, _)| stands(*at, magic)).map(|(_, _, name)| *name)
}

/// Judges a disk with logical sectors of `sector` bytes by its first and last [`EDGE`] (less of a smaller disk), its table,
/// and the kind of content of each of its partitions, by number.
#[must_use]
pub fn content(
    sector: u32,
    (head, tail): (&[u8], &[u8]),
    table: &Result<Table, GptError>,
    inside: &[(u32, Option<&'static str>)],
) -> DiskContent {
    let second = usize::try_from(sector).ok().and_then(|at| head.get(at..));
    // A tool that makes MBR partitions leaves sector 1, and with it the mark, as it was.
    let is_new = mbr_is_foreign(head) || signature(head).is_some();
    if second.is_some_and(|bytes| bytes.starts_with(UNFINISHED)) && !is_new {
        return DiskContent::Unfinished;
    }
    let mut found = Vec::new();
    match table {
        Ok(table) => found.push(partitions(table, inside)),
        Err(GptError::Damaged { .. }) => found.push("a damaged GUID partition table".to_owned()),
        Err(GptError::Unreadable) => found.push("sectors that cannot be read".to_owned()),
        Err(GptError::None) => {
            if let Some(count) = mbr(head) {
                found.push(format!("an MBR partition table with {count} partitions"));
            }
        }
    }
    if let Some(name) = signature(head) {
        found.push(format!("{name} on the whole disk"));
    }
    if found.is_empty() && head.iter().chain(tail).any(|byte| *byte != 0) {
        found.push("data of an unknown kind".to_owned());
    }
    if found.is_empty() { DiskContent::Empty } else { DiskContent::Holds(found) }
}

fn partitions(table: &Table, inside: &[(u32, Option<&'static str>)]) -> String {
    let named = table.partitions.iter().take(NAMED_MAX).map(|p| {
        let kind = inside.iter().find(|(number, _)| *number == p.number).and_then(|(_, kind)| *kind);
        let label: String = p.label.chars().filter(|c| !c.is_control()).collect();
        format!("{} \"{label}\" ({})", p.number, kind.unwrap_or("unknown content"))
    });
    let named: Vec<String> = named.collect();
    let more = if table.partitions.len() > NAMED_MAX { ", …" } else { "" };
    let list = if named.is_empty() { String::new() } else { format!(": {}{more}", named.join(", ")) };
    format!("a GUID partition table with {} partitions{list}", table.partitions.len())
}

/// Number of used entries, if there is an MBR with any.
fn mbr(head: &[u8]) -> Option<usize> {
    let used = mbr_kinds(head).count();
    (used > 0).then_some(used)
}

/// Is there an MBR with another partition than the one that protects a GUID partition table?
fn mbr_is_foreign(head: &[u8]) -> bool {
    mbr_kinds(head).any(|kind| kind != PROTECTIVE)
}

/// Types of the MBR's used entries.
fn mbr_kinds(head: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let is_there = head.get(510..512) == Some(&[0x55, 0xaa][..]);
    (0..4)
        .filter(move |_| is_there)
        .filter_map(move |n| head.get(450 + 16 * n).copied())
        .filter(|kind| *kind != 0)
}

#[cfg(test)]
mod tests {
    use super::super::gpt::tests::{image, read};
    use super::*;
    use proptest::prelude::*;

    const NONE: Result<Table, GptError> = Err(GptError::None);

    fn holds(head: &[u8], tail: &[u8]) -> String {
        match content(512, (head, tail), &NONE, &[]) {
            DiskContent::Holds(found) => found.join("; "),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn only_zeros_are_nothing() {
        let zeros = vec![0; 1 << 16];
        assert_eq!(holds(&zeros, &zeros), "Empty");
        let mut one = zeros.clone();
        one[40_000] = 1;
        assert_eq!(holds(&one, &zeros), "data of an unknown kind");
        assert_eq!(holds(&zeros, &one), "data of an unknown kind");
        let mut begun = one;
        begun[512..544].copy_from_slice(UNFINISHED);
        assert_eq!(holds(&begun, &zeros), "Unfinished");
    }

    #[test]
    fn a_mark_under_newer_content_counts_for_nothing() {
        let zeros = vec![0; 1 << 16];
        let mut marked = zeros.clone();
        marked[512..544].copy_from_slice(UNFINISHED);
        // The MBR that the installer itself writes before the table.
        marked[510..512].copy_from_slice(&[0x55, 0xaa]);
        marked[450] = PROTECTIVE;
        assert_eq!(holds(&marked, &zeros), "Unfinished");
        let mut partitioned = marked.clone();
        partitioned[450] = 0x83;
        assert_eq!(holds(&partitioned, &zeros), "an MBR partition table with 1 partitions");
        marked[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert!(holds(&marked, &zeros).contains("ext4 on the whole disk"));
    }

    #[test]
    fn file_systems_and_tables_have_their_names() {
        for (at, magic, name) in SIGNATURES {
            let mut head = vec![0; PROBE_BYTES];
            head[*at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(signature(&head), Some(*name));
            assert_eq!(holds(&head, &[]), format!("{name} on the whole disk"));
        }
        let mut head = vec![0; 512];
        head[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(holds(&head, &[]), "data of an unknown kind");
        (head[450], head[466]) = (7, 0x83);
        assert_eq!(holds(&head, &[]), "an MBR partition table with 2 partitions");
    }

    #[test]
    fn partitions_are_listed_with_what_is_in_them() {
        let disk = image();
        let table = read(&disk);
        let DiskContent::Holds(found) = content(512, (&disk, &[]), &table, &[(1, Some("erofs")), (6, None)])
        else {
            panic!("a table")
        };
        let want = "a GUID partition table with 2 partitions: 1 \"orlop_1\" (erofs), 6 \"orlop-state\" (unknown content)";
        assert_eq!(found, [want]);
        let damaged = Err(GptError::Damaged { primary: "a", backup: "b" });
        let found = content(512, (&disk, &[]), &damaged, &[]);
        assert_eq!(found, DiskContent::Holds(vec!["a damaged GUID partition table".into()]));
    }

    proptest! {
        #[test]
        fn any_bytes(head in proptest::collection::vec(any::<u8>(), 0..1200), sector in any::<u32>()) {
            let _ = content(sector, (&head, &head), &NONE, &[]);
        }
    }
}
