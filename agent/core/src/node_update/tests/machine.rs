//! The machine in a small model of a node: every death of the agent and every power cut, alone and in pairs, at each point
//! before and after each step.

use std::collections::VecDeque;

use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now, Wall};
use orlop_config::slots::{BootRecord, SlotName, SlotState};

use crate::node_update::check::{CheckName, FailedCheck, TrialFault};
use crate::node_update::gate::{GateVerdict, RedCheck};
use crate::node_update::plan::{TRIALS_A_DAY, UpdateEnd, UpdatePhase, UpdatePlan, resume};
use crate::node_update::report::UpdateShown;
use crate::node_update::watch::TrialDecision;
use crate::node_update::windows::UpdateWindow;
use crate::node_update::{
    Coordination, DrainBlocked, NodeUpdate, UpdateAction, UpdateConfig, UpdateEvent, UpdateOrders,
    UpdateWork, WorkResult,
};

pub(super) const A: SlotName = SlotName::A;
pub(super) const B: SlotName = SlotName::B;
pub(super) const DAY: u64 = 24 * 3600;
/// 30 November 2026, a Monday.
pub(super) const START: u64 = 1_795_996_800;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Nothing,
    /// A static pod does not start under the new version.
    Version,
    /// The new version dies before init.
    DiesEarly,
    /// The loader never takes the new slot.
    Loader,
    /// The API server is away for this long from the start.
    Cluster(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    Agent,
    Power,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    trouble: Trouble,
    deaths: Vec<(usize, Death)>,
    moments: usize,
    now: u64,
    boot: u64,
    booted: SlotName,
    pub(super) record: BootRecord,
    kept: Option<UpdatePlan>,
    is_shown: bool,
    cordoned: bool,
    unschedulable: bool,
    holds: bool,
    failures: u32,
    trials: Vec<u64>,
    shown: UpdateShown,
    reasons: Vec<&'static str>,
}

/// The agent or the machine has died.
struct Died;

pub(super) fn config() -> UpdateConfig {
    UpdateConfig { is_automatic: true, coordination: Coordination::Shared, ..UpdateConfig::default() }
}

impl Model {
    pub(super) fn new(trouble: Trouble, deaths: &[(usize, Death)]) -> Model {
        let mut record = BootRecord::new(A);
        (record.a.version, record.b.version) = ("1.0.0".into(), "2.0.0".into());
        record.b.state = SlotState::Staged;
        Model {
            trouble,
            deaths: deaths.to_vec(),
            moments: 0,
            now: START,
            boot: START - 100,
            booted: A,
            record,
            kept: Some(UpdatePlan::default()),
            is_shown: false,
            cordoned: false,
            unschedulable: false,
            holds: false,
            failures: 0,
            trials: Vec::new(),
            shown: UpdateShown::default(),
            reasons: Vec::new(),
        }
    }

    fn time(&self) -> Now {
        let mono = Mono((self.now - self.boot) * 1_000_000_000);
        Now { mono, wall: Wall(i64::try_from(self.now * 1_000_000_000).expect("this century")) }
    }

    /// A point at which something may die.
    fn moment(&mut self) -> Result<(), Died> {
        let at = self.moments;
        self.moments += 1;
        match self.deaths.iter().find(|(moment, _)| *moment == at) {
            None => Ok(()),
            Some((_, Death::Agent)) => Err(Died),
            Some((_, Death::Power)) => {
                self.reboot();
                Err(Died)
            }
        }
    }

    /// The loader and the arbiter.
    fn reboot(&mut self) {
        self.now += 30;
        self.boot = self.now;
        self.booted = self.record.desired;
        let Some(trial) = self.record.trial.clone() else { return };
        let takes = self.is_shown && !trial.started && self.trouble != Trouble::Loader;
        if takes {
            self.is_shown = false;
            self.trials.push(self.now);
        }
        let tried = self.record.slot_mut(trial.slot);
        match (takes, self.trouble) {
            (true, Trouble::DiesEarly) => {
                tried.attempts += 1;
                (tried.state, tried.reason) = (SlotState::Staged, "it died before init".into());
                self.record.trial = None;
            }
            (true, _) => {
                tried.attempts += 1;
                self.booted = trial.slot;
                if let Some(trial) = &mut self.record.trial {
                    trial.started = true;
                }
            }
            (false, _) if trial.started => {
                (tried.state, tried.reason) = (SlotState::Staged, "it was cut off".into());
                self.record.trial = None;
            }
            (false, _) => {}
        }
    }

