//! logind and the end of the machine in the simulated world: a shutdown begins, logind waits for the delay lock, and
//! the machine boots again.
//!
//! In: random choices. Out: logind's signals, the lock, receipts on disk, reboots; the input of the checkers
//! SHUTDOWN-ORDER, SHUTDOWN-BUDGET and SHUTDOWN-CLOSED, and of RECEIPT-TRUE after a power cut. `departing` has the stop
//! of the units after the delay, or without one. Invariants: the lock ends with the agent and with its connection;
//! logind waits no longer than its limit. A run without shutdowns draws no random number here.

mod departing;

use std::collections::BTreeSet;
use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::node_shutdown::{
    EVENT, Group, Kind, NodeShutdown, Receipt, ShutdownAction, ShutdownEvent, begins_anew, budget,
};
use agent_core::node_status::NodeInput;
use agent_core::pod_manager::{ManagerEvent, ShutdownOrder};
use agent_types::event::EventKind;
use agent_types::ids::PodUid;
use agent_types::kill::TerminatingRecord;
use agent_types::machine::{Machine, Outbox};
use agent_types::runtime::observed::ContainerState;
use agent_types::time::{Mono, Now};
use serde_json::{Value, json};

use departing::Unit;

use crate::defects::Defect;
use crate::fake_api::resource::text;
use crate::node::{Node, NodeEvent, NodeRequest};
use crate::rng::Rng;
use crate::world::{Event, World};

/// Time that logind waits beyond the pods' periods.
const MARGIN: Duration = Duration::from_secs(5);
const KINDS: [&str; 6] = ["poweroff", "reboot", "halt", "kexec", "soft-reboot", ""];
/// The agent withdraws a receipt of the end of this boot within this time.
const TAKEN_BACK: Duration = Duration::from_secs(1);
/// Priorities of pods; the last one is that of a critical pod.
const PRIORITIES: [i32; 5] = [-100, 0, 0, 1_000, 2_000_000_000];
/// Kinds of the controllers of pods; empty for a pod without controller.
const OWNERS: [&str; 3] = ["", "ReplicaSet", "StatefulSet"];

/// True for a pod of a ReplicaSet that failed because of a shutdown: only its node deletes it. Reads the stored object.
pub(crate) fn is_left_over(pod: &Value) -> bool {
    text(pod, "/metadata/ownerReferences/0/kind") == "ReplicaSet"
        && text(pod, "/status/phase") == "Failed"
        && matches!(text(pod, "/status/reason"), "Terminated" | "NodeShutdown")
}

/// Events between logind, the disk and the agent.
#[derive(Clone, Debug)]
pub(crate) enum LogindEvent {
    /// The agent connects; logind answers with its state.
    Connected { incarnation: u32 },
    /// A signal reaches the agent.
    Told { incarnation: u32, stopping: bool, kind: String },
    /// A receipt is on disk.
    Written { incarnation: u32, receipt: Box<Receipt> },
    /// logind does not wait any longer for stop number `stop`.
    Limit { stop: u32 },
    /// systemd stops the agent's unit.
    UnitStops { stop: u32 },
    /// systemd does not wait any longer for the agent's unit.
    UnitKilled { stop: u32 },
    /// The machine stops.
    Off { stop: u32 },
    /// A user cancels stop number `stop`.
    CalledOff { stop: u32 },
}

/// State of shutdowns of the machine.
#[derive(Debug)]
pub(crate) struct Stopping {
    rng: Rng,
    groups: Vec<Group>,
    boot: u32,
    /// The receipt on disk.
    receipt: Option<Receipt>,
    /// Time until which the disk writes receipts.
    writing: Mono,
    /// Incarnation that holds the delay lock.
    lock: Option<u32>,
    /// Time since which the lock is held.
    held: Mono,
    /// Kind of the stop, while logind is about to stop the machine.
    stop: Option<String>,
    /// The stop did not go through logind (`systemctl start reboot.target`): logind delays nothing and sends no signal.
    unasked: bool,
    /// State of the agent's unit.
    unit: Unit,
    /// Number of the last stop.
    stops: u32,
    /// The agent knows about the stop.
    told: bool,
    /// Static pods that the shutdown terminated: they start again at the next boot.
    ended: BTreeSet<PodUid>,
    /// UIDs of pods whose end the server had in this boot before it was restored to an earlier state.
    told_before: BTreeSet<String>,
    calm: bool,
}

