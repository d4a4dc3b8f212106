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
mod shell;

use agent_core::node_update::plan::{TRIALS_A_DAY, UpdatePhase};
use agent_core::node_update::{Coordination, NodeUpdate, UpdateConfig, UpdateEvent};
use orlop_config::slots::SlotState;
use orlop_init::plan::guard::TrialGuard;

use crate::checks::Violation;
use crate::rng::Rng;

use disk::{Disk, Stop};
use fleet::Fleet;
use node::SimNode;
use releases::{Quality, Release, SlotContent, violation};

const NODES: usize = 3;
const HOUR_S: u64 = 3600;
const DAY_S: u64 = 24 * HOUR_S;
const STORM_S: u64 = 40 * HOUR_S;
/// Time until every node has to run the last release, after the storm.
const CALM_S: u64 = 5 * DAY_S;
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
    /// A node goes on without a slot of its group (PERMIT).
    TakesNoForYes,
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
            if !dies_early && (!boot.trial || boot.slot != *slot) {
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
