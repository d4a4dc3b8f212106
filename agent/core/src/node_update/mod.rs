//! node_update: from a staged version to its commit or its return, and the order in which the nodes of a cluster go.
//!
//! ```text
//! staged → window → permit → cordon → evict → confirm → arm → reboot → (trial) → commit ──► uncordon → permit back
//!                                                                        └─► return ─► examine → settle ──┘
//! ```
//! # For the shell
//! Read the boot record and the plan, create [`NodeUpdate`], and send [`UpdateEvent::Record`] first, again after each change of
//! the record by another component (the updater has staged a version, the guard has committed one). While
//! [`NodeUpdate::wants_gate`], collect [`check::GateFacts`] every few seconds, compare them with the baseline ([`gate::gate`],
//! [`gate::verdict`]) and send [`UpdateEvent::Gate`].
//! - `Do`: carry it out and answer [`UpdateEvent::Answered`] exactly once, within a bounded time. One is in flight at a time.
//!   Each may be asked for again after a death of the agent, and must then find what is done already.
//! - `Trial`: hand it to `orlop-init guard`, which commits, returns or holds.
//! - `Show`, `Event`: for the Node.
//!
//! Waves and barriers are the channel's: `orlop_config::release::choose` decides which version is staged, by the node's seed.
//!
//! Invariants, which the small model of the tests and the simulator's `updating` check: a version is committed only after its
//! gate was green for the whole soak; a version whose failure may have been the cluster's is never refused; at most
//! [`plan::TRIALS_A_DAY`] trials of one version in a day; the node ends schedulable unless somebody else had cordoned it; the slot
//! of its group is given back. The machine's clock is CLOCK_BOOTTIME: zero is the boot.
//! Docs: docs/internals/agent/updates.md. Upstream has no counterpart.

pub mod check;
pub mod cordon;
pub mod drain;
pub mod facts;
pub mod gate;
mod machine;
pub mod orders;
pub mod plan;
pub mod report;
pub mod semaphore;
pub mod watch;
pub mod windows;

#[cfg(test)]
mod tests;

use std::time::Duration;

use orlop_config::slots::BootRecord;

use gate::{GateVerdict, RedCheck};
pub use machine::NodeUpdate;
use plan::{UpdatePauses, UpdatePlan};
use report::{UpdateNotice, UpdateShown};
use watch::{TrialDecision, TrialLimits};
use windows::UpdateWindow;

/// How the reboots of several nodes are kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coordination {
    /// They are not.
    #[default]
    None,
    /// By the ConfigMap of [`semaphore`].
    Shared,
    /// By an operator, with the annotation [`report::PERMIT`].
    Permit,
}

/// How pods leave before the reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainConfig {
    /// False: nothing is cordoned and evicted; the shutdown ends the pods.
    pub is_enabled: bool,
    /// How long a PodDisruptionBudget is obeyed.
    pub timeout: Duration,
    /// What follows then. True: the reboot, whose shutdown ends the pods. False: the update is put off.
    pub goes_on: bool,
}

impl Default for DrainConfig {
    fn default() -> DrainConfig {
        DrainConfig { is_enabled: true, timeout: Duration::from_secs(600), goes_on: false }
    }
}

/// Settings of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateConfig {
    /// A staged version is tried by itself; false: only if somebody names it.
    pub is_automatic: bool,
    /// When the node may reboot.
    pub windows: Vec<UpdateWindow>,
    /// How nodes are kept apart.
    pub coordination: Coordination,
    /// How pods leave.
    pub drain: DrainConfig,
    /// How long a trial and an examination take.
    pub limits: TrialLimits,
    /// Pauses between updates.
    pub pauses: UpdatePauses,
}

/// What operators order by annotations of the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateOrders {
    /// [`report::PAUSED`].
    pub is_paused: bool,
    /// [`report::UPDATE_TO`], or what [`report::ROLLBACK`] comes to.
    pub update_to: Option<String>,
    /// [`report::PERMIT`].
    pub permit: Option<String>,
}

/// What the machine reacts to.
#[derive(Clone, Debug)]
pub enum UpdateEvent {
    /// The boot record as it is now.
    Record(Box<BootRecord>),
    /// The gate was asked.
    Gate {
        /// The red checks.
        red: Vec<RedCheck>,
        /// What names the failure, and whose fault it seems to be.
        verdict: GateVerdict,
    },
    /// The orders of operators as they are now.
    Orders(UpdateOrders),
    /// The answer to [`UpdateAction::Do`].
    Answered {
        /// Of the request.
        step: u64,
        /// What came of it.
        result: WorkResult,
    },
    /// The deadline has passed.
    Tick,
}

/// A step of an update. Each is done again after a death of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateWork {
    /// Write the plan durably.
    Save(Box<UpdatePlan>),
    /// Take a slot of the group ([`semaphore::take`]), `Done` if the node has it already; `Wait` if there is none.
    TakeSlot {
        /// Identifier of the update.
        update: String,
    },
    /// Set `spec.unschedulable`, and [`report::CORDONED`] with it; neither if the node is unschedulable already.
    Cordon {
        /// Identifier of the update.
        update: String,
    },
    /// Evict the pods of this node that are not mirror pods, of a DaemonSet, or ended; `Blocked` while a budget forbids it, `Wait`
    /// while pods terminate.
    Drain,
    /// Write the baseline, order the trial in the boot record, show the slot to the loader, in this order.
    Arm {
        /// Identifier of the update.
        update: String,
        /// From the boot on.
        deadline: Duration,
    },
    /// Reboot in order.
    Reboot,
    /// Take back an order of a trial that has not begun, hide the slot from the loader.
    Withdraw,
    /// If the Node has [`report::CORDONED`]: remove it, and `spec.unschedulable` with it.
    Uncordon,
    /// Have the boot record say what was found about the other slot, make the ESP agree; then send [`UpdateEvent::Record`].
    Settle {
        /// The version is refused: why. None: it may be tried again.
        refused: Option<String>,
    },
    /// Give the slot of the group back ([`semaphore::give_back`]).
    GiveBack {
        /// Identifier of the update.
        update: String,
        /// The update failed: why.
        failure: Option<String>,
    },
}

/// A pod that a budget keeps on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainBlocked {
    /// Namespace and name.
    pub pod: String,
    /// What the API server says about the budget.
    pub budget: String,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkResult {
    /// It is done.
    Done,
    /// Not yet: what it waits for, for people.
    Wait(String),
    /// A budget forbids an eviction.
    Blocked(DrainBlocked),
    /// It failed: why, for people.
    Failed(String),
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum UpdateAction {
    /// Do it, and answer [`UpdateEvent::Answered`] exactly once.
    Do {
        /// Comes back with the answer.
        step: u64,
        /// What to do.
        work: UpdateWork,
    },
    /// For the guard of this trial boot.
    Trial(TrialDecision),
    /// What the Node shows has changed.
    Show(UpdateShown),
    /// An event about the Node.
    Event(UpdateNotice),
}
