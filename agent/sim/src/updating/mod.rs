//! Three nodes that update themselves: machine, gate, semaphore, guard and arbiter as they are, against disks whose writes tear, a
//! loader, a cluster that is away, a budget, versions that are broken, and operators.
//!
//! ```text
//! chance ─► power cut │ agent dies │ API away │ operator │ a release ─► nodes: NodeUpdate ─► fleet (semaphore, drain)
//!                                                                         ├► TrialGuard ─► boot record, ESP ─┐
//!                                                                         └► reboot ─► loader ─► arbiter ◄───┘
//! ```
//! In: a seed, an [`UpdatingDefect`]. Out: the first violation. After a storm of days everything heals, a good release is
//! published, and every node has to run it. Invariants: BOOTABLE (a good, whole slot is visible after each write), ONE-SLOT-WRITE
//! (only a hidden slot that is not desired is overwritten), NO-LOOP (at most three trials of a version in a day, bounded resets),
//! COMMIT-TRUE (only a version without fault is committed, after a green soak), CLUSTER-FAULT (no version without fault is
//! refused, unless the power cut three of its trials), RETURN-NAMED (a node that came back shows the check), FLOOR-MONO, PERMIT
//! (one node on trial at a time, none while the group is halted), UNCORDON (at rest a node is unschedulable only for its
//! operator), PROGRESS.

mod disk;
mod fleet;
mod node;
mod releases;

use agent_core::node_update::plan::{TRIALS_A_DAY, UpdatePhase};
use agent_core::node_update::{
    Coordination, NodeUpdate, UpdateAction, UpdateConfig, UpdateEvent, UpdateWork, WorkResult,
};
use agent_types::machine::{Machine, Outbox};
use orlop_config::slots::{SlotName, SlotState};
use orlop_init::plan::arbiter::{EspPatch, activate};
use orlop_init::plan::esp_names::EntryState;
use orlop_init::plan::guard::{GuardStep, TrialGuard};

use crate::checks::Violation;
use crate::rng::Rng;

use disk::{Disk, Stop, UKI_BYTES};
use fleet::Fleet;
use node::{Pending, SimNode};
use releases::{Quality, Release, SlotContent, away, violation};

const NODES: usize = 3;
const HOUR_S: u64 = 3600;
const DAY_S: u64 = 24 * HOUR_S;
const STORM_S: u64 = 40 * HOUR_S;
/// Time until every node has to run the last release, after the storm.
const CALM_S: u64 = 5 * DAY_S;
/// Time between two looks of gate and guard, seconds: in the first quarter of an hour and in an examination; while a trial is
/// held; while a check is awaited.
const LOOK_S: u64 = 20;
const HOLD_LOOK_S: u64 = 60;
const AWAITED_LOOK_S: u64 = 300;
/// The first quarter of an hour, seconds.
const BOOT_S: u64 = 900;
/// Events of a run, at most.
const EVENTS_MAX: u64 = 2_000_000;
/// Writes of a disk that the power cuts, in a thousand.
const CUTS: u64 = 15;

/// A planted defect, one for each invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdatingDefect {
    /// An activation hides the slot that runs (BOOTABLE).
    ActivatesAlone,
    /// The updater writes the slot that runs (ONE-SLOT-WRITE).
    WritesTheRunning,
    /// Attempts, trials and pauses are forgotten (NO-LOOP).
    ForgetsTrials,
    /// The gate is always green (COMMIT-TRUE).
    CommitsBlindly,
    /// Every red check is the version's fault (CLUSTER-FAULT).
    BlamesTheVersion,
    /// A return has no reason (RETURN-NAMED).
    LosesTheReason,
    /// A commit lowers the floor (FLOOR-MONO).
    LowersTheFloor,
    /// The ConfigMap is written over newer ones (PERMIT).
    IgnoresConflicts,
    /// The node stays cordoned (UNCORDON).
    ForgetsTheCordon,
}

