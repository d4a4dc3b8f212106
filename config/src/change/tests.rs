//! The machine and its driver in a small world with power cuts and a disk that fills: in each history a node ends with the confirmed
//! document, or after the deadline with the one before.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// How long a document may be tried here, milliseconds.
const WINDOW_MS: u64 = 10_000;
/// A tick of the clock.
const TICK_MS: u64 = 6_000;
/// The driver needs no more steps than this to end a change whose deadline is over.
const STEPS_MAX: u32 = 12;

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldEvent {
    /// An administrator begins a change that is to be confirmed, and acts at once.
    BeginLive,
    /// The same, without a confirmation.
    BeginUnasked,
    /// A change that acts at the next boot, and is to be confirmed then.
    BeginAtBoot,
    /// The same, without a confirmation.
    BeginAtBootUnasked,
    /// A confirmation by a new connection.
    Confirm,
    /// It is taken back.
    Revert,
    /// Time passes.
    Tick,
    /// The driver makes one step.
    Drive,
    /// The driver's next run ends half-way: it is killed, or a service does not start.
    DriveHalf,
    /// The driver's next run fails.
    DriveFails,
    /// The power goes, and the node boots.
    Cut,
    /// The power goes, and again before init has written the record.
    CutTwice,
    /// From now on nothing can be written to the disk.
    DiskFills,
}

const EVENTS: [WorldEvent; 13] = [
    WorldEvent::BeginLive,
    WorldEvent::BeginUnasked,
    WorldEvent::BeginAtBoot,
    WorldEvent::BeginAtBootUnasked,
    WorldEvent::Confirm,
    WorldEvent::Revert,
    WorldEvent::Tick,
    WorldEvent::Drive,
    WorldEvent::DriveHalf,
    WorldEvent::DriveFails,
    WorldEvent::Cut,
    WorldEvent::CutTwice,
    WorldEvent::DiskFills,
];

/// A mistake that the checks have to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlantedDefect {
    /// init takes a document that was tried when the power went once more.
    TriesAgain,
    /// The driver does not see deadlines.
    NoDeadline,
    /// A boot gives a failed document to the node.
    ConfirmsAtBoot,
    /// The driver forgets that the node has to go back.
    ClosesWithoutRunning,
    /// A driver that cannot write the record never starts the machine again.
    NeverGivesUp,
    /// It does so for each change that is taken back.
    RestartsForEver,
}

/// A node: what is on its disk, and what a power cut takes.
#[derive(Clone, Debug)]
struct World {
    record: ChangeRecord,
    running: Option<String>,
    boot: u64,
    up_ms: u64,
    wall_s: u64,
    is_full: bool,
    /// How often the driver has started the machine again, because it could not write the record.
    restarts: u32,
    defect: Option<PlantedDefect>,
    /// The last document that was given to the node by rights.
    good: Option<String>,
    /// Boots in which each change's document ran.
    tried_in: Vec<(u64, u64)>,
    violations: Vec<String>,
}