    fn carry_out(&mut self, work: UpdateWork) -> Result<WorkResult, Died> {
        match work {
            UpdateWork::Save(plan) => self.kept = Some(*plan),
            UpdateWork::TakeSlot { .. } if self.failures > 0 => {
                return Ok(WorkResult::Wait("the group is halted".into()));
            }
            UpdateWork::TakeSlot { .. } => self.holds = true,
            UpdateWork::Cordon { .. } if self.unschedulable => {}
            UpdateWork::Cordon { .. } => (self.cordoned, self.unschedulable) = (true, true),
            UpdateWork::Drain => assert!(self.unschedulable && self.holds),
            UpdateWork::Arm { update, deadline } => {
                assert!(self.unschedulable && self.holds);
                let seconds = u32::try_from(deadline.as_secs()).expect("small");
                if let Err(e) = self.record.order_trial(self.booted, &update, seconds) {
                    return Ok(WorkResult::Failed(e.to_string()));
                }
                self.moment()?;
                self.is_shown = true;
            }
            UpdateWork::Reboot => {
                self.reboot();
                return Err(Died);
            }
            UpdateWork::Withdraw => {
                self.is_shown = false;
                self.moment()?;
                self.record.withdraw_trial(self.booted);
            }
            UpdateWork::Uncordon if self.cordoned => {
                (self.cordoned, self.unschedulable) = (false, false);
            }
            UpdateWork::Uncordon => {}
            UpdateWork::Settle { refused } => self.record.settle_trial(self.booted, refused.as_deref()),
            UpdateWork::GiveBack { failure, .. } => {
                if self.holds {
                    self.holds = false;
                    self.failures += u32::from(failure.is_some());
                }
            }
        }
        Ok(WorkResult::Done)
    }

    fn gate(&self) -> UpdateEvent {
        let on_trial = self.record.trial_of(self.booted).is_some();
        let failed = match self.trouble {
            Trouble::Version if on_trial => {
                Some(FailedCheck { check: CheckName::StaticPods, fault: TrialFault::Slot })
            }
            Trouble::Cluster(until) if self.now < START + until => {
                Some(FailedCheck { check: CheckName::Api, fault: TrialFault::Cluster })
            }
            _ => None,
        };
        let Some(failed) = failed else {
            return UpdateEvent::Gate { red: Vec::new(), verdict: GateVerdict::Green };
        };
        let words = "it is not there".to_owned();
        let red = vec![RedCheck { check: failed.check, words: words.clone() }];
        UpdateEvent::Gate { red, verdict: GateVerdict::Red { failed, words } }
    }