/// Result of a run without violation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdatingOutcome {
    /// Number of events.
    pub events: u64,
    /// Versions that were committed.
    pub commits: u32,
    /// Trials that ended in a return.
    pub returns: u32,
    /// Versions that were refused.
    pub refusals: u32,
    /// Power cuts.
    pub power_cuts: u32,
    /// Writes of the ConfigMap that were refused.
    pub conflicts: u32,
    /// Evictions that the budget forbade.
    pub blocked: u32,
}

struct World {
    rng: Rng,
    now: u64,
    defect: Option<UpdatingDefect>,
    storm: bool,
    config: UpdateConfig,
    nodes: Vec<SimNode>,
    fleet: Fleet,
    releases: Vec<Release>,
    chaos_s: u64,
    outcome: UpdatingOutcome,
}

/// Runs a storm, then a time without faults.
///
/// # Errors
/// The first broken invariant.
pub fn run_updating(seed: u64, defect: Option<UpdatingDefect>) -> Result<UpdatingOutcome, Violation> {
    let mut world = World::new(seed, defect);
    while world.now < STORM_S {
        world.event()?;
    }
    world.heal()?;
    while !world.is_at_rest() {
        if world.now > STORM_S + CALM_S {
            return Err(world.stuck());
        }
        world.event()?;
    }
    world.last_checks()?;
    Ok(world.outcome)
}

impl World {
    fn new(seed: u64, defect: Option<UpdatingDefect>) -> World {
        let rng = Rng::new(seed ^ 0x7570_6461_7465);
        let first = Release { version: "1.0.0".to_owned(), generation: 0, quality: Quality::Good };
        let node = |number: usize| SimNode::new(format!("node-{number}"), Disk::new(first.content(true)));
        let nodes = (0..NODES).map(node).collect();
        let config = UpdateConfig {
            is_automatic: true,
            coordination: Coordination::Shared,
            ..UpdateConfig::default()
        };
        World {
            rng,
            now: 0,
            defect,
            storm: true,
            config,
            nodes,
            fleet: Fleet::new(),
            releases: vec![first],
            chaos_s: 60,
            outcome: UpdatingOutcome::default(),
        }
    }

    fn cuts(&self) -> u64 {
        if self.storm { CUTS } else { 0 }
    }

    fn quality(&self, version: &str) -> Quality {
        let release = self.releases.iter().find(|release| release.version == version);
        release.map_or(Quality::Good, |release| release.quality)
    }

    fn event(&mut self) -> Result<(), Violation> {
        self.outcome.events += 1;
        if self.outcome.events > EVENTS_MAX {
            return Err(self.stuck());
        }
        let times = self.nodes.iter().enumerate().map(|(index, node)| (node.next_s(self.now), index));
        let (at, index) = times.min().unwrap_or((self.chaos_s, 0));
        if self.chaos_s <= at {
            self.now = self.now.max(self.chaos_s);
            self.chaos()?;
        } else {
            self.now = self.now.max(at);
            match self.serve(index) {
                Ok(()) => {}
                Err(Stop::PowerCut) => self.power_cut(index)?,
                Err(Stop::Broken(broken)) => return Err(broken),
            }
        }
        let takes: Vec<bool> = self.nodes.iter().map(|node| node.is_up() && !node.unschedulable).collect();
        self.fleet.schedule(&takes);
        self.judge(index)
    }

    /// Checks PERMIT, UNCORDON and CLUSTER-FAULT.
    fn judge(&self, index: usize) -> Result<(), Violation> {
        let on_trial: Vec<&str> =
            self.nodes.iter().filter(|node| node.trial).map(|node| node.name.as_str()).collect();
        if on_trial.len() > 1 {
            return Err(violation("PERMIT", format!("on trial at the same time: {on_trial:?}")));
        }
        let node = &self.nodes[index];
        let idle = node.machine.as_ref().is_some_and(|machine| machine.plan().phase == UpdatePhase::Idle);
        if idle && node.annotated && node.pending.is_none() && node.events.is_empty() && node.is_up() {
            return Err(violation("UNCORDON", format!("{} stays cordoned after an update", node.name)));
        }
        let other = node.disk.record.slot(node.booted.other());
        let is_good = self.quality(&other.version) == Quality::Good;
        let cuts = node.cuts.get(&other.version).copied().unwrap_or(0);
        if other.state == SlotState::Refused && is_good && cuts < 3 {
            return Err(violation(
                "CLUSTER-FAULT",
                format!("{} is refused: {}", other.version, other.reason),
            ));
        }
        Ok(())
    }

