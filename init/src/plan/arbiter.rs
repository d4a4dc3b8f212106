//! The arbiter of the slots: which one may boot, and what the boot record and the ESP become.
//!
//! In: the boot record, the slot that was booted, the slots' entries on the ESP. Out: the next record, changes of the ESP in
//! the order in which they are made, and whether this boot goes on. Total: each combination has an answer.
//!
//! Invariants (`arbiter_tests.rs` tries all combinations against loaders that behave well, badly and at random):
//!
//! - BOOTABLE: after each change, a good slot is visible to the loader, if one was before.
//! - NO-LOOP: a boot goes on after a bounded number of resets, for any loader and disk.
//!
//! The record is the truth, and the ESP is made to agree with it. Only the record counts attempts; the loader's counters
//! are a hint. See docs/reference/boot.md and docs/decisions/boot-record.md.

use super::esp::UKI_CHAIN_BYTES;
use super::esp_names::EntryState;
use super::loader_order::is_newer;
use orlop_config::slots::{BootRecord, SlotName, SlotState};

pub use orlop_config::slots::ATTEMPTS_MAX;

/// Boots in a row that were never ready, before the other slot is booted once.
pub const UNREADY_MAX: u32 = 3;
/// Resets in a row because the loader started another slot than it should; before the last one its variables are deleted.
pub const DISAGREEMENTS_MAX: u32 = 3;

/// A slot's UKI on the ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotEntry {
    /// Its state.
    pub state: EntryState,
    /// Length of the file, bytes.
    pub bytes: u32,
}

/// What the ESP has of both slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotEntries {
    /// Slot A.
    pub a: Option<SlotEntry>,
    /// Slot B.
    pub b: Option<SlotEntry>,
}

impl SlotEntries {
    /// A slot's.
    #[must_use]
    pub fn get(&self, slot: SlotName) -> Option<SlotEntry> {
        match slot {
            SlotName::A => self.a,
            SlotName::B => self.b,
        }
    }

    fn state(&self, slot: SlotName) -> Option<EntryState> {
        self.get(slot).map(|entry| entry.state)
    }
}

/// The slot whose kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootedSlot<'a> {
    /// Its name.
    pub name: SlotName,
    /// Its root hash, hex.
    pub roothash: &'a str,
    /// The disk's partition table says that the other slot holds a version.
    pub other_filled: bool,
}

/// A change of the ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspPatch {
    /// The slot.
    pub slot: SlotName,
    /// Its new state.
    pub state: EntryState,
    /// Its new length, bytes.
    pub bytes: u32,
}

/// How a boot goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotVerdict {
    /// With this slot.
    Go {
        /// It is on trial.
        trial: bool,
    },
    /// By a reset: the loader has to start another slot.
    Reset,
}

/// What the arbiter decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// To be written first.
    pub record: BootRecord,
    /// To be made then, in this order.
    pub patches: Vec<EspPatch>,
    /// The loader's variables that choose an entry are to be deleted: they are older than this record, or wrong.
    pub clear_choices: bool,
    /// To be followed last.
    pub verdict: SlotVerdict,
    /// What a person has to know, a line each.
    pub said: Vec<String>,
}

impl Judgement {
    /// The verdict, once it is known whether the record is on the disk. Without it nothing counts the resets.
    #[must_use]
    pub fn settled(&self, saved: bool) -> SlotVerdict {
        match self.verdict {
            SlotVerdict::Reset if !saved => SlotVerdict::Go { trial: false },
            verdict => verdict,
        }
    }
}

/// Judges a boot. Without a record (none was ever written, or none is readable) the ESP counts.
#[must_use]
pub fn judge(record: Option<&BootRecord>, booted: &BootedSlot<'_>, entries: &SlotEntries) -> Judgement {
    let Some(kept) = record.filter(|record| is_of(record, booted)) else {
        let mut judged = adopt(booted, entries);
        if let Some(old) = record {
            judged.said.insert(0, "the boot record is of another installation: a new one is made".to_owned());
            // Resets are of the state partition, which they name, and not of the slots: one that has begun goes on, and an order that
            // stands is not carried out twice.
            judged.record.reset.clone_from(&old.reset);
            judged.record.last_reset.clone_from(&old.last_reset);
            judged.record.past_resets.clone_from(&old.past_resets);
        }
        return judged;
    };
    let mut case = SlotCase { record: kept.clone(), booted: booted.name, entries, said: Vec::new() };
    case.settle();
    case.learn(booted);
    let record = &case.record;
    if record.trial.as_ref().is_some_and(|trial| trial.slot == booted.name) {
        case.on_trial()
    } else if record.desired == booted.name && record.is_good(booted.name) {
        case.at_home()
    } else {
        case.astray()
    }
}

