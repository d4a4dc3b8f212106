//! Tests of the arbiter: each row of its table, then all combinations of a small model against loaders of all kinds.

use super::*;
use crate::plan::loader_order::{LoaderEntry, chosen};
use EntryState::{Behind, Good, Hidden, ToTry, Tried};
use SlotName::{A, B};
use orlop_config::slots::{ResetOrder, SlotChangeError, SlotTrial};

const HASHES: [&str; 2] = ["aa", "bb"];

fn booted(name: SlotName) -> BootedSlot<'static> {
    BootedSlot { name, roothash: HASHES[usize::from(name == B)], other_filled: true }
}

fn entries(a: EntryState, b: EntryState) -> SlotEntries {
    let entry =
        |state: EntryState| SlotEntry { state, bytes: if state.is_visible() { 1000 } else { 64 << 20 } };
    SlotEntries { a: Some(entry(a)), b: Some(entry(b)) }
}

/// A is good and desired, B is `state`; versions 1 and 2.
fn record(state: SlotState) -> BootRecord {
    let mut record = BootRecord::new(A);
    record.b.state = state;
    for (slot, version) in [(A, "1"), (B, "2")] {
        let slot = record.slot_mut(slot);
        (slot.version, slot.uki_bytes) = (version.into(), 1000);
    }
    record
}

fn on_trial(started: bool, attempts: u32) -> BootRecord {
    let mut record = record(SlotState::Trial);
    record.b.attempts = attempts;
    let (update, deadline_s, kept) = (String::new(), 600, serde_json::Map::new());
    let (slot, from, was_good) = (B, A, false);
    record.trial = Some(SlotTrial { slot, from, update, deadline_s, started, was_good, kept });
    record
}

fn patches(judged: &Judgement) -> Vec<(SlotName, EntryState)> {
    judged.patches.iter().map(|patch| (patch.slot, patch.state)).collect()
}

const GO: SlotVerdict = SlotVerdict::Go { trial: false };

#[test]
fn a_new_disk_gets_a_record() {
    let judged = judge(None, &booted(A), &entries(Good, Hidden));
    assert_eq!((judged.verdict, judged.clear_choices, patches(&judged)), (GO, true, vec![]));
    let record = judged.record;
    assert_eq!((record.desired, record.a.state, record.b.state), (A, SlotState::Good, SlotState::Empty));
    assert_eq!((record.a.roothash.as_str(), record.a.uki_bytes, record.unready), ("aa", 1000, 1));
    assert!(record.boot_open);
    // A disk of the first layout: nothing is known of the ESP.
    assert_eq!(judge(None, &booted(A), &SlotEntries::default()).verdict, GO);
}

#[test]
fn without_a_record_the_esp_counts() {
    // Destroyed during a trial: B is not known to be good.
    let judged = judge(None, &booted(B), &entries(Good, Tried));
    assert_eq!((judged.record.desired, judged.verdict), (A, SlotVerdict::Reset));
    assert_eq!((judged.record.b.state, patches(&judged)), (SlotState::Staged, vec![(B, Hidden)]));
    let judged = judge(None, &booted(B), &entries(Behind, Tried));
    assert_eq!((judged.record.desired, patches(&judged)), (A, vec![(A, Good), (B, Hidden)]));
    // Both visible: the loader has taken one.
    let judged = judge(None, &booted(B), &entries(Good, Good));
    assert_eq!((judged.record.desired, judged.verdict, patches(&judged)), (B, GO, vec![(A, Behind)]));
    // The record of another image on the same disk.
    let mut old = record(SlotState::Good);
    (old.a.roothash, old.floor) = ("cc".into(), 9);
    let judged = judge(Some(&old), &booted(A), &entries(Good, Hidden));
    assert_eq!((judged.record.b.state, judged.record.floor, judged.verdict), (SlotState::Empty, 0, GO));
    assert!(judged.clear_choices);
}