    fn serve(&mut self, index: usize) -> Result<(), Stop> {
        let now = self.now;
        let node = &mut self.nodes[index];
        if let Some(up) = node.up_s {
            return if up <= now { self.start(index) } else { Ok(()) };
        }
        if let Some(event) = node.events.pop_front() {
            return self.step(index, event);
        }
        if let Some(pending) = node.pending.take_if(|pending| pending.at <= now) {
            return self.complete(index, pending);
        }
        let looks = node.guard.is_some() || node.machine.as_ref().is_some_and(NodeUpdate::wants_gate);
        if looks && node.look_s <= now {
            return self.look(index);
        }
        if node.stage_s <= now {
            node.stage_s = now + self.rng.between(300, 1800);
            return self.stage(index);
        }
        node.events.push_back(UpdateEvent::Tick);
        Ok(())
    }

    /// The agent starts, unless this version's never does.
    fn start(&mut self, index: usize) -> Result<(), Stop> {
        let cuts = self.cuts();
        let version = self.nodes[index].disk.content(self.nodes[index].booted).version.clone();
        let is_silent = self.quality(&version) == Quality::Silent;
        let node = &mut self.nodes[index];
        node.up_s = None;
        (node.pending, node.machine) = (None, None);
        node.events.clear();
        (node.look_s, node.stage_s) = (self.now, self.now + self.rng.between(30, 300));
        if !is_silent {
            let booted = node.booted;
            let ready = node.disk.changed(|record| record.boot_is_ready(booted));
            if ready != node.disk.record {
                node.disk.write_record(&ready, &mut self.rng, cuts)?;
            }
            node.machine = Some(NodeUpdate::new(self.config.clone(), node.booted, node.plan.clone()));
            node.tell_record();
            let orders = node.orders();
            node.events.push_front(UpdateEvent::Orders(orders));
        }
        Ok(())
    }

    fn step(&mut self, index: usize, event: UpdateEvent) -> Result<(), Stop> {
        let node = &mut self.nodes[index];
        let time = node.time(self.now);
        let Some(machine) = &mut node.machine else { return Ok(()) };
        let mut out = Outbox::new();
        machine.step(time, event, &mut out);
        for action in out.drain().collect::<Vec<_>>() {
            let node = &mut self.nodes[index];
            match action {
                UpdateAction::Do { step, work } => {
                    let reads = matches!(work, UpdateWork::TakeSlot { .. } | UpdateWork::GiveBack { .. });
                    let is_there = self.fleet.away_s <= self.now;
                    let read = (reads && is_there).then(|| self.fleet.map.clone());
                    let at = self.now + self.rng.between(1, 5);
                    node.pending = Some(Pending { step, work, read, at });
                }
                UpdateAction::Trial(decision) => {
                    node.say(self.now, decision);
                    self.guard(index)?;
                    if !self.nodes[index].is_up() {
                        // The machine has ended with its boot.
                        return Ok(());
                    }
                }
                UpdateAction::Show(shown) => {
                    let is_back = !node.trial;
                    if let Some(check) = node.returned.take_if(|_| is_back)
                        && !shown.failed.as_ref().is_some_and(|words| words.contains(&check))
                    {
                        let detail = format!("{} came back for {check} and shows {shown:?}", node.name);
                        return Err(violation("RETURN-NAMED", detail).into());
                    }
                    node.shown = shown;
                }
                UpdateAction::Event(_) => {}
            }
        }
        Ok(())
    }

