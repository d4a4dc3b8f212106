//! The way of a volume back to its CSI driver, once no pod has it: the next step, given the answers so far.
//!
//! ```text
//! a look at disk and wishes ─► NodeUnstageVolume, record gone ─► each device: NodeUnstageVolume (if staged), record gone
//!    └ a pod has the volume, or wants it: end
//! ```
//! In: what the disk holds of the volume, answers. Out: the next [`UnstageStep`]. Invariants: no driver is asked before a look within the
//! volume's turn found no pod; a record is removed after the driver has let go. Every step may be repeated, by
//! whichever agent. Upstream: csi_attacher.go UnmountDevice, csi_block.go TearDownDevice.

use std::collections::VecDeque;

use super::failures::StagedAs;
use crate::attach::VolumeOnDisk;

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnstageStep {
    /// The disk is read, and the volume table asked whether the volume is idle: [`Unstaging::looked`].
    Look,
    /// Is the device of this PersistentVolume staged? A driver that does not stage left nothing there: [`Unstaging::is_there`].
    IsThere(String),
    /// NodeUnstageVolume: [`Unstaging::done`].
    Unstage(StagedAs),
    /// Remove the node's record of it: [`Unstaging::done`].
    Forget(StagedAs),
    /// The driver has the volume back.
    Done,
    /// A pod has the volume again, or wants it.
    InUse,
    /// The driver may hold some of it, and why.
    Failed(String),
}

/// The way back to a driver.
#[derive(Clone, Debug, Default)]
pub struct Unstaging {
    looked: bool,
    queue: VecDeque<UnstageStep>,
}

impl Unstaging {
    /// What is next.
    #[must_use]
    pub fn step(&self) -> UnstageStep {
        match self.queue.front() {
            Some(step) => step.clone(),
            None if self.looked => UnstageStep::Done,
            None => UnstageStep::Look,
        }
    }

    fn end(&mut self, end: UnstageStep) {
        self.looked = true;
        self.queue = VecDeque::from([end]);
    }

    /// What the disk holds of the volume; `None`: the volume is not idle.
    pub fn looked(&mut self, held: Result<Option<VolumeOnDisk>, String>) {
        let held = match held {
            Err(why) => return self.end(UnstageStep::Failed(why)),
            Ok(None) => return self.end(UnstageStep::InUse),
            Ok(Some(held)) => held,
        };
        self.looked = true;
        if held.staged {
            self.queue.extend([UnstageStep::Unstage(StagedAs::Files), UnstageStep::Forget(StagedAs::Files)]);
        }
        for volume in held.blocks {
            self.queue.extend([
                UnstageStep::IsThere(volume.clone()),
                UnstageStep::Forget(StagedAs::Device(volume)),
            ]);
        }
    }

    /// The device is staged, or is not.
    pub fn is_there(&mut self, found: Result<bool, String>) {
        match (self.queue.pop_front(), found) {
            (Some(UnstageStep::IsThere(volume)), Ok(true)) => {
                self.queue.push_front(UnstageStep::Unstage(StagedAs::Device(volume)));
            }
            (Some(UnstageStep::IsThere(_)), Ok(false)) => {}
            (_, Ok(_)) => self.end(UnstageStep::Failed("an answer to another question".to_owned())),
            (_, Err(why)) => self.end(UnstageStep::Failed(why)),
        }
    }

    /// The step was done, or could not be.
    pub fn done(&mut self, done: Result<(), String>) {
        match (self.queue.pop_front(), done) {
            (Some(UnstageStep::Unstage(_) | UnstageStep::Forget(_)), Ok(())) => {}
            (_, Ok(())) => self.end(UnstageStep::Failed("an answer to another question".to_owned())),
            (_, Err(why)) => self.end(UnstageStep::Failed(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(staged: bool, blocks: &[&str]) -> VolumeOnDisk {
        VolumeOnDisk {
            staged,
            blocks: blocks.iter().map(|b| (*b).to_owned()).collect(),
            ..VolumeOnDisk::default()
        }
    }

    fn device(volume: &str) -> StagedAs {
        StagedAs::Device(volume.to_owned())
    }

    /// All steps, with a failure of the step `fails`; devices in `there` are staged.
    fn steps(held: Option<VolumeOnDisk>, there: &[&str], fails: Option<&UnstageStep>) -> Vec<UnstageStep> {
        let (mut way, mut all) = (Unstaging::default(), Vec::new());
        loop {
            let step = way.step();
            all.push(step.clone());
            let why = (Some(&step) == fails).then(|| "no".to_owned());
            match step {
                UnstageStep::Look => way.looked(why.map_or(Ok(held.clone()), Err)),
                UnstageStep::IsThere(volume) => {
                    way.is_there(why.map_or(Ok(there.contains(&volume.as_str())), Err))
                }
                UnstageStep::Unstage(_) | UnstageStep::Forget(_) => way.done(why.map_or(Ok(()), Err)),
                UnstageStep::Done | UnstageStep::InUse | UnstageStep::Failed(_) => return all,
            }
        }
    }

    #[test]
    fn a_record_goes_after_the_driver_has_let_go() {
        use UnstageStep::{Done, Failed, Forget, InUse, IsThere, Look, Unstage};
        let (files, is_there) = (StagedAs::Files, |volume: &str| IsThere(volume.to_owned()));
        let failed = || Failed("no".to_owned());
        let (unstage, forget) = (Unstage(files.clone()), Forget(files));
        for (of, there, fails, expected) in [
            (None, &[][..], None, vec![Look, InUse]),
            (None, &[], Some(&Look), vec![Look, failed()]),
            (Some(held(false, &[])), &[], None, vec![Look, Done]),
            (Some(held(true, &[])), &[], None, vec![Look, unstage.clone(), forget.clone(), Done]),
            (Some(held(true, &["a"])), &[], Some(&unstage), vec![Look, unstage.clone(), failed()]),
            (
                Some(held(true, &[])),
                &[],
                Some(&forget),
                vec![Look, unstage.clone(), forget.clone(), failed()],
            ),
            (
                Some(held(false, &["a", "b"])),
                &["b"],
                None,
                vec![
                    Look,
                    is_there("a"),
                    Forget(device("a")),
                    is_there("b"),
                    Unstage(device("b")),
                    Forget(device("b")),
                    Done,
                ],
            ),
            (
                Some(held(false, &["b"])),
                &["b"],
                Some(&Unstage(device("b"))),
                vec![Look, is_there("b"), Unstage(device("b")), failed()],
            ),
        ] {
            assert_eq!(steps(of.clone(), there, fails), expected, "{of:?}");
        }
    }

    #[test]
    fn an_answer_to_another_question_is_a_failure() {
        let mut way = Unstaging::default();
        way.done(Ok(()));
        assert!(matches!(way.step(), UnstageStep::Failed(_)));
        let mut way = Unstaging::default();
        way.looked(Ok(Some(held(true, &[]))));
        way.is_there(Ok(true));
        assert!(matches!(way.step(), UnstageStep::Failed(_)));
    }
}