impl World {
    fn new(defect: Option<PlantedDefect>) -> World {
        let good = Some("document 0".to_owned());
        World {
            record: ChangeRecord { confirmed: good.clone().map(DocumentText), ..ChangeRecord::default() },
            running: good.clone(),
            boot: 0,
            up_ms: 1_000,
            wall_s: 0,
            is_full: false,
            restarts: 0,
            defect,
            good,
            tried_in: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Does something with the record, at the present time.
    fn at_now<T>(&mut self, work: impl FnOnce(&mut ChangeRecord, ChangeTime<'_>) -> T) -> T {
        let boot = format!("boot {}", self.boot);
        let before = self.is_full.then(|| self.record.clone());
        let result =
            work(&mut self.record, ChangeTime { boot: &boot, up_ms: self.up_ms, wall_s: self.wall_s });
        if let Some(before) = before {
            self.record = before;
        }
        result
    }

    fn happens(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::BeginLive => self.begin(Confirmation::Asked, false),
            WorldEvent::BeginUnasked => self.begin(Confirmation::Applied, false),
            WorldEvent::BeginAtBoot => self.begin(Confirmation::Asked, true),
            WorldEvent::BeginAtBootUnasked => self.begin(Confirmation::Applied, true),
            WorldEvent::Confirm => self.confirm(),
            WorldEvent::Revert => {
                let by = ChangeAuthor::default();
                // There may be nothing to take back.
                let _ = self.at_now(|record, now| record.revert(0, &by, now));
            }
            WorldEvent::Tick => self.up_ms += TICK_MS,
            WorldEvent::Drive => self.drive(true),
            WorldEvent::DriveHalf => self.drive(false),
            WorldEvent::DriveFails => self.drive_fails(),
            WorldEvent::Cut => self.cut(1),
            WorldEvent::CutTwice => self.cut(2),
            WorldEvent::DiskFills => self.is_full = true,
        }
        self.check(event);
    }

    fn begin(&mut self, confirmation: Confirmation, at_boot: bool) {
        let document = Some(DocumentText(format!("document {}", self.record.last_number + 1)));
        let change = NewChange {
            document,
            author: ChangeAuthor { who: "ops-1".to_owned(), door: "tcp".to_owned() },
            keys: vec!["labels.a".to_owned()],
            window_ms: WINDOW_MS,
            confirmation,
            confirm_door: None,
            at_boot,
        };
        // Another one may be open.
        let _ = self.at_now(|record, now| record.begin(change, now));
    }

    fn confirm(&mut self) {
        let by = ChangeAuthor { who: "ops-1".to_owned(), door: "tcp".to_owned() };
        let candidate = self.record.open.as_ref().and_then(|open| open.document.clone());
        let connected_ms = self.up_ms;
        if self.at_now(|record, now| record.confirm(0, &by, connected_ms, now)).is_ok() && !self.is_full {
            self.good = candidate.map(|text| text.0);
        }
    }

    fn step(&mut self) -> DriverStep {
        let running = self.running.clone();
        let step = self.at_now(|record, now| next_step(record, running.as_deref(), now));
        match (self.defect, step) {
            (Some(PlantedDefect::NoDeadline), DriverStep::Note(DriverNote::Expired)) => DriverStep::Wait(1),
            (Some(PlantedDefect::ClosesWithoutRunning), DriverStep::Run) if matches!(&self.record.open, Some(open) if matches!(open.stage, ChangeStage::Reverting { .. })) => {
                DriverStep::Note(DriverNote::Reverted)
            }
            (_, step) => step,
        }
    }

    /// One step; `whole`: a run of it comes to its end.
    fn drive(&mut self, whole: bool) {
        match self.step() {
            DriverStep::Rest | DriverStep::Wait(_) => {}
            DriverStep::Run if whole => {
                self.running = self.at_now(|record, now| record.counts(now).map(str::to_owned));
            }
            DriverStep::Run => self.running = Some("half of a document".to_owned()),
            DriverStep::Note(note) => {
                let unasked =
                    self.record.open.as_ref().filter(|open| open.confirmation == Confirmation::Applied);
                let given = unasked.and_then(|open| open.document.clone()).map(|text| text.0);
                self.at_now(|record, now| record.note(note, now));
                if note == DriverNote::Applied && self.record.open.is_none() {
                    self.good = given;
                }
                self.give_up();
            }
            DriverStep::Reboot => self.cut(1),
        }
    }

    fn drive_fails(&mut self) {
        if self.step() == DriverStep::Run {
            self.running = Some("half of a document".to_owned());
            self.at_now(|record, _| record.failed("a service did not start"));
            self.give_up();
        }
    }

    /// What the driver does if it could not write the record.
    fn give_up(&mut self) {
        let running = self.running.clone();
        let needed = self.at_now(|record, now| needs_restart(record, running.as_deref(), now));
        let open = self.record.open.as_ref();
        let is_reverting = open.is_some_and(|open| matches!(open.stage, ChangeStage::Reverting { .. }));
        let restarts = match self.defect {
            Some(PlantedDefect::NeverGivesUp) => false,
            Some(PlantedDefect::RestartsForEver) => is_reverting,
            _ => needed,
        };
        if self.is_full && restarts {
            self.restarts += 1;
            self.cut(1);
        }
    }

    /// The power goes, and the node boots: init notes the boot in the record, and the node runs with what counts. `times` is how often
    /// until init has written the record.
    fn cut(&mut self, times: u64) {
        let waits = self.record.open.as_ref().is_some_and(|open| open.stage == ChangeStage::Waiting);
        self.boot += times;
        self.up_ms = 1_000;
        let boot = format!("boot {}", self.boot);
        match (self.defect, &mut self.record.open) {
            (
                Some(PlantedDefect::TriesAgain),
                Some(OpenChange { stage: ChangeStage::Trying { boot: of, .. }, .. }),
            ) => {
                *of = boot;
            }
            (Some(PlantedDefect::ConfirmsAtBoot), Some(open))
                if matches!(open.stage, ChangeStage::Reverting { .. }) =>
            {
                self.record.confirmed = open.document.clone();
            }
            _ => {}
        }
        self.at_now(|record, now| record.boot(now));
        self.running = self.at_now(|record, now| record.counts(now).map(str::to_owned));
        if !waits && self.running != self.good {
            self.violations.push(format!("boot {} runs {:?}, not {:?}", self.boot, self.running, self.good));
        }
    }

    fn check(&mut self, event: WorldEvent) {
        let confirmed = self.record.confirmed.as_ref().map(|text| text.0.clone());
        if confirmed != self.good {
            self.violations.push(format!("after {event:?} {confirmed:?} is confirmed, not {:?}", self.good));
        }
        if self.record.open.is_none() && self.running != self.good {
            self.violations
                .push(format!("a change has ended after {event:?} and the node runs {:?}", self.running));
        }
        let counts = self.at_now(|record, now| record.counts(now).map(str::to_owned));
        let open = self.record.open.as_ref();
        if let Some(open) = open.filter(|_| counts != confirmed) {
            let tried = (open.number, self.boot);
            if !self.tried_in.contains(&tried) {
                self.tried_in.push(tried);
            }
            if self.tried_in.iter().filter(|(number, _)| *number == open.number).count() > 1 {
                self.violations.push(format!("change {} is tried in two boots", open.number));
            }
        }
        let ended: Vec<u64> = self.record.history.iter().map(|change| change.number).collect();
        let once: BTreeSet<u64> = ended.iter().copied().collect();
        let open = self.record.open.as_ref().map(|open| open.number);
        if once.len() != ended.len() || open.is_some_and(|number| once.contains(&number)) {
            self.violations.push(format!("a change has ended twice: {ended:?}, open {open:?}"));
        }
    }

    /// Nobody does anything any more; the driver runs, and the deadline passes.
    fn settle(&mut self) {
        self.up_ms += WINDOW_MS;
        self.restarts = 0;
        for _ in 0..STEPS_MAX {
            if self.step() == DriverStep::Rest {
                break;
            }
            self.drive(true);
            self.check(WorldEvent::Drive);
        }
        let waits = self.record.open.as_ref().is_some_and(|open| open.stage == ChangeStage::Waiting);
        if self.restarts > 1 {
            self.violations.push(format!("the machine started {} times", self.restarts));
        }
        // On a full disk a change cannot end.
        if self.running != self.good || self.record.open.is_some() && !waits && !self.is_full {
            let (running, good, open) = (&self.running, &self.good, &self.record.open);
            self.violations.push(format!("ends with {running:?}, not {good:?}; open: {open:?}"));
        }
    }
}

/// Every sequence of events of this length; the violations that were found, each once.
fn explore(world: &World, depth: u32, found: &mut BTreeSet<String>) {
    let mut end = world.clone();
    end.settle();
    found.extend(end.violations);
    if depth == 0 {
        return;
    }
    for event in EVENTS {
        let mut next = world.clone();
        next.happens(event);
        explore(&next, depth - 1, found);
    }
}

#[test]
fn every_short_history_ends_with_the_confirmed_document() {
    let mut found = BTreeSet::new();
    explore(&World::new(None), 4, &mut found);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_planted_defect_is_found() {
    for defect in [
        PlantedDefect::TriesAgain,
        PlantedDefect::NoDeadline,
        PlantedDefect::ConfirmsAtBoot,
        PlantedDefect::ClosesWithoutRunning,
        PlantedDefect::NeverGivesUp,
        PlantedDefect::RestartsForEver,
    ] {
        let mut found = BTreeSet::new();
        explore(&World::new(Some(defect)), 3, &mut found);
        assert!(!found.is_empty(), "{defect:?}");
    }
}

fn now(up_ms: u64) -> ChangeTime<'static> {
    ChangeTime { boot: "b", up_ms, wall_s: 1_800_000_000 }
}

fn change(text: &str, confirmation: Confirmation) -> NewChange {
    NewChange {
        document: Some(DocumentText(text.to_owned())),
        author: ChangeAuthor { who: "ops-1".to_owned(), door: "tcp".to_owned() },
        keys: vec!["network.interfaces".to_owned()],
        window_ms: 600_000,
        confirmation,
        confirm_door: Some("tcp".to_owned()),
        at_boot: false,
    }
}

fn author(who: &str, door: &str) -> ChangeAuthor {
    ChangeAuthor { who: who.to_owned(), door: door.to_owned() }
}

#[test]
fn a_confirmation_counts_by_a_new_connection_through_the_changed_door_in_time() {
    let mut record = ChangeRecord::default();
    assert_eq!(record.confirm(0, &author("a", "tcp"), 0, now(0)), Err(ChangeRefusal::NoChange));
    assert_eq!(record.begin(change("new", Confirmation::Asked), now(1_000)), Ok(1));
    let confirm = |record: &ChangeRecord, number: u64, door: &str, connected_ms: u64, at: u64| {
        record.clone().confirm(number, &author("ops-2", door), connected_ms, now(at))
    };
    assert_eq!(confirm(&record, 0, "tcp", 2_000, 2_000), Err(ChangeRefusal::NotApplied(1)));
    record.applied(now(5_000));
    assert_eq!(
        confirm(&record, 2, "tcp", 6_000, 6_000),
        Err(ChangeRefusal::OtherChange { open: 1, asked: 2 })
    );
    assert_eq!(confirm(&record, 1, "tcp", 4_999, 6_000), Err(ChangeRefusal::OldConnection));
    let other = confirm(&record, 1, "vsock", 6_000, 6_000);
    assert_eq!(other, Err(ChangeRefusal::OtherDoor { number: 1, door: "tcp".to_owned() }));
    let late = confirm(&record, 1, "tcp", 6_000, 601_000);
    assert!(matches!(late, Err(ChangeRefusal::NotTried { number: 1, .. })), "{late:?}");
    assert_eq!(record.counts(now(600_999)), Some("new"));
    assert_eq!(record.counts(now(601_000)), None);
    assert_eq!(record.confirm(1, &author("ops-2", "tcp"), 5_000, now(6_000)), Ok(1));
    assert_eq!((record.counts(now(u64::MAX)), &record.open), (Some("new"), &None));
    let ended = &record.history[0];
    assert_eq!(
        (ended.outcome, ended.why.as_str()),
        (ChangeOutcome::Confirmed, "confirmed by ops-2 through tcp")
    );
    assert_eq!(record.begin(change("new", Confirmation::Asked), now(7_000)), Err(ChangeRefusal::Same));
}

#[test]
fn the_second_administrator_hears_of_the_first() {
    let mut record = ChangeRecord::default();
    assert_eq!(record.begin(change("a", Confirmation::Asked), now(0)), Ok(1));
    let refusal = record.begin(change("b", Confirmation::Asked), now(180_000)).expect_err("one is open");
    assert_eq!(refusal.to_string(), "ops-1 has begun change 1, which has not ended (420 s are left)");
    assert_eq!(record.revert(0, &author("ops-2", "vsock"), now(181_000)), Ok(1));
    assert!(matches!(
        record.revert(0, &author("ops-2", "vsock"), now(181_000)),
        Err(ChangeRefusal::NotTried { .. })
    ));
    assert_eq!(next_step(&record, Some("a"), now(181_000)), DriverStep::Run);
    assert_eq!(next_step(&record, None, now(181_000)), DriverStep::Note(DriverNote::Reverted));
    record.note(DriverNote::Reverted, now(182_000));
    assert_eq!(record.history[0].why, "taken back by ops-2 through vsock");
    assert_eq!(record.begin(change("b", Confirmation::Asked), now(183_000)), Ok(2));
}

#[test]
fn a_change_for_the_next_boot_is_tried_there_and_taken_back_by_another_one() {
    let mut record = ChangeRecord::default();
    record.begin(NewChange { at_boot: true, ..change("a", Confirmation::Asked) }, now(0)).expect("begun");
    assert_eq!((record.counts(now(1)), next_step(&record, None, now(1))), (None, DriverStep::Rest));
    let next = |up_ms: u64| ChangeTime { boot: "c", ..now(up_ms) };
    assert!(record.boot(next(3_000)) && !record.boot(next(3_000)));
    assert_eq!(record.counts(next(3_000)), Some("a"));
    assert_eq!(next_step(&record, Some("a"), next(3_000)), DriverStep::Note(DriverNote::Applied));
    record.note(DriverNote::Applied, next(9_000));
    assert_eq!(next_step(&record, Some("a"), next(9_000)), DriverStep::Wait(LOOK_MS));
    assert_eq!(next_step(&record, Some("a"), next(602_999)), DriverStep::Wait(1));
    assert_eq!(next_step(&record, Some("a"), next(603_000)), DriverStep::Note(DriverNote::Expired));
    record.note(DriverNote::Expired, next(603_000));
    assert_eq!(next_step(&record, Some("a"), next(603_000)), DriverStep::Reboot);
    assert!(record.boot(now(1)));
    assert_eq!(record.history[0].why, "it was not confirmed within 600 s");
    // Whatever was running: it goes with the change.
    assert_eq!(next_step(&record, Some("a"), now(1)), DriverStep::Run);
    assert_eq!(next_step(&record, None, now(1)), DriverStep::Rest);
}

#[test]
fn the_record_comes_back_is_bounded_and_shows_no_document() {
    let mut record = ChangeRecord::default();
    for number in 0..30 {
        let change = NewChange {
            keys: vec!["k".to_owned(); 100],
            ..change(&format!("secret {number}"), Confirmation::Applied)
        };
        record.begin(change, now(0)).expect("none is open");
        record.applied(now(1));
    }
    record.begin(change("secret", Confirmation::Asked), now(0)).expect("none is open");
    assert_eq!((record.history.len(), record.history[0].number), (HISTORY_MAX, 11));
    assert_eq!(record.history[0].keys.len(), KEYS_MAX);
    assert!(!format!("{record:?}").contains("secret"), "{record:?}");
    let text = record.render();
    assert_eq!(ChangeRecord::parse(&text), Ok(record));
    for cut in [0, 1, text.len() / 2, text.len() - 3] {
        assert!(ChangeRecord::parse(&text[..cut]).is_err(), "{cut}");
    }
    let newer =
        ChangeRecord::parse(&text.replace("\"version\":1", "\"version\":2")).expect_err("another version");
    assert_eq!(newer, "its version is 2 and not 1: another image has written it");
    let other =
        ChangeRecord::parse(r#"{"version":2,"confirmed":{"text":"secret"}}"#).expect_err("another version");
    assert_eq!(other, newer, "its shape is not looked at");
    let damaged = ChangeRecord::parse(r#"{"version":1,"lastNumber":"secret"}"#).expect_err("damaged");
    assert!(damaged.starts_with("it is damaged in line 1") && !damaged.contains("secret"), "{damaged}");
}

#[test]
fn a_record_with_the_longest_keys_can_be_read() {
    let mut record = ChangeRecord::default();
    for number in 0..30 {
        // Each character needs six in JSON.
        let keys = vec!["\u{1}".repeat(100_000); KEYS_MAX + 1];
        let text = format!("{number}{}", "\u{1}".repeat(128 << 10));
        let change = NewChange { keys, ..change(&text, Confirmation::Applied) };
        record.begin(change, now(0)).expect("none is open");
        record.applied(now(1));
    }
    let text = "\u{1}".repeat(128 << 10);
    record.begin(change(&text, Confirmation::Asked), now(0)).expect("none is open");
    let text = record.render();
    assert!((text.len() as u64) < BYTES_MAX, "{}", text.len());
    assert!(record.history[0].keys.iter().all(|key| key.len() == KEY_BYTES_MAX + 3 && key.ends_with("...")));
    assert_eq!(ChangeRecord::parse(&text), Ok(record));
}

proptest! {
    #[test]
    fn every_long_history_ends_with_the_confirmed_document(picks in proptest::collection::vec(0..EVENTS.len(), 0..60)) {
        let mut world = World::new(None);
        for pick in picks {
            world.happens(EVENTS[pick]);
        }
        world.settle();
        prop_assert!(world.violations.is_empty(), "{:#?}", world.violations);
    }

    #[test]
    fn any_text_is_answered(text in "\\PC{0,80}") {
        let _ = ChangeRecord::parse(&text);
    }
}
