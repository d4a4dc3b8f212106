//! Which disk and which partitions this boot uses: disks with their tables in, a choice out.
//!
//! The root hash and the booted ESP choose: root and hash partition carry the hash's halves as PARTUUIDs (discoverable
//! partitions specification), and the boot loader names the ESP. A copy of an image has the same halves, so the ESP's
//! PARTUUID is random from the first boot on (docs/decisions/disk-identity.md). Device names, labels and order of
//! discovery never decide; of two disks that fit none is taken.

use super::cmdline::RootHash;
use super::gpt::{GptError, Partition, Table};
use super::guid::{Guid, TYPE_BOOT_RECORD, TYPE_ESP, TYPE_ROOT, TYPE_ROOT_VERITY, TYPE_VAR};
use orlop_config::slots::SlotName;

/// Label of the state partition.
pub const STATE_LABEL: &str = "orlop-state";
/// Label of a slot that holds nothing.
pub const EMPTY_LABEL: &str = "_empty";

/// A whole disk as found in /sys/class/block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Kernel name, `vda`.
    pub name: String,
    /// Size, bytes.
    pub bytes: u64,
    /// Logical sector, bytes.
    pub sector: u32,
    /// Its partition table.
    pub table: Result<Table, GptError>,
    /// Partitions for which the kernel has a device: number and `major:minor`.
    pub nodes: Vec<(u32, (u64, u64))>,
}

impl Partition {
    /// One of those that an image has: ESP, slots, boot record, state.
    #[must_use]
    pub fn is_systems(&self) -> bool {
        [TYPE_ESP, TYPE_ROOT, TYPE_ROOT_VERITY, TYPE_BOOT_RECORD].contains(&self.type_guid)
            || self.type_guid == TYPE_VAR && self.label == STATE_LABEL
    }
}

impl Disk {
    fn find(&self, partuuid: Guid) -> Option<&Partition> {
        self.table.as_ref().ok()?.partitions.iter().find(|p| p.partuuid == partuuid)
    }

    /// `major:minor` of a partition, if the kernel has a device for it.
    #[must_use]
    pub fn node(&self, number: u32) -> Option<(u64, u64)> {
        self.nodes.iter().find(|(n, _)| *n == number).map(|(_, dev)| *dev)
    }

    /// The state partition: by type and label, so that another system's /var is never taken for ours.
    #[must_use]
    pub fn state(&self) -> Option<&Partition> {
        let table = self.table.as_ref().ok()?;
        table.partitions.iter().find(|p| p.type_guid == TYPE_VAR && p.label == STATE_LABEL)
    }

    /// The ESP: the one that was booted from, if it is here, else the first.
    #[must_use]
    pub fn esp(&self, booted: Option<Guid>) -> Option<&Partition> {
        let all = self.table.as_ref().ok()?.partitions.iter().filter(|p| p.type_guid == TYPE_ESP);
        all.min_by_key(|p| (Some(p.partuuid) != booted, p.number))
    }

    /// The partition of the boot record; none on a disk of the first layout.
    #[must_use]
    pub fn boot_record(&self) -> Option<&Partition> {
        self.table.as_ref().ok()?.partitions.iter().find(|p| p.type_guid == TYPE_BOOT_RECORD)
    }

    /// The slot of a root partition: A is the first on the disk, B the second.
    #[must_use]
    pub fn slot_name(&self, root: u32) -> Option<SlotName> {
        let roots = self.table.as_ref().ok()?.partitions.iter().filter(|p| p.type_guid == TYPE_ROOT);
        let mut starts: Vec<(u64, u32)> = roots.map(|p| (p.start, p.number)).collect();
        starts.sort_unstable();
        SlotName::ALL.into_iter().zip(starts).find(|(_, (_, number))| *number == root).map(|(slot, _)| slot)
    }

    /// Another root slot with content: what the boot loader could try instead.
    #[must_use]
    pub fn other_slot(&self, root: Guid) -> Option<&Partition> {
        let table = self.table.as_ref().ok()?;
        table
            .partitions
            .iter()
            .find(|p| p.type_guid == TYPE_ROOT && p.partuuid != root && p.label != EMPTY_LABEL)
    }
}

/// The partitions of this boot's slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index into the disks.
    pub disk: usize,
    /// Root partition.
    pub root: Partition,
    /// Hash partition.
    pub hash: Partition,
    /// Another slot has content, so a reboot can help.
    pub other_slot: bool,
}

