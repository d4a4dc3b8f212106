//! A disk with two slots: boot record, ESP, contents of the slots, and the loader and init that boot from it.
//!
//! In: writes, each of which the power may cut. Out: who boots. A write of the record tears at any of its sectors; a change of the
//! ESP is one sector. Checks BOOTABLE after each write, FLOOR-MONO after each record, NO-LOOP at each boot.

use orlop_config::slots::{BLOCK_BYTES, BootRecord, RING_BYTES, RingPosition, SlotName, SlotState, latest};
use orlop_init::plan::arbiter::{BootedSlot, EspPatch, SlotEntries, SlotEntry, SlotVerdict, agree, judge};
use orlop_init::plan::esp_names::EntryState;
use orlop_init::plan::loader_order::{LoaderEntry, chosen};

use crate::checks::Violation;
use crate::rng::Rng;

use super::releases::{SlotContent, violation};

const SECTOR: usize = 512;
/// Length of every UKI, bytes.
pub(super) const UKI_BYTES: u32 = 1000;
/// Resets of one boot, at most: three because the loader takes the wrong slot, one redirection, trials that die, cuts.
const RESETS_MAX: u32 = 16;

/// Why a node's work ends in the middle.
#[derive(Debug)]
pub(super) enum Stop {
    /// The power was cut: the machine boots again.
    PowerCut,
    /// An invariant is broken.
    Broken(Violation),
}

impl From<Violation> for Stop {
    fn from(broken: Violation) -> Stop {
        Stop::Broken(broken)
    }
}

/// The disk.
pub(super) struct Disk {
    ring: Vec<u8>,
    position: Option<RingPosition>,
    /// What the ring says.
    pub(super) record: BootRecord,
    pub(super) esp: SlotEntries,
    contents: [SlotContent; 2],
}

/// What boots.
pub(super) struct Boot {
    pub(super) slot: SlotName,
    pub(super) trial: bool,
    /// Slots whose only try was used on the way.
    pub(super) tried: Vec<SlotName>,
}

fn index(slot: SlotName) -> usize {
    usize::from(slot == SlotName::B)
}

impl Disk {
    /// Slot A has `content` and is good.
    pub(super) fn new(content: SlotContent) -> Disk {
        let mut record = BootRecord::new(SlotName::A);
        record.a.version.clone_from(&content.version);
        record.a.roothash.clone_from(&content.version);
        (record.a.generation, record.a.uki_bytes) = (content.generation, u64::from(UKI_BYTES));
        let entry = |state| Some(SlotEntry { state, bytes: UKI_BYTES });
        let esp = SlotEntries { a: entry(EntryState::Good), b: entry(EntryState::Hidden) };
        let contents = [content, SlotContent::default()];
        let mut disk =
            Disk { ring: vec![0; RING_BYTES], position: None, record: record.clone(), esp, contents };
        disk.put_record(&record, u8::MAX);
        disk
    }

    pub(super) fn content(&self, slot: SlotName) -> &SlotContent {
        &self.contents[index(slot)]
    }

    /// Writes the sectors of `mask`, and reads the ring again.
    fn put_record(&mut self, record: &BootRecord, mask: u8) {
        let Ok(write) = record.write(self.position) else { return };
        let at = usize::try_from(write.offset).unwrap_or(0);
        for (sector, bytes) in write.bytes.chunks(SECTOR).enumerate() {
            if (mask >> (sector % 8)) & 1 == 1 {
                let from = at + sector * SECTOR;
                self.ring[from..from + SECTOR].copy_from_slice(bytes);
            }
        }
        debug_assert_eq!(write.bytes.len(), BLOCK_BYTES);
        let Some(found) = latest(&self.ring) else { return };
        if let Ok(read) = BootRecord::parse(found.payload) {
            (self.position, self.record) = (Some(found.position), read);
        }
    }

    /// Writes a record; `cuts`: in a thousand.
    pub(super) fn write_record(&mut self, record: &BootRecord, rng: &mut Rng, cuts: u64) -> Result<(), Stop> {
        let before = self.record.floor;
        let is_cut = rng.chance(cuts);
        let mask = if is_cut { u8::try_from(rng.below(256)).unwrap_or(0) } else { u8::MAX };
        self.put_record(record, mask);
        if self.record.floor < before {
            return Err(violation("FLOOR-MONO", format!("{before} became {}", self.record.floor)).into());
        }
        if !is_cut && self.record != *record {
            return Err(violation("BOOTABLE", format!("{record:?} reads back as {:?}", self.record)).into());
        }
        self.bootable()?;
        if is_cut { Err(Stop::PowerCut) } else { Ok(()) }
    }

