//! Which partitions of the disk are written, and which are only read.
//!
//! In: the disk's partition table, the partitions under the running root. Out: the places of both slots, of the ESP and of the boot
//! record. Invariant (ONE-SLOT-WRITE): what is written shares no byte with the running slot, whatever the table says.

use orlop_config::slots::SlotName;
use orlop_init::plan::disk::Disk;
use orlop_init::plan::gpt::Partition;
use orlop_init::plan::guid::{Guid, TYPE_ESP, TYPE_ROOT_VERITY};

/// Why the slots are not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceFault {
    /// The disk has no table.
    #[error("{0} has no sound partition table")]
    NoTable(String),
    /// A partition is missing.
    #[error("{disk} has no {what}: it was not made by an image with two slots; write this disk anew")]
    Missing {
        /// Disk.
        disk: String,
        /// What is missing.
        what: &'static str,
    },
    /// init takes the one that was booted, which this table does not tell.
    #[error("{0} has several ESPs: remove those that this system does not boot from")]
    SeveralEsps(String),
    /// Two of them share bytes.
    #[error("partitions {0} and {1} of the disk overlap: nothing is written")]
    Overlap(u32, u32),
}

/// A slot's partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPartitions {
    /// Root file system.
    pub root: Partition,
    /// Its verity tree.
    pub tree: Partition,
}

/// The places of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotPlaces {
    /// The slot that runs.
    pub running: SlotName,
    /// Its partitions: only read.
    pub source: SlotPartitions,
    /// The other slot's: written.
    pub target: SlotPartitions,
    /// The ESP.
    pub esp: Partition,
    /// The boot record.
    pub record: Partition,
}