    fn look(&mut self, index: usize) -> Result<(), Stop> {
        let mut red = if self.fleet.away_s > self.now { away() } else { Default::default() };
        if self.fleet.dns_away_s > self.now {
            red.insert(agent_core::node_update::check::CheckName::Dns);
        }
        let node = &self.nodes[index];
        if let Quality::Fails(check) = self.quality(&node.disk.content(node.booted).version) {
            red.insert(check);
        }
        let node = &mut self.nodes[index];
        let examines =
            node.machine.as_ref().is_some_and(|machine| machine.plan().phase == UpdatePhase::Examine);
        let is_new = node.trial && self.now.saturating_sub(node.boot_s) < BOOT_S;
        node.look_s = self.now
            + match (is_new || examines, node.trial) {
                (true, _) => LOOK_S,
                (false, true) => HOLD_LOOK_S,
                (false, false) => AWAITED_LOOK_S,
            };
        if node.machine.as_ref().is_some_and(NodeUpdate::wants_gate) {
            node.gate(self.now, &red, self.defect);
        }
        self.guard(index)
    }

    fn guard(&mut self, index: usize) -> Result<(), Stop> {
        let node = &mut self.nodes[index];
        let Some(guard) = &mut node.guard else { return Ok(()) };
        match guard.step(self.now.saturating_sub(node.boot_s), node.word.clone()) {
            GuardStep::Wait(_) => Ok(()),
            GuardStep::Commit => self.commit(index),
            GuardStep::Return { check, words } => self.comes_back(index, &check, &words),
        }
    }

    fn commit(&mut self, index: usize) -> Result<(), Stop> {
        let (cuts, defect) = (self.cuts(), self.defect);
        let node = &self.nodes[index];
        let version = node.disk.content(node.booted).version.clone();
        let soaked = node.green_s.is_some_and(|since| self.now - since >= self.config.limits.soak.as_secs());
        if self.quality(&version) != Quality::Good || !soaked {
            let detail = format!("{} commits {version}, green since {:?}", node.name, node.green_s);
            return Err(violation("COMMIT-TRUE", detail).into());
        }
        let node = &mut self.nodes[index];
        let (booted, mut done) = (node.booted, Ok(()));
        let floor = node.disk.record.floor;
        let record = node.disk.changed(|record| {
            done = record.commit_trial(booted, None);
            if defect == Some(UpdatingDefect::LowersTheFloor) && floor > 0 {
                record.floor = 0;
            }
        });
        done.map_err(|e| violation("COMMIT-TRUE", e.to_string()))?;
        self.outcome.commits += 1;
        node.disk.write_record(&record, &mut self.rng, cuts)?;
        (node.trial, node.guard) = (false, None);
        node.disk.agree(booted, &mut self.rng, cuts)?;
        node.tell_record();
        Ok(())
    }

    fn comes_back(&mut self, index: usize, check: &str, words: &str) -> Result<(), Stop> {
        let cuts = self.cuts();
        let loses = self.defect == Some(UpdatingDefect::LosesTheReason);
        let node = &mut self.nodes[index];
        let (booted, mut done) = (node.booted, Ok(()));
        let said = if loses { ("", "") } else { (check, words) };
        let record = node.disk.changed(|record| done = record.return_from_trial(booted, said.0, said.1));
        done.map_err(|e| violation("RETURN-NAMED", e.to_string()))?;
        self.outcome.returns += 1;
        node.disk.write_record(&record, &mut self.rng, cuts)?;
        node.returned = Some(check.to_owned());
        node.trial = false;
        node.disk.agree(booted, &mut self.rng, cuts)?;
        Ok(self.reboot(index)?)
    }

