//! The order in which the container manager applies cgroups, and its reports about reservations.

use agent_types::machine::{Machine, Outbox};
use agent_types::node_context::CgroupDriver::Systemd;
use agent_types::resources::QosClass;
use agent_types::resources::cgroups::tiers::{self, Sums};
use agent_types::resources::cgroups::{CgroupName, CgroupValues};
use agent_types::time::{Mono, Now, Wall};

use super::{
    Config, ContainerManager, ContainerManagerAction as Action, ContainerManagerEvent as Event, Target,
};

fn all_pods() -> CgroupName {
    CgroupName::default().child("kubepods")
}

#[derive(Default)]
struct World {
    now: u64,
    pending: Vec<Action>,
    told: Vec<String>,
}

impl World {
    fn step(&mut self, machine: &mut ContainerManager, event: Event) -> Vec<Action> {
        let mut out = Outbox::new();
        let now = Now { mono: Mono(self.now), wall: Wall(0) };
        machine.step(now, event, &mut out);
        let actions: Vec<Action> = out.drain().collect();
        for action in &actions {
            match action {
                Action::Tell(fact) => self.told.push(format!("{}: {}", fact.reason, fact.message)),
                other => self.pending.push(other.clone()),
            }
        }
        actions
    }

    fn asked(&mut self) -> Vec<Target> {
        let is = |action: Action| match action {
            Action::Apply { target, .. } => Some(target),
            _ => None,
        };
        std::mem::take(&mut self.pending).into_iter().filter_map(is).collect()
    }
}

fn done(target: Target) -> Event {
    Event::Applied { target, result: Ok(()) }
}

#[test]
fn all_pods_then_classes_then_pods() {
    let config = Config { kubepods: all_pods(), ..Config::default() };
    let mut machine = ContainerManager::new(config);
    let mut w = World::default();
    let (burstable, best_effort) = (Target::Class(QosClass::Burstable), Target::Class(QosClass::BestEffort));
    w.step(&mut machine, Event::Tick);
    assert_eq!(w.asked(), [Target::Pods]);
    w.step(&mut machine, Event::Applied { target: Target::Pods, result: Err("no bus".into()) });
    assert_eq!(
        w.told,
        ["FailedNodeAllocatableEnforcement: Failed to update Node Allocatable Limits [\"kubepods\"]: no bus"]
    );
    assert_eq!((w.asked(), machine.deadline()), (vec![], Some(Mono(1_000_000_000))));
    w.now = 1_000_000_000;
    w.step(&mut machine, Event::Tick);
    assert_eq!(w.asked(), [Target::Pods]);
    let actions = w.step(&mut machine, done(Target::Pods));
    assert_eq!(w.told[1..], ["NodeAllocatableEnforced: Updated Node Allocatable limit across pods"]);
    assert_eq!(w.asked(), [burstable, best_effort]);
    let weight = |action: &Action| match action {
        Action::Apply { values, .. } => values.cpu_weight,
        _ => None,
    };
    let weights: Vec<u64> = actions.iter().filter_map(weight).collect();
    assert_eq!(weights, [1], "the Burstable class keeps what it has until the pods are known");
    // Nothing is swept before everything is known and made.
    w.step(&mut machine, Event::Synced);
    w.step(&mut machine, done(best_effort));
    assert!(w.pending.is_empty());
    // What is wanted changes while it is being applied.
    w.step(&mut machine, Event::Pods(Sums { burstable_milli: 2000, ..Sums::default() }));
    assert!(w.pending.is_empty());
    let actions = w.step(&mut machine, done(burstable));
    assert!(
        matches!(&actions[..], [Action::Apply { values, .. }, Action::Ready, Action::Sweep] if values.cpu_weight == Some(79)),
        "{actions:?}"
    );
    w.step(&mut machine, done(burstable));
    w.step(&mut machine, Event::Swept);
    w.pending.clear();
    // The same sums change nothing, others at once.
    w.step(&mut machine, Event::Pods(Sums { burstable_milli: 2000, ..Sums::default() }));
    assert!(w.pending.is_empty());
    w.step(&mut machine, Event::Pods(Sums { burstable_milli: 0, ..Sums::default() }));
    assert_eq!(w.asked(), [burstable]);
    w.step(&mut machine, done(burstable));
    // Once a minute the machine looks at everything; it does not report a success again.
    w.now += 60_000_000_000;
    let actions = w.step(&mut machine, Event::Tick);
    assert_eq!(w.asked().len(), 3);
    assert!(actions.contains(&Action::Sweep));
    w.step(&mut machine, done(Target::Pods));
    assert_eq!(w.told.len(), 2);
}

#[test]
fn reservations_are_told_and_tried_again() {
    let reserved = tiers::Reserved {
        whose: "system",
        configured: "/system.slice".to_owned(),
        name: CgroupName::parse("/system.slice", Systemd),
        values: CgroupValues::default(),
        compressible: true,
    };
    let config = Config { reserved: vec![reserved], ..Config::default() };
    let mut machine = ContainerManager::new(config);
    let mut w = World::default();
    let actions = w.step(&mut machine, Event::Tick);
    assert!(
        actions.iter().any(|a| matches!(a, Action::Apply { target: Target::Reserved(0), make: false, .. }))
    );
    w.step(&mut machine, Event::Applied { target: Target::Reserved(0), result: Err("gone".into()) });
    w.step(&mut machine, done(Target::Reserved(0)));
    assert_eq!(
        w.told,
        [
            "FailedNodeAllocatableEnforcement: Failed to enforce System Reserved Compressible Cgroup Limits on \"/system.slice\": gone",
            "NodeAllocatableEnforced: Updated limits on system reserved cgroup /system.slice"
        ]
    );
}

#[test]
fn the_series_of_waits_after_failures() {
    let seconds = [0, 1, 2, 3, 4, 5, 6, 7, 100].map(|n| super::RETRY.next(n).as_secs());
    assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
}
