//! Operations through every kind of interruption: a server that dies between any two steps, a power cut, a disk that does not write.

use proptest::prelude::*;

use super::*;

fn record(what: OperationVerb, due_s: u64) -> OperationRecord {
    OperationRecord {
        id: "op".to_owned(),
        what,
        by: "uid 0".to_owned(),
        phase: OperationPhase::Scheduled,
        accepted_at: String::new(),
        ended_at: String::new(),
        boot_id_before: String::new(),
        boot_id_after: String::new(),
        due: at(due_s),
        unrecorded: false,
        pods: None,
        failure: None,
        message: String::new(),
    }
}

fn at(seconds: u64) -> Mono {
    Mono(seconds * 1_000_000_000)
}

fn now(boot: u32, seconds: u64) -> OperationNow {
    OperationNow { mono: at(seconds), at: format!("boot {boot} + {seconds} s"), boot_id: format!("b{boot}") }
}

fn receipt(boot: u32, has_end: bool) -> Receipt {
    let mut text = serde_json::json!({
        "startTime": "2026-11-30T09:00:00Z", "bootId": format!("b{boot}"), "kind": "reboot",
        "pods": [{"namespace": "a", "name": "p", "uid": "u", "ended": has_end, "told": has_end}]
    });
    if has_end {
        text["endTime"] = "2026-11-30T09:00:07Z".into();
    }
    serde_json::from_value(text).unwrap()
}

fn restart() -> OperationVerb {
    OperationVerb::Restart { unit: "x.service".to_owned(), invocation: "old".to_owned() }
}

fn unit(invocation: &str, active: &str, has_job: bool) -> UnitLook {
    UnitLook {
        invocation: invocation.to_owned(),
        active: active.to_owned(),
        words: active.to_owned(),
        succeeded: active != "failed",
        has_job,
    }
}

/// A life that waits for systemd.
fn waiting(what: OperationVerb) -> OperationLife {
    let mut life = OperationLife::begin(record(what, 100), &now(1, 100));
    assert_eq!(life.next(&now(1, 100)), LifeAction::Keep);
    life.kept(true, &now(1, 100));
    assert_eq!(life.next(&now(1, 100)), LifeAction::Ask);
    life.answered(AskOutcome::Accepted, &now(1, 100));
    assert_eq!(life.next(&now(1, 100)), LifeAction::Keep);
    life.kept(true, &now(1, 100));
    life
}

#[test]
fn a_reset_is_finished_by_the_boot_that_has_carried_it_out() {
    let reset = || OperationVerb::Reset { scope: "keep".to_owned() };
    let end = |id: &str, refused: &str| ResetEnd { id: id.to_owned(), refused: refused.to_owned() };
    for (found, phase, failure) in [
        (Some(end("op", "")), OperationPhase::Finished, None),
        (Some(end("op", "no room")), OperationPhase::Failed, Some(OperationFailure::Refused)),
        (Some(end("other", "")), OperationPhase::Failed, Some(OperationFailure::DidNotHappen)),
        (None, OperationPhase::Failed, Some(OperationFailure::DidNotHappen)),
    ] {
        let before = waiting(reset()).record().clone();
        let mut life = OperationLife::recovered(before, &now(2, 1), None);
        life.seen_reset(found.as_ref(), &now(2, 1));
        assert_eq!((life.record().phase, life.record().failure), (phase, failure), "{found:?}");
        // Said once: what is kept stays as it is.
        life.kept(true, &now(2, 1));
        life.seen_reset(None, &now(2, 2));
        assert_eq!((life.record().phase, life.record().failure), (phase, failure), "{found:?}");
    }
    // The machine stopped while systemd was asked; the boot record had the order.
    let asking = OperationLife::begin(record(reset(), 100), &now(1, 100)).record().clone();
    assert_eq!(asking.phase, OperationPhase::Asking);
    for (found, phase) in [(Some(end("op", "")), OperationPhase::Finished), (None, OperationPhase::Failed)] {
        let mut life = OperationLife::recovered(asking.clone(), &now(2, 1), None);
        life.seen_reset(found.as_ref(), &now(2, 1));
        assert_eq!((life.record().phase, life.record().failure.is_none()), (phase, found.is_some()));
    }
    // Of no other operation, and not in the same boot.
    let mut reboot =
        OperationLife::recovered(waiting(OperationVerb::Reboot).record().clone(), &now(2, 1), None);
    reboot.seen_reset(None, &now(2, 1));
    assert_eq!(reboot.record().phase, OperationPhase::Finished);
    let mut same = OperationLife::recovered(waiting(reset()).record().clone(), &now(1, 101), None);
    same.seen_reset(None, &now(1, 101));
    assert_eq!(same.record().phase, OperationPhase::Waiting);
}