    /// One life of an agent.
    fn live(&mut self, config: &UpdateConfig, until: u64) -> Result<UpdatePhase, Died> {
        let mut machine = NodeUpdate::new(config.clone(), self.booted, self.kept.clone());
        let mut events = VecDeque::from([UpdateEvent::Record(Box::new(self.record.clone()))]);
        loop {
            let Some(event) = events.pop_front() else {
                if self.now >= until && machine.plan().phase == UpdatePhase::Idle {
                    return Ok(machine.plan().phase);
                }
                assert!(self.now < until + DAY, "no end: {:?}", machine.plan());
                let due = machine.deadline().map_or(3600, |at| at.since(self.time().mono).as_secs() + 1);
                self.now += if machine.wants_gate() { due.min(10) } else { due.min(3600) };
                events.push_back(if machine.wants_gate() { self.gate() } else { UpdateEvent::Tick });
                events.push_back(UpdateEvent::Tick);
                continue;
            };
            let mut out = Outbox::new();
            machine.step(self.time(), event, &mut out);
            for action in out.drain().collect::<Vec<_>>() {
                match action {
                    UpdateAction::Do { step, work } => {
                        self.moment()?;
                        let result = self.carry_out(work)?;
                        self.moment()?;
                        events.push_back(UpdateEvent::Answered { step, result });
                        events.push_back(UpdateEvent::Record(Box::new(self.record.clone())));
                    }
                    UpdateAction::Trial(TrialDecision::Commit) => {
                        self.moment()?;
                        self.record.commit_trial(self.booted, None).expect("on trial");
                        self.moment()?;
                        events.push_back(UpdateEvent::Record(Box::new(self.record.clone())));
                    }
                    UpdateAction::Trial(TrialDecision::Return { failed, words }) => {
                        let booted = self.booted;
                        self.record.return_from_trial(booted, &failed.to_string(), &words).expect("on trial");
                        self.reboot();
                        return Err(Died);
                    }
                    UpdateAction::Trial(_) => {}
                    UpdateAction::Show(shown) => self.shown = shown,
                    UpdateAction::Event(notice) => self.reasons.push(notice.reason),
                }
            }
        }
    }

    fn run(mut self, config: &UpdateConfig, days: u64) -> Model {
        let until = START + days * DAY;
        for _ in 0..400 {
            if let Ok(phase) = self.live(config, until) {
                assert_eq!(phase, UpdatePhase::Idle);
                assert!(!self.cordoned && !self.holds, "{self:?}");
                let near = |at: &u64| self.trials.iter().filter(|t| **t >= *at && **t < *at + DAY).count();
                assert!(self.trials.iter().all(|at| near(at) <= TRIALS_A_DAY), "NO-LOOP: {self:?}");
                assert!(self.record.is_good(self.record.desired));
                return self;
            }
        }
        panic!("it never comes to rest: {self:?}");
    }
}

fn ends_well(model: &Model) {
    let record = &model.record;
    assert!(!model.unschedulable, "{model:?}");
    match model.trouble {
        Trouble::Nothing => {
            assert_eq!((record.desired, model.failures), (B, 0), "{model:?}");
            assert!(record.is_good(A) && model.shown.failed.is_none());
        }
        Trouble::Version => {
            assert_eq!((record.desired, record.b.state), (A, SlotState::Refused), "{model:?}");
            assert!(record.b.reason.contains("static-pods"), "{record:?}");
            assert!(
                model.shown.failed.as_ref().is_some_and(|words| words.contains("static-pods")),
                "{model:?}"
            );
            assert_eq!(model.failures, 1, "{model:?}");
        }
        Trouble::DiesEarly => {
            assert_eq!((record.desired, record.b.state), (A, SlotState::Refused), "{model:?}");
        }
        Trouble::Loader => assert_eq!((record.desired, record.b.state), (A, SlotState::Staged), "{model:?}"),
        Trouble::Cluster(_) => assert_ne!(record.b.state, SlotState::Refused, "{model:?}"),
    }
}

const TROUBLES: [Trouble; 6] = [
    Trouble::Nothing,
    Trouble::Version,
    Trouble::DiesEarly,
    Trouble::Loader,
    Trouble::Cluster(1800),
    Trouble::Cluster(13 * 3600),
];

#[test]
fn each_trouble_ends_as_it_should() {
    for trouble in TROUBLES {
        let model = Model::new(trouble, &[]).run(&config(), 3);
        ends_well(&model);
        if matches!(trouble, Trouble::Cluster(_)) {
            assert_eq!(model.record.desired, B, "{model:?}");
        }
    }
    let model = Model::new(Trouble::Version, &[]).run(&config(), 1);
    assert_eq!(model.reasons, ["UpdateStaged", "UpdateRolledBack", "UpdateRefused"]);
    assert_eq!(model.trials.len(), 1);
}

#[test]
fn every_death_is_survived() {
    for trouble in TROUBLES {
        let moments = Model::new(trouble, &[]).run(&config(), 1).moments;
        assert!(moments > 20, "{moments}");
        for at in 0..moments {
            for death in [Death::Agent, Death::Power] {
                ends_well(&Model::new(trouble, &[(at, death)]).run(&config(), 2));
            }
        }
    }
}

