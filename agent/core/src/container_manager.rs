//! The container manager: maintains the cgroups of all pods, of their classes and of the reservations, and
//! removes orphaned cgroups of pods.
//!
//! ```text
//! Pods (sums) ──►                      ──► Apply ──► driver ──► Applied ─┐
//! Synced ───────►  container manager   ──► Ready: pods' own may be made  │
//!       Applied ──────────────────────────────────────────────────────◄──┘
//! ```
//! In: requests of pods, answers. Out: cgroup values to apply, events of the node. Invariants: the cgroup of
//! a class comes after the one of all pods, a pod's own after its class; one call for a cgroup at a time; a
//! failed call is repeated after 1 s doubling to a minute, and every cgroup is applied again each minute;
//! nothing is removed before every source was read. Applying present values changes nothing, so a restarted
//! agent starts from the beginning: shares that follow from pods' requests stay as the last agent left them
//! until all pods are known (upstream gives the Burstable class its minimum meanwhile). Upstream:
//! pkg/kubelet/cm (`setupNode`, `enforceNodeAllocatableCgroups`, `UpdateCgroups`),
//! `cleanupOrphanedPodCgroups` of pkg/kubelet/kubelet_pods.go.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::backoff::Backoff;
use agent_types::event::EventKind;
use agent_types::machine::{Machine, Outbox};
use agent_types::resources::QosClass;
use agent_types::resources::cgroups::tiers::{Classes, Reserved, Sums, tier};
use agent_types::resources::cgroups::{CgroupName, CgroupValues, pod};
use agent_types::time::{Mono, Now};

use crate::events::Fact;

/// How often everything is looked at (upstream: `periodicQOSCgroupUpdateInterval`).
const EVERY: Duration = Duration::from_secs(60);
/// Waits after a failure.
const RETRY: Backoff = Backoff::doubling(Duration::from_secs(1), EVERY);

/// One of the cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The one of all pods.
    Pods,
    /// The one of a class.
    Class(QosClass),
    /// One that a reservation is enforced on, by its place in [`Config::reserved`].
    Reserved(usize),
}

/// What the manager keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The cgroup of all pods.
    pub kubepods: CgroupName,
    /// What it is given ([`agent_types::resources::cgroups::tiers::root`]).
    pub root: CgroupValues,
    /// What classes are given.
    pub classes: Classes,
    /// Others' cgroups ([`agent_types::resources::cgroups::tiers::reserved`]).
    pub reserved: Vec<Reserved>,
}

/// What the manager reacts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerManagerEvent {
    /// Requests of the pods that have not ended, once all are known.
    Pods(Sums),
    /// Every source was read and the runtime listed.
    Synced,
    /// The answer to [`ContainerManagerAction::Apply`].
    Applied {
        /// Target of the request.
        target: Target,
        /// Or why not.
        result: Result<(), String>,
    },
    /// The answer to [`ContainerManagerAction::Sweep`].
    Swept,
    /// The deadline has passed.
    Tick,
}

/// A request of the manager to its shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerManagerAction {
    /// Give a cgroup its values.
    Apply {
        /// To be sent back.
        target: Target,
        /// Name of the cgroup.
        name: CgroupName,
        /// Its values.
        values: CgroupValues,
        /// Make it if it is not there.
        make: bool,
    },
    /// Pods' own cgroups may be made. Once.
    Ready,
    /// Remove cgroups of unknown pods, then answer.
    Sweep,
    /// An event of the node.
    Tell(Fact),
}

#[derive(Clone, Debug, Default)]
struct Task {
    /// Time of the next application; `None` while one is in flight, or if none is needed.
    due: Option<Mono>,
    in_flight: bool,
    /// The desired values changed since the one in flight.
    stale: bool,
    failures: u32,
    done: bool,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct ContainerManager {
    config: Config,
    sums: Option<Sums>,
    tasks: BTreeMap<Target, Task>,
    ready: bool,
    sweep_due: Option<Mono>,
}

impl ContainerManager {
    /// Nothing is known to be as it should.
    #[must_use]
    pub fn new(config: Config) -> ContainerManager {
        let classes = [QosClass::Burstable, QosClass::BestEffort].map(Target::Class);
        let reserved = (0..config.reserved.len()).map(Target::Reserved);
        let targets = [Target::Pods].into_iter().chain(classes).chain(reserved);
        let tasks = targets.map(|t| (t, Task { due: Some(Mono(0)), ..Task::default() })).collect();
        ContainerManager { config, sums: None, tasks, ready: false, sweep_due: None }
    }

    fn is_done(&self, target: Target) -> bool {
        self.tasks.get(&target).is_some_and(|task| task.done)
    }

    fn cgroup(&self, target: Target) -> Option<(CgroupName, CgroupValues, bool)> {
        let Config { kubepods, classes, .. } = &self.config;
        let of = |class| tier(class, self.sums, classes);
        match target {
            Target::Pods => {
                let memory_min = of(QosClass::Guaranteed).memory_min;
                Some((kubepods.clone(), CgroupValues { memory_min, ..self.config.root.clone() }, true))
            }
            Target::Class(class) => Some((pod::of_class(kubepods, class), of(class), true)),
            Target::Reserved(index) => {
                let reserved = self.config.reserved.get(index)?;
                Some((reserved.name.clone(), reserved.values.clone(), false))
            }
        }
    }

