//! The way of a CSI driver's volume from a pod: the next step, given the answers so far.
//!
//! ```text
//! turn ─► (device: the node leaves it) ─► driver ─► NodeUnpublishVolume ─► the pod's record goes
//! ```
//! In: the pod's record of the volume, answers. Out: the next [`UnpublishStep`]. Invariants: the record is removed
//! after the driver has let go; a volume that outlives its pods is unpublished in its turn only; a device without a
//! word about whose it is was never published. Every step may be repeated, by whichever agent. Upstream: csi_mounter.go
//! TearDownAt, csi_block.go UnmapPodDevice.

use super::failures::Failure;
use super::{PLUGIN, VolumeData, unregistered};

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnpublishStep {
    /// The volume's turn is waited for: [`Unpublishing::done`].
    Turn,
    /// The node lets go of the block device: [`Unpublishing::done`].
    Leave,
    /// Is the driver registered: [`Unpublishing::found`].
    Driver,
    /// The volume table hears that the volume may no longer be published: [`Unpublishing::done`].
    Unpublished,
    /// NodeUnpublishVolume: [`Unpublishing::called`].
    Unpublish,
    /// Remove the pod's record: [`Unpublishing::done`].
    Release,
    /// The pod has the volume no more.
    Done,
    /// It may have it still, and why.
    Failed(Failure),
}

/// The way from a pod.
#[derive(Clone, Debug)]
pub struct Unpublishing {
    driver: Option<String>,
    device: bool,
    step: UnpublishStep,
}

impl Unpublishing {
    /// The way of a volume with files.
    #[must_use]
    pub fn of_files(data: &VolumeData) -> Unpublishing {
        // An inline volume is one pod's: no other task is at it.
        let step = if data.is_persistent() { UnpublishStep::Turn } else { UnpublishStep::Driver };
        Unpublishing { driver: Some(data.driver.clone()), device: false, step }
    }

    /// The way of a block device; without `data` the driver was never asked for it.
    #[must_use]
    pub fn of_device(data: Option<&VolumeData>) -> Unpublishing {
        let step = if data.is_some() { UnpublishStep::Turn } else { UnpublishStep::Leave };
        Unpublishing { driver: data.map(|data| data.driver.clone()), device: true, step }
    }

    /// What is next.
    #[must_use]
    pub fn step(&self) -> UnpublishStep {
        self.step.clone()
    }

    /// The node did its part, or could not.
    pub fn done(&mut self, done: Result<(), Failure>) {
        self.step = match (&self.step, done) {
            (_, Err(why)) => UnpublishStep::Failed(why),
            (UnpublishStep::Turn, Ok(())) if self.device => UnpublishStep::Leave,
            (UnpublishStep::Turn, Ok(())) => UnpublishStep::Driver,
            (UnpublishStep::Leave, Ok(())) if self.driver.is_none() => UnpublishStep::Release,
            (UnpublishStep::Leave, Ok(())) => UnpublishStep::Driver,
            (UnpublishStep::Unpublished, Ok(())) => UnpublishStep::Unpublish,
            (UnpublishStep::Release, Ok(())) => UnpublishStep::Done,
            (_, Ok(())) => UnpublishStep::Failed(Failure::mixed_up()),
        };
    }

    /// The driver is registered, or is not.
    pub fn found(&mut self, found: bool) {
        self.step = match (&self.step, found) {
            (UnpublishStep::Driver, true) => UnpublishStep::Unpublished,
            (UnpublishStep::Driver, false) => {
                let operation =
                    if self.device { "blockMapper.UnmapPodDevice" } else { "Unmounter.TearDownAt" };
                let driver = self.driver.as_deref().unwrap_or_default();
                UnpublishStep::Failed(Failure::retry(unregistered(operation, driver)))
            }
            _ => UnpublishStep::Failed(Failure::mixed_up()),
        };
    }

