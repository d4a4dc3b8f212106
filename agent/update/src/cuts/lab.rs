//! A node whose disk is an image: its updates, which are recorded, and its boots.
//!
//! Updates are the product's: staging and orders of [`SlotDisk`], init's arbiter and the guard's commit over partitions in files.
//! The firmware's part, one renaming on the ESP, is one write of a sector.

use std::path::Path;

use agent_faults::{DiskEvent, recording};
use orlop_config::error_chain::chain;
use orlop_config::release::ReleaseDocument;
use orlop_config::slots::{SlotName, TrialBoot};
use orlop_init::exec::slot::Arbiter;
use orlop_init::plan::arbiter::SlotVerdict;
use orlop_init::plan::step::DiskWrite;

use super::BootChoice;
use super::image::DiskImage;
use super::log::BlockEvent;
use super::oracle::DiskFacts;
use super::twin;
use super::versions::KnownVersion;
use crate::directory::MountedDirectory;
use crate::disk::SlotDisk;
use crate::stage::stage;
use crate::stage_fixture::{LAYOUT, MIB};

/// Resets in a row, before a machine counts as one that never boots.
const RESETS_MAX: usize = 6;

/// A version that can be had.
pub(super) type Offer = (MountedDirectory, ReleaseDocument);

/// How a boot ended.
#[derive(Debug)]
pub(super) struct BootEnd {
    pub(super) choice: BootChoice,
    /// It is a boot on trial.
    pub(super) trial: bool,
}

/// A disk, and what was written to it.
pub(super) struct UpdateLab<'a> {
    pub(super) image: DiskImage,
    pub(super) log: Vec<BlockEvent>,
    known: &'a [KnownVersion],
    /// Where the partitions begin, bytes.
    starts: &'a [u64],
}

impl<'a> UpdateLab<'a> {
    pub(super) fn new(image: DiskImage, known: &'a [KnownVersion], starts: &'a [u64]) -> UpdateLab<'a> {
        UpdateLab { image, log: Vec::new(), known, starts }
    }

    /// A whole update of a running slot: staged, then tried.
    pub(super) fn update(&mut self, running: SlotName, version: &str, offer: &Offer) -> Result<(), String> {
        self.on_disk("stage", running, |disk| staged(disk, offer))?;
        self.tried(running, version, &offer.1.version.to_string())
    }

    /// A trial of the other slot, which has the version `wanted`: ordered, booted, committed.
    pub(super) fn tried(&mut self, running: SlotName, version: &str, wanted: &str) -> Result<(), String> {
        let slot = running.other();
        self.on_disk("order", running, |disk| ordered(disk, version))?;
        self.on_disk("stop", running, |disk| disk.boot_ends().map_err(|e| chain(&e)))?;
        let facts = DiskFacts::read(&self.image)?;
        let patch = facts.use_of_try(slot).ok_or("there is no try to use")?;
        let before = self.image.clone();
        facts.carry_out(&mut self.image, None, &[patch])?;
        self.note_esp("loader", &before);
        let hash = &KnownVersion::find(self.known, wanted).ok_or("no such version")?.hash;
        self.on_partitions("init", slot, |arbiter| {
            let outcome = arbiter.judge(hash).map_err(|e| chain(&e))?;
            let is_trial = outcome.trial.is_some() && outcome.failures.is_empty();
            if is_trial { Ok(()) } else { Err(format!("{outcome:?}")) }
        })?;
        self.on_partitions("commit", slot, |arbiter| {
            let failures = arbiter.change(|record| record.commit_trial(slot, None)).map_err(|e| chain(&e))?;
            if failures.is_empty() { Ok(()) } else { Err(failures.concat()) }
        })
    }

    /// Boots the disk as it is, commits what is on trial, and has the node take one of these that it does not run; at the end the
    /// node boots that.
    pub(super) fn next_update(&mut self, offers: &[&Offer]) -> Result<(), String> {
        let end = self.settled_boot()?;
        let (running, version) = (end.choice.slot, end.choice.version);
        let other = |offer: &&&Offer| offer.1.version.to_string() != version;
        let offer = *offers.iter().find(other).ok_or("nothing else is offered")?;
        self.on_disk("next", running, |disk| {
            disk.boot_is_ready(&version).map_err(|e| chain(&e))?;
            let (record, _) = disk.record().map_err(|e| chain(&e))?;
            if record.trial.is_some() {
                disk.withdraw_trial().map_err(|e| chain(&e))?;
            }
            staged(disk, offer)?;
            ordered(disk, &version)
        })?;
        let wanted = BootChoice { slot: running.other(), version: offer.1.version.to_string() };
        let end = boot(&mut self.image, self.known)?;
        if !end.trial || end.choice != wanted {
            return Err(format!("the next update is not tried: {end:?}"));
        }
        commit(&mut self.image, wanted.slot)?;
        let end = self.settled_boot()?;
        if end.choice == wanted { Ok(()) } else { Err(format!("the next update does not stay: {end:?}")) }
    }

    /// A boot whose version stays: what is on trial is good.
    fn settled_boot(&mut self) -> Result<BootEnd, String> {
        let end = boot(&mut self.image, self.known)?;
        if !end.trial {
            return Ok(end);
        }
        commit(&mut self.image, end.choice.slot)?;
        let again = boot(&mut self.image, self.known)?;
        if again.trial || again.choice != end.choice {
            return Err(format!("{end:?} is good, and {again:?} boots"));
        }
        Ok(again)
    }

    /// Lets the running system write to the disk.
    fn on_disk(
        &mut self,
        by: &'static str,
        running: SlotName,
        act: impl FnOnce(&SlotDisk) -> Result<(), String> + Send,
    ) -> Result<(), String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let path = dir.path().join("disk");
        self.image.to_file(&path);
        let (root, tree) = if running == SlotName::A { (2, 3) } else { (4, 5) };
        let disk = SlotDisk::of_file(&path, root, tree).map_err(|e| chain(&e))?;
        let (result, events) = recording(dir.path(), || act(&disk));
        self.note(by, events, |_| 0);
        result.map_err(|e| format!("{by}: {e}"))
    }

    /// Lets init or the guard write to the record and to the ESP.
    fn on_partitions(
        &mut self,
        by: &'static str,
        slot: SlotName,
        act: impl FnOnce(&mut Arbiter) -> Result<(), String> + Send,
    ) -> Result<(), String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (esp, record) = (dir.path().join("esp"), dir.path().join("record"));
        let (esp_start, record_start) = (self.starts[0], self.starts[5]);
        self.image.part(esp_start, LAYOUT[0].2 * MIB).to_file(&esp);
        self.image.part(record_start, LAYOUT[5].2 * MIB).to_file(&record);
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let (record, esp) = (text(&record), Some(text(&esp)));
        let boot = TrialBoot { slot, update: "u".to_owned(), deadline_s: 600, record, esp };
        let (result, events) = recording(dir.path(), || act(&mut Arbiter::of(&boot)));
        self.note(by, events, |path| if path == Path::new("esp") { esp_start } else { record_start });
        result.map_err(|e| format!("{by}: {e}"))
    }

    fn note(&mut self, by: &'static str, events: Vec<DiskEvent>, start: impl Fn(&Path) -> u64) {
        for event in events {
            let write = match event {
                DiskEvent::Sync { .. } => None,
                DiskEvent::Write { path, offset, bytes } => {
                    let offset = start(&path) + offset;
                    self.image.write(offset, &bytes);
                    Some(DiskWrite { offset, bytes })
                }
            };
            self.log.push(BlockEvent { by, write });
        }
    }

    /// Notes the sectors of the ESP that have changed, as written and flushed.
    fn note_esp(&mut self, by: &'static str, before: &DiskImage) {
        let (start, end) = (self.starts[0], self.starts[1]);
        // The directory is in front of the chains.
        for offset in (start..end.min(start + MIB)).step_by(512) {
            let bytes = self.image.read(offset, 512).unwrap_or_default();
            if before.read(offset, 512).as_ref() != Some(&bytes) {
                self.log.push(BlockEvent { by, write: Some(DiskWrite { offset, bytes }) });
                self.log.push(BlockEvent { by, write: None });
            }
        }
    }
}

