//! What to do about the state partition: facts about disk and superblocks in, one decision out.
//!
//! Invariant: nothing is ever created over bytes that may be data. The file system is made first and the
//! partition table written last, so a partition that exists was complete once; if it is unreadable now, it is
//! damaged, and only a person may give it up.

use super::disk::{Disk, STATE_LABEL};
use super::ext4::Superblock;
use super::gpt::Partition;
use super::gpt_change::GRAIN;
use super::guid::Guid;

/// Free space behind the state partition from which growing it is worth it, bytes.
const GROW_FROM: u64 = 64 << 20;
/// Least length of the state partition, bytes.
pub const BYTES_MIN: u64 = 512 << 20;
/// Kept free at the end of a disk for the backup table, bytes (33 sectors of 4096 at most, rounded up).
const TAIL: u64 = 1 << 20;

/// Where mkfs.ext4 puts the first copy of the superblock of a file system with 4 KiB blocks, bytes from its
/// start (the copy stands at the very beginning of its block group).
pub const COPY_OFFSET: u64 = 32_768 * 4096;

/// Below this much free space the partition counts as full, bytes.
pub const FULL_BELOW: u64 = 32 << 20;

/// What was found on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The disk that holds the root.
    pub disk: &'a Disk,
    /// Superblock in the state partition, if there is such a partition.
    pub state_superblock: Option<Superblock>,
    /// Superblock found where a new state partition would start, see `free_start`.
    pub leftover: Option<Superblock>,
    /// The first copy of a superblock where mkfs puts it, see `old_starts`: a file system whose beginning was lost.
    pub leftover_copy: bool,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// First boot: it is to be made.
    Create,
    /// It is there: mount it.
    Use {
        /// The partition.
        partition: Partition,
        /// Run fsck first.
        check: bool,
        /// Let the partition reach to the disk's end first.
        grow_partition: bool,
        /// It has quotas, for which the kernel needs a module.
        quotas: bool,
    },
    /// Touch nothing; boot on a volatile /var and say this.
    Refuse {
        /// What is wrong and what a person can do.
        problem: String,
    },
}

/// Where a new partition starts: behind the last one, bytes from the disk's start.
#[must_use]
pub fn free_start(disk: &Disk) -> Option<u64> {
    let table = disk.table.as_ref().ok()?;
    let end = table.partitions.iter().map(|p| p.start + p.length).max().unwrap_or(1 << 20);
    Some(end.next_multiple_of(GRAIN)).filter(|start| *start + TAIL < disk.bytes)
}

/// Where on a disk without a state partition an old one may begin, bytes: where a new one will, and where that of the first
/// layout did, which has the boot record now.
#[must_use]
pub fn old_starts(disk: &Disk) -> Vec<u64> {
    let first_layout = disk.boot_record().map(|record| record.start);
    free_start(disk).into_iter().chain(first_layout).collect()
}

/// Decides.
#[must_use]
pub fn plan(facts: &Facts<'_>) -> Plan {
    let disk = facts.disk;
    let Some(partition) = disk.state() else { return absent(facts) };
    let device = format!("/dev/{}", partition_name(&disk.name, partition.number));
    let Some(sb) = &facts.state_superblock else {
        return Plan::Refuse {
            problem: format!(
                "state partition {device} has no readable ext4 file system; nothing was changed. Boot another system and \
                 look at the partition with `e2fsck -n`; to give up its data, delete partition {} there",
                partition.number
            ),
        };
    };
    if let Some(identity) = disk.table.as_ref().ok().map(|t| t.disk).filter(|d| !belong(*d, sb.uuid)) {
        return Plan::Refuse {
            problem: format!(
                "the file system on state partition {device} was made on another disk (its UUID is {}, this disk's GUID is \
                 {identity}); nothing was changed. If it was moved here on purpose, boot another system and give the disk its \
                 identity (`sgdisk -U {} /dev/{}`); to give up its data, delete partition {} there",
                sb.uuid, sb.uuid, disk.name, partition.number
            ),
        };
    }
    if sb.bytes > partition.length {
        return Plan::Refuse {
            problem: format!(
                "the file system on state partition {device} has {} bytes, the partition only {}; nothing was \
                 changed. Boot another system and restore the partition's size",
                sb.bytes, partition.length
            ),
        };
    }
    let behind = disk.bytes.saturating_sub(TAIL).saturating_sub(partition.start + partition.length);
    let last = disk.table.as_ref().is_ok_and(|t| t.partitions.iter().all(|p| p.start <= partition.start));
    let grow_partition = last && behind >= GROW_FROM;
    Plan::Use { partition: partition.clone(), check: sb.wants_check, grow_partition, quotas: sb.has_quotas }
}