#[test]
fn a_slot_that_the_disk_does_not_have_is_no_way_out() {
    let alone = BootedSlot { other_filled: false, ..booted(A) };
    // The names on the ESP say that B is good: it is hidden, and A goes on.
    for esp in [entries(Tried, Good), entries(Good, Good), entries(Tried, Behind)] {
        let judged = judge(None, &alone, &esp);
        assert_eq!((judged.record.desired, judged.record.b.state), (A, SlotState::Empty), "{esp:?}");
        assert_eq!(judged.verdict, GO, "{esp:?}");
        assert!(patches(&judged).contains(&(B, Hidden)), "{esp:?}");
        assert_eq!(judge_corrupt(&judged.record, A, &esp, ""), None);
    }
    // The same image was written over a disk whose slot B had a version, and the record's partition was left out.
    for state in [SlotState::Staged, SlotState::Trial, SlotState::Good] {
        let mut old = if state == SlotState::Trial { on_trial(false, 0) } else { record(state) };
        (old.a.roothash, old.floor) = ("aa".into(), 9);
        if state == SlotState::Good {
            old.desired = B;
        }
        let judged = judge(Some(&old), &alone, &entries(Good, Hidden));
        assert_eq!((judged.verdict, judged.clear_choices, patches(&judged)), (GO, true, vec![]), "{state:?}");
        let now = (judged.record.desired, judged.record.b.state, judged.record.floor);
        assert_eq!(now, (A, SlotState::Empty, 0), "{state:?}");
        assert!(judged.said[0].contains("another installation"), "{:?}", judged.said);
    }
    // A version that is being written has no label yet, and one that is refused may have lost it: the record stays.
    for state in [SlotState::Empty, SlotState::Writing, SlotState::Refused] {
        let old = BootRecord { floor: 9, ..record(state) };
        let judged = judge(Some(&old), &alone, &entries(Good, Hidden));
        assert_eq!((judged.verdict, judged.record.floor, judged.record.b.state), (GO, 9, state));
    }
}

#[test]
fn a_new_record_beside_an_old_state_goes_on_with_its_reset() {
    let order = |text| ResetOrder::parse(text).expect("an order");
    let mut old = record(SlotState::Empty);
    "another image".clone_into(&mut old.a.roothash);
    old.order_reset(order("forget:1"), "p").expect("ordered");
    old.end_reset("");
    old.order_reset(order("keep:2"), "p").expect("ordered");
    let mut new = judge(Some(&old), &booted(A), &entries(Good, Hidden)).record;
    assert_eq!(new.a.roothash, "aa");
    assert_eq!((&new.reset, &new.last_reset), (&old.reset, &old.last_reset));
    assert_eq!(new.order_reset(order("forget:1"), "p"), Err(SlotChangeError::ResetOver));
}

#[test]
fn a_plain_boot_is_counted_and_the_esp_agrees() {
    for (state, esp, want) in [
        (SlotState::Good, entries(Good, Behind), vec![]),
        (SlotState::Good, entries(Good, Good), vec![(B, Behind)]),
        (SlotState::Empty, entries(Good, Good), vec![(B, Hidden)]),
        (SlotState::Refused, entries(Tried, Behind), vec![(A, Good), (B, Hidden)]),
        (SlotState::Writing, entries(Hidden, Hidden), vec![(A, Good)]),
    ] {
        let judged = judge(Some(&record(state)), &booted(A), &esp);
        assert_eq!((patches(&judged), judged.verdict, judged.record.unready), (want, GO, 1), "{state:?}");
        assert_eq!((judged.said.len(), judged.clear_choices, judged.record.boot_open), (0, false, true));
        let lengths = |patch: &EspPatch| (patch.state == Hidden) == (patch.bytes == UKI_CHAIN_BYTES);
        assert!(judged.patches.iter().all(lengths));
    }
}

#[test]
fn three_boots_that_are_not_ready_lead_to_the_other_slot_once() {
    let mut known = record(SlotState::Good);
    let mut esp = entries(Good, Behind);
    let mut order = Vec::new();
    let mut slot = A;
    for _ in 0..7 {
        let judged = judge(Some(&known), &booted(slot), &esp);
        if judged.verdict == GO {
            order.push(slot);
        }
        (known, esp) = (judged.record.clone(), after(&esp, &judged.patches));
        slot = loaded(&known, &mut esp, true);
    }
    assert_eq!(order, [A, A, A, B, A, A]);
    assert_eq!((known.redirects, known.redirect), (1, None));
    // Unknown versions: a slot that dies would come again and again.
    let mut unknown = record(SlotState::Good);
    (unknown.unready, unknown.b.version) = (9, String::new());
    assert_eq!(judge(Some(&unknown), &booted(A), &entries(Good, Behind)).verdict, GO);
    // The other one did not start: the own one goes on.
    let mut sent = record(SlotState::Good);
    (sent.unready, sent.redirects, sent.redirect) = (3, 1, Some(B));
    let judged = judge(Some(&sent), &booted(A), &entries(Good, Tried));
    assert_eq!((judged.verdict, judged.record.redirect, patches(&judged)), (GO, None, vec![(B, Behind)]));
    assert!(judged.said[0].contains("did not"), "{:?}", judged.said);
}