/// What to do next about the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Both partitions are there and have devices.
    Use(Slot),
    /// The table is right but the kernel has not made these partitions (it does not use backup tables).
    AddPartitions {
        /// Index into the disks.
        disk: usize,
        /// All without a device, not only the root's: state and ESP are wanted too.
        missing: Vec<Partition>,
    },
    /// Not there yet; `why` is what the deadline's message says.
    Wait {
        /// What has been seen instead.
        why: String,
    },
    /// Several disks fit, and nothing shows which of them is this machine's: none is used.
    Refuse {
        /// Names all of them, and the remedy.
        why: String,
    },
}

/// Chooses. `booted_esp` is the PARTUUID of the ESP that the firmware started from, if the loader has left it: with it only
/// a disk that has this partition counts, and any other is waited past.
#[must_use]
pub fn choose(root: &RootHash, disks: &[Disk], booted_esp: Option<Guid>) -> Choice {
    let fits = |d: &Disk| has_root(root, d) && booted_esp.is_none_or(|esp| d.find(esp).is_some());
    let found: Vec<(usize, &Disk)> = disks.iter().enumerate().filter(|(_, d)| fits(d)).collect();
    let (index, disk) = match found.as_slice() {
        [] => return Choice::Wait { why: explain(root, disks, booted_esp) },
        [one] => *one,
        several => return Choice::Refuse { why: several_fit(root, several, booted_esp) },
    };
    let (Some(data), Some(hash)) = (disk.find(root.root_partuuid()), disk.find(root.verity_partuuid()))
    else {
        return Choice::Wait { why: explain(root, disks, booted_esp) };
    };
    if [data, hash].into_iter().any(|p| disk.node(p.number).is_none()) {
        let all = disk.table.as_ref().map(|t| t.partitions.as_slice()).unwrap_or_default();
        let missing = all.iter().filter(|p| disk.node(p.number).is_none()).cloned().collect();
        return Choice::AddPartitions { disk: index, missing };
    }
    let other_slot = disk.other_slot(data.partuuid).is_some();
    Choice::Use(Slot { disk: index, root: data.clone(), hash: hash.clone(), other_slot })
}

fn has_root(root: &RootHash, disk: &Disk) -> bool {
    [root.root_partuuid(), root.verity_partuuid()].into_iter().all(|half| disk.find(half).is_some())
}

fn several_fit(root: &RootHash, disks: &[(usize, &Disk)], booted_esp: Option<Guid>) -> String {
    let names: Vec<String> = disks.iter().map(|(_, d)| format!("/dev/{}", d.name)).collect();
    let esp = booted_esp.map_or(String::new(), |esp| format!(" and the booted ESP {esp}"));
    let names = names.join(" and ");
    format!(
        "{names} all carry root hash {root}{esp}: one is a copy of the other, and none is used. Detach the one that is not \
         this machine's"
    )
}

/// One line on why no disk fits: what a person needs in order to distinguish a missing driver, a missing
/// disk and a wrong image.
fn explain(root: &RootHash, disks: &[Disk], booted_esp: Option<Guid>) -> String {
    let (data, hash) = (root.root_partuuid(), root.verity_partuuid());
    if disks.is_empty() {
        return "the kernel has found no disk at all".into();
    }
    let copies: Vec<String> =
        disks.iter().filter(|d| has_root(root, d)).map(|d| format!("/dev/{}", d.name)).collect();
    if let (Some(esp), false) = (booted_esp, copies.is_empty()) {
        return format!(
            "the firmware started from ESP {esp}, and no disk has it; {} carries the same root and another ESP, so it \
             is not this machine's disk",
            copies.join(" and ")
        );
    }
    let seen: Vec<String> = disks
        .iter()
        .map(|d| match &d.table {
            Err(e) => format!("{}: {e}", d.name),
            Ok(t) => {
                let count = |ty| t.partitions.iter().filter(|p| p.type_guid == ty).count();
                let has = |u| if d.find(u).is_some() { "found" } else { "missing" };
                format!(
                    "{}: {} root and {} hash partitions, root {}, hash {}",
                    d.name,
                    count(TYPE_ROOT),
                    count(TYPE_ROOT_VERITY),
                    has(data),
                    has(hash)
                )
            }
        })
        .collect();
    format!("no disk has root PARTUUID {data} and hash PARTUUID {hash} ({})", seen.join("; "))
}