#[test]
fn two_deaths_are_survived() {
    for trouble in [Trouble::Nothing, Trouble::Version] {
        let moments = Model::new(trouble, &[]).run(&config(), 1).moments;
        for first in 0..moments {
            for second in first + 1..moments + 4 {
                for death in [Death::Agent, Death::Power] {
                    let deaths = [(first, death), (second, Death::Power)];
                    ends_well(&Model::new(trouble, &deaths).run(&config(), 2));
                }
            }
        }
    }
}

#[test]
fn a_node_that_somebody_cordoned_stays_so() {
    let mut model = Model::new(Trouble::Nothing, &[]);
    model.unschedulable = true;
    let model = model.run(&config(), 1);
    assert_eq!((model.record.desired, model.unschedulable), (B, true));
}

#[test]
fn a_lost_plan_commits_and_refuses_nothing() {
    for trouble in [Trouble::Nothing, Trouble::Version] {
        let moments = Model::new(trouble, &[]).run(&config(), 1).moments;
        for at in 0..moments {
            let mut model = Model::new(trouble, &[(at, Death::Agent)]);
            while model.live(&config(), START + DAY).is_err() {
                if model.moments > at {
                    model.kept = None;
                    break;
                }
            }
            let model = model.run(&config(), 2);
            assert!(model.record.b.state != SlotState::Refused || trouble == Trouble::Version, "{model:?}");
            assert!(!model.unschedulable, "{model:?}");
        }
    }
}

pub(super) fn stepped(machine: &mut NodeUpdate, now: u64, event: UpdateEvent) -> Vec<UpdateAction> {
    let time = Now {
        mono: Mono((now - START + 100) * 1_000_000_000),
        wall: Wall(i64::try_from(now * 1_000_000_000).expect("this century")),
    };
    let mut out = Outbox::new();
    machine.step(time, event, &mut out);
    out.drain().collect()
}

/// Answers everything with success until this work is asked for.
pub(super) fn until(
    machine: &mut NodeUpdate,
    now: u64,
    first: UpdateEvent,
    wanted: fn(&UpdateWork) -> bool,
) -> Option<u64> {
    let mut event = first;
    for _ in 0..30 {
        let asked = stepped(machine, now, event).into_iter().find_map(|action| match action {
            UpdateAction::Do { step, work } => Some((step, work)),
            _ => None,
        });
        let (step, work) = asked?;
        if wanted(&work) {
            return Some(step);
        }
        event = UpdateEvent::Answered { step, result: WorkResult::Done };
    }
    None
}

/// A machine that is paused, with version 2.0.0 staged.
pub(super) fn machine(config: UpdateConfig) -> NodeUpdate {
    let record = Model::new(Trouble::Nothing, &[]).record;
    let mut machine = NodeUpdate::new(config, A, Some(UpdatePlan::default()));
    let paused = UpdateOrders { is_paused: true, ..UpdateOrders::default() };
    stepped(&mut machine, START, UpdateEvent::Orders(paused));
    stepped(&mut machine, START, UpdateEvent::Record(Box::new(record)));
    assert_eq!(machine.plan().phase, UpdatePhase::Idle);
    machine
}

/// Nobody orders anything any more.
pub(super) fn none() -> UpdateEvent {
    UpdateEvent::Orders(UpdateOrders::default())
}

