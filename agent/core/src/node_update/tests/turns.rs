//! The machine and what comes between: a turn that is lost, a reboot that does not come, a slot that somebody fills anew, a clock
//! that was wrong.

use std::time::Duration;

use orlop_config::slots::{BootRecord, SlotState};

use super::machine::{A, B, DAY, Model, START, Trouble, config, machine, none, stepped, until};
use crate::node_update::check::{CheckName, FailedCheck, TrialFault};
use crate::node_update::gate::{GateVerdict, RedCheck};
use crate::node_update::plan::{UpdateEnd, UpdatePauses, UpdatePhase, UpdatePlan, resume};
use crate::node_update::report::{UpdateNotice, UpdateShown};
use crate::node_update::{
    Coordination, NodeUpdate, UpdateAction, UpdateConfig, UpdateEvent, UpdateOrders, UpdateWork, WorkResult,
};

#[test]
fn a_turn_that_is_lost_in_the_drain_is_not_waited_for_with_an_empty_node() {
    let drains = |work: &UpdateWork| *work == UpdateWork::Drain;
    let takes = |work: &UpdateWork| matches!(work, UpdateWork::TakeSlot { .. });
    let gives = |work: &UpdateWork| matches!(work, UpdateWork::GiveBack { failure: None, .. });
    let mut lost = machine(config());
    let step = until(&mut lost, START, none(), drains).expect("it drains");
    let answer = UpdateEvent::Answered { step, result: WorkResult::Done };
    let step = until(&mut lost, START, answer, takes).expect("it asks again");
    // Without an answer of the API server it asks again; somebody has freed the slot, and another node holds it.
    let answer = UpdateEvent::Answered { step, result: WorkResult::Failed("a conflict".into()) };
    assert_eq!(until(&mut lost, START, answer, takes), None);
    let step = until(&mut lost, START + 61, UpdateEvent::Tick, takes).expect("it asks again");
    let answer = UpdateEvent::Answered { step, result: WorkResult::Wait("held by another".into()) };
    assert!(until(&mut lost, START + 61, answer, gives).is_some());
    assert_eq!(lost.plan().end, UpdateEnd::PutOff("held by another".into()));
    assert!(lost.plan().trials.is_empty());

    let mut revoked = machine(UpdateConfig { coordination: Coordination::Permit, ..config() });
    assert_eq!(until(&mut revoked, START, none(), drains), None);
    let orders = UpdateOrders { permit: Some(revoked.plan().update.clone()), ..UpdateOrders::default() };
    let step = until(&mut revoked, START, UpdateEvent::Orders(orders), drains).expect("it drains");
    stepped(&mut revoked, START, none());
    let answer = UpdateEvent::Answered { step, result: WorkResult::Done };
    let uncordons = |work: &UpdateWork| *work == UpdateWork::Uncordon;
    assert!(until(&mut revoked, START, answer, uncordons).is_some());
}

#[test]
fn a_reboot_that_does_not_come_is_given_up() {
    let reboots = |work: &UpdateWork| *work == UpdateWork::Reboot;
    let withdraws = |work: &UpdateWork| *work == UpdateWork::Withdraw;
    let mut stays = machine(config());
    let step = until(&mut stays, START, none(), reboots).expect("it reboots");
    let answer = UpdateEvent::Answered { step, result: WorkResult::Done };
    assert_eq!(until(&mut stays, START, answer, reboots), None);
    let step = until(&mut stays, START + 11, UpdateEvent::Tick, reboots).expect("it asks again");
    let answer = UpdateEvent::Answered { step, result: WorkResult::Failed("refused".into()) };
    stepped(&mut stays, START + 12, answer);
    assert!(until(&mut stays, START + 3601, UpdateEvent::Tick, withdraws).is_some());
}