/// Judges a boot whose slot does not match its root hash, after [`judge`] let it go on with `record`. None if there is no
/// other good slot, or if the loader has started this one against the record: then the boot ends here.
#[must_use]
pub fn judge_corrupt(
    record: &BootRecord,
    booted: SlotName,
    entries: &SlotEntries,
    why: &str,
) -> Option<Judgement> {
    let other = booted.other();
    let mut case = SlotCase { record: record.clone(), booted, entries, said: Vec::new() };
    if record.slot(booted).state == SlotState::Refused || !record.is_good(other) || !case.can_show(other) {
        return None;
    }
    let slot = case.record.slot_mut(booted);
    (slot.state, slot.reason) = (SlotState::Refused, format!("corrupt: {why}"));
    let record = &mut case.record;
    (record.desired, record.trial, record.redirect) = (other, None, None);
    (record.unready, record.redirects, record.disagreements) = (0, 0, 0);
    case.said.push(format!("slot {booted} is corrupt and is not booted again; slot {other} boots"));
    Some(case.ends(false, SlotVerdict::Reset))
}

/// The changes of the ESP after the running system has changed the record: a commit, a return, a refusal.
#[must_use]
pub fn agree(record: &BootRecord, booted: SlotName, entries: &SlotEntries) -> Vec<EspPatch> {
    SlotCase { record: record.clone(), booted, entries, said: Vec::new() }.patches()
}

/// The changes of the ESP that activate the trial of the record: the loader takes its slot once. None if there is no such trial,
/// or if its UKI or its place in the loader's order is not known.
#[must_use]
pub fn activate(record: &BootRecord, booted: SlotName, entries: &SlotEntries) -> Option<Vec<EspPatch>> {
    let case = SlotCase { record: record.clone(), booted, entries, said: Vec::new() };
    let slot = record.trial.as_ref()?.slot;
    if slot == booted || record.desired != booted || !record.is_good(booted) {
        return None;
    }
    case.newer(slot)?;
    let (entry, bytes) = (entries.get(slot)?, case.uki_bytes(slot)?);
    // The good one first: a try of an older version needs it to stand behind, where it is still the one that boots.
    let mut patches = case.patches();
    if entry.state != EntryState::ToTry {
        patches.push(EspPatch { slot, state: EntryState::ToTry, bytes });
    }
    Some(patches)
}

/// A disk that was written again from an image may have the record of the image before.
/// Or it has that of the same image with a version in the other slot, which is empty now.
fn is_of(record: &BootRecord, booted: &BootedSlot<'_>) -> bool {
    let known = record.slot(booted.name).roothash.as_str();
    let other = record.slot(booted.name.other()).state;
    let wants_other = matches!(other, SlotState::Staged | SlotState::Trial | SlotState::Good);
    (known.is_empty() || known == booted.roothash) && (booted.other_filled || !wants_other)
}

/// A record for a disk that has none.
fn adopt(booted: &BootedSlot<'_>, entries: &SlotEntries) -> Judgement {
    let (own, other) = (booted.name, booted.name.other());
    let desired = match (entries.state(own), entries.state(other)) {
        _ if !booted.other_filled => own,
        (Some(EntryState::Good), _) => own,
        (_, Some(EntryState::Good)) => other,
        (Some(EntryState::ToTry | EntryState::Tried), Some(EntryState::Behind)) => other,
        _ => own,
    };
    let mut record = BootRecord::new(desired);
    for slot in SlotName::ALL.into_iter().filter(|slot| *slot != desired) {
        record.slot_mut(slot).state = match entries.state(slot) {
            _ if slot == other && !booted.other_filled => SlotState::Empty,
            Some(EntryState::Good | EntryState::Behind) => SlotState::Good,
            Some(EntryState::ToTry | EntryState::Tried) => SlotState::Staged,
            Some(EntryState::Hidden) | None => SlotState::Empty,
        };
    }
    let mut case = SlotCase { record, booted: own, entries, said: Vec::new() };
    case.learn(booted);
    let judged = if desired == own { case.at_home() } else { case.astray() };
    Judgement { clear_choices: true, ..judged }
}

/// A boot that is judged.
struct SlotCase<'a> {
    record: BootRecord,
    booted: SlotName,
    entries: &'a SlotEntries,
    said: Vec<String>,
}