fn staged(disk: &SlotDisk, (source, release): &Offer) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|e| e.to_string())?;
    let done = runtime.block_on(stage(source, release, disk, &mut |_| {}));
    done.map(drop).map_err(|e| chain(&e))
}

fn ordered(disk: &SlotDisk, version: &str) -> Result<(), String> {
    disk.order_trial("every-cut", 600, version).map_err(|e| chain(&e))
}

/// What boots, if oracle and twin agree.
pub(super) fn agreed(image: &DiskImage, known: &[KnownVersion]) -> Result<BootChoice, String> {
    let oracle = DiskFacts::read(image).and_then(|facts| facts.choice(image, known));
    match (oracle, twin::choice(image, known)) {
        (Ok(oracle), Ok(twin)) if oracle == twin => Ok(oracle),
        (Err(oracle), Err(twin)) => Err(format!("oracle: {oracle}; twin: {twin}")),
        (oracle, twin) => Err(format!("they disagree: oracle: {oracle:?}; twin: {twin:?}")),
    }
}

/// Boots until init goes on.
fn boot(image: &mut DiskImage, known: &[KnownVersion]) -> Result<BootEnd, String> {
    let mut said = String::new();
    for _ in 0..RESETS_MAX {
        let choice = agreed(image, known)?;
        let facts = DiskFacts::read(image)?;
        if let Some(patch) = facts.use_of_try(choice.slot) {
            facts.carry_out(image, None, &[patch])?;
        }
        let facts = DiskFacts::read(image)?;
        let hash = &KnownVersion::find(known, &choice.version).ok_or("an unknown version")?.hash;
        let judged = facts.judged(choice.slot, hash)?;
        facts.carry_out(image, Some(&judged.record), &judged.patches)?;
        if let SlotVerdict::Go { trial } = judged.verdict {
            return Ok(BootEnd { choice, trial });
        }
        said = judged.said.join("; ");
    }
    Err(format!("it is reset again and again: {said}"))
}

/// The guard's commit.
fn commit(image: &mut DiskImage, slot: SlotName) -> Result<(), String> {
    let facts = DiskFacts::read(image)?;
    let mut record = facts.record().clone();
    record.commit_trial(slot, None).map_err(|e| e.to_string())?;
    let patches = facts.agreed(&record, slot);
    facts.carry_out(image, Some(&record), &patches)
}