impl Stopping {
    fn new(seed: u64) -> Stopping {
        let mut rng = Rng::new(seed);
        let mut groups = vec![Group { priority: 0, period: Duration::from_secs(rng.between(3, 45)) }];
        if rng.chance(500) {
            groups.push(Group { priority: 1_000, period: Duration::from_secs(rng.below(20)) });
        }
        groups.push(Group { priority: 2_000_000_000, period: Duration::from_secs(rng.between(2, 15)) });
        Stopping {
            rng,
            groups,
            boot: 0,
            receipt: None,
            writing: Mono(0),
            lock: None,
            held: Mono(0),
            stop: None,
            unasked: false,
            unit: Unit::Up,
            stops: 0,
            told: false,
            ended: BTreeSet::new(),
            told_before: BTreeSet::new(),
            calm: false,
        }
    }

    fn boot_id(&self) -> String {
        format!("boot-{}", self.boot)
    }
}

impl World {
    /// From now on the machine has shutdowns; call it before the agent starts.
    pub(crate) fn can_stop(&mut self, seed: u64) {
        self.stopping = Some(Box::new(Stopping::new(seed ^ 0x5709)));
    }

    /// Gives a priority to a pod, if this run has shutdowns.
    pub(crate) fn give_priority(&mut self, pod: &mut Value) {
        let Some(stopping) = &mut self.stopping else { return };
        let priority = stopping.rng.pick(&PRIORITIES).copied();
        pod["spec"]["priority"] = json!(priority);
    }