/// Were disk and file system made for each other? A first boot gives both one GUID of a kind that is used for nothing else.
/// An older image made neither of that kind; init does not distinguish such disks.
fn belong(disk: Guid, file_system: Guid) -> bool {
    disk == file_system || !(disk.is_identity() || file_system.is_identity())
}

fn absent(facts: &Facts<'_>) -> Plan {
    let disk = &facts.disk.name;
    match &facts.leftover {
        // A power cut after mkfs and before the table was written leaves one that was never mounted.
        Some(sb) if sb.ever_mounted => Plan::Refuse {
            problem: format!(
                "partition \"{STATE_LABEL}\" is missing from /dev/{disk}, but a used ext4 file system (label \
                 \"{}\", UUID {}) stands where it would be made; nothing was changed. Boot another system and restore the \
                 partition entry, or erase that file system to start afresh",
                sb.label, sb.uuid
            ),
        },
        None if facts.leftover_copy => Plan::Refuse {
            problem: format!(
                "partition \"{STATE_LABEL}\" is missing from /dev/{disk}, but the remains of an ext4 file system \
                 stand where it would be made; nothing was changed. Boot another system and restore the partition entry, \
                 or erase that file system to start afresh"
            ),
        },
        _ => Plan::Create,
    }
}

/// Name of a partition's device: `vda6`, `nvme0n1p6`.
#[must_use]
pub fn partition_name(disk: &str, number: u32) -> String {
    let separator = if disk.ends_with(|c: char| c.is_ascii_digit()) { "p" } else { "" };
    format!("{disk}{separator}{number}")
}

#[cfg(test)]
mod tests {
    use super::super::gpt::{Copy, Table};
    use super::super::guid::{TYPE_BOOT_RECORD, TYPE_ROOT, TYPE_VAR};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk(state: Option<(u64, u64)>, bytes: u64) -> Disk {
        let part = |number, type_guid, label: &str, start, length| Partition {
            number,
            type_guid,
            partuuid: Guid::default(),
            label: label.into(),
            start,
            length,
        };
        let mut partitions = vec![part(2, TYPE_ROOT, "orlop_1", MIB, 100 * MIB)];
        if let Some((start, length)) = state {
            partitions.push(part(6, TYPE_VAR, STATE_LABEL, start, length));
        }
        let table = Ok(Table { disk: Guid::default(), copy: Copy::Primary, partitions });
        Disk { name: "vda".into(), bytes, sector: 512, table, nodes: vec![] }
    }

    fn superblock(bytes: u64, ever_mounted: bool, wants_check: bool) -> Superblock {
        let label = "orlop-state".into();
        Superblock {
            uuid: Guid::default(),
            label,
            bytes,
            block: 4096,
            ever_mounted,
            wants_check,
            has_quotas: false,
        }
    }

    fn decide(disk: &Disk, state: Option<Superblock>, leftover: Option<Superblock>) -> Plan {
        plan(&Facts { disk, state_superblock: state, leftover, leftover_copy: false })
    }

