//! What a disk boots, judged with the code of the product: the loader's order, init's choice of a slot and its arbiter, the boot
//! record, the ESP's directory, the verity tree.
//!
//! The twin ([`twin`](super::twin)) judges the same without any of it.

use std::slice;

use orlop_config::release::{HexDigest, RootTree};
use orlop_config::slots::{BootRecord, RING_BYTES, RingPosition, SlotName, SlotState, latest};
use orlop_init::plan::arbiter::{BootedSlot, EspPatch, Judgement, SlotEntries, SlotEntry, agree, judge};
use orlop_init::plan::cmdline::RootHash;
use orlop_init::plan::disk::{Choice, Disk, Slot, choose};
use orlop_init::plan::esp::{EspDirectory, EspEntry, UKI_CHAIN_BYTES};
use orlop_init::plan::esp_names::EntryState;
use orlop_init::plan::gpt::read_table;
use orlop_init::plan::loader_order::{LoaderEntry, chosen};
use orlop_init::plan::verity::Superblock;

use super::BootChoice;
use super::image::DiskImage;
use super::versions::KnownVersion;
use crate::slot::blocks::{BLOCK, DIGEST, digest};
use crate::slot::tree::tests::SALT;
use crate::slot::tree::{VerityTree, tree_bytes};

/// A disk that has all that a boot reads.
pub(super) struct DiskFacts {
    disk: Disk,
    /// Where the ESP and the ring begin.
    esp: u64,
    ring: u64,
    directory: EspDirectory,
    record: BootRecord,
    position: RingPosition,
}

/// What a UKI says of itself.
#[derive(Clone, PartialEq, Eq)]
struct UkiFacts {
    version: String,
    hash: RootHash,
}

impl DiskFacts {
    pub(super) fn read(image: &DiskImage) -> Result<DiskFacts, String> {
        let table = read_table(image.bytes(), 512, |offset, length| image.read(offset, length));
        let nodes = (1u32..=7).map(|number| (number, (254, u64::from(number)))).collect();
        let disk = Disk { name: "vda".to_owned(), bytes: image.bytes(), sector: 512, table, nodes };
        let esp = disk.esp(None).ok_or("there is no ESP")?.start;
        let ring = disk.boot_record().ok_or("there is no partition of the boot record")?.start;
        let blocks = image.read(ring, RING_BYTES).ok_or("the ring is cut off")?;
        let found = latest(&blocks).ok_or("no boot record is readable")?;
        let (position, record) = (found.position, BootRecord::parse(found.payload));
        let record = record.map_err(|e| e.to_string())?;
        let directory = EspDirectory::read(|offset, length| image.read(esp + offset, length));
        let directory = directory.map_err(|e| e.to_string())?;
        Ok(DiskFacts { disk, esp, ring, directory, record, position })
    }

    pub(super) fn record(&self) -> &BootRecord {
        &self.record
    }

    /// What boots, and whether all that the record and the ESP promise is true.
    pub(super) fn choice(&self, image: &DiskImage, known: &[KnownVersion]) -> Result<BootChoice, String> {
        let (mut seen, mut whole, mut good) = (Vec::new(), Vec::new(), false);
        for slot in SlotName::ALL {
            let entry = self.directory.entry(slot).ok_or_else(|| format!("slot {slot} has no entry"))?;
            let kept = self.record.slot(slot);
            let is_promised = matches!(kept.state, SlotState::Staged | SlotState::Trial | SlotState::Good);
            if is_promised {
                let bytes = u32::try_from(kept.uki_bytes).map_err(|e| e.to_string())?;
                let uki = self.uki(image, entry, bytes, known)?;
                let named = (kept.version.as_str(), kept.roothash.clone());
                if named != (uki.version.as_str(), uki.hash.to_string()) {
                    return Err(format!("slot {slot} has {}, its record says {}", uki.version, kept.version));
                }
                self.is_whole(image, slot, &uki.hash)?;
                whole.push((slot, uki));
            }
            if entry.state.is_visible() {
                let uki = self.uki(image, entry, entry.bytes, known)?;
                if !whole.contains(&(slot, uki.clone())) {
                    self.is_whole(image, slot, &uki.hash)?;
                }
                good |= kept.state == SlotState::Good;
                seen.push((slot, entry.state, uki.version));
            }
        }
        if !good {
            return Err("no good slot is to be seen by the loader".to_owned());
        }
        let entries: Vec<LoaderEntry<'_>> = seen
            .iter()
            .map(|(slot, state, version)| LoaderEntry { slot: *slot, state: *state, version })
            .collect();
        let slot = chosen(&entries).ok_or("the loader sees nothing")?;
        let version = entries.iter().find(|entry| entry.slot == slot).map(|entry| entry.version);
        Ok(BootChoice { slot, version: version.unwrap_or_default().to_owned() })
    }