#[test]
fn deaths_before_the_order_do_not_begin_trials_for_ever() {
    let kept = UpdatePlan {
        version: "2.0.0".into(),
        phase: UpdatePhase::Arm,
        trials: vec![START - 3, START - 2, START - 1],
        ..UpdatePlan::default()
    };
    let mut again = NodeUpdate::new(config(), A, Some(kept));
    let record = UpdateEvent::Record(Box::new(Model::new(Trouble::Nothing, &[]).record));
    let arms = |work: &UpdateWork| matches!(work, UpdateWork::Arm { .. });
    assert_eq!(until(&mut again, START, record, arms), None);
    assert_eq!((again.plan().phase, again.plan().trials.len()), (UpdatePhase::Idle, 3));
}

#[test]
fn a_check_is_examined_before_the_api_server_is_needed() {
    let mut record = Model::new(Trouble::Nothing, &[]).record;
    record.b.failed_check = "api/cluster".into();
    let kept = UpdatePlan { version: "2.0.0".into(), phase: UpdatePhase::Reboot, ..UpdatePlan::default() };
    let mut back = NodeUpdate::new(config(), A, Some(kept));
    let asks_more = |work: &UpdateWork| !matches!(work, UpdateWork::Save(_));
    assert_eq!(until(&mut back, START, UpdateEvent::Record(Box::new(record)), asks_more), None);
    assert_eq!(back.plan().phase, UpdatePhase::Examine);
    let failed = FailedCheck { check: CheckName::Api, fault: TrialFault::Cluster };
    let words = "it refuses".to_owned();
    let red = vec![RedCheck { check: CheckName::Api, words: words.clone() }];
    let gate = UpdateEvent::Gate { red, verdict: GateVerdict::Red { failed, words } };
    let settles = |work: &UpdateWork| *work == UpdateWork::Settle { refused: None };
    assert!(until(&mut back, START + 601, gate, settles).is_some());
    assert!(matches!(back.plan().end, UpdateEnd::Inconclusive(_)), "{:?}", back.plan());
}

#[test]
fn a_clock_that_was_wrong_puts_nothing_off_for_years() {
    let (minute, hours) = (Duration::from_secs(60), Duration::from_secs(7200));
    let later = START + 400 * DAY;
    let plan = UpdatePlan {
        version: "2.0.0".into(),
        trials: vec![later, later, START + 3600],
        not_before: later,
        ..UpdatePlan::default()
    };
    let pauses = UpdatePauses::default();
    // Just after the boot it is the clock of now that may be wrong.
    assert_eq!(plan.trials_of("2.0.0", START, minute), 3);
    assert!(!plan.is_pause_over(START, minute, &pauses));
    assert_eq!(plan.trials_of("2.0.0", START, hours), 1);
    assert!(plan.is_pause_over(START, hours, &pauses));
    let soon = UpdatePlan { not_before: START + 3600, ..plan };
    assert!(!soon.is_pause_over(START, hours, &pauses));
}

#[test]
fn a_version_that_the_updater_replaces_is_not_tried_under_another_name() {
    let mut replaced = machine(config());
    let drains = |work: &UpdateWork| *work == UpdateWork::Drain;
    let step = until(&mut replaced, START, none(), drains).expect("it drains");
    let mut record = Model::new(Trouble::Nothing, &[]).record;
    record.b.version = "2.1.0".into();
    stepped(&mut replaced, START, UpdateEvent::Record(Box::new(record)));
    let uncordons = |work: &UpdateWork| *work == UpdateWork::Uncordon;
    let answer = UpdateEvent::Answered { step, result: WorkResult::Done };
    let step = until(&mut replaced, START, answer, uncordons).expect("it lets pods in");
    // The new one is tried at once.
    let answer = UpdateEvent::Answered { step, result: WorkResult::Done };
    assert!(until(&mut replaced, START, answer, drains).is_some());
    assert_eq!(replaced.plan().version, "2.1.0");
}

