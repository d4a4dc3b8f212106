//! The machine: one update from a staged slot to its end, a step at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now};
use orlop_config::release::UtcSecond;
use orlop_config::slots::{ATTEMPTS_MAX, BootRecord, SlotName, SlotState};

use super::check::{CheckName, FailedCheck};
use super::gate::GateVerdict;
use super::plan::{DOUBTS_MAX, TRIALS_A_DAY, UpdateEnd, UpdatePhase, UpdatePlan, is_home, resume};
use super::report::{PERMIT, UpdateNotice, UpdateShown};
use super::watch::{Examination, ExaminationEnd, TrialDecision, TrialWatch};
use super::windows::{is_open, next_opening};
use super::{
    Coordination, DrainBlocked, UpdateAction, UpdateConfig, UpdateEvent, UpdateOrders, UpdateWork, WorkResult,
};

/// A step that failed, or that has to wait, is done again after this.
const RETRY: Duration = Duration::from_secs(10);
/// A slot of the group is asked for this often.
const ASK: Duration = Duration::from_secs(60);
/// A reboot that was asked for has happened after this, or the update is put off: pods have their grace period before it.
const REBOOT_MAX: Duration = Duration::from_secs(3600);

/// The machine; see the module.
#[derive(Clone, Debug)]
pub struct NodeUpdate {
    config: UpdateConfig,
    booted: SlotName,
    kept: Option<UpdatePlan>,
    plan: UpdatePlan,
    record: Option<BootRecord>,
    orders: UpdateOrders,
    /// The orders of operators are known.
    has_orders: bool,
    /// The plan on the disk is another one.
    is_dirty: bool,
    last_step: u64,
    in_flight: Option<(u64, UpdateWork)>,
    retry_at: Option<Mono>,
    /// When the drain, or the reboot, was first asked for.
    asked_since: Option<Mono>,
    watch: TrialWatch,
    /// The checks that were red at the last gate.
    red: Option<BTreeSet<CheckName>>,
    examination: Option<(Examination, Mono)>,
    /// What the present phase waits for.
    waits: String,
    shown: UpdateShown,
    wake: Option<Mono>,
}

fn seconds(now: Now) -> u64 {
    u64::try_from(now.wall.0 / 1_000_000_000).unwrap_or(0)
}

/// Time since the boot: CLOCK_BOOTTIME begins with it.
fn up(now: Now) -> Duration {
    now.mono.since(Mono(0))
}

impl NodeUpdate {
    /// The machine of a node that runs `booted`; `kept` is the plan of [`PLAN_FILE`](super::plan::PLAN_FILE), none if there is
    /// none or it is not readable.
    #[must_use]
    pub fn new(config: UpdateConfig, booted: SlotName, kept: Option<UpdatePlan>) -> NodeUpdate {
        let watch = TrialWatch::new(config.limits);
        NodeUpdate {
            config,
            booted,
            kept,
            plan: UpdatePlan::default(),
            record: None,
            orders: UpdateOrders::default(),
            has_orders: false,
            is_dirty: false,
            last_step: 0,
            in_flight: None,
            retry_at: None,
            asked_since: None,
            watch,
            red: None,
            examination: None,
            waits: String::new(),
            shown: UpdateShown::default(),
            wake: None,
        }
    }

