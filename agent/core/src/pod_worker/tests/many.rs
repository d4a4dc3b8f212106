//! Work for a pod of many containers: what a step costs depends on what changed.

use std::sync::Arc;

use agent_types::failure::Class;
use agent_types::kill::KillReason;
use agent_types::machine::Machine;
use serde_json::{Value, json};

use super::world::{World, make_pod};
use super::{secs, two};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::EffectError;

/// Lets the worker work until it rests: for each answered effect its verb, and how many passes over the pod it caused.
fn steps(w: &mut World) -> Vec<(&'static str, u64)> {
    let mut steps = Vec::new();
    loop {
        let before = w.worker.counts().passes;
        if let Some(id) = w.pending.keys().next().copied() {
            let verb = w.pending[&id].effect.verb();
            w.perform(id);
            steps.push((verb, w.worker.counts().passes - before));
        } else if let Some(due) = w.worker.deadline() {
            w.now = w.now.max(due);
            w.step(PodEvent::Tick);
        } else {
            return steps;
        }
    }
}

fn passes(steps: &[(&'static str, u64)], verb: &str) -> Vec<u64> {
    steps.iter().filter(|(of, _)| *of == verb).map(|(_, passes)| *passes).collect()
}

#[test]
fn a_start_that_is_being_prepared_needs_no_pass_over_the_pod() {
    let mut w = World::new();
    w.desire(&two("Always"));
    let steps = steps(&mut w);
    assert_eq!(passes(&steps, "inspect_image"), [0, 0], "{steps:?}");
    assert_eq!(
        passes(&steps, "create_pod_dirs"),
        [1, 0, 0],
        "the pod's, then those of containers: {steps:?}"
    );
    assert_eq!(passes(&steps, "create_container"), [1, 1], "{steps:?}");
    assert_eq!(passes(&steps, "start_container"), [1, 1], "{steps:?}");
    assert_eq!(w.phase(), "Running");
}

#[test]
fn a_preparation_that_fails_is_told_at_once() {
    let mut w = World::new();
    let error = EffectError { class: Class::Invalid, message: "no such image".to_owned() };
    w.runtime.refuse.insert("inspect_image", error);
    w.desire(&two("Always"));
    while let Some(id) = w.pending.keys().next().copied() {
        w.perform(id);
    }
    assert_eq!(w.waiting_reason("a"), "ImageInspectError");
}

#[test]
fn a_look_that_shows_the_same_makes_no_status() {
    let mut w = World::with(&two("Always"));
    w.observe();
    let before = w.worker.counts();
    for _ in 0..5 {
        w.observe();
    }
    let after = w.worker.counts();
    assert_eq!(after.statuses, before.statuses);
    assert_eq!(after.passes, before.passes + 5);
    w.exit("a", 1);
    assert!(w.worker.counts().statuses > after.statuses, "a change does");
}

#[test]
fn a_look_that_comes_back_costs_no_pass() {
    let mut w = World::with(&two("Always"));
    let seen = Arc::new(w.snapshot());
    w.step(PodEvent::Observed(seen.clone()));
    let before = w.worker.counts().passes;
    w.step(PodEvent::Observed(Arc::new((*seen).clone())));
    assert_eq!(w.worker.counts().passes, before);
    w.look();
    assert_eq!(w.worker.counts().passes, before + 1, "a later one does");
}

#[test]
fn the_start_of_many_containers_takes_a_few_passes_for_each_and_fewer_looks() {
    const MANY: u64 = 60;
    let containers: Vec<Value> =
        (0..MANY).map(|n| json!({"name": format!("c{n}"), "image": "img:1"})).collect();
    let p = make_pod(json!({"containers": containers, "terminationGracePeriodSeconds": 5}));
    let mut w = World::new();
    w.desire(&p);
    let started = steps(&mut w);
    assert_eq!(w.phase(), "Running");
    let made = w.worker.counts();
    assert!(made.passes <= 5 * MANY && made.statuses <= made.passes, "{made:?}");
    let looks = passes(&started, "inspect").len() as u64;
    assert!(looks < MANY - 10, "{looks} looks at {MANY} containers");
    w.kill(KillReason::Removed, None);
    let ended = steps(&mut w);
    assert_eq!(w.finished, Some(false));
    let looks = passes(&ended, "inspect").len() as u64;
    assert!(looks < MANY - 10, "{looks} looks at the end of {MANY} containers");
}

#[test]
fn what_was_started_is_seen_in_the_end() {
    let containers: Vec<Value> =
        (0..30).map(|n| json!({"name": format!("c{n}"), "image": "img:1"})).collect();
    let mut w = World::new();
    w.desire(&make_pod(json!({"restartPolicy": "Always", "containers": containers})));
    steps(&mut w);
    assert_eq!(w.phase(), "Running");
    w.exit("c7", 1);
    w.wait(secs(1));
    assert_eq!(w.count("create_container"), 31, "one that ended starts again at once");
    assert_eq!(w.phase(), "Running");
}

#[test]
fn what_was_started_is_seen_while_the_next_start_hangs() {
    let containers: Vec<Value> =
        (0..30).map(|n| json!({"name": format!("c{n}"), "image": "img:1"})).collect();
    let mut w = World::new();
    w.desire(&make_pod(json!({"restartPolicy": "Always", "containers": containers})));
    while w.count("start_container") < 29 {
        if let Some(id) = w.pending.keys().next().copied() {
            w.perform(id);
        } else {
            w.now = w.now.max(w.worker.deadline().expect("something is to come"));
            w.step(PodEvent::Tick);
        }
    }
    let began = w.now;
    // The thirtieth container's call is never answered.
    let look =
        |w: &World| w.pending.iter().find(|(_, call)| call.effect.verb() == "inspect").map(|(id, _)| *id);
    for _ in 0..2 {
        if let Some(due) = w.worker.deadline().filter(|_| look(&w).is_none()) {
            w.now = w.now.max(due);
            w.step(PodEvent::Tick);
        }
        if let Some(id) = look(&w) {
            w.perform(id);
        }
    }
    assert!(!w.pending.is_empty(), "the call is still under way");
    let all = w.statuses.last().and_then(|s| s.container_statuses.as_ref()).expect("statuses of containers");
    assert_eq!(all.iter().filter(|c| c.started == Some(true)).count(), 29);
    assert!(w.now.since(began) < secs(1), "{:?}", w.now.since(began));
}