    /// What the shell has begun is done, or fails.
    fn complete(&mut self, index: usize, pending: Pending) -> Result<(), Stop> {
        let Pending { step, work, read, .. } = pending;
        let is_away = self.fleet.away_s > self.now;
        let (cuts, defect) = (self.cuts(), self.defect);
        let up: Vec<bool> = self.nodes.iter().map(SimNode::is_up).collect();
        let node = &mut self.nodes[index];
        let needs_api = !matches!(
            work,
            UpdateWork::Save(_) | UpdateWork::Reboot | UpdateWork::Withdraw | UpdateWork::Settle { .. }
        );
        let result = match work {
            _ if is_away && needs_api => WorkResult::Failed("the API server is away".to_owned()),
            UpdateWork::Save(mut plan) => {
                if defect == Some(UpdatingDefect::ForgetsTrials) {
                    plan.trials.clear();
                    plan.not_before = 0;
                }
                if self.rng.chance(cuts) {
                    return Err(Stop::PowerCut);
                }
                node.plan = Some(*plan);
                WorkResult::Done
            }
            UpdateWork::TakeSlot { update } => {
                let read = read.unwrap_or_default();
                self.fleet.semaphore(&read, (node.name.as_str(), update.as_str()), None, defect)
            }
            UpdateWork::GiveBack { update, failure } => {
                let read = read.unwrap_or_default();
                self.fleet.semaphore(
                    &read,
                    (node.name.as_str(), update.as_str()),
                    Some(failure.as_deref()),
                    defect,
                )
            }
            UpdateWork::Cordon { .. } => {
                if !node.unschedulable {
                    (node.unschedulable, node.annotated) = (true, true);
                }
                WorkResult::Done
            }
            UpdateWork::Drain => self.fleet.drain(index, &up),
            UpdateWork::Arm { update, deadline } => {
                let seconds = u32::try_from(deadline.as_secs()).unwrap_or(u32::MAX);
                self.arm(index, &update, seconds)?
            }
            UpdateWork::Reboot => return Ok(self.reboot(index)?),
            UpdateWork::Withdraw => {
                let booted = node.booted;
                let record = node.disk.changed(|record| record.withdraw_trial(booted));
                node.disk.write_record(&record, &mut self.rng, cuts)?;
                node.disk.agree(booted, &mut self.rng, cuts)?;
                WorkResult::Done
            }
            UpdateWork::Uncordon => {
                if node.annotated && defect != Some(UpdatingDefect::ForgetsTheCordon) {
                    (node.unschedulable, node.annotated) = (false, false);
                }
                WorkResult::Done
            }
            UpdateWork::Settle { refused } => {
                let booted = node.booted;
                self.outcome.refusals += u32::from(refused.is_some());
                let record = node.disk.changed(|record| record.settle_trial(booted, refused.as_deref()));
                node.disk.write_record(&record, &mut self.rng, cuts)?;
                node.disk.agree(booted, &mut self.rng, cuts)?;
                WorkResult::Done
            }
        };
        self.outcome.blocked += u32::from(matches!(result, WorkResult::Blocked(_)));
        self.outcome.conflicts +=
            u32::from(matches!(&result, WorkResult::Failed(words) if words.contains("modified")));
        let node = &mut self.nodes[index];
        node.events.push_back(UpdateEvent::Answered { step, result });
        node.tell_record();
        Ok(())
    }

    /// Writes the baseline, orders the trial, and shows the slot.
    fn arm(&mut self, index: usize, update: &str, deadline_s: u32) -> Result<WorkResult, Stop> {
        let cuts = self.cuts();
        let node = &mut self.nodes[index];
        let booted = node.booted;
        node.baseline = SimNode::facts(&Default::default());
        let mut done = Ok(());
        let record = node.disk.changed(|record| done = record.order_trial(booted, update, deadline_s));
        if let Err(e) = done {
            return Ok(WorkResult::Failed(e.to_string()));
        }
        node.disk.write_record(&record, &mut self.rng, cuts)?;
        let Some(patches) = activate(&node.disk.record, booted, &node.disk.esp) else {
            return Ok(WorkResult::Failed("the ESP does not have the slot".to_owned()));
        };
        for patch in patches {
            node.disk.patch(patch, &mut self.rng, cuts)?;
        }
        if self.defect == Some(UpdatingDefect::ActivatesAlone) {
            let hidden = EspPatch { slot: booted, state: EntryState::Hidden, bytes: UKI_BYTES };
            node.disk.patch(hidden, &mut self.rng, cuts)?;
        }
        Ok(WorkResult::Done)
    }