#[test]
fn a_trial_is_counted_by_the_arbiter() {
    let mut known = on_trial(false, 0);
    // The loader does not count: the entry still says that there is a try.
    for attempt in 1..=ATTEMPTS_MAX {
        let judged = judge(Some(&known), &booted(B), &entries(Good, ToTry));
        assert_eq!((judged.verdict, patches(&judged)), (SlotVerdict::Go { trial: true }, vec![(B, Tried)]));
        assert_eq!(judged.record.b.attempts, attempt);
        assert!(judged.record.trial.as_ref().is_some_and(|trial| trial.started));
        known = judged.record;
    }
    let judged = judge(Some(&known), &booted(B), &entries(Good, ToTry));
    assert_eq!((judged.verdict, patches(&judged)), (SlotVerdict::Reset, vec![(B, Hidden)]));
    assert_eq!((judged.record.b.state, &judged.record.trial), (SlotState::Refused, &None));
    assert!(judged.record.b.reason.contains("3 boots"), "{}", judged.record.b.reason);
}

#[test]
fn a_trial_that_is_over_is_noted_by_the_old_slot() {
    for (started, open, esp, want) in [
        (false, true, Tried, Some("before init's first instruction")),
        (true, true, Tried, Some("cut off")),
        (true, false, Tried, Some("stopped")),
        // Not activated, not started yet.
        (false, true, Hidden, None),
        (false, true, ToTry, None),
    ] {
        let mut known = on_trial(started, u32::from(started));
        known.boot_open = open;
        let judged = judge(Some(&known), &booted(A), &entries(Good, esp));
        assert_eq!((judged.verdict, judged.record.trial.is_none()), (GO, want.is_some()), "{esp:?}");
        assert_eq!(judged.record.b.attempts, u32::from(want.is_some()));
        if let Some(want) = want {
            assert_eq!((judged.record.b.state, patches(&judged)), (SlotState::Staged, vec![(B, Hidden)]));
            assert!(judged.record.b.reason.contains(want) && judged.said[0].contains(want));
        } else {
            assert_eq!((judged.record.b.state, patches(&judged)), (SlotState::Trial, vec![]));
        }
    }
}

#[test]
fn on_trial_of_an_older_version_the_old_slot_stands_behind() {
    let mut known = on_trial(false, 0);
    known.a.version = "3".into();
    let judged = judge(Some(&known), &booted(B), &entries(Behind, Tried));
    assert_eq!((judged.verdict, patches(&judged)), (SlotVerdict::Go { trial: true }, vec![]));
    let mut esp = entries(Behind, Tried);
    assert_eq!(loaded(&judged.record, &mut esp, true), A);
    let judged = judge(Some(&judged.record), &booted(A), &esp);
    assert_eq!(patches(&judged), [(A, Good), (B, Hidden)]);
}

#[test]
fn a_trial_is_activated_and_the_loader_takes_it_once() {
    for (own, want) in [("1", vec![(B, ToTry)]), ("3", vec![(A, Behind), (B, ToTry)])] {
        let mut known = on_trial(false, 0);
        known.a.version = own.into();
        known.b.uki_bytes = 2000;
        let mut esp = entries(Good, Hidden);
        let made = activate(&known, A, &esp).expect("known");
        assert_eq!(made.iter().map(|p| (p.slot, p.state)).collect::<Vec<_>>(), want);
        for cut in 0..made.len() {
            assert_eq!(loaded(&known, &mut after(&esp, &made[..cut]), true), A, "{own} cut after {cut}");
        }
        esp = after(&esp, &made);
        assert_eq!(esp.get(B).map(|entry| entry.bytes), Some(2000));
        assert_eq!(loaded(&known, &mut esp, true), B);
        assert_eq!(loaded(&known, &mut esp, true), A);
        // Nothing to do where it is done.
        assert_eq!(activate(&known, A, &after(&entries(Good, Hidden), &made)), Some(vec![]));
    }
    let known = on_trial(false, 0);
    assert_eq!(activate(&known, B, &entries(Good, Hidden)), None);
    assert_eq!(activate(&record(SlotState::Staged), A, &entries(Good, Hidden)), None);
    let mut blind = on_trial(false, 0);
    blind.b.uki_bytes = 0;
    assert_eq!(activate(&blind, A, &entries(Good, Hidden)), None);
}