    /// The slot that runs is on trial.
    #[must_use]
    pub fn is_on_trial(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.trial_of(self.booted).is_some())
    }

    /// The gate has to be asked, every few seconds.
    #[must_use]
    pub fn wants_gate(&self) -> bool {
        self.is_on_trial() || self.plan.phase == UpdatePhase::Examine || self.plan.awaits.is_some()
    }

    /// The plan, for tests and for metrics.
    #[must_use]
    pub fn plan(&self) -> &UpdatePlan {
        &self.plan
    }

    /// The version that an operator has named; none if it has failed since then: an annotation that stays would have it tried for ever.
    fn named(&self) -> Option<&str> {
        self.orders.update_to.as_deref().filter(|version| *version != self.plan.spent)
    }

    /// An order that is taken back, or another one, makes room for the same one again.
    fn forget_spent(&mut self) {
        let stands = self.orders.update_to.as_ref() == Some(&self.plan.spent);
        let knows_better = self.has_orders && !self.orders.is_paused;
        if knows_better && !stands && !self.plan.spent.is_empty() {
            self.plan.spent.clear();
            self.is_dirty = true;
        }
    }

    /// The version that the updater has to stage: an operator has named it, and no slot has it. None if there is none, or not now.
    #[must_use]
    pub fn to_stage(&self) -> Option<&str> {
        let (record, named) = (self.record.as_ref()?, self.named()?);
        let may_change = matches!(
            self.plan.phase,
            UpdatePhase::Idle
                | UpdatePhase::Window
                | UpdatePhase::Permit
                | UpdatePhase::Cordon
                | UpdatePhase::Drain
                | UpdatePhase::Confirm
        );
        let at_home = is_home(record, self.booted) && record.trial.is_none();
        let other = record.slot(self.booted.other());
        // The updater itself refuses a slot whose failure was not examined.
        let is_free = may_change && at_home && other.failed_check.is_empty() && !self.orders.is_paused;
        let is_whole = matches!(other.state, SlotState::Staged | SlotState::Trial | SlotState::Good);
        let is_there = (is_whole && other.version == named) || record.slot(self.booted).version == named;
        (is_free && !is_there).then_some(named)
    }

    fn go(&mut self, phase: UpdatePhase) {
        self.plan.phase = phase;
        self.is_dirty = true;
        (self.retry_at, self.asked_since, self.examination) = (None, None, None);
        self.waits.clear();
    }

    fn abort(&mut self, words: String) {
        self.plan.end = UpdateEnd::Aborted(words);
        self.go(UpdatePhase::Withdraw);
    }

    fn put_off(&mut self, words: String) {
        self.plan.end = UpdateEnd::PutOff(words);
        self.go(UpdatePhase::Withdraw);
    }

    fn learn(&mut self, record: BootRecord, out: &mut Outbox<UpdateAction>) {
        let was_on_trial = self.is_on_trial();
        let is_first = self.record.is_none();
        self.record = Some(record);
        if !is_first && (!was_on_trial || self.is_on_trial()) {
            return;
        }
        let kept = if is_first { self.kept.take() } else { Some(self.plan.clone()) };
        let Some(record) = &self.record else { return };
        let plan = resume(kept.clone(), record, self.booted);
        self.is_dirty = kept.as_ref() != Some(&plan);
        if self.is_dirty
            && let Some(notice) = UpdateNotice::of_end(&plan)
        {
            out.push(UpdateAction::Event(notice));
        }
        self.plan = plan;
    }

    /// The version of the other slot, if its trial may begin now.
    fn next_version(&self, now: Now) -> Option<String> {
        let record = self.record.as_ref()?;
        let at_home = is_home(record, self.booted) && record.trial.is_none();
        let other = record.slot(self.booted.other());
        let is_named = self.named() == Some(other.version.as_str());
        let can_be_tried = match other.state {
            SlotState::Staged => other.failed_check.is_empty() && other.attempts < ATTEMPTS_MAX,
            SlotState::Good => is_named,
            _ => false,
        };
        let is_other = !other.version.is_empty() && other.version != record.slot(self.booted).version;
        if !at_home || !can_be_tried || !is_other || self.orders.is_paused {
            return None;
        }
        let is_same = self.plan.version == other.version;
        let is_given_up = is_same && self.plan.doubts >= DOUBTS_MAX;
        // A pause is one of the version that failed.
        let (now_s, up) = (seconds(now), up(now));
        let is_paused = is_same && !self.plan.is_pause_over(now_s, up, &self.config.pauses);
        let is_due = !is_paused && (!is_same || self.awaited_passes());
        // Somebody has named a version: no other one begins.
        let is_free = self.orders.update_to.is_none();
        let by_itself = self.config.is_automatic && is_free && !is_given_up && is_due;
        let is_rare = self.plan.trials_of(&other.version, now_s, up) < TRIALS_A_DAY;
        let is_held = is_same && !self.plan.is_abort_over(now_s, up, &self.config.pauses);
        ((is_named || by_itself) && is_rare && !is_held).then(|| other.version.clone())
    }

    /// The check that failed in both slots passes now.
    fn awaited_passes(&self) -> bool {
        let Some(failed) = self.plan.awaits.as_deref().and_then(FailedCheck::parse) else { return true };
        self.red.as_ref().is_some_and(|red| !red.contains(&failed.check))
    }

    /// Another slot than the home slot only ends what it can.
    fn may_work(&self) -> bool {
        let ends = matches!(
            self.plan.phase,
            UpdatePhase::Idle | UpdatePhase::Withdraw | UpdatePhase::Uncordon | UpdatePhase::Release
        );
        self.record.as_ref().is_some_and(|record| ends || is_home(record, self.booted))
    }

    /// The other slot still has the version of the plan: the updater may have replaced it.
    fn is_staged(&self) -> bool {
        let other = self.record.as_ref().map(|record| record.slot(self.booted.other()));
        other.is_some_and(|other| {
            let is_whole = matches!(other.state, SlotState::Staged | SlotState::Trial | SlotState::Good);
            is_whole && other.version == self.plan.version
        })
    }

    fn may_reboot(&self, now: Now) -> bool {
        !self.orders.is_paused && is_open(&self.config.windows, UtcSecond::new(seconds(now)))
    }

    /// Why an update that has not rebooted the node yet is put off.
    fn obstacle(&self, now: Now) -> Option<String> {
        match self.plan.phase {
            UpdatePhase::Window
            | UpdatePhase::Permit
            | UpdatePhase::Cordon
            | UpdatePhase::Drain
            | UpdatePhase::Confirm
            | UpdatePhase::Arm => {}
            _ => return None,
        }
        if !self.is_staged() {
            return Some(format!("version {} is not in the other slot any more", self.plan.version));
        }
        // An operator who names another version does not want this one, also while the other one cannot be staged yet.
        if let Some(named) = self.named().filter(|named| *named != self.plan.version) {
            return Some(format!("an operator has named version {named}"));
        }
        if self.plan.phase == UpdatePhase::Window || self.may_reboot(now) {
            return None;
        }
        let why = if self.orders.is_paused { "updates are paused" } else { "the window is over" };
        Some(why.to_owned())
    }

    fn ask(&mut self, work: UpdateWork, out: &mut Outbox<UpdateAction>) {
        self.last_step += 1;
        self.in_flight = Some((self.last_step, work.clone()));
        out.push(UpdateAction::Do { step: self.last_step, work });
    }

    fn advance(&mut self, now: Now, out: &mut Outbox<UpdateAction>) {
        self.wake = None;
        if self.record.is_none() || self.in_flight.is_some() {
            return;
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now.mono) {
            self.wake = Some(at);
            return;
        }
        // Each turn changes the phase or ends; the phases have an order.
        while self.in_flight.is_none() {
            if self.is_dirty {
                self.ask(UpdateWork::Save(Box::new(self.plan.clone())), out);
            } else if self.is_on_trial() || !self.may_work() || !self.work(now, out) {
                return;
            }
        }
    }

    /// Does what the phase asks for; false if it has to wait.
    fn work(&mut self, now: Now, out: &mut Outbox<UpdateAction>) -> bool {
        if let Some(words) = self.obstacle(now) {
            self.put_off(words);
            return true;
        }
        let update = self.plan.update.clone();
        match self.plan.phase {
            UpdatePhase::Idle => return self.begin(now, out),
            UpdatePhase::Window if self.may_reboot(now) => self.go(UpdatePhase::Permit),
            UpdatePhase::Window => return self.wait_for_window(now, out),
            UpdatePhase::Permit => match self.config.coordination {
                Coordination::None => self.go(UpdatePhase::Cordon),
                Coordination::Shared => self.ask(UpdateWork::TakeSlot { update }, out),
                Coordination::Permit if self.orders.permit.as_deref() == Some(update.as_str()) => {
                    self.go(UpdatePhase::Cordon);
                }
                Coordination::Permit => {
                    let has = self.orders.permit.as_deref();
                    let has = has
                        .map_or_else(String::new, |has| format!("; the annotation names the update {has}"));
                    let words = format!("waits for annotation {PERMIT}={update}{has}");
                    self.wait(words, now.mono.after(ASK), out);
                    return false;
                }
            },
            UpdatePhase::Cordon if !self.config.drain.is_enabled => self.go(UpdatePhase::Confirm),
            UpdatePhase::Cordon => self.ask(UpdateWork::Cordon { update }, out),
            UpdatePhase::Drain => {
                self.asked_since.get_or_insert(now.mono);
                self.ask(UpdateWork::Drain, out);
            }
            UpdatePhase::Confirm => match self.config.coordination {
                Coordination::Shared => self.ask(UpdateWork::TakeSlot { update }, out),
                Coordination::Permit if self.orders.permit.as_deref() != Some(update.as_str()) => {
                    self.put_off("the permit was taken back".to_owned());
                }
                Coordination::None | Coordination::Permit => self.arm(now),
            },
            UpdatePhase::Arm => {
                let deadline = self.config.limits.deadline;
                self.ask(UpdateWork::Arm { update, deadline }, out);
            }
            UpdatePhase::Reboot if self.waited(now) >= REBOOT_MAX => {
                self.abort("the node did not reboot within an hour".to_owned());
            }
            UpdatePhase::Reboot => {
                self.asked_since.get_or_insert(now.mono);
                self.ask(UpdateWork::Reboot, out);
            }
            UpdatePhase::Withdraw => self.ask(UpdateWork::Withdraw, out),
            UpdatePhase::Uncordon => self.ask(UpdateWork::Uncordon, out),
            UpdatePhase::Examine => return self.examine(now, out),
            UpdatePhase::Settle => {
                let refused = match &self.plan.end {
                    UpdateEnd::Refused(words) => Some(words.clone()),
                    _ => None,
                };
                self.ask(UpdateWork::Settle { refused }, out);
            }
            UpdatePhase::Release if self.config.coordination != Coordination::Shared => self.finish(now),
            UpdatePhase::Release => {
                let failure = self.plan.end.failure().map(str::to_owned);
                self.ask(UpdateWork::GiveBack { update, failure }, out);
            }
        }
        true
    }

    fn begin(&mut self, now: Now, out: &mut Outbox<UpdateAction>) -> bool {
        let Some(version) = self.next_version(now) else {
            // The clock may be set, and trials of more than a day ago do not count: looked at again before it is due.
            let left = self.plan.not_before.saturating_sub(seconds(now));
            let left = if left == 0 { 3600 } else { left.min(3600) };
            self.wake = Some(now.mono.after(Duration::from_secs(left)));
            return false;
        };
        self.plan.begin(&version, seconds(now));
        self.go(UpdatePhase::Window);
        out.push(UpdateAction::Event(UpdateNotice::staged(&self.plan)));
        true
    }

    fn wait_for_window(&mut self, now: Now, out: &mut Outbox<UpdateAction>) -> bool {
        let at = next_opening(&self.config.windows, UtcSecond::new(seconds(now)));
        let left = at.seconds().saturating_sub(seconds(now)).clamp(10, 3600);
        let words = if self.orders.is_paused { "is paused".to_owned() } else { format!("waits for {at}") };
        self.wait(words, now.mono.after(Duration::from_secs(left)), out);
        false
    }

    fn wait(&mut self, words: String, until: Mono, out: &mut Outbox<UpdateAction>) {
        if self.waits != words {
            self.waits = words;
            out.push(UpdateAction::Event(UpdateNotice::waits(&self.plan, &self.waits)));
        }
        self.wake = Some(until);
    }

    fn arm(&mut self, now: Now) {
        // Each death of the agent before the order is written leads here again.
        if self.plan.trials_of(&self.plan.version, seconds(now), up(now)) >= TRIALS_A_DAY {
            return self.abort(format!("{TRIALS_A_DAY} trials were begun within a day"));
        }
        self.plan.trials.push(seconds(now));
        self.go(UpdatePhase::Arm);
    }

    /// Time since the present step was first asked for.
    fn waited(&self, now: Now) -> Duration {
        self.asked_since.map_or(Duration::ZERO, |since| now.mono.since(since))
    }

    fn finish(&mut self, now: Now) {
        self.plan.finish(seconds(now), &self.config.pauses);
        self.go(UpdatePhase::Idle);
    }

    /// What is found out about a trial that did not end in a commit.
    fn examine(&mut self, now: Now, out: &mut Outbox<UpdateAction>) -> bool {
        let Some(record) = &self.record else { return false };
        let other = record.slot(self.booted.other());
        let words = format!("{}: {}", other.version, other.reason);
        let is_refused = other.state == SlotState::Refused || other.attempts >= ATTEMPTS_MAX;
        match FailedCheck::parse(&other.failed_check) {
            None if is_refused => self.conclude(UpdateEnd::Refused(words), out),
            None => self.conclude(UpdateEnd::Cut(words), out),
            Some(failed) => {
                let limits = self.config.limits;
                let start = || (Examination::new(failed, limits), now.mono);
                let (examination, since) = self.examination.get_or_insert_with(start);
                let end = since.after(examination.longest());
                if now.mono < end {
                    self.wake = Some(end);
                    return false;
                }
                self.plan.awaits = Some(failed.to_string());
                self.conclude(UpdateEnd::Inconclusive(words), out);
            }
        }
        true
    }

    fn conclude(&mut self, end: UpdateEnd, out: &mut Outbox<UpdateAction>) {
        self.plan.end = end;
        self.go(UpdatePhase::Settle);
        if let Some(notice) = UpdateNotice::of_end(&self.plan) {
            out.push(UpdateAction::Event(notice));
        }
    }

    fn gated(
        &mut self,
        now: Now,
        red: BTreeSet<CheckName>,
        verdict: &GateVerdict,
        out: &mut Outbox<UpdateAction>,
    ) {
        if self.is_on_trial() {
            let decision = self.watch.observe(up(now), verdict);
            self.waits = match &decision {
                TrialDecision::Hold { words } => words.clone(),
                _ => String::new(),
            };
            out.push(UpdateAction::Trial(decision));
        }
        if let Some((examination, since)) = &mut self.examination {
            let failed = examination.failed;
            let end = examination.observe(now.mono.since(*since), Some(!red.contains(&failed.check)));
            let other = self.record.as_ref().map(|record| record.slot(self.booted.other()));
            let words =
                other.map_or_else(String::new, |slot| format!("{} {failed}: {}", slot.version, slot.reason));
            match end {
                None => {}
                Some(ExaminationEnd::Refused) => self.conclude(UpdateEnd::Refused(words), out),
                Some(ExaminationEnd::Doubtful) => self.conclude(UpdateEnd::Doubtful(words), out),
                Some(ExaminationEnd::Inconclusive) => {
                    self.plan.awaits = Some(failed.to_string());
                    self.conclude(UpdateEnd::Inconclusive(words), out);
                }
            }
        }
        self.red = Some(red);
    }

    fn answered(&mut self, now: Now, work: UpdateWork, result: WorkResult, out: &mut Outbox<UpdateAction>) {
        let is_refused = matches!(result, WorkResult::Wait(_));
        let words = match result {
            WorkResult::Done => return self.done(now, work),
            WorkResult::Wait(words) | WorkResult::Failed(words) => words,
            WorkResult::Blocked(DrainBlocked { pod, budget }) => {
                format!("pod {pod} cannot be evicted: {budget}")
            }
        };
        // A slot that somebody has given to another node meanwhile is not waited for with an empty node.
        let is_lost = self.plan.phase == UpdatePhase::Confirm && is_refused;
        if is_lost {
            return self.put_off(words);
        }
        if matches!(work, UpdateWork::Arm { .. }) {
            return self.abort(words);
        }
        if work == UpdateWork::Drain && self.waited(now) >= self.config.drain.timeout {
            if self.config.drain.goes_on {
                return self.go(UpdatePhase::Confirm);
            }
            out.push(UpdateAction::Event(UpdateNotice::drain_blocked(&self.plan, &words)));
            return self.abort(words);
        }
        let pause = if matches!(work, UpdateWork::TakeSlot { .. }) { ASK } else { RETRY };
        self.wait(words, now.mono.after(pause), out);
        self.retry_at = self.wake;
    }

    fn done(&mut self, now: Now, work: UpdateWork) {
        self.retry_at = None;
        match work {
            UpdateWork::Save(saved) => self.is_dirty = *saved != self.plan,
            UpdateWork::TakeSlot { .. } if self.plan.phase == UpdatePhase::Confirm => self.arm(now),
            UpdateWork::TakeSlot { .. } => self.go(UpdatePhase::Cordon),
            UpdateWork::Cordon { .. } => self.go(UpdatePhase::Drain),
            UpdateWork::Drain => self.go(UpdatePhase::Confirm),
            UpdateWork::Arm { .. } => {
                self.plan.reboots = self.plan.reboots.saturating_add(1);
                self.go(UpdatePhase::Reboot);
            }
            // The machine ends with the boot.
            UpdateWork::Reboot => self.retry_at = Some(now.mono.after(RETRY)),
            UpdateWork::Withdraw => self.go(UpdatePhase::Uncordon),
            UpdateWork::Uncordon => self.go(UpdatePhase::Release),
            UpdateWork::Settle { .. } => self.go(UpdatePhase::Uncordon),
            UpdateWork::GiveBack { .. } => self.finish(now),
        }
    }

    fn tell(&mut self, out: &mut Outbox<UpdateAction>) {
        let Some(record) = &self.record else { return };
        let shown = UpdateShown::of(&self.plan, record, self.booted, &self.waits);
        if shown != self.shown {
            self.shown = shown.clone();
            out.push(UpdateAction::Show(shown));
        }
    }
}

impl Machine for NodeUpdate {
    type Event = UpdateEvent;
    type Action = UpdateAction;

    fn step(&mut self, now: Now, event: UpdateEvent, out: &mut Outbox<UpdateAction>) {
        match event {
            UpdateEvent::Tick => {}
            UpdateEvent::Record(record) => self.learn(*record, out),
            UpdateEvent::Orders(orders) => (self.orders, self.has_orders) = (orders, true),
            UpdateEvent::Gate { red, verdict } => {
                self.gated(now, red.iter().map(|red| red.check).collect(), &verdict, out);
            }
            UpdateEvent::Answered { step, result } => {
                if let Some((_, work)) = self.in_flight.take_if(|(asked, _)| *asked == step) {
                    self.answered(now, work, result, out);
                }
            }
        }
        self.forget_spent();
        self.advance(now, out);
        self.tell(out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.wake
    }
}