impl SlotPlaces {
    /// Finds them by the numbers of the partitions under the running root.
    ///
    /// # Errors
    /// One is missing, or two overlap.
    pub fn find(disk: &Disk, root: u32, tree: u32) -> Result<SlotPlaces, PlaceFault> {
        let table = disk.table.as_ref().map_err(|_| PlaceFault::NoTable(disk.name.clone()))?;
        let missing = |what| PlaceFault::Missing { disk: disk.name.clone(), what };
        let by_number = |number: u32| table.partitions.iter().find(|p| p.number == number);
        let running = disk.slot_name(root).ok_or_else(|| missing("root partition of the running slot"))?;
        let other = |p: &&Partition| disk.slot_name(p.number) == Some(running.other());
        let target_root =
            table.partitions.iter().find(other).ok_or_else(|| missing("second root partition"))?;
        let target_tree = tree_of(disk, running.other()).ok_or_else(|| missing("second verity partition"))?;
        let source = SlotPartitions {
            root: by_number(root).ok_or_else(|| missing("root partition of the running slot"))?.clone(),
            tree: by_number(tree).ok_or_else(|| missing("verity partition of the running slot"))?.clone(),
        };
        let target = SlotPartitions { root: target_root.clone(), tree: target_tree.clone() };
        if table.partitions.iter().filter(|p| p.type_guid == TYPE_ESP).count() > 1 {
            return Err(PlaceFault::SeveralEsps(disk.name.clone()));
        }
        let esp = disk.esp(None).ok_or_else(|| missing("ESP"))?.clone();
        let record = disk.boot_record().ok_or_else(|| missing("boot record"))?.clone();
        let places = SlotPlaces { running, source, target, esp, record };
        places.check()?;
        Ok(places)
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> [&Partition; 6] {
        let SlotPlaces { source, target, esp, record, .. } = self;
        [&source.root, &source.tree, &target.root, &target.tree, esp, record]
    }

    /// Has the running slot this root hash? Then the other one must not get it: init would not know which of them it boots.
    #[must_use]
    pub fn runs(&self, hash: &[u8; 32]) -> bool {
        let own = [self.source.root.partuuid, self.source.tree.partuuid];
        slot_guids(hash).iter().any(|guid| own.contains(guid))
    }

    /// No two of them share bytes.
    fn check(&self) -> Result<(), PlaceFault> {
        let all = self.all();
        for (n, one) in all.iter().enumerate() {
            let overlaps = |other: &&&Partition| {
                one.start < other.start.saturating_add(other.length)
                    && other.start < one.start.saturating_add(one.length)
            };
            if let Some(other) = all[n + 1..].iter().find(overlaps) {
                return Err(PlaceFault::Overlap(one.number, other.number));
            }
        }
        Ok(())
    }
}

/// The verity partition of a slot: they are in the order of the roots.
fn tree_of(disk: &Disk, slot: SlotName) -> Option<&Partition> {
    let table = disk.table.as_ref().ok()?;
    let mut trees: Vec<&Partition> =
        table.partitions.iter().filter(|p| p.type_guid == TYPE_ROOT_VERITY).collect();
    trees.sort_unstable_by_key(|p| (p.start, p.number));
    SlotName::ALL.into_iter().zip(trees).find(|(name, _)| *name == slot).map(|(_, tree)| tree)
}

/// PARTUUIDs of the root and of the verity partition of a root hash (discoverable partitions specification): its halves.
#[must_use]
pub fn slot_guids(hash: &[u8; 32]) -> [Guid; 2] {
    let half = |from: usize| {
        let mut guid = [0; 16];
        guid.copy_from_slice(&hash[from..from + 16]);
        Guid(guid)
    };
    [half(0), half(16)]
}

/// Labels of the same partitions, as the image builder gives them.
#[must_use]
pub fn slot_labels(version: &str) -> [String; 2] {
    [format!("orlop_{version}"), format!("orlop_{version}_verity")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_init::plan::gpt::{Copy, Table};
    use orlop_init::plan::guid::{TYPE_BOOT_RECORD, TYPE_ROOT, TYPE_VAR};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn disk() -> Disk {
        let kinds = [
            (TYPE_ESP, 264),
            (TYPE_ROOT, 512),
            (TYPE_ROOT_VERITY, 8),
            (TYPE_ROOT, 512),
            (TYPE_ROOT_VERITY, 8),
            (TYPE_BOOT_RECORD, 1),
            (TYPE_VAR, 100),
        ];
        let (mut partitions, mut start) = (Vec::new(), MIB);
        for (number, (type_guid, size)) in (1u32..).zip(kinds) {
            let (partuuid, label) = (Guid::from_u128(u128::from(number)), String::new());
            partitions.push(Partition { number, type_guid, partuuid, label, start, length: size * MIB });
            start += size * MIB;
        }
        let table = Table { disk: Guid::from_u128(9), copy: Copy::Primary, partitions };
        Disk { name: "vda".into(), bytes: start + MIB, sector: 512, table: Ok(table), nodes: Vec::new() }
    }

    fn edit(change: impl FnOnce(&mut Vec<Partition>)) -> Disk {
        let mut disk = disk();
        change(&mut disk.table.as_mut().expect("sound").partitions);
        disk
    }

    #[test]
    fn the_slot_that_does_not_run_is_written() {
        for (root, tree, running, target) in [(2, 3, SlotName::A, [4, 5]), (4, 5, SlotName::B, [2, 3])] {
            let places = SlotPlaces::find(&disk(), root, tree).expect("a disk of two slots");
            assert_eq!(places.running, running);
            assert_eq!([places.target.root.number, places.target.tree.number], target);
            assert_eq!([places.source.root.number, places.source.tree.number], [root, tree]);
            assert_eq!((places.esp.number, places.record.number), (1, 6));
            let mut hash = [0; 32];
            assert!(!places.runs(&hash));
            hash[15] = u8::try_from(root).expect("small");
            assert!(places.runs(&hash));
        }
    }

    #[test]
    fn other_disks_are_left_alone() {
        for gone in 1..=6u32 {
            let disk = edit(|partitions| partitions.retain(|p| p.number != gone));
            let fault = SlotPlaces::find(&disk, 2, 3).expect_err("something is missing");
            assert!(matches!(fault, PlaceFault::Missing { .. }), "{gone}: {fault}");
        }
        assert!(matches!(SlotPlaces::find(&disk(), 7, 3), Err(PlaceFault::Missing { .. })));
        let overlapping = edit(|partitions| partitions[3].start -= MIB);
        assert_eq!(SlotPlaces::find(&overlapping, 2, 3), Err(PlaceFault::Overlap(3, 4)));
        let second = edit(|partitions| partitions[6].type_guid = TYPE_ESP);
        assert_eq!(SlotPlaces::find(&second, 2, 3), Err(PlaceFault::SeveralEsps("vda".into())));
        let endless = edit(|partitions| partitions[0].length = u64::MAX);
        assert_eq!(SlotPlaces::find(&endless, 2, 3), Err(PlaceFault::Overlap(2, 1)));
    }

    #[test]
    fn a_root_hash_has_two_halves() {
        let mut hash = [0x11; 32];
        hash[16..].fill(0x22);
        let [root, tree] = slot_guids(&hash);
        assert_eq!(root.to_string(), "11111111-1111-1111-1111-111111111111");
        assert_eq!(tree.to_string(), "22222222-2222-2222-2222-222222222222");
        assert_eq!(slot_labels("0.2.0"), ["orlop_0.2.0", "orlop_0.2.0_verity"]);
    }

    proptest! {
        /// ONE-SLOT-WRITE: any table leads to places apart from the running slot, or to none.
        #[test]
        fn any_table_keeps_the_running_slot(
            starts in proptest::collection::vec((0u64..2000, 1u64..600), 7), root in 1u32..8, tree in 1u32..8
        ) {
            let disk = edit(|partitions| {
                for (p, (start, length)) in partitions.iter_mut().zip(starts) {
                    (p.start, p.length) = (start * MIB, length * MIB);
                }
            });
            if let Ok(places) = SlotPlaces::find(&disk, root, tree) {
                let apart = |a: &Partition, b: &Partition| a.start + a.length <= b.start || b.start + b.length <= a.start;
                let written = [&places.target.root, &places.target.tree, &places.esp, &places.record];
                for read in [&places.source.root, &places.source.tree] {
                    prop_assert!(written.iter().all(|w| apart(w, read)));
                }
                prop_assert_eq!((places.source.root.number, places.source.tree.number), (root, tree));
            }
        }
    }
}