fn upgrade() -> OperationVerb {
    OperationVerb::Upgrade { version: String::new(), to: String::new() }
}

fn rollback() -> OperationVerb {
    OperationVerb::Rollback { to: "0.2.0".to_owned() }
}

/// Slot B has 0.2.0, and slot A 0.1.0.
fn slots(runs: &str, trial: &str, state: &str, reason: &str) -> SlotsSeen {
    let (version, other) = if runs == "b" { ("0.2.0", "0.1.0") } else { ("0.1.0", "0.2.0") };
    let desired = if runs == "b" && state != "good" { "a" } else { runs };
    SlotsSeen {
        running: runs.to_owned(),
        desired: desired.to_owned(),
        trial: trial.to_owned(),
        running_version: version.to_owned(),
        running_state: if runs == "b" { state.to_owned() } else { "good".to_owned() },
        other_version: other.to_owned(),
        other_state: if runs == "b" { "good".to_owned() } else { state.to_owned() },
        other_reason: reason.to_owned(),
    }
}

#[test]
fn a_version_is_staged_before_systemd_is_asked_and_hours_of_it_are_no_delay() {
    let mut life = OperationLife::begin(record(upgrade(), 100), &now(1, 100));
    life.kept(true, &now(1, 100));
    assert_eq!(life.next(&now(1, 100)), LifeAction::Stage);
    life.stage_begun();
    assert_eq!(life.next(&now(1, 100)), LifeAction::Look { again: at(101) });
    life.stage_goes_on("writes 0.2.0");
    assert_eq!(life.record().message, "writes 0.2.0");
    life.staged(StageOutcome::Staged("0.2.0".to_owned()), &now(1, 7000));
    assert_eq!((life.record().what.tried(), life.record().message.as_str()), (Some("0.2.0"), ""));
    assert_eq!(life.next(&now(1, 7001)), LifeAction::Keep);
    life.kept(true, &now(1, 7001));
    assert_eq!(life.next(&now(1, 7001)), LifeAction::Ask);
    // A version that is in the other slot already is not staged.
    let mut life = OperationLife::begin(record(rollback(), 100), &now(1, 100));
    life.kept(true, &now(1, 100));
    assert_eq!(life.next(&now(1, 100)), LifeAction::Ask);
}

#[test]
fn a_version_that_is_not_staged_is_not_tried() {
    let begun = |what| {
        let mut life = OperationLife::begin(record(what, 100), &now(1, 100));
        life.kept(true, &now(1, 100));
        life.stage_begun();
        life
    };
    let stage = || OperationVerb::Stage { version: String::new() };
    let words = || "words".to_owned();
    for (what, outcome, failure) in [
        (upgrade(), StageOutcome::Failed(words()), Some(OperationFailure::NotStaged)),
        (upgrade(), StageOutcome::Nothing(words()), Some(OperationFailure::NotStaged)),
        (stage(), StageOutcome::Failed(words()), Some(OperationFailure::NotStaged)),
        (stage(), StageOutcome::Nothing(words()), None),
        (stage(), StageOutcome::Staged("0.2.0".to_owned()), None),
    ] {
        let mut life = begun(what);
        life.staged(outcome.clone(), &now(1, 200));
        assert_eq!(life.record().failure, failure, "{outcome:?}");
        assert!(life.record().phase.has_ended() && !life.record().message.is_empty(), "{outcome:?}");
    }
    // The updater has no end.
    let mut life = begun(upgrade());
    let late = 100 + LATE_MAX.as_secs() + STAGE_MAX.as_secs();
    assert!(matches!(life.next(&now(1, late - 1)), LifeAction::Look { .. }));
    assert_eq!(life.next(&now(1, late)), LifeAction::Keep);
    assert_eq!(life.record().failure, Some(OperationFailure::NotStaged));
    // Another server of this boot asks the updater again, one of the next boot does not, and a client may call it off.
    let record = begun(upgrade()).record().clone();
    let mut again = OperationLife::recovered(record.clone(), &now(1, 300), None);
    assert_eq!(again.next(&now(1, 300)), LifeAction::Stage);
    let cut = OperationLife::recovered(record, &now(2, 5), None);
    assert_eq!(cut.record().failure, Some(OperationFailure::Interrupted));
    let mut off = begun(upgrade());
    assert!(off.cancel(&now(1, 200)) && off.record().phase == OperationPhase::Cancelled);
}