    /// The updater writes the newest release into the other slot.
    fn stage(&mut self, index: usize) -> Result<(), Stop> {
        let cuts = self.cuts();
        let Some(release) = self.releases.last().cloned() else { return Ok(()) };
        let node = &mut self.nodes[index];
        let idle = node.machine.as_ref().is_some_and(|machine| machine.plan().phase == UpdatePhase::Idle);
        let booted = node.booted;
        let has = SlotName::ALL.into_iter().any(|slot| {
            let record = node.disk.record.slot(slot);
            record.version == release.version && record.state != SlotState::Writing
        });
        if !idle || node.pending.is_some() || has || !node.disk.is_free(booted) {
            return Ok(());
        }
        let slot = booted.other();
        let record = node.disk.changed(|record| {
            let slot = record.slot_mut(slot);
            (slot.state, slot.attempts) = (SlotState::Writing, 0);
            slot.version.clone_from(&release.version);
            slot.roothash.clone_from(&release.version);
            slot.reason.clear();
            (slot.generation, slot.uki_bytes) = (release.generation, u64::from(UKI_BYTES));
        });
        node.disk.write_record(&record, &mut self.rng, cuts)?;
        node.disk.agree(booted, &mut self.rng, cuts)?;
        let runs = self.defect == Some(UpdatingDefect::WritesTheRunning);
        let written = if runs { booted } else { slot };
        for is_whole in [false, true] {
            node.disk.write_slot(written, release.content(is_whole))?;
            if self.rng.chance(cuts) {
                return Err(Stop::PowerCut);
            }
        }
        let record = node.disk.changed(|record| record.slot_mut(slot).state = SlotState::Staged);
        node.disk.write_record(&record, &mut self.rng, cuts)?;
        node.tell_record();
        Ok(())
    }

    fn power_cut(&mut self, index: usize) -> Result<(), Violation> {
        self.outcome.power_cuts += 1;
        let node = &mut self.nodes[index];
        if node.trial {
            let version = node.disk.content(node.booted).version.clone();
            *node.cuts.entry(version).or_default() += 1;
        }
        self.reboot(index)
    }

    fn reboot(&mut self, index: usize) -> Result<(), Violation> {
        let (cuts, now) = (self.cuts(), self.now);
        let is_halted = self.fleet.halted();
        let node = &mut self.nodes[index];
        node.forget();
        let boot = node.disk.boot(&mut self.rng, cuts)?;
        for slot in &boot.tried {
            let SlotContent { version, dies_early, .. } = node.disk.content(*slot).clone();
            if !dies_early && !(boot.trial && boot.slot == *slot) {
                *node.cuts.entry(version.clone()).or_default() += 1;
            }
            if let Some(why) = &is_halted {
                let detail = format!("{} tries {version} while its group is halted: {why}", node.name);
                return Err(violation("PERMIT", detail));
            }
            let times = node.trials.entry(version).or_default();
            times.push(now);
            // An hour less: a reboot takes its time.
            if times.iter().filter(|at| **at + DAY_S - HOUR_S > now).count() > TRIALS_A_DAY {
                return Err(violation("NO-LOOP", format!("{}: {:?}", node.name, node.trials)));
            }
        }
        (node.booted, node.trial, node.boot_s) = (boot.slot, boot.trial, now + 10);
        node.up_s = Some(now + self.rng.between(20, 90));
        node.guard = boot.trial.then(|| {
            let deadline = node.disk.record.trial.as_ref().map_or(0, |trial| trial.deadline_s);
            TrialGuard::new(u64::from(deadline))
        });
        if boot.trial && self.storm && self.rng.chance(150) {
            self.fleet.away_s = now + self.rng.between(60, 2400);
        }
        if self.defect == Some(UpdatingDefect::ForgetsTrials) {
            let other = boot.slot.other();
            let record = node.disk.changed(|record| record.slot_mut(other).attempts = 0);
            match node.disk.write_record(&record, &mut self.rng, 0) {
                Err(Stop::Broken(broken)) => return Err(broken),
                Ok(()) | Err(Stop::PowerCut) => {}
            }
        }
        Ok(())
    }