#[test]
fn a_budget_is_obeyed_until_the_timeout_and_then_the_update_is_put_off() {
    let blocked = || {
        let (pod, budget) = ("ns/web-0".to_owned(), "budget web allows no disruption".to_owned());
        WorkResult::Blocked(DrainBlocked { pod, budget })
    };
    for goes_on in [false, true] {
        let mut settings = config();
        settings.drain.goes_on = goes_on;
        let mut model = Model::new(Trouble::Nothing, &[]);
        model.kept = Some(UpdatePlan::default());
        let mut machine = NodeUpdate::new(settings, A, model.kept.clone());
        let mut events = VecDeque::from([UpdateEvent::Record(Box::new(model.record.clone()))]);
        let (mut asked, mut reasons, mut armed) = (0, Vec::new(), false);
        while let Some(event) = events.pop_front() {
            for action in stepped(&mut machine, model.now, event) {
                match action {
                    UpdateAction::Do { step, work: UpdateWork::Drain } => {
                        asked += 1;
                        events.push_back(UpdateEvent::Answered { step, result: blocked() });
                    }
                    UpdateAction::Do { work: UpdateWork::Arm { .. }, .. } => armed = true,
                    UpdateAction::Do { step, .. } => {
                        events.push_back(UpdateEvent::Answered { step, result: WorkResult::Done });
                    }
                    UpdateAction::Event(notice) => reasons.push(notice),
                    UpdateAction::Trial(_) | UpdateAction::Show(_) => {}
                }
            }
            if events.is_empty() && model.now < START + 1200 && !armed {
                model.now += 10;
                events.push_back(UpdateEvent::Tick);
            }
        }
        assert_eq!((armed, asked > 50), (goes_on, true), "{asked}");
        let told = reasons.iter().find(|notice| notice.reason == "UpdateDrainBlocked");
        assert_eq!(told.is_some(), !goes_on);
        if let Some(notice) = told {
            assert!(
                notice.message.contains("ns/web-0") && notice.message.contains("budget web"),
                "{notice:?}"
            );
            assert_eq!(machine.plan().phase, UpdatePhase::Idle);
            assert!(machine.plan().not_before > START && machine.plan().failure.contains("ns/web-0"));
        }
    }
}

#[test]
fn windows_permits_and_pauses_are_waited_for() {
    let window = UpdateWindow::new(&["mon"], "02:00", 60).expect("a window");
    let mut waits = machine(UpdateConfig { windows: vec![window], ..config() });
    let takes = |work: &UpdateWork| matches!(work, UpdateWork::TakeSlot { .. });
    assert_eq!(until(&mut waits, START, none(), takes), None);
    assert_eq!(waits.plan().phase, UpdatePhase::Window);
    assert!(until(&mut waits, START + 2 * 3600, UpdateEvent::Tick, takes).is_some());

    let mut asks = machine(UpdateConfig { coordination: Coordination::Permit, ..config() });
    let cordons = |work: &UpdateWork| matches!(work, UpdateWork::Cordon { .. });
    assert_eq!(until(&mut asks, START, none(), cordons), None);
    let wrong = UpdateOrders { permit: Some("another".into()), ..UpdateOrders::default() };
    stepped(&mut asks, START, UpdateEvent::Orders(wrong));
    assert_eq!(until(&mut asks, START, none(), cordons), None);
    let permit = Some(asks.plan().update.clone());
    let granted =
        stepped(&mut asks, START, UpdateEvent::Orders(UpdateOrders { permit, ..UpdateOrders::default() }));
    assert!(granted.iter().any(|action| matches!(action, UpdateAction::Do { .. })));

    let mut paused = machine(config());
    let drains = |work: &UpdateWork| *work == UpdateWork::Drain;
    let step = until(&mut paused, START, none(), drains).expect("it drains");
    let orders = UpdateOrders { is_paused: true, ..UpdateOrders::default() };
    stepped(&mut paused, START, UpdateEvent::Orders(orders));
    let answer = UpdateEvent::Answered { step, result: WorkResult::Wait("pods end".into()) };
    stepped(&mut paused, START, answer);
    let uncordons = |work: &UpdateWork| *work == UpdateWork::Uncordon;
    let step = until(&mut paused, START + 11, UpdateEvent::Tick, uncordons).expect("it lets pods in");
    // That is no failure, and it begins again once it may.
    let answer = UpdateEvent::Answered { step, result: WorkResult::Done };
    assert_eq!(until(&mut paused, START + 11, answer, drains), None);
    assert_eq!((paused.plan().phase, paused.plan().failure.as_str()), (UpdatePhase::Idle, ""));
    assert!(until(&mut paused, START + 12, none(), drains).is_some());
}

