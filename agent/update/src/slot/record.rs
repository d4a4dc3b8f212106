//! What the boot record says of the slot that is written: `writing`, then `staged`.
//!
//! In: the record, the slot that runs, the release. Out: the next record, or why no slot may be written. Invariants: only the slot
//! that neither runs nor is desired is touched; nothing here lets a slot boot.

use orlop_config::release::ReleaseDocument;
use orlop_config::slots::{BootRecord, SlotName, SlotState};

/// Why no slot may be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotObstacle {
    /// The slot that runs is not the one to which the node returns.
    #[error("slot {running} runs, and slot {desired} is the one that the node boots: no slot may be written")]
    Astray {
        /// The slot that runs.
        running: SlotName,
        /// The desired one.
        desired: SlotName,
    },
    /// The slot that runs is not known to be good.
    #[error("slot {running} runs and is {}: no slot may be written", state.name())]
    NotGood {
        /// The slot that runs.
        running: SlotName,
        /// Its state.
        state: SlotState,
    },
    /// A trial has no verdict yet.
    #[error("slot {0} is to be tried, and the trial has no verdict yet: it may not be written")]
    Trial(SlotName),
    /// A trial has failed, and the running slot has not made the same check yet.
    #[error("slot {0} has failed its trial, and slot {other} has not made the same check yet: it may not be written", other = .0.other())]
    Unexamined(SlotName),
    /// The other slot boots once.
    #[error("slot {0} is to boot once: it may not be written")]
    Redirected(SlotName),
}

/// The slot that may be written.
///
/// # Errors
/// Why none may be.
pub fn slot_to_write(record: &BootRecord, running: SlotName) -> Result<SlotName, SlotObstacle> {
    let desired = record.desired;
    if desired != running {
        return Err(SlotObstacle::Astray { running, desired });
    }
    if !record.is_good(running) {
        return Err(SlotObstacle::NotGood { running, state: record.slot(running).state });
    }
    let target = running.other();
    if record.trial.is_some() || record.slot(target).state == SlotState::Trial {
        return Err(SlotObstacle::Trial(target));
    }
    if !record.slot(target).failed_check.is_empty() {
        return Err(SlotObstacle::Unexamined(target));
    }
    match record.redirect {
        Some(slot) => Err(SlotObstacle::Redirected(slot)),
        None => Ok(target),
    }
}

/// Does the slot hold this release, read back?
#[must_use]
pub fn is_staged(record: &BootRecord, slot: SlotName, release: &ReleaseDocument) -> bool {
    has(record, slot, release, SlotState::Staged)
}

/// Is the slot being written with this release?
#[must_use]
pub fn is_writing(record: &BootRecord, slot: SlotName, release: &ReleaseDocument) -> bool {
    has(record, slot, release, SlotState::Writing)
}

fn has(record: &BootRecord, slot: SlotName, release: &ReleaseDocument, state: SlotState) -> bool {
    let known = record.slot(slot);
    known.state == state
        && known.version == release.version.to_string()
        && known.roothash == release.root.hash.to_string()
}

/// The record while the slot is written. It has nothing that boots.
#[must_use]
pub fn writing(record: &BootRecord, slot: SlotName, release: &ReleaseDocument) -> BootRecord {
    let mut next = record.clone();
    let written = next.slot_mut(slot);
    written.state = SlotState::Writing;
    written.version = release.version.to_string();
    written.generation = release.generation;
    written.revokes = release.revokes.unwrap_or(0);
    written.roothash = release.root.hash.to_string();
    // The arbiter shows no entry whose length is not known.
    (written.uki_bytes, written.attempts) = (0, 0);
    written.reason.clear();
    written.failed_check.clear();
    next
}