#[test]
fn a_version_is_tried_until_the_boot_record_has_a_verdict() {
    for (seen, phase, failure) in [
        (slots("b", "b", "trial", ""), OperationPhase::Waiting, None),
        // It has ended its trial, and the machine is about to start again.
        (slots("b", "", "staged", ""), OperationPhase::Waiting, None),
        (slots("a", "b", "trial", ""), OperationPhase::Waiting, None),
        (slots("b", "", "good", ""), OperationPhase::Finished, None),
        (slots("a", "", "staged", "runtime: no"), OperationPhase::Failed, Some(OperationFailure::Returned)),
        (slots("a", "", "refused", "no"), OperationPhase::Failed, Some(OperationFailure::Returned)),
        (slots("a", "", "staged", ""), OperationPhase::Failed, Some(OperationFailure::DidNotHappen)),
    ] {
        let mut life = waiting(rollback());
        life.seen_slots(&seen, &now(1, 200));
        assert_eq!(life.record().phase, OperationPhase::Waiting, "the same boot has no verdict");
        let before = life.record().clone();
        let mut life = OperationLife::recovered(before, &now(2, 5), Some(&receipt(1, true)));
        assert_eq!(life.next(&now(2, 5)), LifeAction::Keep);
        life.kept(true, &now(2, 5));
        assert_eq!(life.next(&now(2, 6)), LifeAction::Look { again: at(11) });
        life.seen_slots(&seen, &now(2, 6));
        assert_eq!((life.record().phase, life.record().failure), (phase, failure), "{seen:?}");
        assert!(life.record().pods.as_ref().is_some_and(|pods| pods.in_order));
    }
    // An older trial that was good, or an order that never came to be: the record does not say which.
    let mut life = OperationLife::recovered(waiting(rollback()).record().clone(), &now(2, 5), None);
    life.seen_slots(&slots("a", "", "good", ""), &now(2, 6));
    assert_eq!(life.record().failure, Some(OperationFailure::DidNotHappen));
    assert!(life.record().message.contains("no failed trial"), "{}", life.record().message);
    let gone = SlotsSeen { other_version: "0.3.0".to_owned(), ..slots("a", "", "staged", "") };
    let mut life = OperationLife::recovered(waiting(rollback()).record().clone(), &now(2, 5), None);
    life.seen_slots(&gone, &now(2, 6));
    assert_eq!(life.record().failure, Some(OperationFailure::Interrupted));
}

#[test]
fn a_trial_lasts_some_boots_and_ends_in_any_case() {
    let second =
        OperationLife::recovered(waiting(rollback()).record().clone(), &now(2, 5), Some(&receipt(1, true)));
    let mut third = OperationLife::recovered(second.record().clone(), &now(3, 7), None);
    assert_eq!(third.record().boot_id_after, "b3");
    assert!(third.record().pods.is_some(), "the first stop has ended the pods");
    third.kept(true, &now(3, 7));
    let late = 7 + LATE_MAX.as_secs() + TRIAL_MAX.as_secs();
    assert!(matches!(third.next(&now(3, late - 1)), LifeAction::Look { .. }));
    assert_eq!(third.next(&now(3, late)), LifeAction::Keep);
    assert_eq!(third.record().failure, Some(OperationFailure::DidNotHappen));
}

#[test]
fn a_reboot_is_finished_by_the_boot_after_it_with_the_end_of_the_pods() {
    let mut life = waiting(OperationVerb::Reboot);
    assert_eq!(life.next(&now(1, 101)), LifeAction::Look { again: at(102) });
    life.seen_receipt(Some(&receipt(1, false)));
    assert_eq!(life.record().pods.as_ref().map(|pods| (pods.pods, pods.ended)), Some((1, 0)));
    let life = OperationLife::recovered(life.record().clone(), &now(2, 5), Some(&receipt(1, true)));
    let ended = life.record();
    assert_eq!((ended.phase, ended.boot_id_after.as_str()), (OperationPhase::Finished, "b2"));
    assert!(ended.pods.as_ref().is_some_and(|pods| pods.in_order), "{ended:?}");
}

