//! Every power cut of a whole update (tests): the disk boots a whole slot, the record is readable, and the next update succeeds.
//!
//! ```text
//! UpdateLab: stage, order, loader, init, commit ──► block log ──► each_cut ──► DiskImage ──► oracle ┐ agree?
//!    │ agent_faults::recording                       (prefixes, torn subsets)      │       └► twin ┘
//!    ▼                                                                            └► boots, and the next update
//!  real code over a disk in a file
//! ```
//! A planted defect (a write too early, a flush that is missing) must be found: else the judges see nothing. docs/reference/update.md,
//! "Power cuts".

mod image;
mod lab;
mod log;
mod oracle;
mod twin;
mod versions;

use std::ops::Range;

use orlop_config::slots::SlotName;

use self::image::DiskImage;
use self::lab::{Offer, UpdateLab, agreed};
use self::log::{BlockEvent, Chance, each_cut};
use self::versions::{KnownVersion, first_disk};
use crate::stage_fixture::{CHAIN, FIRST_A, Node, cluster};

/// What a loader boots.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BootChoice {
    slot: SlotName,
    version: String,
}

/// Subsets of the writes before each flush.
const SUBSETS: u32 = 8;
/// The next update is run behind each prefix, and behind one of so many subsets.
const NEXT_EACH: usize = 7;

/// A node with all versions, published.
struct CutScene {
    node: Node,
    known: Vec<KnownVersion>,
    offers: Vec<Offer>,
}

/// A recorded update.
struct RecordedUpdate {
    before: DiskImage,
    after: DiskImage,
    log: Vec<BlockEvent>,
}

impl CutScene {
    fn new() -> CutScene {
        let (node, known) = (Node::new(), KnownVersion::all());
        let offers = known.iter().map(|version| version.publish(&node)).collect();
        CutScene { node, known, offers }
    }

    fn lab(&self, image: DiskImage) -> UpdateLab<'_> {
        UpdateLab::new(image, &self.known, &self.node.starts)
    }

    /// 0.2.0 into the empty slot B, from 0.1.0 in slot A.
    fn first_update(&self) -> RecordedUpdate {
        let before = first_disk(&self.node, &self.known[0]);
        let mut lab = self.lab(before.clone());
        lab.update(SlotName::A, self.known[0].version, &self.offers[1]).expect("updated");
        RecordedUpdate { before, after: lab.image, log: lab.log }
    }

    /// 0.3.0 into slot A, which is good and to be seen by the loader, from 0.2.0 in slot B.
    fn second_update(&self) -> RecordedUpdate {
        let before = self.first_update().after;
        let mut lab = self.lab(before.clone());
        lab.update(SlotName::B, self.known[1].version, &self.offers[2]).expect("updated");
        RecordedUpdate { before, after: lab.image, log: lab.log }
    }

    /// Judges each cut, and runs the next update behind some of them: the same release again where it does not run, else another.
    fn judge(
        &self,
        before: &DiskImage,
        log: &[BlockEvent],
        subsets: u32,
        offers: &[&Offer],
    ) -> Result<usize, String> {
        each_cut(before, log, subsets, |cut, image| {
            let named =
                |why: String| format!("cut {}, after {} events, {}: {why}", cut.number, cut.after, cut.by);
            agreed(image, &self.known).map_err(named)?;
            if offers.is_empty() || cut.is_torn && cut.number % NEXT_EACH != 0 {
                return Ok(());
            }
            self.lab(image.clone()).next_update(offers).map_err(named)
        })
    }

    fn chain(&self, slot: SlotName) -> Range<u64> {
        let first = if slot == SlotName::A { FIRST_A } else { FIRST_A + CHAIN };
        let start = self.node.starts[0] + cluster(first);
        start..start + u64::from(CHAIN) * 4096
    }

    fn partition(&self, index: usize) -> Range<u64> {
        self.node.starts[index]..self.node.starts[index + 1]
    }

    /// The directory with the UKIs.
    fn names(&self) -> Range<u64> {
        let start = self.node.starts[0] + cluster(4);
        start..start + 4096
    }
}

/// The number of an update's first or last event that writes there.
fn first(log: &[BlockEvent], place: &Range<u64>) -> usize {
    log.iter().position(|event| event.touches(place)).expect("it is written")
}

fn last(log: &[BlockEvent], by: &str, place: &Range<u64>) -> usize {
    log.iter().rposition(|event| event.by == by && event.touches(place)).expect("it is written")
}

/// The log with an event at another place.
fn moved(log: &[BlockEvent], from: usize, to: usize) -> Vec<BlockEvent> {
    let mut log = log.to_vec();
    let event = log.remove(from);
    log.insert(to, event);
    log
}