#[test]
fn a_slot_that_has_ended_its_trial_does_nothing_before_the_reboot() {
    let mut record = Model::new(Trouble::Nothing, &[]).record;
    record.order_trial(A, "u-1", 600).expect("staged");
    let kept = UpdatePlan {
        update: "u-1".into(),
        version: "2.0.0".into(),
        phase: UpdatePhase::Reboot,
        ..UpdatePlan::default()
    };
    let mut tried = NodeUpdate::new(config(), B, Some(kept.clone()));
    stepped(&mut tried, START, UpdateEvent::Record(Box::new(record.clone())));
    assert!(tried.is_on_trial());
    record.return_from_trial(B, "gateway", "it is silent").expect("on trial");
    let all = |_: &UpdateWork| true;
    assert_eq!(until(&mut tried, START, UpdateEvent::Record(Box::new(record)), all), None);
    assert_eq!(tried.plan(), &kept);
    // The loader has taken the other slot in the middle of an update.
    let mut astray = BootRecord::new(A);
    astray.b.state = SlotState::Good;
    let plan = resume(Some(UpdatePlan { phase: UpdatePhase::Drain, ..kept }), &astray, B);
    assert_eq!(plan.phase, UpdatePhase::Withdraw);
}

/// The agent dies before it learns of a commit, and the management API orders the way back. With the plan of the first update the next
/// agent rebooted the node into the version that it had just left (the case `manage/upgrade`).
#[test]
fn a_way_back_while_the_agent_is_dead_is_not_undone() {
    let mut record = Model::new(Trouble::Nothing, &[]).record;
    record.a.version = "1.0.0".into();
    record.order_trial(A, "upgrade", 600).expect("staged");
    let kept = resume(Some(UpdatePlan::default()), &record, B);
    assert_eq!((kept.update.as_str(), kept.version.as_str()), ("upgrade", "2.0.0"));
    assert_eq!(kept.phase, UpdatePhase::Reboot);
    record.commit_trial(B, None).expect("on trial");
    record.order_trial(B, "rollback", 600).expect("good");
    // The next agent sees the trial of the way back.
    let on_trial = resume(Some(kept.clone()), &record, A);
    assert_eq!((on_trial.update.as_str(), on_trial.version.as_str()), ("rollback", "1.0.0"));
    record.commit_trial(A, None).expect("on trial");
    let plan = resume(Some(on_trial), &record, A);
    assert_eq!((plan.phase, plan.end), (UpdatePhase::Uncordon, UpdateEnd::Committed));
    // It sees only the commit.
    let plan = resume(Some(kept), &record, A);
    assert!(matches!(plan.end, UpdateEnd::PutOff(_)), "{plan:?}");
    assert_eq!(plan.phase, UpdatePhase::Uncordon);
    let mut next = NodeUpdate::new(config(), A, Some(plan));
    let arms = |work: &UpdateWork| matches!(work, UpdateWork::Arm { .. } | UpdateWork::Reboot);
    assert_eq!(until(&mut next, START, UpdateEvent::Record(Box::new(record)), arms), None);
    assert_eq!(next.plan().phase, UpdatePhase::Idle);
}

#[test]
fn while_a_version_is_named_no_other_one_begins() {
    let named = |version: &str| UpdateEvent::Orders(named(version));
    let begins = |work: &UpdateWork| matches!(work, UpdateWork::Save(_));
    let mut held = machine(config());
    let gone_on = until(&mut held, START, named("1.0.0"), begins);
    assert_eq!((gone_on, held.plan().phase), (None, UpdatePhase::Idle));
    let orders = UpdateEvent::Orders(UpdateOrders::default());
    assert!(until(&mut held, START + 1, orders, begins).is_some());
}

#[test]
fn a_node_that_was_never_updated_shows_nothing_under_way() {
    let record = BootRecord::new(A);
    let plan = resume(None, &record, A);
    assert_eq!(plan.phase, UpdatePhase::Uncordon);
    let shown = UpdateShown::of(&plan, &record, A, "");
    assert_eq!((shown.progressing, shown.state.as_str()), (None, "Idle"));
}