#[test]
fn a_receipt_of_another_boot_says_nothing_about_the_pods() {
    let life = waiting(OperationVerb::Reboot);
    let life = OperationLife::recovered(life.record().clone(), &now(9, 5), Some(&receipt(8, true)));
    assert_eq!((life.record().phase, &life.record().pods), (OperationPhase::Finished, &None));
}

#[test]
fn what_systemd_refuses_or_does_not_do_in_time_has_failed() {
    let mut life = OperationLife::begin(record(OperationVerb::Reboot, 0), &now(1, 0));
    life.kept(true, &now(1, 0));
    assert_eq!(life.next(&now(1, 0)), LifeAction::Ask);
    life.answered(AskOutcome::Refused("Operation inhibited".to_owned()), &now(1, 1));
    assert_eq!(life.record().failure, Some(OperationFailure::Refused));
    assert_eq!(life.record().message, "Operation inhibited");
    let mut life = waiting(OperationVerb::Shutdown);
    let late = 100 + LATE_MAX.as_secs() + STOP_MAX.as_secs();
    assert!(matches!(life.next(&now(1, late - 1)), LifeAction::Look { .. }));
    assert_eq!(life.next(&now(1, late)), LifeAction::Keep);
    assert_eq!(life.record().failure, Some(OperationFailure::DidNotHappen));
}

#[test]
fn a_restart_is_finished_by_a_new_run_and_failed_by_none() {
    for (look, phase) in [
        (unit("old", "deactivating", true), OperationPhase::Waiting),
        (unit("new", "activating", true), OperationPhase::Waiting),
        (unit("new", "activating", false), OperationPhase::Waiting),
        (unit("old", "active", false), OperationPhase::Waiting),
        (unit("new", "active", true), OperationPhase::Waiting),
        (unit("new", "active", false), OperationPhase::Finished),
        (unit("new", "inactive", false), OperationPhase::Finished),
        (unit("new", "failed", false), OperationPhase::Failed),
        (unit("old", "inactive", false), OperationPhase::Failed),
        (unit("", "inactive", false), OperationPhase::Failed),
    ] {
        let mut life = waiting(restart());
        life.seen_unit(&look, &now(1, 103));
        assert_eq!(life.record().phase, phase, "{look:?}");
    }
    let interrupted = OperationLife::recovered(waiting(restart()).record().clone(), &now(2, 1), None);
    assert_eq!(interrupted.record().failure, Some(OperationFailure::Interrupted));
}

#[test]
fn an_operation_can_be_called_off_before_its_time_alone() {
    let mut life = OperationLife::begin(record(OperationVerb::Reboot, 60), &now(1, 0));
    life.kept(true, &now(1, 0));
    assert_eq!(life.next(&now(1, 59)), LifeAction::Wait { until: at(60) });
    let mut late = life.clone();
    assert!(life.cancel(&now(1, 59)));
    assert_eq!(life.record().phase, OperationPhase::Cancelled);
    assert!(!late.cancel(&now(1, 60)) && !life.cancel(&now(1, 59)));
    // A server that was away for too long does not reboot a machine long after its time.
    let mut missed = OperationLife::recovered(
        OperationRecord { phase: OperationPhase::Scheduled, ..late.record().clone() },
        &now(1, 121),
        None,
    );
    assert_eq!(missed.next(&now(1, 121)), LifeAction::Keep);
    assert_eq!(missed.record().failure, Some(OperationFailure::Missed));
}

#[test]
fn without_a_record_nothing_is_done_unless_the_request_says_so() {
    let mut life = OperationLife::begin(record(OperationVerb::Reboot, 0), &now(1, 0));
    life.kept(false, &now(1, 0));
    assert_eq!(life.record().failure, Some(OperationFailure::NotRecorded));
    assert_eq!(life.next(&now(1, 0)), LifeAction::Over);
    let unrecorded = OperationRecord { unrecorded: true, ..record(OperationVerb::Reboot, 0) };
    let mut life = OperationLife::begin(unrecorded, &now(1, 0));
    life.kept(false, &now(1, 0));
    assert_eq!(life.next(&now(1, 0)), LifeAction::Ask);
}