/// The loader's EFI variable: four bytes of attributes, then UTF-16.
#[must_use]
pub fn parse_loader_partuuid(bytes: &[u8]) -> Option<Guid> {
    let units =
        bytes.get(4..)?.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]])).take_while(|u| *u != 0);
    Guid::parse(&char::decode_utf16(units).map(|c| c.unwrap_or(' ')).collect::<String>())
}

/// True if another kernel started this one (`/proc/sys/kernel/bootloader_type`; the upper four bits are 0xd, Linux' boot
/// protocol). The loader's variables are of the boot before then: the disk's identity may have been made since.
#[must_use]
pub fn is_kexec(bootloader_type: &str) -> bool {
    bootloader_type.trim().parse::<u32>().is_ok_and(|kind| kind >> 4 == 0xd)
}

#[cfg(test)]
mod tests {
    use super::super::gpt::Copy;
    use super::*;

    fn hash() -> RootHash {
        RootHash::parse(&format!("{}{}", "11".repeat(16), "22".repeat(16))).expect("64 digits")
    }

    fn part(number: u32, type_guid: Guid, partuuid: u128, label: &str) -> Partition {
        let partuuid = Guid::from_u128(partuuid);
        Partition { number, type_guid, partuuid, label: label.into(), start: 1 << 20, length: 1 << 20 }
    }

    fn disk(name: &str, esp: u128) -> Disk {
        let partitions = vec![
            part(1, TYPE_ESP, esp, "esp"),
            part(2, TYPE_ROOT, 0x1111_1111_1111_1111_1111_1111_1111_1111, "orlop_1"),
            part(3, TYPE_ROOT_VERITY, 0x2222_2222_2222_2222_2222_2222_2222_2222, "orlop_1_verity"),
            part(4, TYPE_ROOT, 0x44, EMPTY_LABEL),
            part(5, TYPE_ROOT_VERITY, 0x55, EMPTY_LABEL),
            part(6, TYPE_VAR, 0x66, "someone-else"),
        ];
        Disk {
            name: name.into(),
            bytes: 1 << 30,
            sector: 512,
            table: Ok(Table { disk: Guid::default(), copy: Copy::Primary, partitions }),
            nodes: (1..=6).map(|n| (n, (254, u64::from(n)))).collect(),
        }
    }

    fn edit(d: &mut Disk, f: impl FnOnce(&mut Vec<Partition>)) {
        if let Ok(t) = &mut d.table {
            f(&mut t.partitions);
        }
    }

    #[test]
    fn root_hash_chooses() {
        let Choice::Use(slot) = choose(&hash(), &[disk("vda", 1)], None) else { panic!("usable") };
        assert_eq!((slot.disk, slot.root.number, slot.hash.number, slot.other_slot), (0, 2, 3, false));
        let mut updated = disk("vda", 1);
        edit(&mut updated, |p| p[3].label = "orlop_2".into());
        let Choice::Use(slot) = choose(&hash(), &[updated], None) else { panic!("usable") };
        assert!(slot.other_slot);
    }

    #[test]
    fn only_the_booted_disk_is_used_and_it_is_waited_for() {
        let disks = [disk("nvme0n1", 7), disk("sdb", 8)];
        for (esp, want) in [(7, 0), (8, 1)] {
            let Choice::Use(slot) = choose(&hash(), &disks, Some(Guid::from_u128(esp))) else {
                panic!("usable")
            };
            assert_eq!(slot.disk, want, "{esp}");
        }
        // The copy on the faster bus is there, the machine's own disk is not yet.
        let Choice::Wait { why } = choose(&hash(), &disks[..1], Some(Guid::from_u128(8))) else {
            panic!("the wrong disk is not used")
        };
        assert!(why.contains("/dev/nvme0n1") && why.contains("-000000000008"), "{why}");
    }