#[test]
fn what_waits_names_its_update_and_never_an_empty_one() {
    for (update, version, begins) in [
        ("2.0.0-7", "2.0.0", "update 2.0.0-7: it refuses"),
        // An order of a trial whose plan was lost.
        ("2.0.0-7", "", "update 2.0.0-7: it refuses"),
        // A version that came back, whose plan was lost.
        ("", "2.0.0", "update to 2.0.0: it refuses"),
        (
            "",
            "",
            "no update is under way, and the node still looks for remains of an earlier one: it refuses",
        ),
    ] {
        let plan = UpdatePlan { update: update.into(), version: version.into(), ..UpdatePlan::default() };
        for notice in
            [UpdateNotice::waits(&plan, "it refuses"), UpdateNotice::drain_blocked(&plan, "it refuses")]
        {
            assert_eq!(notice.message, begins);
        }
    }
    // The first boot of a node whose API server does not answer, or refuses the group's ConfigMap.
    let mut fresh = NodeUpdate::new(config(), A, None);
    let gives = |work: &UpdateWork| matches!(work, UpdateWork::GiveBack { .. });
    let record = UpdateEvent::Record(Box::new(BootRecord::new(A)));
    let step = until(&mut fresh, START, record, gives).expect("it looks at its group");
    let answer = UpdateEvent::Answered { step, result: WorkResult::Failed("it refuses".into()) };
    let said = stepped(&mut fresh, START, answer).into_iter().find_map(|action| match action {
        UpdateAction::Event(notice) => Some(notice.message),
        _ => None,
    });
    assert_eq!(
        said.as_deref(),
        Some("no update is under way, and the node still looks for remains of an earlier one: it refuses")
    );
}

fn named(version: &str) -> UpdateOrders {
    UpdateOrders { update_to: Some(version.to_owned()), ..UpdateOrders::default() }
}

#[test]
fn a_named_version_is_staged_unless_it_is_there() {
    let by = |orders: UpdateOrders, record: &BootRecord| {
        let manual = UpdateConfig { is_automatic: false, ..config() };
        let mut machine = NodeUpdate::new(manual, A, Some(UpdatePlan::default()));
        stepped(&mut machine, START, UpdateEvent::Orders(orders));
        stepped(&mut machine, START, UpdateEvent::Record(Box::new(record.clone())));
        machine.to_stage().map(str::to_owned)
    };
    let mut record = BootRecord::new(A);
    record.a.version = "0.1.0".into();
    assert_eq!(by(named("0.2.0"), &record).as_deref(), Some("0.2.0"));
    assert_eq!(by(UpdateOrders::default(), &record), None);
    assert_eq!(by(named("0.1.0"), &record), None, "it runs");
    assert_eq!(by(UpdateOrders { is_paused: true, ..named("0.2.0") }, &record), None);
    (record.b.state, record.b.version) = (SlotState::Staged, "0.2.0".into());
    assert_eq!(by(named("0.2.0"), &record), None, "it is there");
    assert_eq!(by(named("0.3.0"), &record).as_deref(), Some("0.3.0"));
    record.b.state = SlotState::Refused;
    assert_eq!(by(named("0.2.0"), &record).as_deref(), Some("0.2.0"), "named all the same");
    record.b.failed_check = "runtime".into();
    assert_eq!(by(named("0.2.0"), &record), None, "not examined yet");
    assert_eq!(by(named("0.2.0"), &BootRecord::new(B)), None, "not the home slot");
}