/// What happens to the node between two steps of the driver.
#[derive(Clone, Copy, Debug)]
enum WorldMove {
    /// The driver does one thing; what it asks systemd has this outcome.
    Drive(AskFate),
    /// The server dies, and is started again.
    Crash,
    /// Power is lost.
    PowerCut,
    /// A stop that systemd has begun is done, and the machine starts again.
    StopDone,
    /// Seconds pass.
    Pass(u64),
    /// A client calls it off.
    Cancel,
    /// The disk takes no writes, or takes them again.
    Disk(bool),
}

/// What becomes of a question to systemd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskFate {
    Accepted,
    Refused,
    /// It does it and the answer is late.
    SilentDone,
    /// It never heard it.
    SilentLost,
    /// It does it, and the server dies before it knows.
    DoneAndCrash,
    /// The server dies before systemd hears it.
    CrashBefore,
}

struct World {
    boot: u32,
    seconds: u64,
    disk: Option<OperationRecord>,
    disk_works: bool,
    life: Option<OperationLife>,
    /// How often systemd heard the request.
    heard: u32,
    stops: bool,
    receipt: Option<Receipt>,
    unit: UnitLook,
}

impl World {
    fn new(what: OperationVerb, due_s: u64) -> World {
        let life = OperationLife::begin(record(what, due_s), &now(1, 10));
        World {
            boot: 1,
            seconds: 10,
            disk: None,
            disk_works: true,
            life: Some(life),
            heard: 0,
            stops: false,
            receipt: None,
            unit: unit("old", "active", false),
        }
    }

    fn now(&self) -> OperationNow {
        now(self.boot, self.seconds)
    }

    /// The server starts.
    fn start(&mut self) {
        let now = self.now();
        self.life =
            self.disk.clone().map(|record| OperationLife::recovered(record, &now, self.receipt.as_ref()));
    }

    fn boots(&mut self) {
        (self.boot, self.seconds, self.stops) = (self.boot + 1, 5, false);
        self.unit = unit("of the next boot", "active", false);
        self.start();
    }

    fn keep(&mut self) {
        let now = self.now();
        let Some(life) = &mut self.life else { return };
        if self.disk_works {
            if let Some(before) = &self.disk {
                assert!(!before.phase.has_ended(), "an ended operation is written again: {before:?}");
            }
            self.disk = Some(life.record().clone());
        }
        life.kept(self.disk_works, &now);
    }

    fn ask(&mut self, fate: AskFate) {
        let kept = self.disk.as_ref().map(|record| record.phase);
        assert_eq!(kept, Some(OperationPhase::Asking), "it is asked without a record");
        if !matches!(fate, AskFate::CrashBefore | AskFate::SilentLost) {
            self.heard += 1;
        }
        if matches!(fate, AskFate::Accepted | AskFate::SilentDone | AskFate::DoneAndCrash) {
            match self.life.as_ref().map(|life| life.record().what.stops_machine()) {
                Some(true) => self.stops = true,
                _ => self.unit = unit("new", "active", false),
            }
        }
        let outcome = match fate {
            AskFate::Accepted => AskOutcome::Accepted,
            AskFate::Refused => AskOutcome::Refused("no".to_owned()),
            AskFate::SilentDone | AskFate::SilentLost => AskOutcome::Silent,
            AskFate::DoneAndCrash | AskFate::CrashBefore => return self.start(),
        };
        let now = self.now();
        if let Some(life) = &mut self.life {
            life.answered(outcome, &now);
        }
    }

    fn drive(&mut self, fate: AskFate) -> Option<LifeAction> {
        let (now, receipt, unit) = (self.now(), self.receipt.clone(), self.unit.clone());
        let action = self.life.as_mut()?.next(&now);
        match action {
            LifeAction::Keep => self.keep(),
            LifeAction::Ask => self.ask(fate),
            LifeAction::Look { .. } => {
                let life = self.life.as_mut()?;
                life.seen_receipt(receipt.as_ref());
                life.seen_unit(&unit, &now);
            }
            // Those lives have nothing to stage.
            LifeAction::Wait { .. } | LifeAction::Over | LifeAction::Stage => {}
        }
        Some(action)
    }

