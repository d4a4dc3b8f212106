//! What the running system says to the next boot: a trial of the other slot is ordered or taken back, its end is judged, this
//! boot is ready or ends.
//!
//! In: calls of the agent. Out: the boot record and the names on the ESP. Decisions are those of
//! [`BootRecord`] and of init's arbiter. Invariants: each call holds the lock of the record, which the updater and
//! `orlop-init guard` take as well; each may be repeated, also after a power cut in its middle; what was written was read back.

use orlop_config::slots::{BootRecord, SlotChangeError, SlotName};
use orlop_init::plan::arbiter::{EspPatch, SlotEntries, SlotEntry, activate, agree};
use orlop_init::plan::esp::EspDirectory;

use super::disk::{DiskFault, SlotDisk};

/// Why nothing was said.
#[derive(Debug, thiserror::Error)]
pub enum TrialFault {
    /// Disk, ESP or record.
    #[error(transparent)]
    Disk(#[from] DiskFault),
    /// The record refuses it.
    #[error(transparent)]
    Refused(#[from] SlotChangeError),
    /// Nobody knows which slot the loader would take, or how long the UKI is.
    #[error("slot {0} cannot be activated: its UKI, or the order of both versions, is not known")]
    NotActivated(SlotName),
}

impl SlotDisk {
    /// Orders a trial of the other slot, and shows it to the loader, which takes it once. `version` is that of the running slot;
    /// `deadline_s` counts from the boot on, seconds.
    ///
    /// # Errors
    /// Nothing was ordered, or the loader does not see the slot yet: then the same call goes on.
    pub fn order_trial(&self, update: &str, deadline_s: u32, version: &str) -> Result<(), TrialFault> {
        let lock = self.lock()?;
        let running = self.places.running;
        let (before, position) = self.record()?;
        let mut record = before.clone();
        record.learn_version(running, version);
        record.order_trial(running, update, deadline_s)?;
        // Names and chains first: what cannot be shown is not ordered.
        self.esp()?;
        let directory = self.directory()?;
        let patches = activate(&record, running, &entries(&directory));
        let patches = patches.ok_or(TrialFault::NotActivated(running.other()))?;
        if record != before {
            self.save(&record, position)?;
        }
        self.apply(directory, &patches)?;
        drop(lock);
        Ok(())
    }

    /// Takes back an order of a trial that has not begun, and hides its slot from the loader.
    ///
    /// # Errors
    /// Record or ESP cannot be written.
    pub fn withdraw_trial(&self) -> Result<(), TrialFault> {
        self.say(|record, running| record.withdraw_trial(running))
    }

    /// Says what was found out about the version in the other slot: why it is refused, or that it may be tried again.
    ///
    /// # Errors
    /// Record or ESP cannot be written.
    pub fn settle_trial(&self, refused: Option<&str>) -> Result<(), TrialFault> {
        self.say(|record, running| record.settle_trial(running, refused))
    }

    /// The node was ready in this boot, with this version in the running slot.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn boot_is_ready(&self, version: &str) -> Result<(), TrialFault> {
        self.note(|record, running| {
            record.learn_version(running, version);
            record.boot_is_ready(running);
        })
    }

    /// The machine stops in order.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn boot_ends(&self) -> Result<(), TrialFault> {
        self.note(|record, _| record.boot_ends())
    }

    /// Changes the record.
    fn note(&self, change: impl FnOnce(&mut BootRecord, SlotName)) -> Result<(), TrialFault> {
        let lock = self.lock()?;
        self.changed(change)?;
        drop(lock);
        Ok(())
    }

    /// Changes the record, and makes the ESP agree.
    fn say(&self, change: impl FnOnce(&mut BootRecord, SlotName)) -> Result<(), TrialFault> {
        let lock = self.lock()?;
        let record = self.changed(change)?;
        let directory = self.directory()?;
        let patches = agree(&record, self.places.running, &entries(&directory));
        self.apply(directory, &patches)?;
        drop(lock);
        Ok(())
    }

    /// The record with the change, which is on the disk. The caller holds the lock.
    fn changed(&self, change: impl FnOnce(&mut BootRecord, SlotName)) -> Result<BootRecord, TrialFault> {
        let (before, position) = self.record()?;
        let mut record = before.clone();
        change(&mut record, self.places.running);
        if record != before {
            self.save(&record, position)?;
        }
        Ok(record)
    }

    fn apply(&self, mut directory: EspDirectory, patches: &[EspPatch]) -> Result<(), DiskFault> {
        for patch in patches {
            directory = self.rename(&directory, *patch)?;
        }
        Ok(())
    }
}

