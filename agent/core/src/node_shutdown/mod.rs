//! node_shutdown: the machine is about to stop. Pods end in order and in time, the node reports to the API
//! server and writes a receipt, and only then lets the machine continue.
//!
//! # For the shell
//! Create it only if the configuration gives pods time ([`groups`]). Feed it logind's signals
//! ([`ShutdownEvent::Told`]), the answers to its actions, and [`ShutdownEvent::Tick`] at the deadline.
//! [`ShutdownAction::Hold`] takes the delay lock and [`ShutdownAction::Release`] gives it back; without the
//! lock logind does not wait, and pods end in the same way while the service manager stops the agent
//! ([`ShutdownEvent::GoingDown`]), until [`NodeShutdown::is_over`].
//!
//! ```text
//! Up ──told to stop──► Closing ──pods──► Ending ──all stages──► Telling ──told──► Writing ──► Over
//!  ▲                                                                                           │
//!  └────────────────────────────────── told not to stop ◄──────────────────────────────────────┘  (from anywhere)
//! ```
//! Invariants: one stage at a time, the lowest priority first; a stage takes no longer than its period, and
//! all stages with the reports to the API server no longer than the budget and [`TELL_MIN`]; the machine
//! writes the end of the receipt before it gives the lock back, and removes it again if the boot continues (a
//! soft-reboot). [`Kind`] lists the differences between kinds of stop. Upstream: pkg/kubelet/nodeshutdown.
//! Differences: docs/reference/shutdown.md.

mod aftermath;
mod kind;
mod plan;
mod receipt;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub use aftermath::{LastEnd, Unclean, begins_anew, died_of, is_left_over};
pub use kind::Kind;
pub use plan::{Group, Stage, budget, groups, priority, stages};
pub use receipt::{FILE, PodReceipt, Receipt};

use agent_types::api_time;
use agent_types::ids::{PodKey, PodUid};
use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now};

/// Reason of the Node's events.
pub const EVENT: &str = "Shutdown";
/// Reason of the Node's event, and type of its condition, about a boot that did not end in order.
pub const UNCLEAN_SHUTDOWN: &str = "UncleanShutdown";
/// Reason of the Node's event, and type of its condition, while a stop would not wait for the pods.
pub const NO_DELAY: &str = "ShutdownNotDelayed";
/// Message of the Node's condition meanwhile.
pub const NODE_MESSAGE: &str = "node is shutting down";
/// `status.reason` of pods that end.
pub const POD_REASON: &str = "Terminated";
/// `status.message` of pods that end.
pub const POD_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// How long the API server is waited for when the pods have used up the budget.
pub const TELL_MIN: Duration = Duration::from_secs(1);
/// How long the receipt may take to be written.
const WRITE_MAX: Duration = Duration::from_secs(1);

/// A pod that is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeavingPod {
    /// Identity of the pod.
    pub key: PodKey,
    /// Its place in the order ([`priority`]).
    pub priority: i32,
}