#[test]
fn after_a_commit_and_after_a_return_the_esp_agrees() {
    let mut known = on_trial(true, 1);
    known.commit_trial(B, None).expect("on trial");
    let made = agree(&known, B, &entries(Good, Tried));
    assert_eq!(made.iter().map(|p| (p.slot, p.state)).collect::<Vec<_>>(), [(B, Good), (A, Behind)]);
    let mut known = on_trial(true, 1);
    known.return_from_trial(B, "gateway", "it is silent").expect("on trial");
    let made = agree(&known, B, &entries(Good, Tried));
    assert_eq!(made.iter().map(|p| (p.slot, p.state)).collect::<Vec<_>>(), [(B, Hidden)]);
}

#[test]
fn the_wrong_slot_is_left_three_times_and_then_goes_on() {
    for state in
        [SlotState::Refused, SlotState::Empty, SlotState::Writing, SlotState::Staged, SlotState::Good]
    {
        let mut known = record(state);
        let mut cleared = Vec::new();
        for _ in 0..DISAGREEMENTS_MAX {
            let judged = judge(Some(&known), &booted(B), &entries(Good, Good));
            let other = if state == SlotState::Good { Behind } else { Hidden };
            assert_eq!(
                (judged.verdict, patches(&judged)),
                (SlotVerdict::Reset, vec![(B, other)]),
                "{state:?}"
            );
            cleared.push(judged.clear_choices);
            known = judged.record;
        }
        assert_eq!(cleared, [false, false, true]);
        assert_eq!(judge(Some(&known), &booted(B), &entries(Good, Good)).verdict, GO, "{state:?}");
        // Once the right one boots, the count begins again.
        assert_eq!(judge(Some(&known), &booted(A), &entries(Good, Good)).record.disagreements, 0);
    }
    // The new slot is good in the record, and the power was cut before the ESP said so.
    let mut committed = record(SlotState::Good);
    committed.desired = B;
    let judged = judge(Some(&committed), &booted(A), &entries(Good, Tried));
    assert_eq!((judged.verdict, patches(&judged)), (SlotVerdict::Reset, vec![(B, Good), (A, Behind)]));
}

#[test]
fn without_a_good_slot_the_one_that_runs_goes_on() {
    let mut known = record(SlotState::Refused);
    known.a.state = SlotState::Staged;
    for slot in [A, B] {
        let judged = judge(Some(&known), &booted(slot), &entries(Tried, Good));
        assert_eq!((judged.verdict, patches(&judged)), (GO, vec![]));
    }
    // The record contradicts itself: the good slot is desired.
    let mut known = record(SlotState::Good);
    known.a.state = SlotState::Refused;
    let judged = judge(Some(&known), &booted(B), &entries(Good, Behind));
    assert_eq!((judged.record.desired, judged.verdict), (B, GO));
    assert_eq!(patches(&judged), [(B, Good), (A, Hidden)]);
}

#[test]
fn a_corrupt_slot_is_hidden_before_the_reset() {
    let judged =
        judge_corrupt(&record(SlotState::Good), A, &entries(Good, Behind), "root hash").expect("a way");
    assert_eq!((judged.verdict, patches(&judged)), (SlotVerdict::Reset, vec![(B, Good), (A, Hidden)]));
    assert_eq!((judged.record.desired, judged.record.a.state), (B, SlotState::Refused));
    assert!(judged.record.a.reason.contains("root hash"));
    // B is corrupt as well: the machine stays there.
    assert_eq!(judge_corrupt(&judged.record, B, &entries(Hidden, Good), ""), None);
    for state in [SlotState::Empty, SlotState::Writing, SlotState::Staged, SlotState::Refused] {
        assert_eq!(judge_corrupt(&record(state), A, &entries(Good, Hidden), ""), None);
    }
    // A UKI that is gone, or of unknown length, is no way out.
    let mut esp = entries(Good, Hidden);
    let mut known = record(SlotState::Good);
    assert!(judge_corrupt(&known, A, &esp, "").is_some());
    known.b.uki_bytes = 0;
    assert_eq!(judge_corrupt(&known, A, &esp, ""), None);
    esp.b = None;
    assert_eq!(judge_corrupt(&record(SlotState::Good), A, &esp, ""), None);
    let judged = judge_corrupt(&on_trial(true, 1), B, &entries(Good, Tried), "").expect("back");
    assert_eq!(
        (judged.record.desired, judged.record.trial.is_none(), patches(&judged)),
        (A, true, vec![(B, Hidden)])
    );
}

