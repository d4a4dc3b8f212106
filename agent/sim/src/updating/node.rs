//! A node of the fleet: its disk, the machine of the updates, the guard of a trial, and what it shows.
//!
//! In: time, work of the machine. Out: events of the machine, reboots. The shell's parts that need the cluster are in `fleet`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use agent_core::node_update::check::{CheckName, CheckSeen, FailedCheck, GateFacts, GatePod, TrialFault};
use agent_core::node_update::gate::{GateRules, GateVerdict, gate, verdict};
use agent_core::node_update::plan::UpdatePlan;
use agent_core::node_update::report::UpdateShown;
use agent_core::node_update::semaphore::RebootMap;
use agent_core::node_update::watch::TrialDecision;
use agent_core::node_update::{NodeUpdate, UpdateEvent, UpdateOrders, UpdateWork};
use agent_types::machine::Machine;
use agent_types::time::{Mono, Now, Wall};
use orlop_config::slots::SlotName;
use orlop_init::plan::guard::{GuardVerdict, GuardWord, TrialGuard};

use super::UpdatingDefect;
use super::disk::Disk;

/// 30 November 2026.
const EPOCH_S: u64 = 1_795_996_800;

/// Work that the shell has begun.
pub(super) struct Pending {
    pub(super) step: u64,
    pub(super) work: UpdateWork,
    /// The ConfigMap as it was read when the work began.
    pub(super) read: Option<RebootMap>,
    pub(super) at: u64,
}

pub(super) struct SimNode {
    pub(super) name: String,
    pub(super) disk: Disk,
    pub(super) plan: Option<UpdatePlan>,
    pub(super) baseline: GateFacts,
    pub(super) boot_s: u64,
    /// The agent starts at this time.
    pub(super) up_s: Option<u64>,
    pub(super) booted: SlotName,
    pub(super) trial: bool,
    pub(super) machine: Option<NodeUpdate>,
    pub(super) events: VecDeque<UpdateEvent>,
    pub(super) pending: Option<Pending>,
    pub(super) guard: Option<TrialGuard>,
    pub(super) word: Option<GuardWord>,
    /// The next look of gate and guard.
    pub(super) look_s: u64,
    /// The next look of the updater.
    pub(super) stage_s: u64,
    pub(super) unschedulable: bool,
    /// Cordoned for an update.
    pub(super) annotated: bool,
    pub(super) by_operator: bool,
    pub(super) paused: bool,
    /// All checks pass since.
    pub(super) green_s: Option<u64>,
    pub(super) shown: UpdateShown,
    /// The check for which the last trial ended, until the old slot has shown it.
    pub(super) returned: Option<String>,
    /// Trials by version: their times.
    pub(super) trials: BTreeMap<String, Vec<u64>>,
    /// Trials that the power has cut, by version.
    pub(super) cuts: BTreeMap<String, u32>,
}

impl SimNode {
    pub(super) fn new(name: String, disk: Disk) -> SimNode {
        SimNode {
            name,
            disk,
            plan: Some(UpdatePlan::default()),
            baseline: GateFacts::default(),
            boot_s: 0,
            up_s: Some(1),
            booted: SlotName::A,
            trial: false,
            machine: None,
            events: VecDeque::new(),
            pending: None,
            guard: None,
            word: None,
            look_s: 0,
            stage_s: 0,
            unschedulable: false,
            annotated: false,
            by_operator: false,
            paused: false,
            green_s: None,
            shown: UpdateShown::default(),
            returned: None,
            trials: BTreeMap::new(),
            cuts: BTreeMap::new(),
        }
    }

    pub(super) fn time(&self, now: u64) -> Now {
        let mono = Mono(now.saturating_sub(self.boot_s).saturating_mul(1_000_000_000));
        let wall = (EPOCH_S + now).saturating_mul(1_000_000_000);
        Now { mono, wall: Wall(i64::try_from(wall).unwrap_or(i64::MAX)) }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up_s.is_none()
    }

    /// When something happens to this node by itself.
    pub(super) fn next_s(&self, now: u64) -> u64 {
        if let Some(up) = self.up_s {
            return up.max(now);
        }
        if !self.events.is_empty() {
            return now;
        }
        let deadline = self.machine.as_ref().and_then(NodeUpdate::deadline);
        let deadline = deadline.map(|at| self.boot_s + at.0.div_ceil(1_000_000_000));
        let pending = self.pending.as_ref().map(|pending| pending.at);
        let looks = self.guard.is_some() || self.machine.as_ref().is_some_and(NodeUpdate::wants_gate);
        let look = looks.then_some(self.look_s);
        [deadline, pending, look, Some(self.stage_s)].into_iter().flatten().min().unwrap_or(now).max(now)
    }

    /// What the node sees of itself, with these checks red.
    pub(super) fn facts(red: &BTreeSet<CheckName>) -> GateFacts {
        let seen = |check: CheckName| {
            if red.contains(&check) {
                CheckSeen::Red("the simulator says so".to_owned())
            } else {
                CheckSeen::Green
            }
        };
        let pod = GatePod { name: "kube-system/etcd".to_owned(), seen: seen(CheckName::StaticPods) };
        GateFacts {
            checks: CheckName::ALL.into_iter().map(|check| (check, seen(check))).collect(),
            static_pods: BTreeMap::from([("etcd".to_owned(), pod)]),
            api_pods: Some(BTreeMap::new()),
            api_certificate: Some("aa".to_owned()),
        }
    }

    /// The gate of now, as an event.
    pub(super) fn gate(&mut self, now: u64, red: &BTreeSet<CheckName>, defect: Option<UpdatingDefect>) {
        if red.is_empty() {
            self.green_s.get_or_insert(now);
        } else {
            self.green_s = None;
        }
        let facts = SimNode::facts(red);
        let found = gate(&GateRules::default(), &self.baseline, &facts);
        let judged = match (verdict(&found, &self.baseline, &facts), defect) {
            (_, Some(UpdatingDefect::CommitsBlindly)) => GateVerdict::Green,
            (GateVerdict::Red { failed, words }, Some(UpdatingDefect::BlamesTheVersion)) => {
                let failed = FailedCheck { fault: TrialFault::Slot, ..failed };
                GateVerdict::Red { failed, words }
            }
            (judged, _) => judged,
        };
        self.events.push_back(UpdateEvent::Gate { red: found, verdict: judged });
    }

    /// The agent's word for the guard.
    pub(super) fn say(&mut self, now: u64, decision: TrialDecision) {
        let verdict = match decision {
            TrialDecision::Wait | TrialDecision::Hold { .. } => GuardVerdict::Wait,
            TrialDecision::Commit => GuardVerdict::Commit,
            TrialDecision::Return { failed, words } => {
                GuardVerdict::Return { check: failed.to_string(), words }
            }
        };
        self.word = Some(GuardWord { up_s: now.saturating_sub(self.boot_s), verdict });
    }

    pub(super) fn orders(&self) -> UpdateOrders {
        UpdateOrders { is_paused: self.paused, update_to: None, permit: None }
    }

    pub(super) fn tell_record(&mut self) {
        self.events.push_back(UpdateEvent::Record(Box::new(self.disk.record.clone())));
    }

    /// Everything that was in memory is gone.
    pub(super) fn forget(&mut self) {
        (self.machine, self.pending, self.guard, self.word) = (None, None, None, None);
        self.events.clear();
        self.green_s = None;
    }
}