    /// The UKI in an entry's chain, whose blocks are those of a release.
    fn uki(
        &self,
        image: &DiskImage,
        entry: &EspEntry,
        bytes: u32,
        known: &[KnownVersion],
    ) -> Result<UkiFacts, String> {
        let slot = entry.slot;
        let geometry = self.directory.geometry();
        let read = |offset: u64, length: usize| image.read(self.esp + offset, length);
        if geometry.is_contiguous(&read, entry.first_cluster, UKI_CHAIN_BYTES) != Ok(true) {
            return Err(format!("the chain of the UKI of slot {slot} is broken"));
        }
        let length = usize::try_from(bytes).map_err(|e| e.to_string())?;
        let content = read(geometry.offset(entry.first_cluster), length).ok_or("the UKI is cut off")?;
        let mut padded = content.clone();
        padded.resize(length.next_multiple_of(BLOCK), 0);
        let digests: Vec<u8> = padded.chunks(BLOCK).flat_map(|block| digest(&SALT, block)).collect();
        if !known.iter().any(|known| known.uki_digests() == digests) {
            return Err(format!("the UKI of slot {slot} is not whole"));
        }
        let text = String::from_utf8_lossy(&content);
        let behind = |key: &str, end: char| text.split_once(key)?.1.split_once(end).map(|(value, _)| value);
        let version = behind("IMAGE_VERSION=\"", '"').ok_or("a UKI without a version")?.to_owned();
        let hash = behind("roothash=", ' ').and_then(RootHash::parse).ok_or("a UKI without a root hash")?;
        Ok(UkiFacts { version, hash })
    }

    /// The slot that init finds for a root hash.
    fn found(&self, hash: &RootHash) -> Result<Slot, String> {
        match choose(hash, slice::from_ref(&self.disk), None) {
            Choice::Use(slot) => Ok(slot),
            other => Err(format!("init finds no slot: {other:?}")),
        }
    }

    /// Each block of the slot's root leads to the root hash.
    fn is_whole(&self, image: &DiskImage, slot: SlotName, hash: &RootHash) -> Result<(), String> {
        let broken = |why: &str| format!("slot {slot} is not whole: {why}");
        let found = self.found(hash).map_err(|why| broken(&why))?;
        if self.disk.slot_name(found.root.number) != Some(slot) {
            return Err(broken("the other slot has its root hash"));
        }
        let read = |at, length: u64| image.read(at, usize::try_from(length).ok()?);
        let area = read(found.hash.start, found.hash.length).ok_or_else(|| broken("no tree"))?;
        let superblock = Superblock::parse(&area).map_err(|e| broken(&e.to_string()))?;
        let blocks = superblock.data_blocks;
        let salt = <[u8; 32]>::try_from(superblock.salt.as_slice()).map_err(|_| broken("another salt"))?;
        let (algorithm, hash) = (superblock.algorithm.clone(), HexDigest(hash.0));
        let of = RootTree { algorithm, hash, salt: HexDigest(salt), blocks };
        let length = usize::try_from(tree_bytes(blocks)).map_err(|e| e.to_string())?;
        let tree = area.get(..length).ok_or_else(|| broken("a short tree"))?.to_vec();
        let leaves = VerityTree::check(tree, &of).map_err(|e| broken(&e.to_string()))?.leaves();
        let root = read(found.root.start, superblock.data_bytes()).ok_or_else(|| broken("a short root"))?;
        let differs = root
            .chunks(BLOCK)
            .zip(leaves.chunks(DIGEST))
            .position(|(block, leaf)| digest(&salt, block).as_slice() != leaf);
        match differs {
            None if leaves.len() / DIGEST == root.len() / BLOCK => Ok(()),
            None => Err(broken("leaves are missing")),
            Some(block) => Err(broken(&format!("block {block} of its root"))),
        }
    }

    fn entries(&self) -> SlotEntries {
        let entry = |slot| self.directory.entry(slot).map(|e| SlotEntry { state: e.state, bytes: e.bytes });
        SlotEntries { a: entry(SlotName::A), b: entry(SlotName::B) }
    }

    /// What init's arbiter makes of a boot of this slot.
    pub(super) fn judged(&self, slot: SlotName, hash: &RootHash) -> Result<Judgement, String> {
        let other_filled = self.found(hash)?.other_slot;
        let booted = BootedSlot { name: slot, roothash: &hash.to_string(), other_filled };
        Ok(judge(Some(&self.record), &booted, &self.entries()))
    }

    /// The changes of the ESP behind a change of the record on the running system.
    pub(super) fn agreed(&self, record: &BootRecord, running: SlotName) -> Vec<EspPatch> {
        agree(record, running, &self.entries())
    }

    /// The loader's renaming of an entry that is to be tried; none if it is not.
    pub(super) fn use_of_try(&self, slot: SlotName) -> Option<EspPatch> {
        let entry = self.directory.entry(slot).filter(|entry| entry.state == EntryState::ToTry)?;
        Some(EspPatch { slot, state: EntryState::Tried, bytes: entry.bytes })
    }

    /// Writes a record and then the ESP, as init and the guard do.
    pub(super) fn carry_out(
        self,
        image: &mut DiskImage,
        record: Option<&BootRecord>,
        patches: &[EspPatch],
    ) -> Result<(), String> {
        if let Some(record) = record {
            let write = record.write(Some(self.position)).map_err(|e| e.to_string())?;
            image.write(self.ring + write.offset, &write.bytes);
        }
        let mut directory = self.directory;
        for patch in patches {
            let renamed = directory.renamed(patch.slot, patch.state, patch.bytes);
            let (after, write) = renamed.map_err(|e| e.to_string())?;
            image.write(self.esp + write.offset, &write.bytes);
            directory = after;
        }
        Ok(())
    }
}