    /// Makes a pod of the API a pod of a ReplicaSet or of a StatefulSet, if this run has shutdowns.
    pub(crate) fn give_owner(&mut self, pod: &mut Value) {
        let Some(stopping) = &mut self.stopping else { return };
        let Some(kind) = stopping.rng.pick(&OWNERS).copied().filter(|kind| !kind.is_empty()) else { return };
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": kind, "name": "owner", "uid": "owner", "controller": true,
        }]);
    }

    /// A user may press the power button, cancel the shutdown later, or restart the bus.
    pub(crate) fn somebody_stops(&mut self) {
        let Some(stopping) = &mut self.stopping else { return };
        if stopping.calm || !stopping.rng.chance(250) {
            return;
        }
        if stopping.rng.chance(150) {
            return self.bus_restarts();
        }
        let kind = stopping.rng.pick(&KINDS).copied().unwrap_or_default().to_owned();
        let most = budget(&stopping.groups) + MARGIN;
        let called_off = stopping.rng.chance(300).then(|| {
            Duration::from_millis(stopping.rng.below(u64::try_from(most.as_millis()).unwrap_or(u64::MAX)))
        });
        self.disturb();
        let Some(stop) = self.stop_machine(kind, most) else { return };
        if let Some(after) = called_off {
            self.queue.after(after, Event::Logind(LogindEvent::CalledOff { stop }));
        }
    }

    /// No new shutdown begins; a shutdown in progress continues.
    pub(crate) fn calm_logind(&mut self) {
        if let Some(stopping) = &mut self.stopping {
            stopping.calm = true;
        }
    }

    fn stop_machine(&mut self, kind: String, most: Duration) -> Option<u32> {
        self.ensure_taken_back();
        let incarnation = self.incarnation;
        let stopping = self.stopping.as_mut()?;
        if stopping.stop.is_some() {
            return None;
        }
        stopping.stop = Some(kind.clone());
        stopping.unasked = stopping.rng.chance(200);
        stopping.stops += 1;
        let (stop, held) = (stopping.stops, stopping.lock == Some(incarnation));
        if !held || stopping.unasked {
            self.units_stop(stop);
            return Some(stop);
        }
        self.queue.after(most, Event::Logind(LogindEvent::Limit { stop }));
        self.announce(true, &kind);
        // logind also sends the signal without metadata.
        self.announce(true, "");
        Some(stop)
    }

    fn announce(&mut self, stopping: bool, kind: &str) {
        let (incarnation, kind) = (self.incarnation, kind.to_owned());
        self.queue.after(
            Duration::from_millis(5),
            Event::Logind(LogindEvent::Told { incarnation, stopping, kind }),
        );
    }

    /// The agent's unit has stopped; the other units and the machine follow.
    fn machine_goes(&mut self, stop: u32) {
        let Some(stopping) = &mut self.stopping else { return };
        let after = Duration::from_millis(stopping.rng.between(300, 4_000));
        self.queue.after(after, Event::Logind(LogindEvent::Off { stop }));
    }

    fn bus_restarts(&mut self) {
        let incarnation = self.incarnation;
        self.lock_is_lost();
        self.queue.after(Duration::from_secs(1), Event::Logind(LogindEvent::Connected { incarnation }));
    }

    /// The lock is released when its holder or its connection ends.
    pub(crate) fn lock_is_lost(&mut self) {
        let Some(stopping) = &mut self.stopping else { return };
        stopping.told = false;
        let (held, stops) = (stopping.lock.take().is_some(), stopping.stop.is_some());
        let stop = stopping.stops;
        self.checks.note(self.queue.now(), &TraceEvent::ShutdownPast);
        if held && stops {
            self.units_stop(stop);
        }
    }

    pub(crate) fn logind(&mut self, event: LogindEvent) {
        let is_now = |world: &World, stop: u32| {
            world.stopping.as_ref().is_some_and(|s| s.stop.is_some() && s.stops == stop)
        };
        match event {
            LogindEvent::Connected { incarnation } if incarnation == self.incarnation => {
                let knows = |s: &Stopping| s.stop.is_some() && !s.unasked;
                let stopping = self.stopping.as_deref().is_some_and(knows);
                self.hear(stopping, String::new());
            }
            LogindEvent::Told { incarnation, stopping, kind } if incarnation == self.incarnation => {
                self.hear(stopping, kind);
            }
            LogindEvent::Written { incarnation, receipt } if incarnation == self.incarnation => {
                let ended = receipt.end_time.is_some();
                if let Some(stopping) = &mut self.stopping {
                    stopping.receipt = Some(*receipt);
                }
                if ended {
                    self.tell(NodeEvent::Shutdown(ShutdownEvent::Written));
                }
            }
            LogindEvent::Limit { stop } if is_now(self, stop) => {
                let held = self.stopping.as_mut().and_then(|s| s.lock.take());
                if held.is_some() {
                    self.checks.note(self.queue.now(), &TraceEvent::StopNotAwaited);
                    self.units_stop(stop);
                }
            }
            LogindEvent::UnitStops { stop } if is_now(self, stop) => self.unit_stops(stop),
            LogindEvent::UnitKilled { stop } if is_now(self, stop) => self.unit_is_killed(stop),
            LogindEvent::Off { stop } if is_now(self, stop) => {
                self.ensure_receipt();
                self.ensure_awaited();
                self.reboot();
            }
            LogindEvent::CalledOff { stop } if is_now(self, stop) => {
                self.disturb();
                let Some(stopping) = &mut self.stopping else { return };
                if stopping.unit != Unit::Up {
                    return;
                }
                stopping.stop = None;
                self.announce(false, "");
            }
            _ => {}
        }
    }

    fn hear(&mut self, stopping: bool, kind: String) {
        let Some(state) = &mut self.stopping else { return };
        if !stopping && state.unit == Unit::Stopping {
            // logind does not know about a stop that it was not asked for; the agent knows from its own unit.
            return self.tell(NodeEvent::Shutdown(ShutdownEvent::Told { stopping, kind }));
        }
        let first = stopping && !state.told && self.node.is_some();
        let event = if first {
            state.told = true;
            Some(TraceEvent::ShutdownTold { budget: budget(&state.groups) })
        } else if !stopping {
            state.told = false;
            Some(TraceEvent::ShutdownPast)
        } else {
            None
        };
        if let Some(event) = event {
            self.checks.note(self.queue.now(), &event);
        }
        if !stopping {
            self.forget_ended();
        }
        self.tell(NodeEvent::Shutdown(ShutdownEvent::Told { stopping, kind }));
    }

    /// The static pods that the shutdown terminated start again. Pods that still have a worker end first, and stay in the set.
    fn forget_ended(&mut self) {
        let has_worker = |pod: &PodUid| {
            let here = self.node.as_ref().is_some_and(|node| node.workers().contains_key(pod));
            // An agent that resumes a termination creates its workers after the first list of the runtime.
            here || self.disk.records.contains_key(pod)
        };
        let Some(stopping) = &mut self.stopping else { return };
        let (going, over) = std::mem::take(&mut stopping.ended).into_iter().partition(has_worker);
        stopping.ended = going;
        let over: BTreeSet<PodUid> = over;
        for pod in over {
            self.checks.note(self.queue.now(), &TraceEvent::PodForgotten { pod });
        }
    }

    /// Handles an action of the agent for logind or for the disk.
    pub(crate) fn shutdown_asks(&mut self, action: ShutdownAction) {
        let (incarnation, now) = (self.incarnation, self.queue.now());
        let Some(stopping) = &mut self.stopping else { return };
        match action {
            ShutdownAction::Hold if stopping.stop.is_none() || stopping.unasked => {
                (stopping.lock, stopping.held) = (Some(incarnation), now);
            }
            // logind gives no lock while it stops the machine: the session fails, and the next session reads logind's state.
            ShutdownAction::Hold => self.bus_restarts(),
            ShutdownAction::Release => {
                let stop = stopping.stops;
                let held = stopping.lock.take_if(|holder| *holder == incarnation).is_some();
                self.checks.note(now, &TraceEvent::LockGivenBack);
                if self.unit_has_stopped() {
                    self.machine_goes(stop);
                } else if held && self.stopping.as_ref().is_some_and(|s| s.stop.is_some() && !s.unasked) {
                    self.units_stop(stop);
                }
            }
            ShutdownAction::Write(receipt) => {
                // The disk writes receipts one after the other.
                let due =
                    now.after(Duration::from_millis(stopping.rng.between(1, 300))).max(stopping.writing);
                stopping.writing = due;
                let after = due.since(now);
                let written = LogindEvent::Written { incarnation, receipt: Box::new(receipt) };
                self.queue.after(after, Event::Logind(written));
            }
            ShutdownAction::End { uid, .. } => self.end_ordered(uid),
            ShutdownAction::Close
            | ShutdownAction::Open
            | ShutdownAction::Node(_)
            | ShutdownAction::Event(_)
            | ShutdownAction::AskTold => {}
        }
    }

    fn end_ordered(&mut self, pod: PodUid) {
        let priority = self.node.as_ref().and_then(|node| node.priority(&pod)).unwrap_or(0);
        let Some(stopping) = &mut self.stopping else { return };
        if self.disk.manifests.contains_key(&pod) {
            stopping.ended.insert(pod.clone());
        }
        let group = stopping.groups.partition_point(|g| g.priority <= priority).saturating_sub(1);
        let period = stopping.groups.get(group).map_or(Duration::ZERO, |g| g.period);
        self.checks.note(self.queue.now(), &TraceEvent::EndOrdered { pod, group, period });
    }

    /// RECEIPT-TRUE: when the power fails, the pods of a valid receipt are in the state that the receipt has.
    fn ensure_receipt(&mut self) {
        let Some(stopping) = &self.stopping else { return };
        let Some(receipt) = stopping.receipt.as_ref().filter(|r| r.is_of(&stopping.boot_id())) else {
            return;
        };
        let live: BTreeSet<&str> = self
            .runtime
            .containers
            .values()
            .filter(|c| c.observed.state == ContainerState::Running)
            .map(|c| c.pod.uid.as_str())
            .collect();
        let going_on =
            |pod: &Value| !has_ended(pod) && !stopping.told_before.contains(text(pod, "/metadata/uid"));
        let going_on: BTreeSet<String> = self.uids_of_users(going_on).collect();
        let wrong = receipt.pods.iter().find(|pod| {
            pod.ended && live.contains(pod.uid.as_str()) || pod.told && going_on.contains(&pod.uid)
        });
        if let Some(pod) = wrong {
            self.checks.report("RECEIPT-TRUE", format!("{pod:?}, as the machine stops"));
        }
    }

    fn uids_of_users(&self, of: impl Fn(&Value) -> bool) -> impl Iterator<Item = String> {
        self.pods_of_users().into_iter().filter(of).map(|pod| text(&pod, "/metadata/uid").to_owned())
    }

    /// The server is about to be restored. A restore does not make the receipt wrong: the agent did report these ends.
    pub(crate) fn remember_told(&mut self) {
        let ended: Vec<String> = self.uids_of_users(has_ended).collect();
        if let Some(stopping) = &mut self.stopping {
            stopping.told_before.extend(ended);
        }
    }

    /// RECEIPT-TRUE: no receipt of the end of this boot is valid while an agent waits for the next stop. After a power cut the next
    /// agent would take it for an orderly shutdown.
    pub(crate) fn ensure_taken_back(&mut self) {
        let now = self.queue.now();
        let Some(stopping) = self.stopping.as_ref().filter(|s| s.stop.is_none() && s.lock.is_some()) else {
            return;
        };
        let wrong = stopping.receipt.as_ref().filter(|r| r.is_of(&stopping.boot_id()));
        if let Some(receipt) = wrong.filter(|_| now.since(stopping.held) > TAKEN_BACK) {
            let detail = format!("the receipt of a {:?} is valid, and the boot goes on", receipt.kind);
            self.checks.report("RECEIPT-TRUE", detail);
        }
    }

    /// The machine starts again; after a soft-reboot with the same kernel.
    pub(crate) fn logind_boots(&mut self) {
        let Some(stopping) = &mut self.stopping else { return };
        let same_kernel = stopping.stop.as_deref().map(Kind::of) == Some(Kind::SoftReboot);
        stopping.boot += u32::from(!same_kernel);
        stopping.told_before.clear();
        (stopping.stop, stopping.lock, stopping.told) = (None, None, false);
        (stopping.unasked, stopping.unit) = (false, Unit::Up);
        stopping.stops += 1;
    }

    /// The shutdown manager of the new incarnation, and the terminating records that it resumes; the other records are removed.
    pub(crate) fn begin_shutdown(&mut self) -> (Option<NodeShutdown>, Vec<TerminatingRecord>) {
        let (now, incarnation) = (self.now(), self.incarnation);
        let machine = self.stopping.as_ref().map(|stopping| {
            NodeShutdown::new(stopping.groups.clone(), &stopping.boot_id(), stopping.receipt.clone(), now)
        });
        let resumed = machine.as_ref().is_some_and(NodeShutdown::is_resumed);
        if machine.is_some() {
            self.disk.records.retain(|_, record| !begins_anew(record, resumed));
        }
        if !resumed {
            self.forget_ended();
        }
        if let Some(stopping) = &mut self.stopping {
            let after = Duration::from_millis(stopping.rng.between(5, 2_000));
            self.queue.after(after, Event::Logind(LogindEvent::Connected { incarnation }));
        }
        (machine, self.disk.records.values().cloned().collect())
    }
}

fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

impl Node {
    /// If an earlier agent was in the middle of a shutdown: the pod manager admits no pod.
    pub(crate) fn resume_shutdown(&mut self, now: Now) {
        if self.shutdown.as_ref().is_some_and(NodeShutdown::is_resumed) {
            self.manage(now, ManagerEvent::Shutdown(ShutdownOrder::Close));
        }
    }

    /// `spec.priority` of a pod of this node.
    fn priority(&self, uid: &PodUid) -> Option<i32> {
        self.priorities.get(uid).copied()
    }

    /// Passes an event to [`NodeShutdown`] and carries out its actions.
    pub(crate) fn shut_down(&mut self, now: Now, event: ShutdownEvent) {
        let Some(machine) = &mut self.shutdown else { return };
        if let ShutdownEvent::Leaving(pods) = &event {
            self.priorities = pods.iter().map(|pod| (pod.key.uid.clone(), pod.priority)).collect();
        }
        let mut actions = Outbox::new();
        machine.step(now, event, &mut actions);
        for action in actions.drain() {
            let Some(action) = self.spoil(action) else { continue };
            self.out.push(NodeRequest::Shutdown(action.clone()));
            match action {
                ShutdownAction::Close => {
                    self.tell_cluster(now, |cluster, out| cluster.machine_stays(now, false, out));
                    self.manage(now, ManagerEvent::Shutdown(ShutdownOrder::Close));
                    if self.defect == Some(Defect::LetsIn) {
                        self.manage(now, ManagerEvent::Shutdown(ShutdownOrder::Open));
                    }
                }
                ShutdownAction::Open => self.manage(now, ManagerEvent::Shutdown(ShutdownOrder::Open)),
                ShutdownAction::End { uid, grace_s } => {
                    self.manage(now, ManagerEvent::Shutdown(ShutdownOrder::End(uid, grace_s)));
                }
                ShutdownAction::Node(ready) => {
                    let input = NodeInput::Shutdown(ready);
                    self.tell_cluster(now, |cluster, out| cluster.input(now, input, out));
                }
                ShutdownAction::Event(text) => {
                    self.tell_cluster(now, |cluster, out| {
                        cluster.of_node(now, EventKind::Normal, EVENT, text, out)
                    });
                }
                ShutdownAction::AskTold if self.cluster.is_some() => {
                    self.tell_cluster(now, |cluster, out| cluster.ask_untold(now, out));
                }
                ShutdownAction::AskTold => self.shut_down(now, ShutdownEvent::Untold(BTreeSet::new())),
                ShutdownAction::Hold if self.defect == Some(Defect::LeavesTheEnded) => {}
                ShutdownAction::Hold => {
                    self.tell_cluster(now, |cluster, out| cluster.machine_stays(now, true, out));
                }
                ShutdownAction::Write(_) | ShutdownAction::Release => {}
            }
        }
    }

    /// Changes an action according to the configured defect.
    fn spoil(&mut self, mut action: ShutdownAction) -> Option<ShutdownAction> {
        match (self.defect, &mut action) {
            (Some(Defect::KeepsTheLock), ShutdownAction::Release) => return None,
            (Some(Defect::EndsAllAtOnce), ShutdownAction::End { grace_s, .. }) => {
                let grace_s = *grace_s;
                for uid in self.priorities.keys().cloned() {
                    self.out.push(NodeRequest::Shutdown(ShutdownAction::End { uid, grace_s }));
                }
            }
            (Some(Defect::KeepsItsReceipt), ShutdownAction::Write(receipt)) if receipt.boot_went_on => {
                return None;
            }
            (Some(Defect::SignsBlindly), ShutdownAction::Write(receipt)) => {
                receipt.end_time = Some(receipt.start_time.clone());
                receipt.pods.iter_mut().for_each(|pod| (pod.ended, pod.told) = (true, true));
            }
            _ => {}
        }
        Some(action)
    }
}