    /// Makes a change of the ESP, or the power is cut before it.
    pub(super) fn patch(&mut self, patch: EspPatch, rng: &mut Rng, cuts: u64) -> Result<(), Stop> {
        if rng.chance(cuts) {
            return Err(Stop::PowerCut);
        }
        let entry = Some(SlotEntry { state: patch.state, bytes: patch.bytes });
        match patch.slot {
            SlotName::A => self.esp.a = entry,
            SlotName::B => self.esp.b = entry,
        }
        Ok(self.bootable()?)
    }

    /// Makes the ESP agree with the record.
    pub(super) fn agree(&mut self, booted: SlotName, rng: &mut Rng, cuts: u64) -> Result<(), Stop> {
        for patch in agree(&self.record, booted, &self.esp) {
            self.patch(patch, rng, cuts)?;
        }
        Ok(())
    }

    /// Replaces the content of a slot: at first a part of it, then the whole.
    pub(super) fn write_slot(&mut self, slot: SlotName, content: SlotContent) -> Result<(), Stop> {
        if slot == self.record.desired || self.state(slot) != Some(EntryState::Hidden) {
            let detail = format!("slot {slot} is overwritten, {:?}", self.record);
            return Err(violation("ONE-SLOT-WRITE", detail).into());
        }
        self.contents[index(slot)] = content;
        Ok(self.bootable()?)
    }

    pub(super) fn state(&self, slot: SlotName) -> Option<EntryState> {
        self.esp.get(slot).map(|entry| entry.state)
    }

    /// BOOTABLE: a good and whole slot is visible.
    fn bootable(&self) -> Result<(), Violation> {
        let boots = |slot: SlotName| {
            let is_visible = self.state(slot).is_some_and(EntryState::is_visible);
            is_visible && self.record.is_good(slot) && self.content(slot).is_whole
        };
        if SlotName::ALL.into_iter().any(boots) {
            return Ok(());
        }
        Err(violation("BOOTABLE", format!("{:?}, {:?}", self.esp, self.record)))
    }

    /// The loader takes a slot, and uses its try.
    fn load(&mut self) -> Result<(SlotName, bool), Violation> {
        let entries: Vec<LoaderEntry<'_>> = SlotName::ALL
            .into_iter()
            .filter_map(|slot| {
                Some(LoaderEntry {
                    slot,
                    state: self.state(slot)?,
                    version: &self.contents[index(slot)].version,
                })
            })
            .collect();
        let Some(slot) = chosen(&entries) else {
            return Err(violation("BOOTABLE", format!("no entry is visible: {:?}", self.esp)));
        };
        let before = self.state(slot);
        if matches!(before, Some(EntryState::ToTry | EntryState::Behind)) {
            let entry = Some(SlotEntry { state: EntryState::Tried, bytes: UKI_BYTES });
            match slot {
                SlotName::A => self.esp.a = entry,
                SlotName::B => self.esp.b = entry,
            }
        }
        Ok((slot, before == Some(EntryState::ToTry)))
    }

    /// From the firmware to the hand-over.
    pub(super) fn boot(&mut self, rng: &mut Rng, cuts: u64) -> Result<Boot, Violation> {
        let mut tried = Vec::new();
        for _ in 0..RESETS_MAX {
            let (slot, is_try) = self.load()?;
            if is_try {
                tried.push(slot);
            }
            let content = self.content(slot).clone();
            if !content.is_whole || content.dies_early {
                continue;
            }
            match self.arbiter(slot, &content.version, rng, cuts) {
                Ok(SlotVerdict::Go { trial }) => return Ok(Boot { slot, trial, tried }),
                Ok(SlotVerdict::Reset) | Err(Stop::PowerCut) => {}
                Err(Stop::Broken(broken)) => return Err(broken),
            }
        }
        Err(violation("NO-LOOP", format!("{RESETS_MAX} resets: {:?}, {:?}", self.esp, self.record)))
    }

    fn arbiter(
        &mut self,
        slot: SlotName,
        roothash: &str,
        rng: &mut Rng,
        cuts: u64,
    ) -> Result<SlotVerdict, Stop> {
        let other_filled = self.content(slot.other()).is_whole;
        let booted = BootedSlot { name: slot, roothash, other_filled };
        let judged = judge(Some(&self.record), &booted, &self.esp);
        self.write_record(&judged.record, rng, cuts)?;
        for patch in &judged.patches {
            self.patch(*patch, rng, cuts)?;
        }
        Ok(judged.settled(true))
    }

    /// The record with a change. Writes nothing.
    pub(super) fn changed(&self, change: impl FnOnce(&mut BootRecord)) -> BootRecord {
        let mut record = self.record.clone();
        change(&mut record);
        record
    }

    /// May this slot be overwritten?
    pub(super) fn is_free(&self, booted: SlotName) -> bool {
        let other = self.record.slot(booted.other());
        let idle =
            self.record.trial.is_none() && self.record.desired == booted && self.record.is_good(booted);
        idle && !matches!(other.state, SlotState::Trial) && other.failed_check.is_empty()
    }
}