    #[test]
    fn first_boot_creates_unless_used_data_is_in_the_way() {
        let d = disk(None, 2048 * MIB);
        assert_eq!(free_start(&d), Some(101 * MIB));
        assert_eq!(decide(&d, None, None), Plan::Create);
        assert_eq!(decide(&d, None, Some(superblock(MIB, false, false))), Plan::Create);
        let Plan::Refuse { problem } = decide(&d, None, Some(superblock(MIB, true, false))) else { panic!() };
        assert!(problem.contains("missing from /dev/vda") && problem.contains("nothing was changed"));
        let lost = Facts { disk: &d, state_superblock: None, leftover: None, leftover_copy: true };
        assert!(matches!(plan(&lost), Plan::Refuse { .. }));
    }

    #[test]
    fn the_state_of_the_first_layout_began_where_the_boot_record_is() {
        let mut d = disk(None, 2048 * MIB);
        assert_eq!(old_starts(&d), [101 * MIB]);
        let record = Partition {
            number: 6,
            type_guid: TYPE_BOOT_RECORD,
            partuuid: Guid::default(),
            label: "orlop-boot".into(),
            start: 101 * MIB,
            length: MIB,
        };
        if let Ok(table) = &mut d.table {
            table.partitions.push(record);
        }
        assert_eq!(old_starts(&d), [102 * MIB, 101 * MIB]);
    }

    #[test]
    fn present_is_used_checked_and_grown() {
        let d = disk(Some((101 * MIB, 500 * MIB)), 602 * MIB);
        let used = |check, sb| match decide(&d, Some(sb), None) {
            Plan::Use { check: c, grow_partition: false, .. } => assert_eq!(c, check),
            other => panic!("{other:?}"),
        };
        used(false, superblock(500 * MIB, true, false));
        used(true, superblock(500 * MIB, true, true));
        let counts = Superblock { has_quotas: true, ..superblock(500 * MIB, true, false) };
        assert!(matches!(decide(&d, Some(counts), None), Plan::Use { quotas: true, .. }));
        let larger = disk(Some((101 * MIB, 500 * MIB)), 4096 * MIB);
        let plan = decide(&larger, Some(superblock(500 * MIB, true, false)), None);
        assert!(matches!(plan, Plan::Use { grow_partition: true, .. }), "{plan:?}");
    }

    #[test]
    fn damaged_is_refused_and_never_created_anew() {
        let d = disk(Some((101 * MIB, 500 * MIB)), 602 * MIB);
        for sb in [None, Some(superblock(501 * MIB, true, false))] {
            let Plan::Refuse { problem } = decide(&d, sb, None) else { panic!() };
            assert!(problem.contains("/dev/vda6") && problem.contains("nothing was changed"), "{problem}");
        }
    }

    #[test]
    fn the_state_of_another_disk_is_refused() {
        let (own, other) = (Guid::from_u128(1).as_identity(), Guid::from_u128(2).as_identity());
        let (old, factory) = (Guid::from_u128(3), Guid::from_u128(4));
        for (disk_guid, uuid, used) in [
            (own, own, true),
            (own, other, false),
            // A state partition of an older image in a disk that has its own, and the other way round.
            (own, old, false),
            (factory, other, false),
            // Both by an older image: as it was.
            (factory, old, true),
        ] {
            let mut d = disk(Some((101 * MIB, 500 * MIB)), 602 * MIB);
            if let Ok(table) = &mut d.table {
                table.disk = disk_guid;
            }
            match decide(&d, Some(Superblock { uuid, ..superblock(500 * MIB, true, false) }), None) {
                Plan::Use { .. } => assert!(used, "{disk_guid} {uuid}"),
                Plan::Refuse { problem } => {
                    assert!(!used && problem.contains(&format!("sgdisk -U {uuid} /dev/vda")), "{problem}");
                    assert!(problem.contains("nothing was changed"), "{problem}");
                }
                Plan::Create => panic!("nothing is made over it"),
            }
        }
    }

    #[test]
    fn names() {
        assert_eq!(partition_name("vda", 6), "vda6");
        assert_eq!(partition_name("nvme0n1", 6), "nvme0n1p6");
    }

    #[test]
    fn no_room_behind_the_last_partition() {
        assert_eq!(free_start(&disk(None, 101 * MIB + 4096)), None);
    }
}