    fn step(&mut self, world_move: WorldMove) {
        match world_move {
            WorldMove::Drive(fate) => {
                self.drive(fate);
            }
            WorldMove::Crash => self.start(),
            WorldMove::PowerCut => self.boots(),
            WorldMove::StopDone if self.stops => {
                self.receipt = Some(receipt(self.boot, true));
                self.boots();
            }
            WorldMove::StopDone => {}
            WorldMove::Pass(seconds) => self.seconds += seconds,
            WorldMove::Cancel => {
                let now = self.now();
                let was_heard = self.heard > 0;
                if let Some(life) = &mut self.life {
                    assert!(!(life.cancel(&now) && was_heard), "what systemd does is called off");
                }
            }
            WorldMove::Disk(works) => self.disk_works = works,
        }
    }
}

fn fates() -> impl Strategy<Value = AskFate> {
    prop_oneof![
        4 => Just(AskFate::Accepted),
        1 => Just(AskFate::Refused),
        1 => Just(AskFate::SilentDone),
        1 => Just(AskFate::SilentLost),
        1 => Just(AskFate::DoneAndCrash),
        1 => Just(AskFate::CrashBefore),
    ]
}

fn moves() -> impl Strategy<Value = WorldMove> {
    prop_oneof![
        8 => fates().prop_map(WorldMove::Drive),
        2 => Just(WorldMove::Crash),
        1 => Just(WorldMove::PowerCut),
        2 => Just(WorldMove::StopDone),
        2 => prop_oneof![Just(1u64), Just(30), Just(61), Just(1000)].prop_map(WorldMove::Pass),
        1 => Just(WorldMove::Cancel),
        1 => any::<bool>().prop_map(WorldMove::Disk),
    ]
}

fn verbs() -> impl Strategy<Value = OperationVerb> {
    prop_oneof![Just(OperationVerb::Reboot), Just(OperationVerb::Shutdown), Just(restart())]
}

/// Runs the moves, then a driver that nothing disturbs, and checks what must hold after each.
fn live(what: &OperationVerb, due_s: u64, moves: &[WorldMove]) {
    let mut world = World::new(what.clone(), due_s);
    let mut ended = None;
    let check = |world: &World, ended: &mut Option<OperationRecord>| {
        assert!(world.heard <= 1, "systemd was asked {} times", world.heard);
        let kept = world.disk.as_ref().filter(|record| record.phase.has_ended());
        if let (Some(kept), Some(before)) = (kept, ended.as_ref()) {
            assert_eq!(kept, before, "it ends twice");
        }
        if let Some(kept) = kept {
            assert!(!kept.ended_at.is_empty(), "{kept:?}");
            assert!(kept.phase != OperationPhase::Cancelled || world.heard == 0, "{kept:?}");
            assert_eq!(kept.failure.is_some(), kept.phase == OperationPhase::Failed, "{kept:?}");
            if kept.phase == OperationPhase::Finished && kept.what.stops_machine() {
                assert_ne!(kept.boot_id_after, kept.boot_id_before, "{kept:?}");
            }
            *ended = Some(kept.clone());
        }
    };
    for world_move in moves {
        world.step(*world_move);
        check(&world, &mut ended);
    }
    world.disk_works = true;
    // A record that the disk never got is gone with its server.
    if world.disk.is_none() && world.life.is_none() {
        return;
    }
    for _ in 0..4000 {
        if world.drive(AskFate::Accepted) == Some(LifeAction::Over) {
            let is_over = world.life.as_ref().is_some_and(|life| life.record().phase.has_ended());
            assert!(is_over);
            return;
        }
        world.seconds += 1;
        check(&world, &mut ended);
    }
    panic!("it does not end: {:?}", world.life);
}

proptest! {
    #[test]
    fn systemd_hears_once_at_most_and_each_operation_ends_once(
        what in verbs(),
        due_s in prop_oneof![Just(0u64), Just(10), Just(40)],
        course in proptest::collection::vec(moves(), 0..40),
    ) {
        live(&what, due_s, &course);
    }
}

/// Every place of one interruption in the ordinary life of a reboot.
#[test]
fn an_interruption_at_each_step_leaves_no_open_end() {
    const STEPS: usize = 6;
    let cuts = [WorldMove::Crash, WorldMove::PowerCut, WorldMove::StopDone, WorldMove::Disk(false)];
    for due_s in [0, 40] {
        for place in 0..=STEPS {
            for cut in cuts {
                for second in cuts {
                    let mut moves = vec![WorldMove::Drive(AskFate::Accepted); STEPS];
                    moves.insert(place, cut);
                    moves.push(second);
                    live(&OperationVerb::Reboot, due_s, &moves);
                    live(&restart(), due_s, &moves);
                }
            }
        }
    }
}
