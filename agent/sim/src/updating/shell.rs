//! The shell of a node: what starts its machine and carries out what the machine asks for, down to the writes of its disk.
//!
//! In: the node's number. Out: events of the machine, changes of disk and cluster, or a cut of the power. Checks COMMIT-TRUE and
//! RETURN-NAMED.

use agent_core::node_update::check::CheckName;
use agent_core::node_update::plan::UpdatePhase;
use agent_core::node_update::{NodeUpdate, UpdateAction, UpdateEvent, UpdateWork, WorkResult};
use agent_types::machine::{Machine, Outbox};
use orlop_config::slots::{SlotName, SlotState};
use orlop_init::plan::arbiter::{EspPatch, activate};
use orlop_init::plan::esp_names::EntryState;
use orlop_init::plan::guard::GuardStep;

use super::disk::{Stop, UKI_BYTES};
use super::node::{Pending, SimNode};
use super::releases::{Quality, away, violation};
use super::{UpdatingDefect, World};

/// Time between two looks of gate and guard, seconds: in the first quarter of an hour and in an examination; while a trial is
/// held; while a check is awaited.
const LOOK_S: u64 = 20;
const HOLD_LOOK_S: u64 = 60;
const AWAITED_LOOK_S: u64 = 300;
/// The first quarter of an hour, seconds.
const BOOT_S: u64 = 900;

impl World {
    /// The agent starts, unless this version's never does.
    pub(super) fn start(&mut self, index: usize) -> Result<(), Stop> {
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

    pub(super) fn step(&mut self, index: usize, event: UpdateEvent) -> Result<(), Stop> {
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

    pub(super) fn look(&mut self, index: usize) -> Result<(), Stop> {
        let mut red = if self.fleet.away_s > self.now { away() } else { Default::default() };
        if self.fleet.dns_away_s > self.now {
            red.insert(CheckName::Dns);
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
    pub(super) fn complete(&mut self, index: usize, pending: Pending) -> Result<(), Stop> {
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
            UpdateWork::TakeSlot { .. } | UpdateWork::GiveBack { .. } if read.is_none() => {
                WorkResult::Failed("the API server was away".to_owned())
            }
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
    pub(super) fn stage(&mut self, index: usize) -> Result<(), Stop> {
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
}