/// What the machine reacts to.
#[derive(Clone, Debug)]
pub enum ShutdownEvent {
    /// logind's signal: the machine is about to stop, or not any more; also its first answer after each
    /// connection.
    Told {
        /// `PrepareForShutdown`.
        stopping: bool,
        /// `type` of `PrepareForShutdownWithMetadata`; empty if unknown.
        kind: String,
    },
    /// The service manager stops its units, the agent's among them: the machine goes down, regardless of
    /// logind (no bus, no lock, or a stop that logind does not know).
    GoingDown {
        /// As in [`ShutdownEvent::Told`].
        kind: String,
    },
    /// The answer to [`ShutdownAction::Close`]: the pods of the node.
    Leaving(Vec<LeavingPod>),
    /// Nothing of the pod runs, and its volumes are released.
    Released(PodUid),
    /// The pods whose last status the API server does not have, now and after each change; the answer to
    /// [`ShutdownAction::AskTold`].
    Untold(BTreeSet<PodUid>),
    /// The answer to [`ShutdownAction::Write`] of a receipt with an end, whether the write succeeded or not.
    Written,
    /// The deadline has passed.
    Tick,
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum ShutdownAction {
    /// Reject new pods and answer [`ShutdownEvent::Leaving`]; delete no more pods from the API that ended for
    /// a shutdown ([`StatusEvent::MachineStays`](crate::status_manager::StatusEvent::MachineStays)).
    Close,
    /// Let pods in again.
    Open,
    /// The Node's readiness: `Err` with the message.
    Node(Result<(), String>),
    /// An event about the Node.
    Event(&'static str),
    /// End the pod, [`POD_REASON`] and [`POD_MESSAGE`]; no more than this much grace, seconds.
    End {
        /// UID of the pod.
        uid: PodUid,
        /// At most.
        grace_s: u32,
    },
    /// Answer with [`ShutdownEvent::Untold`], again whenever it changes.
    AskTold,
    /// Write this durably, after all earlier ones; answer [`ShutdownEvent::Written`] if it has an end.
    Write(Receipt),
    /// No stop is pending: take the delay lock (again), and delete the pods left from earlier shutdowns
    /// ([`StatusEvent::MachineStays`](crate::status_manager::StatusEvent::MachineStays)).
    Hold,
    /// Give the delay lock back.
    Release,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct NodeShutdown {
    groups: Vec<Group>,
    boot_id: String,
    phase: Phase,
    /// A receipt with the end of this boot, although the boot continues.
    spent: Option<Box<Receipt>>,
    /// Units stop: the shutdown cannot be cancelled any more.
    is_certain: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    /// No stop of the machine is under way.
    Up,
    /// An earlier agent was in the middle of it; logind's state is not known yet.
    Resumed { receipt: Box<Receipt> },
    /// Waits for the manager's list of pods.
    Closing(Box<ActiveShutdown>),
    /// Stages are under way.
    Ending(Box<ActiveShutdown>),
    /// All pods have ended; the API server gets their statuses.
    Telling(Box<ActiveShutdown>),
    /// The receipt is being written; the lock is given back then, or at `until`.
    Writing { until: Mono },
    /// The lock was given back.
    Over,
}

/// A shutdown on its way.
#[derive(Clone, Debug)]
struct ActiveShutdown {
    receipt: Receipt,
    ends: Mono,
    stages: VecDeque<Stage>,
    /// Who is waited for in this stage.
    waiting: BTreeSet<PodUid>,
    stage_ends: Mono,
    pods: BTreeMap<PodUid, PodReceipt>,
}

impl NodeShutdown {
    /// `last` is the present receipt. A shutdown in progress is resumed after logind's first signal; until
    /// then the caller admits no pod.
    #[must_use]
    pub fn new(groups: Vec<Group>, boot_id: &str, last: Option<Receipt>, now: Now) -> NodeShutdown {
        let spent = last.clone().filter(|receipt| receipt.is_of(boot_id)).map(Box::new);
        let under_way = last.filter(|receipt| receipt.is_under_way(boot_id, budget(&groups), now));
        let phase = under_way.map_or(Phase::Up, |receipt| Phase::Resumed { receipt: Box::new(receipt) });
        NodeShutdown { groups, boot_id: boot_id.to_owned(), phase, spent, is_certain: false }
    }

    /// An earlier agent was in the middle of it.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        matches!(self.phase, Phase::Resumed { .. })
    }

    /// Pods have ended as far as they did in their time, it is written, and the lock was given back.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    fn prepare_for_shutdown(
        &mut self,
        stopping: bool,
        kind: &str,
        now: Now,
        out: &mut Outbox<ShutdownAction>,
    ) {
        match (&mut self.phase, stopping) {
            // A logind that was started again and has forgotten it.
            (_, false) if self.is_certain => {}
            (Phase::Up, false) => {
                out.push(ShutdownAction::Hold);
                // A soft-reboot, or a stop that came to nothing while no agent listened: how the boot ends is open again.
                if let Some(spent) = self.spent.take() {
                    out.push(ShutdownAction::Write(Receipt { boot_went_on: true, ..*spent }));
                }
            }
            (_, false) => self.cancelled(now, out),
            (Phase::Up, true) => self.begin(Receipt::begin(&self.boot_id, kind, now.wall), now, out),
            (Phase::Resumed { receipt }, true) => {
                let mut receipt = Receipt { pods: Vec::new(), ..(**receipt).clone() };
                receipt.learn_kind(kind);
                self.begin(receipt, now, out);
            }
            // Both signals of one shutdown, in any order.
            (Phase::Closing(course) | Phase::Ending(course) | Phase::Telling(course), true) => {
                course.receipt.learn_kind(kind);
            }
            // A bus that came back.
            (Phase::Writing { .. } | Phase::Over, true) => {}
        }
    }

    fn begin(&mut self, receipt: Receipt, now: Now, out: &mut Outbox<ShutdownAction>) {
        self.spent = None;
        out.push(ShutdownAction::Event("Shutdown manager detected shutdown event"));
        out.push(ShutdownAction::Node(Err(NODE_MESSAGE.to_owned())));
        out.push(ShutdownAction::Write(receipt.clone()));
        out.push(ShutdownAction::Close);
        self.phase = Phase::Closing(Box::new(ActiveShutdown {
            receipt,
            ends: now.mono.after(budget(&self.groups)),
            stages: VecDeque::new(),
            waiting: BTreeSet::new(),
            stage_ends: now.mono,
            pods: BTreeMap::new(),
        }));
    }

    fn cancelled(&mut self, now: Now, out: &mut Outbox<ShutdownAction>) {
        let receipt = match std::mem::replace(&mut self.phase, Phase::Up) {
            Phase::Resumed { receipt } => *receipt,
            Phase::Closing(course) | Phase::Ending(course) | Phase::Telling(course) => course.receipt,
            Phase::Writing { .. } | Phase::Over | Phase::Up => Receipt::begin(&self.boot_id, "", now.wall),
        };
        out.push(ShutdownAction::Event("Shutdown manager detected shutdown cancellation"));
        out.push(ShutdownAction::Node(Ok(())));
        // From a shutdown that did not come about the next boot is to conclude nothing.
        let end_time = Some(api_time::api_time(now.wall));
        out.push(ShutdownAction::Write(Receipt { end_time, boot_id: String::new(), ..receipt }));
        out.push(ShutdownAction::Hold);
        out.push(ShutdownAction::Open);
    }

    fn leaving(&mut self, pods: Vec<LeavingPod>, now: Now, out: &mut Outbox<ShutdownAction>) {
        // An agent that resumes rejects pods before it knows the state: that answer is ignored.
        let Phase::Closing(course) = &mut self.phase else { return };
        course.pods = pods.iter().map(|pod| (pod.key.uid.clone(), PodReceipt::of(&pod.key))).collect();
        course.stages = stages(&self.groups, pods).into();
        if let Phase::Closing(course) = std::mem::replace(&mut self.phase, Phase::Over) {
            self.phase = Phase::Ending(course);
        }
        self.advance(now, out);
    }

    /// Goes on as far as there is nothing to wait for.
    fn advance(&mut self, now: Now, out: &mut Outbox<ShutdownAction>) {
        let Phase::Ending(course) = &mut self.phase else { return };
        while course.waiting.is_empty() || course.stage_ends <= now.mono {
            let Some(stage) = course.stages.pop_front() else {
                let kind = Kind::of(&course.receipt.kind);
                let patience = kind.tell_max().map_or(course.ends, |most| now.mono.after(most));
                course.ends = course.ends.min(patience).max(now.mono.after(TELL_MIN));
                out.push(ShutdownAction::AskTold);
                if let Phase::Ending(course) = std::mem::replace(&mut self.phase, Phase::Over) {
                    self.phase = Phase::Telling(course);
                }
                return;
            };
            course.stage_ends = now.mono.after(stage.period);
            let grace_s = u32::try_from(stage.period.as_secs()).unwrap_or(u32::MAX);
            let over = |uid: &PodUid| course.pods.get(uid).is_none_or(|pod| pod.ended);
            course.waiting = stage.pods.into_iter().map(|pod| pod.key.uid).filter(|uid| !over(uid)).collect();
            for uid in course.waiting.iter().cloned() {
                out.push(ShutdownAction::End { uid, grace_s });
            }
        }
    }

    fn released(&mut self, uid: &PodUid, now: Now, out: &mut Outbox<ShutdownAction>) {
        if let Phase::Ending(course) | Phase::Telling(course) = &mut self.phase {
            course.waiting.remove(uid);
            if let Some(pod) = course.pods.get_mut(uid) {
                pod.ended = true;
            }
            self.advance(now, out);
        }
    }

    fn untold(&mut self, untold: &BTreeSet<PodUid>, now: Now, out: &mut Outbox<ShutdownAction>) {
        let Phase::Telling(course) = &mut self.phase else { return };
        for (uid, pod) in &mut course.pods {
            pod.told = pod.ended && !untold.contains(uid);
        }
        if course.pods.values().all(|pod| pod.told || !pod.ended) {
            self.write(now, out);
        }
    }

    fn write(&mut self, now: Now, out: &mut Outbox<ShutdownAction>) {
        let Phase::Telling(course) = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        let mut receipt = course.receipt;
        receipt.end_time = Some(api_time::api_time(now.wall));
        receipt.pods = course.pods.into_values().collect();
        out.push(ShutdownAction::Write(receipt));
        self.phase = Phase::Writing { until: now.mono.after(WRITE_MAX) };
    }

    fn release(&mut self, out: &mut Outbox<ShutdownAction>) {
        self.phase = Phase::Over;
        out.push(ShutdownAction::Release);
    }

    fn tick(&mut self, now: Now, out: &mut Outbox<ShutdownAction>) {
        match &self.phase {
            Phase::Ending(_) => self.advance(now, out),
            Phase::Telling(course) if course.ends <= now.mono => self.write(now, out),
            Phase::Writing { until } if *until <= now.mono => self.release(out),
            _ => {}
        }
    }
}

impl Machine for NodeShutdown {
    type Event = ShutdownEvent;
    type Action = ShutdownAction;

    fn step(&mut self, now: Now, event: ShutdownEvent, out: &mut Outbox<ShutdownAction>) {
        match event {
            ShutdownEvent::Told { stopping, kind } => self.prepare_for_shutdown(stopping, &kind, now, out),
            ShutdownEvent::GoingDown { kind } => {
                self.is_certain = true;
                self.prepare_for_shutdown(true, &kind, now, out);
            }
            ShutdownEvent::Leaving(pods) => self.leaving(pods, now, out),
            ShutdownEvent::Released(uid) => self.released(&uid, now, out),
            ShutdownEvent::Untold(untold) => self.untold(&untold, now, out),
            ShutdownEvent::Written => {
                if matches!(self.phase, Phase::Writing { .. }) {
                    self.release(out);
                }
            }
            ShutdownEvent::Tick => {}
        }
        self.tick(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        match &self.phase {
            Phase::Ending(course) => Some(course.stage_ends),
            Phase::Telling(course) => Some(course.ends),
            Phase::Writing { until } => Some(*until),
            Phase::Up | Phase::Resumed { .. } | Phase::Closing(_) | Phase::Over => None,
        }
    }
}