    /// The driver let go, or said why not.
    pub fn called(&mut self, called: Result<(), String>) {
        self.step = match (&self.step, called) {
            (UnpublishStep::Unpublish, Ok(())) => UnpublishStep::Release,
            (UnpublishStep::Unpublish, Err(why)) => {
                UnpublishStep::Failed(Failure::retry(match self.device {
                    true => format!("blockMapper.UnmapPodDevice failed: {why}"),
                    false => format!("{PLUGIN}: Unmounter.TearDownAt failed: {why}"),
                }))
            }
            _ => UnpublishStep::Failed(Failure::mixed_up()),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use agent_types::failure::Class;

    use super::*;

    fn data(life: &str) -> VolumeData {
        let rest = BTreeMap::from([("volumeLifecycleMode".to_owned(), life.to_owned())]);
        VolumeData { driver: "d".to_owned(), handle: "h".to_owned(), rest }
    }

    /// All steps, if nothing fails.
    fn steps(mut way: Unpublishing) -> Vec<UnpublishStep> {
        let mut all = Vec::new();
        loop {
            let step = way.step();
            all.push(step.clone());
            match step {
                UnpublishStep::Driver => way.found(true),
                UnpublishStep::Unpublish => way.called(Ok(())),
                UnpublishStep::Done | UnpublishStep::Failed(_) => return all,
                _ => way.done(Ok(())),
            }
        }
    }

    #[test]
    fn the_record_goes_after_the_driver_has_let_go() {
        use UnpublishStep::{Done, Driver, Leave, Release, Turn, Unpublish, Unpublished};
        let (shared, own) = (data("Persistent"), data("Ephemeral"));
        for (way, expected) in [
            (Unpublishing::of_files(&shared), vec![Turn, Driver, Unpublished, Unpublish, Release, Done]),
            (Unpublishing::of_files(&own), vec![Driver, Unpublished, Unpublish, Release, Done]),
            (
                Unpublishing::of_device(Some(&shared)),
                vec![Turn, Leave, Driver, Unpublished, Unpublish, Release, Done],
            ),
            (Unpublishing::of_device(None), vec![Leave, Release, Done]),
        ] {
            assert_eq!(steps(way), expected);
        }
    }

    #[test]
    fn nothing_is_forgotten_that_the_driver_may_have() {
        let words = |mut way: Unpublishing, fail: &dyn Fn(&mut Unpublishing)| loop {
            match way.step() {
                UnpublishStep::Failed(why) => return why.message,
                UnpublishStep::Release | UnpublishStep::Done => panic!("it is forgotten"),
                UnpublishStep::Driver | UnpublishStep::Unpublish => {
                    let before = way.step();
                    fail(&mut way);
                    if way.step() == before {
                        panic!("no answer");
                    }
                }
                _ => way.done(Ok(())),
            }
        };
        let missing = |way: &mut Unpublishing| way.found(false);
        let files = words(Unpublishing::of_files(&data("Persistent")), &missing);
        assert!(
            files.starts_with("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client"),
            "{files}"
        );
        let device = words(Unpublishing::of_device(Some(&data("Persistent"))), &missing);
        assert!(device.starts_with("kubernetes.io/csi: blockMapper.UnmapPodDevice failed to"), "{device}");
        let refuses = |way: &mut Unpublishing| match way.step() {
            UnpublishStep::Driver => way.found(true),
            _ => way.called(Err("busy".to_owned())),
        };
        let files = words(Unpublishing::of_files(&data("Persistent")), &refuses);
        assert_eq!(files, "kubernetes.io/csi: Unmounter.TearDownAt failed: busy");
        let device = words(Unpublishing::of_device(Some(&data("Persistent"))), &refuses);
        assert_eq!(device, "blockMapper.UnmapPodDevice failed: busy");
        let mut way = Unpublishing::of_device(None);
        let why = Failure { class: Class::Invalid, message: "no".to_owned() };
        way.done(Err(why.clone()));
        assert_eq!(way.step(), UnpublishStep::Failed(why), "the node's own failure stays what it is");
        let mut way = Unpublishing::of_device(None);
        way.called(Ok(()));
        assert_eq!(way.step(), UnpublishStep::Failed(Failure::mixed_up()));
    }
}