#[test]
fn without_a_record_on_the_disk_there_is_no_reset() {
    let judged = judge(Some(&record(SlotState::Refused)), &booted(B), &entries(Good, Good));
    assert_eq!((judged.settled(true), judged.settled(false)), (SlotVerdict::Reset, GO));
}

fn after(esp: &SlotEntries, patches: &[EspPatch]) -> SlotEntries {
    let mut esp = *esp;
    for patch in patches {
        let entry = Some(SlotEntry { state: patch.state, bytes: patch.bytes });
        match patch.slot {
            A => esp.a = entry,
            B => esp.b = entry,
        }
    }
    esp
}

fn seen(esp: &SlotEntries, slot: SlotName) -> bool {
    esp.state(slot).is_some_and(EntryState::is_visible)
}

/// The slot that systemd-boot takes, and what it leaves of the ESP.
fn loaded(record: &BootRecord, esp: &mut SlotEntries, counts: bool) -> SlotName {
    let of = |slot: SlotName| {
        let version = record.slot(slot).version.as_str();
        Some(LoaderEntry { slot, state: esp.state(slot)?, version })
    };
    let all: Vec<_> = SlotName::ALL.into_iter().filter_map(of).collect();
    let slot = chosen(&all).unwrap_or(A);
    if counts {
        count(esp, slot);
    }
    slot
}

fn count(esp: &mut SlotEntries, slot: SlotName) {
    if let Some(entry) = esp.get(slot).filter(|entry| matches!(entry.state, ToTry | Behind)) {
        *esp = after(esp, &[EspPatch { slot, state: Tried, bytes: entry.bytes }]);
    }
}

/// A loader.
#[derive(Clone, Copy, Debug)]
enum LoaderModel {
    /// systemd-boot, which counts or cannot write.
    Sorted { counts: bool },
    /// A variable names the slot, and may be deleted or not.
    Fixed { slot: SlotName, clears: bool },
    /// It takes any visible slot, a bit for each boot.
    Any(u32),
}

/// What the disk takes: the record, the ESP.
type DiskModel = (bool, bool);