    fn pods(&mut self, sums: Sums, now: Now) {
        let targets = [Target::Pods, Target::Class(QosClass::Burstable), Target::Class(QosClass::BestEffort)];
        let before = targets.map(|target| self.cgroup(target));
        self.sums = Some(sums);
        for (target, before) in targets.into_iter().zip(before) {
            let changed = self.cgroup(target) != before;
            let Some(task) = self.tasks.get_mut(&target).filter(|_| changed) else { continue };
            if task.in_flight {
                task.stale = true;
            } else if task.failures == 0 {
                task.due = Some(now.mono);
            }
        }
    }

    fn applied(
        &mut self,
        target: Target,
        result: Result<(), String>,
        now: Now,
        out: &mut Outbox<ContainerManagerAction>,
    ) {
        let Some(task) = self.tasks.get_mut(&target) else { return };
        let stale = std::mem::take(&mut task.stale);
        task.in_flight = false;
        let first = match &result {
            Ok(()) => {
                task.failures = 0;
                task.due = match target {
                    _ if stale => Some(now.mono),
                    Target::Reserved(_) => None,
                    Target::Pods | Target::Class(_) => Some(now.mono.after(EVERY)),
                };
                !std::mem::replace(&mut task.done, true)
            }
            Err(_) => {
                task.due = Some(now.mono.after(RETRY.next(task.failures)));
                task.failures = task.failures.saturating_add(1);
                true
            }
        };
        if let Some(fact) = self.fact(target, &result).filter(|_| first) {
            out.push(ContainerManagerAction::Tell(fact));
        }
    }

    fn fact(&self, target: Target, result: &Result<(), String>) -> Option<Fact> {
        let (done, failed) = match target {
            Target::Pods => {
                let name = &self.config.kubepods;
                let failed = format!("Failed to update Node Allocatable Limits {name}");
                ("Updated Node Allocatable limit across pods".to_owned(), failed)
            }
            Target::Class(_) => return None,
            Target::Reserved(index) => {
                let reserved = self.config.reserved.get(index)?;
                let (whose, on) = (reserved.whose, &reserved.configured);
                let title = if whose == "kube" { "Kube" } else { "System" };
                let kind = if reserved.compressible { " Compressible" } else { "" };
                let failed = format!("Failed to enforce {title} Reserved{kind} Cgroup Limits on {on:?}");
                (format!("Updated limits on {whose} reserved cgroup {on}"), failed)
            }
        };
        Some(match result {
            Ok(()) => Fact::of_node(EventKind::Normal, "NodeAllocatableEnforced", done),
            Err(why) => {
                let text = format!("{failed}: {why}");
                Fact::of_node(EventKind::Warning, "FailedNodeAllocatableEnforcement", text)
            }
        })
    }

    /// Applies due values, as far as allowed.
    fn advance(&mut self, now: Now, out: &mut Outbox<ContainerManagerAction>) {
        let has_root = self.is_done(Target::Pods);
        let due = |(target, task): (&Target, &Task)| {
            let may = has_root || !matches!(target, Target::Class(_));
            (may && !task.in_flight && task.due.is_some_and(|due| due <= now.mono)).then_some(*target)
        };
        let due: Vec<Target> = self.tasks.iter().filter_map(due).collect();
        for target in due {
            let Some((name, values, make)) = self.cgroup(target) else { continue };
            if let Some(task) = self.tasks.get_mut(&target) {
                (task.in_flight, task.due) = (true, None);
            }
            out.push(ContainerManagerAction::Apply { target, name, values, make });
        }
        let classes = [QosClass::Burstable, QosClass::BestEffort].map(Target::Class);
        if classes.into_iter().all(|class| self.is_done(class)) && !std::mem::replace(&mut self.ready, true) {
            out.push(ContainerManagerAction::Ready);
        }
        if self.ready && self.sweep_due.is_some_and(|due| due <= now.mono) {
            self.sweep_due = None;
            out.push(ContainerManagerAction::Sweep);
        }
    }
}

impl Machine for ContainerManager {
    type Event = ContainerManagerEvent;
    type Action = ContainerManagerAction;

    fn step(&mut self, now: Now, event: Self::Event, out: &mut Outbox<Self::Action>) {
        match event {
            ContainerManagerEvent::Pods(sums) => self.pods(sums, now),
            ContainerManagerEvent::Synced => self.sweep_due = Some(now.mono),
            ContainerManagerEvent::Applied { target, result } => self.applied(target, result, now, out),
            ContainerManagerEvent::Swept => self.sweep_due = Some(now.mono.after(EVERY)),
            ContainerManagerEvent::Tick => {}
        }
        self.advance(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        let has_root = self.is_done(Target::Pods);
        let waits = |target: &Target| has_root || !matches!(target, Target::Class(_));
        let due = self.tasks.iter().filter(|(target, _)| waits(target)).filter_map(|(_, task)| task.due);
        due.chain(self.sweep_due.filter(|_| self.ready)).min()
    }
}

#[cfg(test)]
mod tests;