    #[test]
    fn of_two_disks_with_one_identity_none_is_used() {
        let same = [disk("nvme0n1", 7), disk("sdb", 7), disk("sdc", 9)];
        let Choice::Refuse { why } = choose(&hash(), &same, Some(Guid::from_u128(7))) else {
            panic!("refused")
        };
        assert!(why.contains("/dev/nvme0n1 and /dev/sdb all") && !why.contains("sdc"), "{why}");
        // Nothing is known of the ESP: the root hash alone does not distinguish the disks.
        let Choice::Refuse { why } = choose(&hash(), &[disk("vdb", 7), disk("vda", 8)], None) else {
            panic!("refused")
        };
        assert!(why.contains("/dev/vdb and /dev/vda all"), "{why}");
        // A copy that the kernel has no partitions of is one all the same.
        let mut bare = disk("vdb", 8);
        bare.nodes.clear();
        assert!(matches!(choose(&hash(), &[disk("vda", 7), bare], None), Choice::Refuse { .. }));
    }

    #[test]
    fn the_booted_esp_goes_before_the_first() {
        let mut d = disk("vda", 1);
        edit(&mut d, |p| p.push(part(9, TYPE_ESP, 9, "esp")));
        for (booted, want) in [(None, 1), (Some(9), 9), (Some(77), 1)] {
            assert_eq!(d.esp(booted.map(Guid::from_u128)).map(|p| p.number), Some(want), "{booted:?}");
        }
    }

    #[test]
    fn partitions_the_kernel_missed_are_added() {
        let mut d = disk("vda", 1);
        d.nodes.retain(|(n, _)| ![3, 6].contains(n));
        let Choice::AddPartitions { disk: 0, missing } = choose(&hash(), &[d], None) else { panic!("adds") };
        assert_eq!(missing.iter().map(|p| p.number).collect::<Vec<_>>(), [3, 6]);
    }

    #[test]
    fn waiting_says_what_was_seen() {
        let why = |disks: &[Disk]| match choose(&hash(), disks, None) {
            Choice::Wait { why } => why,
            other => panic!("{other:?}"),
        };
        assert!(why(&[]).contains("no disk at all"));
        let mut d = disk("vda", 1);
        edit(&mut d, |p| p.retain(|p| p.number != 3));
        assert!(why(&[d]).contains("vda: 2 root and 1 hash partitions, root found, hash missing"));
        let mut d = disk("sda", 1);
        d.table = Err(GptError::None);
        assert!(why(&[d]).contains("sda: it has no GUID partition table"));
    }

    #[test]
    fn state_needs_type_and_label() {
        let mut d = disk("vda", 1);
        assert_eq!(d.state(), None);
        edit(&mut d, |p| p[5].label = STATE_LABEL.into());
        assert_eq!(d.state().map(|p| p.number), Some(6));
        edit(&mut d, |p| p[5].type_guid = TYPE_ROOT);
        assert_eq!(d.state(), None);
    }

    #[test]
    fn slots_are_in_the_disks_order() {
        let mut d = disk("vda", 1);
        let roots: Vec<u32> = {
            let all = &d.table.as_ref().expect("sound").partitions;
            all.iter().filter(|p| p.type_guid == TYPE_ROOT).map(|p| p.number).collect()
        };
        edit(&mut d, |p| p.iter_mut().for_each(|p| p.start = u64::from(p.number) << 20));
        assert_eq!(roots.iter().map(|n| d.slot_name(*n)).collect::<Vec<_>>(), SlotName::ALL.map(Some));
        edit(&mut d, |p| p.iter_mut().for_each(|p| p.start = u64::from(99 - p.number) << 20));
        assert_eq!(d.slot_name(roots[0]), Some(SlotName::B));
        assert_eq!(d.slot_name(77), None);
        assert_eq!(d.boot_record(), None);
        edit(&mut d, |p| p[5].type_guid = TYPE_BOOT_RECORD);
        assert!(d.boot_record().is_some_and(|p| p.number == 6 && p.is_systems()));
    }

    #[test]
    fn loader_variable() {
        let mut bytes = vec![6, 0, 0, 0];
        bytes.extend("4D21B016-B534-45C2-A9FB-5C16E091FD2D\0".encode_utf16().flat_map(u16::to_le_bytes));
        assert_eq!(parse_loader_partuuid(&bytes), Some(TYPE_VAR));
        assert_eq!(parse_loader_partuuid(&bytes[..20]), None);
        assert_eq!(parse_loader_partuuid(&[]), None);
    }

    #[test]
    fn who_started_the_kernel() {
        // kexec; the EFI stub, QEMU, nothing that is a number.
        for (kind, want) in [("208\n", true), ("33\n", false), ("176\n", false), ("", false), ("x", false)] {
            assert_eq!(is_kexec(kind), want, "{kind:?}");
        }
    }
}