type Arbiter<'a> = &'a dyn Fn(Option<&BootRecord>, &BootedSlot<'_>, &SlotEntries) -> Judgement;

/// Boots until one goes on. Without a record the UKIs have the versions 1 and 2.
fn run(
    arbiter: Arbiter<'_>,
    start: (Option<&BootRecord>, SlotEntries),
    mut loader: LoaderModel,
    disk: DiskModel,
) -> Result<(), String> {
    let (mut known, mut esp) = (start.0.cloned(), start.1);
    let versions = record(SlotState::Good);
    for n in 0..8 {
        let sorted = |esp: &mut SlotEntries, counts| loaded(known.as_ref().unwrap_or(&versions), esp, counts);
        let other_seen =
            |slot: SlotName, esp: &SlotEntries| if seen(esp, slot) { slot } else { slot.other() };
        let slot = match loader {
            LoaderModel::Sorted { counts } => sorted(&mut esp, counts),
            LoaderModel::Fixed { slot, .. } => {
                let slot = other_seen(slot, &esp);
                count(&mut esp, slot);
                slot
            }
            LoaderModel::Any(bits) => other_seen(if bits >> n & 1 == 1 { A } else { B }, &esp),
        };
        let judged = arbiter(known.as_ref(), &booted(slot), &esp);
        let good =
            |esp: &SlotEntries| SlotName::ALL.iter().any(|s| judged.record.is_good(*s) && seen(esp, *s));
        let any = |esp: &SlotEntries| SlotName::ALL.iter().any(|s| seen(esp, *s));
        for made in 0..=judged.patches.len() {
            let now = after(&esp, &judged.patches[..made]);
            if good(&esp) && !good(&now) || any(&esp) && !any(&now) {
                return Err(format!("BOOTABLE: {esp:?} became {now:?}: {judged:?}"));
            }
        }
        if judged.clear_choices && matches!(loader, LoaderModel::Fixed { clears: true, .. }) {
            loader = LoaderModel::Sorted { counts: true };
        }
        let verdict = judged.settled(disk.0);
        if disk.1 {
            esp = after(&esp, &judged.patches);
        }
        if disk.0 {
            known = Some(judged.record);
        }
        if verdict != SlotVerdict::Reset {
            return Ok(());
        }
    }
    Err(format!("NO-LOOP: {known:?} {esp:?} {loader:?} {disk:?}"))
}

/// All records of the model.
fn records() -> Vec<BootRecord> {
    let mut all = Vec::new();
    let own = [SlotState::Good, SlotState::Staged, SlotState::Refused];
    let other = SlotState::ALL.into_iter().map(|state| (state, None));
    let trials = [(false, 0), (true, 1), (true, ATTEMPTS_MAX)].map(|trial| (SlotState::Trial, Some(trial)));
    for (state, trial) in other.chain(trials) {
        for own in own {
            for (redirect, redirects) in [(None, 0), (None, 1), (Some(B), 1)] {
                for unready in [0, UNREADY_MAX] {
                    let mut record = match trial {
                        Some((started, attempts)) => on_trial(started, attempts),
                        None => record(state),
                    };
                    record.a.state = own;
                    (record.redirect, record.redirects, record.unready) = (redirect, redirects, unready);
                    // Each slot may have the newer version.
                    let mut older = record.clone();
                    older.a.version = "3".into();
                    all.extend([record, older]);
                }
            }
        }
    }
    all
}

fn loaders() -> Vec<LoaderModel> {
    let fixed = |slot, clears| LoaderModel::Fixed { slot, clears };
    let mut all = vec![fixed(A, false), fixed(B, false), fixed(B, true)];
    all.extend([true, false].map(|counts| LoaderModel::Sorted { counts }));
    all.extend([0b0101_0101, 0b0011_0011].map(LoaderModel::Any));
    all
}

/// The first violation, over all records, entries, loaders and disks of the model.
fn violation(arbiter: Arbiter<'_>) -> Option<String> {
    let records = records();
    let states = EntryState::ALL;
    let esps: Vec<SlotEntries> = states.iter().flat_map(|a| states.map(|b| entries(*a, b))).collect();
    let known: Vec<Option<&BootRecord>> = records.iter().map(Some).chain([None]).collect();
    for record in known {
        for esp in &esps {
            for loader in loaders() {
                for disk in [(true, true), (true, false), (false, false)] {
                    if let Err(violated) = run(arbiter, (record, *esp), loader, disk) {
                        return Some(violated);
                    }
                }
            }
        }
    }
    None
}

#[test]
fn no_combination_loops_or_hides_the_last_slot() {
    assert_eq!(violation(&judge), None);
}

#[test]
fn the_model_finds_planted_defects() {
    let hides_first = violation(&|record, booted, entries| {
        let mut judged = judge(record, booted, entries);
        judged.patches.reverse();
        judged
    });
    assert!(hides_first.is_some_and(|found| found.starts_with("BOOTABLE")));
    let does_not_count = violation(&|record, booted, entries| {
        let mut judged = judge(record, booted, entries);
        judged.record.disagreements = 0;
        judged
    });
    assert!(does_not_count.is_some_and(|found| found.starts_with("NO-LOOP")));
    let redirects_for_ever = violation(&|record, booted, entries| {
        let mut judged = judge(record, booted, entries);
        judged.record.redirects = 0;
        judged
    });
    assert!(redirects_for_ever.is_some_and(|found| found.starts_with("NO-LOOP")));
}

#[test]
fn with_systemd_boot_the_desired_slot_comes_back() {
    for record in records().iter().filter(|record| record.is_good(A) && record.trial.is_none()) {
        for a in EntryState::ALL {
            for b in EntryState::ALL {
                let (mut known, mut esp) = (record.clone(), entries(a, b));
                let mut slot = loaded(&known, &mut esp, true);
                for _ in 0..3 {
                    let judged = judge(Some(&known), &booted(slot), &esp);
                    (known, esp) = (judged.record.clone(), after(&esp, &judged.patches));
                    slot = loaded(&known, &mut esp, true);
                }
                assert_eq!((slot, esp.state(A)), (A, Some(Good)), "{record:?} {a:?} {b:?}");
            }
        }
    }
}

#[test]
fn a_way_back_that_the_power_cuts_stays_one() {
    for (started, was_good, want) in [
        (true, true, SlotState::Good),
        (true, false, SlotState::Staged),
        // It did not even run init.
        (false, true, SlotState::Staged),
    ] {
        let mut record = on_trial(started, 1);
        if let Some(trial) = &mut record.trial {
            trial.was_good = was_good;
        }
        let judged = judge(Some(&record), &booted(A), &entries(Good, Tried));
        assert_eq!((judged.record.b.state, judged.verdict), (want, GO), "{started} {was_good}");
    }
}