#[test]
fn nothing_begins_by_itself_unless_it_is_allowed() {
    let saves = |work: &UpdateWork| matches!(work, UpdateWork::Save(_));
    let mut manual = machine(UpdateConfig { is_automatic: false, ..config() });
    assert_eq!(until(&mut manual, START, none(), saves), None);
    let update_to = Some("2.0.0".to_owned());
    let begun = stepped(
        &mut manual,
        START,
        UpdateEvent::Orders(UpdateOrders { update_to, ..UpdateOrders::default() }),
    );
    assert!(begun.iter().any(|action| matches!(action, UpdateAction::Do { .. })));
    // Failures that may have been the cluster's.
    let plan = UpdatePlan { version: "2.0.0".into(), doubts: 3, ..UpdatePlan::default() };
    let mut given_up = NodeUpdate::new(config(), A, Some(plan));
    let record = Model::new(Trouble::Nothing, &[]).record;
    let actions = stepped(&mut given_up, START, UpdateEvent::Record(Box::new(record)));
    assert!(!actions.iter().any(|action| matches!(action, UpdateAction::Do { .. })), "{actions:?}");
}

#[test]
fn what_the_node_shows() {
    let shown = UpdateShown {
        failed: Some("2.0.0 gateway: silent".into()),
        progressing: Some(("Draining", "update to 2.0.0".into())),
        ..UpdateShown::default()
    };
    let [progressing, failed] = shown.conditions();
    assert_eq!((progressing.kind, progressing.is_true), ("UpdateProgressing", true));
    assert_eq!((failed.message.as_str(), failed.is_true), ("2.0.0 gateway: silent", true));
    let [_, failed] = UpdateShown::default().conditions();
    assert_eq!((failed.reason, failed.is_true), ("NoFailure", false));
}

#[test]
fn an_order_without_its_plan_is_taken_back() {
    let mut record = Model::new(Trouble::Nothing, &[]).record;
    record.order_trial(A, "u-9", 600).expect("staged");
    let plan = resume(None, &record, A);
    assert_eq!((plan.phase, plan.update.as_str()), (UpdatePhase::Withdraw, "u-9"));
    // One that is being taken back says why all the time.
    let end = UpdateEnd::Aborted("the window is over".into());
    let plan = UpdatePlan { phase: UpdatePhase::Withdraw, end, ..plan };
    assert_eq!(resume(Some(plan.clone()), &record, A), plan);
    assert_eq!(resume(None, &BootRecord::new(A), A).phase, UpdatePhase::Uncordon);
    assert_eq!(resume(Some(UpdatePlan::default()), &BootRecord::new(A), A).phase, UpdatePhase::Idle);
}

#[test]
fn a_plan_leads_back_from_its_file() {
    let words = || "static-pods: etcd".to_owned();
    let ends = [
        UpdateEnd::Open,
        UpdateEnd::Committed,
        UpdateEnd::Returned(words()),
        UpdateEnd::Cut(words()),
        UpdateEnd::Aborted(words()),
        UpdateEnd::PutOff(words()),
        UpdateEnd::Refused(words()),
        UpdateEnd::Doubtful(words()),
        UpdateEnd::Inconclusive(words()),
    ];
    for end in ends {
        let plan = UpdatePlan {
            update: "2.0.0-1".into(),
            version: "2.0.0".into(),
            phase: UpdatePhase::Uncordon,
            end,
            trials: vec![1, 2],
            awaits: Some("api/cluster".into()),
            ..UpdatePlan::default()
        };
        let text = serde_json::to_string(&plan).expect("JSON");
        assert_eq!(serde_json::from_str::<UpdatePlan>(&text).expect("a plan"), plan);
    }
    let older = serde_json::from_str::<UpdatePlan>(r#"{"phase":"drain","more":1}"#).expect("a plan");
    assert_eq!((older.phase, older.end), (UpdatePhase::Drain, UpdateEnd::Open));
    assert!(serde_json::from_str::<UpdatePlan>(r#"{"phase":"dance"}"#).is_err());
}