impl SlotCase<'_> {
    /// Makes a record that contradicts itself consistent: no writer makes one, but each field is a byte on a disk.
    fn settle(&mut self) {
        let record = &mut self.record;
        let other = record.desired.other();
        if !record.is_good(record.desired) && record.is_good(other) {
            self.said.push(format!("slot {} is not good: slot {other} is desired", record.desired));
            record.desired = other;
        }
        let desired = record.desired;
        let is_armed = |slot| record.slot(slot).state == SlotState::Trial;
        let armed = record.trial.as_ref().is_some_and(|t| t.slot != desired && is_armed(t.slot));
        if !armed {
            record.trial = None;
            for slot in SlotName::ALL {
                if record.slot(slot).state == SlotState::Trial {
                    record.slot_mut(slot).state = SlotState::Staged;
                }
            }
        }
        if record.redirect.is_some_and(|slot| slot == desired || !record.is_good(slot)) {
            record.redirect = None;
        }
    }

    /// Notes what is seen of the slots.
    fn learn(&mut self, booted: &BootedSlot<'_>) {
        booted.roothash.clone_into(&mut self.record.slot_mut(booted.name).roothash);
        for slot in SlotName::ALL {
            let seen = self.entries.get(slot).filter(|entry| entry.state.is_visible());
            if let Some(entry) = seen {
                self.record.slot_mut(slot).uki_bytes = u64::from(entry.bytes);
            }
        }
    }

    /// The slot on trial was booted.
    fn on_trial(mut self) -> Judgement {
        let slot = self.booted;
        let attempts = self.record.slot(slot).attempts;
        let can_return = self.record.is_good(self.record.desired) && self.can_show(self.record.desired);
        if attempts >= ATTEMPTS_MAX && can_return {
            self.record.trial = None;
            let refused = self.record.slot_mut(slot);
            refused.state = SlotState::Refused;
            refused.reason = format!("{attempts} boots on trial ended without a verdict");
            self.said.push(format!("slot {slot} is refused: {}", refused.reason));
            return self.ends(false, SlotVerdict::Reset);
        }
        self.record.slot_mut(slot).attempts = attempts.saturating_add(1);
        if let Some(trial) = &mut self.record.trial {
            trial.started = true;
        }
        self.record.disagreements = 0;
        self.said
            .push(format!("slot {slot} is on trial, boot {} of {ATTEMPTS_MAX}", attempts.saturating_add(1)));
        self.goes(true)
    }

    /// The desired slot was booted, and it is good.
    fn at_home(mut self) -> Judgement {
        let other = self.booted.other();
        self.record.disagreements = 0;
        if self.record.redirect.take().is_some() {
            self.said.push(format!("slot {other} was to boot once and did not"));
        }
        self.end_trial();
        let unready = self.record.unready;
        if unready >= UNREADY_MAX && self.can_redirect(other) {
            self.record.redirect = Some(other);
            self.record.redirects = 1;
            let said =
                format!("slot {} was not ready in {unready} boots: slot {other} boots once", self.booted);
            self.said.push(said);
            return self.ends(false, SlotVerdict::Reset);
        }
        self.record.unready = unready.saturating_add(1);
        self.goes(false)
    }

    /// Another slot than the desired one was booted, or one that is not good.
    fn astray(mut self) -> Judgement {
        let (booted, desired) = (self.booted, self.record.desired);
        if self.record.redirect == Some(booted) {
            self.record.redirect = None;
            self.record.disagreements = 0;
            self.said.push(format!("slot {booted} boots once, because slot {desired} was not ready"));
            return self.goes(false);
        }
        let state = self.record.slot(booted).state.name();
        if !self.record.is_good(desired) || booted == desired {
            self.said.push(format!("slot {booted} is {state}, and no slot is known to be good"));
            return self.goes(false);
        }
        let before = self.record.disagreements;
        if before >= DISAGREEMENTS_MAX {
            let said =
                format!("the loader starts slot {booted} ({state}) and not slot {desired}: it goes on");
            self.said.push(said);
            return self.goes(false);
        }
        self.record.disagreements = before + 1;
        let clear = self.record.disagreements >= DISAGREEMENTS_MAX;
        self.said.push(format!("the loader started slot {booted} ({state}); slot {desired} is to boot"));
        self.ends(clear, SlotVerdict::Reset)
    }

    /// A trial is over when the loader has used its try and the old slot runs again.
    fn end_trial(&mut self) {
        let Some(trial) = &self.record.trial else { return };
        let (slot, started, was_good) = (trial.slot, trial.started, trial.was_good);
        // Hidden: not activated yet. To be tried: not started yet.
        if matches!(self.entries.state(slot), None | Some(EntryState::Hidden | EntryState::ToTry)) {
            return;
        }
        self.record.trial = None;
        let in_order = !self.record.boot_open;
        let tried = self.record.slot_mut(slot);
        // A version that was good, and has run init again, is not worse for a power cut.
        tried.state = if started && was_good { SlotState::Good } else { SlotState::Staged };
        let reason = match (started, in_order) {
            (false, _) => {
                tried.attempts = tried.attempts.saturating_add(1);
                "it ended before init's first instruction"
            }
            (true, false) => "it was cut off before its verdict",
            (true, true) => "it was stopped before its verdict",
        };
        reason.clone_into(&mut tried.reason);
        self.said.push(format!("the trial of slot {slot} is over: {reason}"));
    }

    /// The order of both versions has to be known: else a slot that dies would be booted for ever.
    fn can_redirect(&self, other: SlotName) -> bool {
        let record = &self.record;
        let idle = record.redirects == 0 && record.trial.is_none() && record.is_good(other);
        idle && self.newer(other).is_some() && self.can_show(other) && self.can_show(self.booted)
    }

    /// Does the slot stand before the other one in the loader's order?
    fn newer(&self, slot: SlotName) -> Option<bool> {
        is_newer(slot, &self.record.slot(slot).version, &self.record.slot(slot.other()).version)
    }

    /// Is it visible, or can it be made visible?
    fn can_show(&self, slot: SlotName) -> bool {
        self.entries.get(slot).is_some_and(|entry| entry.state.is_visible() || self.uki_bytes(slot).is_some())
    }

    fn uki_bytes(&self, slot: SlotName) -> Option<u32> {
        let bytes = u32::try_from(self.record.slot(slot).uki_bytes).ok()?;
        (1..=UKI_CHAIN_BYTES).contains(&bytes).then_some(bytes)
    }

    /// The state that the slot's entry is to have; none if it is left as it is.
    fn wanted(&self, slot: SlotName) -> Option<EntryState> {
        let record = &self.record;
        let desired = record.desired;
        // Nothing is known to be good: what boots now must boot again.
        if !record.is_good(desired) {
            return None;
        }
        let tried = record.redirect.or(record.trial.as_ref().map(|trial| trial.slot));
        if slot == desired {
            // Where the tried slot's version is older, this one has to stand behind it until the try is used.
            let first = tried.and_then(|tried| self.newer(tried)).unwrap_or(true);
            return Some(if first { EntryState::Good } else { EntryState::Behind });
        }
        if record.redirect == Some(slot) {
            return Some(EntryState::ToTry);
        }
        if tried == Some(slot) {
            // The updater activates it. The loader should have used the try of one that runs.
            let runs = self.booted == slot && self.entries.state(slot) != Some(EntryState::Hidden);
            return runs.then_some(EntryState::Tried);
        }
        Some(if record.is_good(slot) { EntryState::Behind } else { EntryState::Hidden })
    }

    /// The changes, those first that show a slot or bring it forward.
    fn patches(&self) -> Vec<EspPatch> {
        let change = |slot: SlotName| {
            let (entry, state) = (self.entries.get(slot)?, self.wanted(slot)?);
            let bytes = match (state.is_visible(), entry.state.is_visible()) {
                (true, true) => entry.bytes,
                (true, false) => self.uki_bytes(slot)?,
                (false, _) => UKI_CHAIN_BYTES,
            };
            (entry.state != state).then_some(EspPatch { slot, state, bytes })
        };
        let mut patches: Vec<EspPatch> = SlotName::ALL.into_iter().filter_map(change).collect();
        patches.sort_by_key(|patch| match patch.state {
            EntryState::Good | EntryState::ToTry => 0,
            EntryState::Tried | EntryState::Behind => 1,
            EntryState::Hidden => 2,
        });
        // Nothing is hidden unless a good slot stays to be seen.
        let seen = |slot: SlotName| {
            let after = patches.iter().find(|patch| patch.slot == slot).map(|patch| patch.state);
            self.record.is_good(slot)
                && after.or(self.entries.state(slot)).is_some_and(EntryState::is_visible)
        };
        if !SlotName::ALL.into_iter().any(seen) {
            patches.retain(|patch| patch.state.is_visible());
        }
        patches
    }

    fn goes(mut self, trial: bool) -> Judgement {
        self.record.boot_open = true;
        self.ends(false, SlotVerdict::Go { trial })
    }

    fn ends(self, clear_choices: bool, verdict: SlotVerdict) -> Judgement {
        let patches = self.patches();
        Judgement { record: self.record, patches, clear_choices, verdict, said: self.said }
    }
}

#[cfg(test)]
#[path = "arbiter_tests.rs"]
mod tests;