#[test]
fn every_cut_of_an_update_boots_and_the_next_update_succeeds() {
    let scene = CutScene::new();
    let update = scene.first_update();
    assert_eq!(agreed(&update.before, &scene.known).map(|choice| choice.slot), Ok(SlotName::A));
    let after = BootChoice { slot: SlotName::B, version: "0.2.0".to_owned() };
    assert_eq!(agreed(&update.after, &scene.known), Ok(after));
    let parts = ["stage", "order", "stop", "loader", "init", "commit"];
    for by in parts {
        assert!(
            update.log.iter().any(|event| event.by == by && event.write.is_some()),
            "{by} writes nothing"
        );
    }
    // The same release again; where it runs already, the one behind it.
    let offers = [&scene.offers[1], &scene.offers[2]];
    let cuts =
        scene.judge(&update.before, &update.log, SUBSETS, &offers).unwrap_or_else(|why| panic!("{why}"));
    assert!(cuts > 100, "{cuts} cuts");
}

#[test]
fn every_cut_of_an_update_over_a_good_slot_boots() {
    let scene = CutScene::new();
    let update = scene.second_update();
    let after = BootChoice { slot: SlotName::A, version: "0.3.0".to_owned() };
    assert_eq!(agreed(&update.after, &scene.known), Ok(after));
    // Another release than the one that is half there.
    let offers = [&scene.offers[3]];
    let cuts =
        scene.judge(&update.before, &update.log, SUBSETS, &offers).unwrap_or_else(|why| panic!("{why}"));
    assert!(cuts > 100, "{cuts} cuts");
}

/// The way back to the version before, which is older: two names change, and nothing is written to a slot.
#[test]
fn every_cut_of_a_way_back_boots() {
    let scene = CutScene::new();
    let before = scene.first_update().after;
    let mut lab = scene.lab(before.clone());
    lab.tried(SlotName::B, scene.known[1].version, scene.known[0].version).expect("tried");
    let after = BootChoice { slot: SlotName::A, version: "0.1.0".to_owned() };
    assert_eq!(agreed(&lab.image, &scene.known), Ok(after));
    let offers = [&scene.offers[2]];
    let cuts = scene.judge(&before, &lab.log, SUBSETS, &offers).unwrap_or_else(|why| panic!("{why}"));
    assert!(cuts > 50, "{cuts} cuts");
}

#[test]
fn planted_defects_are_found() {
    let scene = CutScene::new();
    let (first_update, second_update) = (scene.first_update(), scene.second_update());
    let (log, record, names) = (&first_update.log, scene.partition(5), scene.names());
    let (uki, root) = (scene.chain(SlotName::B), scene.partition(3));
    // The record says `staged` before the UKI is written.
    let early_record = moved(log, last(log, "stage", &record), first(log, &uki));
    // The loader sees the UKI before it is written.
    let early_name = moved(log, last(log, "order", &names), first(log, &uki));
    // Nothing is flushed between the first block and the trial: a disk that lies about its flushes.
    let (from, to) = (first(log, &root), last(log, "order", &names));
    let kept = |(number, event): (usize, &BlockEvent)| {
        let is_lost = event.write.is_none() && (from..=to).contains(&number);
        (!is_lost).then(|| event.clone())
    };
    let unflushed: Vec<BlockEvent> = log.iter().enumerate().filter_map(kept).collect();
    // The slot of the second update is hidden only after its first block has changed.
    let log = &second_update.log;
    let late_hiding = moved(log, first(log, &names), first(log, &scene.partition(1)) + 1);
    for (what, before, log) in [
        ("record", &first_update.before, early_record),
        ("name", &first_update.before, early_name),
        ("flush", &first_update.before, unflushed),
        ("hiding", &second_update.before, late_hiding),
    ] {
        let found = scene.judge(before, &log, 64, &[]).expect_err(what);
        assert!(found.contains("oracle: ") && found.contains("twin: "), "{what}: {found}");
        assert!(!found.contains("they disagree"), "{what}: {found}");
    }
}

/// A byte of the only good slot: neither judge is blind.
#[test]
fn a_flipped_byte_is_seen_by_both() {
    let scene = CutScene::new();
    let disk = first_disk(&scene.node, &scene.known[0]);
    let mut chance = Chance(7);
    let places = [
        ("root", scene.node.starts[1]..scene.node.starts[1] + 60 * 4096),
        // Behind the superblock, whose salt and padding are no part of the hash.
        ("tree", scene.node.starts[2] + 4096..scene.node.starts[2] + 2 * 4096),
        ("UKI", scene.chain(SlotName::A).start..scene.chain(SlotName::A).start + 36_000),
    ];
    for (what, place) in places {
        for _ in 0..8 {
            let mut image = disk.clone();
            let at = place.start + chance.below(place.end - place.start);
            let byte = image.read(at, 1).expect("there")[0];
            image.write(at, &[byte ^ 0x10]);
            let found = agreed(&image, &scene.known).expect_err(what);
            assert!(!found.contains("they disagree"), "{what} at {at}: {found}");
        }
    }
}