/// The slots' UKIs, as the arbiter takes them.
fn entries(directory: &EspDirectory) -> SlotEntries {
    let entry = |slot| directory.entry(slot).map(|e| SlotEntry { state: e.state, bytes: e.bytes });
    SlotEntries { a: entry(SlotName::A), b: entry(SlotName::B) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage_fixture::Node;
    use std::sync::mpsc;
    use std::time::Duration;

    use agent_faults::{Refusal, refusing};
    use orlop_config::slots::SlotState;
    use orlop_init::exec::slot::RecordLock;
    use orlop_init::plan::esp_names::EntryState;

    /// A node with version 0.2.0 in slot B, which fits behind the loader.
    fn staged() -> Node {
        let node = Node::new();
        node.set_record(|record| {
            record.b.state = SlotState::Staged;
            record.b.version = "0.2.0".into();
            (record.b.generation, record.b.uki_bytes, record.a.uki_bytes) = (3, 4177, 36_964);
            record.boot_open = true;
            record.unready = 2;
        });
        node
    }

    fn states(node: &Node) -> [Option<EntryState>; 2] {
        let directory = node.slots().directory().expect("readable");
        SlotName::ALL.map(|slot| directory.entry(slot).map(|entry| entry.state))
    }

    #[test]
    fn a_trial_is_ordered_shown_and_taken_back() {
        let node = staged();
        for _ in 0..2 {
            node.slots().order_trial("0.2.0-7", 600, "0.1.0").expect("staged");
            let record = node.record();
            let trial = record.trial.expect("ordered");
            assert_eq!((trial.slot, trial.update.as_str(), trial.deadline_s), (SlotName::B, "0.2.0-7", 600));
            assert_eq!((record.a.version.as_str(), record.b.state), ("0.1.0", SlotState::Trial));
            assert_eq!(states(&node), [Some(EntryState::Good), Some(EntryState::ToTry)]);
        }
        let other = node.slots().order_trial("0.2.0-8", 600, "0.1.0").expect_err("another trial");
        assert!(other.to_string().contains("another trial of slot B"), "{other}");
        for _ in 0..2 {
            node.slots().withdraw_trial().expect("not begun");
            assert_eq!((node.record().trial, node.record().b.state), (None, SlotState::Staged));
            assert_eq!(states(&node), [Some(EntryState::Good), Some(EntryState::Hidden)]);
        }
    }

    #[test]
    fn an_order_that_the_disk_cuts_short_is_gone_on_with() {
        // Power is cut before each of its writes and syncs: the same call ends what was begun.
        for nth in 0.. {
            let node = staged();
            let order = || node.slots().order_trial("0.2.0-7", 600, "0.1.0");
            let (first, call) = refusing(node.dir.path(), nth, Refusal::FromThenOn, order);
            let Some(call) = call else {
                first.expect("nothing was refused");
                assert!(nth > 2, "an order has more writes than {nth}");
                break;
            };
            let visible = states(&node)[1] == Some(EntryState::ToTry);
            assert!(!visible || node.record().trial.is_some(), "shown and not ordered, without {call}");
            order().unwrap_or_else(|e| panic!("after {call}: {e}"));
            assert_eq!(states(&node), [Some(EntryState::Good), Some(EntryState::ToTry)]);
        }
    }

    #[test]
    fn what_cannot_be_activated_is_not_ordered() {
        let node = staged();
        let fault = node.slots().order_trial("0.2.0-7", 600, "").expect_err("no order");
        assert!(matches!(fault, TrialFault::NotActivated(SlotName::B)), "{fault}");
        assert_eq!(node.record().trial, None);
        node.set_record(|record| record.b.state = SlotState::Refused);
        let fault = node.slots().order_trial("0.2.0-7", 600, "0.1.0").expect_err("refused");
        assert!(fault.to_string().contains("slot B is refused"), "{fault}");
    }

    #[test]
    fn the_end_of_a_trial_and_of_a_boot_are_noted() {
        let node = staged();
        node.set_record(|record| record.b.failed_check = "runtime".into());
        node.slots().settle_trial(None).expect("written");
        assert_eq!((node.record().b.state, node.record().b.failed_check), (SlotState::Staged, String::new()));
        node.slots().settle_trial(Some("runtime: it does not answer")).expect("written");
        assert_eq!(node.record().b.state, SlotState::Refused);
        node.slots().boot_is_ready("0.1.0").expect("written");
        let record = node.record();
        assert_eq!((record.unready, record.a.version.as_str(), record.boot_open), (0, "0.1.0", true));
        node.slots().boot_ends().expect("written");
        assert!(!node.record().boot_open);
    }

    #[test]
    fn a_held_record_is_waited_for() {
        let node = staged();
        let held = RecordLock::take(&node.disk, 0).expect("free");
        let (tell, told) = mpsc::channel();
        let slots = node.slots();
        std::thread::scope(|scope| {
            scope.spawn(move || tell.send(slots.boot_ends()));
            let early = told.recv_timeout(Duration::from_millis(500));
            assert!(early.is_err() && node.record().boot_open, "written past the lock");
            drop(held);
            told.recv().expect("no panic").expect("written");
        });
        assert!(!node.record().boot_open);
    }
}