/// The record once the slot was read back.
#[must_use]
pub fn staged(record: &BootRecord, slot: SlotName, uki_bytes: u64) -> BootRecord {
    let mut next = record.clone();
    let written = next.slot_mut(slot);
    (written.state, written.uki_bytes) = (SlotState::Staged, uki_bytes);
    next
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::slot::tree::tests::SALT;
    use orlop_config::release::{
        ARCH, HexDigest, PRODUCT, RELEASE_FILES, ReleaseFile, RootTree, VERITY_ALGORITHM,
    };
    use orlop_config::slots::SlotTrial;
    use orlop_init::plan::arbiter::{BootedSlot, SlotEntries, SlotEntry, SlotVerdict, judge};
    use orlop_init::plan::esp_names::EntryState;
    use proptest::prelude::*;
    use serde_json::Map;

    pub(crate) fn release() -> ReleaseDocument {
        let file =
            |name: &&str| ReleaseFile { name: (*name).to_owned(), size: 4096, sha256: HexDigest([1; 32]) };
        ReleaseDocument {
            product: PRODUCT.to_owned(),
            arch: ARCH.to_owned(),
            version: "0.2.0".parse().expect("a version"),
            generation: 3,
            revokes: None,
            min_version: None,
            kubernetes: "1.36".to_owned(),
            root: RootTree {
                algorithm: VERITY_ALGORITHM.to_owned(),
                hash: HexDigest([0xab; 32]),
                salt: HexDigest(SALT),
                blocks: 1,
            },
            files: RELEASE_FILES.iter().map(file).collect(),
        }
    }

    fn trial(slot: SlotName) -> SlotTrial {
        let (update, deadline_s, started) = ("u".to_owned(), 600, false);
        SlotTrial { slot, from: slot.other(), update, deadline_s, started, was_good: false, kept: Map::new() }
    }

    #[test]
    fn only_the_slot_that_neither_runs_nor_boots_is_written() {
        for running in SlotName::ALL {
            let good = BootRecord::new(running);
            let other = running.other();
            assert_eq!(slot_to_write(&good, running), Ok(other));
            let desired = running;
            assert_eq!(slot_to_write(&good, other), Err(SlotObstacle::Astray { running: other, desired }));
            let mut record = good.clone();
            record.slot_mut(running).state = SlotState::Refused;
            assert!(matches!(slot_to_write(&record, running), Err(SlotObstacle::NotGood { .. })));
            let mut record = good.clone();
            record.trial = Some(trial(other));
            assert_eq!(slot_to_write(&record, running), Err(SlotObstacle::Trial(other)));
            let mut record = good.clone();
            record.redirect = Some(other);
            assert_eq!(slot_to_write(&record, running), Err(SlotObstacle::Redirected(other)));
            let mut record = good.clone();
            record.slot_mut(other).state = SlotState::Staged;
            record.slot_mut(other).failed_check = "gateway".to_owned();
            let fault = slot_to_write(&record, running).expect_err("not examined");
            assert_eq!(fault, SlotObstacle::Unexamined(other));
            let words = format!("slot {other} has failed its trial, and slot {running} has not made");
            assert!(fault.to_string().starts_with(&words), "{fault}");
        }
    }

    #[test]
    fn a_slot_is_staged_only_as_what_it_is() {
        let (record, slot) = (BootRecord::new(SlotName::A), SlotName::B);
        let next = writing(&record, slot, &release());
        assert_eq!((next.b.state, next.b.version.as_str()), (SlotState::Writing, "0.2.0"));
        assert!(is_writing(&next, slot, &release()) && !is_staged(&next, slot, &release()));
        let last = staged(&next, slot, 4711);
        assert_eq!((last.b.state, last.b.uki_bytes, last.b.generation), (SlotState::Staged, 4711, 3));
        assert!(is_staged(&last, slot, &release()) && !is_writing(&last, slot, &release()));
        let other = ReleaseDocument { version: "0.2.1".parse().expect("a version"), ..release() };
        assert!(!is_staged(&last, slot, &other));
        assert_eq!((last.a, last.desired, last.floor), (record.a, record.desired, record.floor));
    }

    fn state() -> impl Strategy<Value = EntryState> {
        (0..EntryState::ALL.len()).prop_map(|n| EntryState::ALL[n])
    }

    proptest! {
        /// BOOTABLE, at each moment: the arbiter of the next boot goes on in the old slot, and shows no slot that is written.
        #[test]
        fn the_arbiter_boots_the_old_slot_and_hides_the_other(
            before in 0..SlotState::ALL.len(), entry in state(), steps in 0usize..3, label in any::<bool>()
        ) {
            let mut record = BootRecord::new(SlotName::A);
            record.a.roothash = "11".repeat(32);
            record.b.state = SlotState::ALL[before];
            prop_assume!(slot_to_write(&record, SlotName::A).is_ok());
            if steps > 0 {
                record = writing(&record, SlotName::B, &release());
            }
            if steps > 1 {
                record = staged(&record, SlotName::B, 4096);
            }
            // The write that hides it may have been cut off.
            let entries = SlotEntries {
                a: Some(SlotEntry { state: EntryState::Good, bytes: 5000 }),
                b: Some(SlotEntry { state: entry, bytes: 4096 }),
            };
            let roothash = record.a.roothash.clone();
            // The label comes before `staged`, and may be there before it.
            let other_filled = label || steps > 1 || steps == 0 && before > 0;
            let booted = BootedSlot { name: SlotName::A, roothash: &roothash, other_filled };
            let judged = judge(Some(&record), &booted, &entries);
            prop_assert_eq!(judged.verdict, SlotVerdict::Go { trial: false });
            prop_assert_eq!(judged.record.desired, SlotName::A);
            if steps > 0 {
                let hidden = judged.patches.iter().any(|p| p.slot == SlotName::B && p.state == EntryState::Hidden);
                prop_assert!(hidden || entry == EntryState::Hidden);
            }
            // And should the loader have started the slot that is written: back.
            let astray =
                BootedSlot { name: SlotName::B, roothash: &judged.record.b.roothash, other_filled: true };
            if steps > 0 {
                let judged = judge(Some(&record), &astray, &entries);
                prop_assert_eq!(judged.verdict, SlotVerdict::Reset);
            }
        }
    }
}