#[test]
fn a_named_version_that_has_failed_waits_for_another_order() {
    for end in [UpdateEnd::Refused("2.0.0: bad".into()), UpdateEnd::Doubtful("2.0.0: bad".into())] {
        let mut plan = UpdatePlan { version: "2.0.0".into(), end, ..UpdatePlan::default() };
        plan.finish(START, &UpdatePauses::default());
        assert_eq!(plan.spent, "2.0.0");
    }
    let kept = UpdatePlan { version: "2.0.0".into(), spent: "2.0.0".into(), ..UpdatePlan::default() };
    let mut back = NodeUpdate::new(config(), A, Some(kept));
    let mut record = Model::new(Trouble::Nothing, &[]).record;
    record.b.state = SlotState::Refused;
    let seen = |record: &BootRecord| UpdateEvent::Record(Box::new(record.clone()));
    stepped(&mut back, START, UpdateEvent::Orders(named("2.0.0")));
    stepped(&mut back, START, seen(&record));
    assert_eq!(back.to_stage(), None, "the annotation stands there for the trial that has failed");
    record.b.state = SlotState::Staged;
    let drains = |work: &UpdateWork| *work == UpdateWork::Drain;
    assert_eq!(until(&mut back, START, seen(&record), drains), None);
    assert_eq!(back.plan().phase, UpdatePhase::Idle);
    // A pause says nothing about the order; taking it back does.
    let paused = UpdateOrders { is_paused: true, ..UpdateOrders::default() };
    assert_eq!(until(&mut back, START, UpdateEvent::Orders(paused), drains), None);
    assert_eq!(back.plan().spent, "2.0.0");
    record.b.state = SlotState::Refused;
    stepped(&mut back, START, seen(&record));
    assert_eq!(until(&mut back, START, none(), drains), None);
    assert_eq!(until(&mut back, START, UpdateEvent::Orders(named("2.0.0")), drains), None);
    assert_eq!(back.to_stage(), Some("2.0.0"));
    record.b.state = SlotState::Staged;
    assert!(until(&mut back, START, seen(&record), drains).is_some());
}

#[test]
fn a_named_version_whose_drain_is_blocked_has_a_pause_as_well() {
    let named = || UpdateEvent::Orders(named("2.0.0"));
    let drains = |work: &UpdateWork| *work == UpdateWork::Drain;
    let uncordons = |work: &UpdateWork| *work == UpdateWork::Uncordon;
    let mut blocked = machine(config());
    let step = until(&mut blocked, START, named(), drains).expect("it drains");
    let answer = UpdateEvent::Answered { step, result: WorkResult::Wait("pods terminate".into()) };
    let step = until(&mut blocked, START + 600, answer, uncordons).expect("it gives up");
    let answer = UpdateEvent::Answered { step, result: WorkResult::Done };
    assert_eq!(until(&mut blocked, START + 600, answer, drains), None);
    assert_eq!(blocked.plan().phase, UpdatePhase::Idle);
    assert_eq!(until(&mut blocked, START + 4199, named(), drains), None);
    assert!(until(&mut blocked, START + 4200, named(), drains).is_some());
}

#[test]
fn another_version_that_is_named_puts_an_update_off_before_it_is_staged() {
    let drains = |work: &UpdateWork| *work == UpdateWork::Drain;
    let uncordons = |work: &UpdateWork| *work == UpdateWork::Uncordon;
    let mut other = machine(config());
    let step = until(&mut other, START, none(), drains).expect("it drains");
    stepped(&mut other, START, UpdateEvent::Orders(named("3.0.0")));
    let answer = UpdateEvent::Answered { step, result: WorkResult::Wait("pods end".into()) };
    stepped(&mut other, START, answer);
    let step = until(&mut other, START + 11, UpdateEvent::Tick, uncordons).expect("it lets pods in");
    let answer = UpdateEvent::Answered { step, result: WorkResult::Done };
    assert_eq!(until(&mut other, START + 11, answer, drains), None);
    assert_eq!((other.plan().phase, other.plan().failure.as_str()), (UpdatePhase::Idle, ""));
    assert_eq!(other.to_stage(), Some("3.0.0"));
    // The order is taken back: the version that is staged may begin again.
    assert!(until(&mut other, START + 12, none(), drains).is_some());
}