    fn chaos(&mut self) -> Result<(), Violation> {
        self.chaos_s = self.now + if self.storm { self.rng.between(300, 5400) } else { HOUR_S };
        if !self.storm {
            self.fleet.let_go();
            return Ok(());
        }
        let trial = self.nodes.iter().position(|node| node.trial);
        let any = usize::try_from(self.rng.below(NODES as u64)).unwrap_or(0);
        let index = trial.filter(|_| self.rng.chance(500)).unwrap_or(any);
        let node = &mut self.nodes[index];
        match self.rng.below(14) {
            0 | 1 => return self.power_cut(index),
            2 | 3 if node.is_up() => node.up_s = Some(self.now + self.rng.between(1, 20)),
            4 | 5 => {
                let most = if self.rng.chance(300) { 10 * HOUR_S } else { HOUR_S };
                self.fleet.away_s = self.now + self.rng.between(60, most);
                if self.rng.chance(300) {
                    self.fleet.dns_away_s = self.fleet.away_s;
                }
            }
            6 if !node.unschedulable => (node.unschedulable, node.by_operator) = (true, true),
            6 | 7 if node.by_operator => (node.unschedulable, node.by_operator) = (false, false),
            8 | 9 => {
                node.paused = !node.paused && self.rng.chance(400);
                let orders = node.orders();
                node.events.push_back(UpdateEvent::Orders(orders));
            }
            10 | 11 => self.fleet.let_go(),
            12 | 13 => self.publish(false),
            _ => {}
        }
        Ok(())
    }

    fn publish(&mut self, is_good: bool) {
        let number = self.releases.len() as u64;
        let release = Release::draw(number, &mut self.rng, is_good);
        self.releases.push(release);
        // Everybody looks at once.
        for node in self.nodes.iter_mut().filter(|node| node.is_up()) {
            node.stage_s = self.now + self.rng.between(1, 4);
        }
    }

    fn heal(&mut self) -> Result<(), Violation> {
        self.storm = false;
        (self.fleet.away_s, self.fleet.dns_away_s, self.chaos_s) = (0, 0, self.now);
        for node in &mut self.nodes {
            if node.by_operator {
                (node.unschedulable, node.by_operator) = (false, false);
            }
            node.paused = false;
            let orders = node.orders();
            node.events.push_back(UpdateEvent::Orders(orders));
        }
        for index in 0..NODES {
            // It runs the other slot, because the power was cut in several boots one after the other.
            let node = &self.nodes[index];
            if !node.trial && node.booted != node.disk.record.desired {
                self.reboot(index)?;
            }
        }
        self.publish(true);
        Ok(())
    }

    /// Every node runs the last release, and nothing is under way.
    fn is_at_rest(&self) -> bool {
        let last = self.releases.last().map(|release| release.version.as_str()).unwrap_or_default();
        let rests = |node: &SimNode| {
            let idle = node.machine.as_ref().is_some_and(|machine| machine.plan().phase == UpdatePhase::Idle);
            let runs = node.disk.content(node.booted).version == last;
            let quiet = node.pending.is_none() && node.events.is_empty() && node.is_up() && !node.trial;
            idle && runs && quiet && node.disk.record.desired == node.booted
        };
        self.nodes.iter().all(rests)
    }

    fn last_checks(&self) -> Result<(), Violation> {
        for node in &self.nodes {
            if node.unschedulable != node.by_operator || node.annotated {
                return Err(violation("UNCORDON", format!("{} stays unschedulable", node.name)));
            }
            if let Some(words) = &node.shown.failed {
                return Err(violation("PROGRESS", format!("{} shows {words} after a commit", node.name)));
            }
        }
        let holders = self.fleet.holders();
        if !holders.is_empty() {
            return Err(violation("PERMIT", format!("at rest {holders:?} hold slots")));
        }
        Ok(())
    }

    fn stuck(&self) -> Violation {
        let told = |node: &SimNode| {
            let plan = node.machine.as_ref().map(|machine| machine.plan().clone());
            format!("{} in {}: {plan:?}, {:?}", node.name, node.booted, node.disk.record)
        };
        let nodes: Vec<String> = self.nodes.iter().map(told).collect();
        violation("PROGRESS", format!("at {} s: {nodes:?}; halted: {:?}", self.now, self.fleet.halted()))
    }
}
