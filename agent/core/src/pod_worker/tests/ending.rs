//! When a pod may be told to be over.

use serde_json::json;

use super::world::{World, make_pod};
use super::{one, secs};
use crate::drivers::Class;
use crate::pod_worker::api::KillReason;
use crate::runtime::effect::EffectError;

#[test]
fn a_pod_is_not_over_while_a_start_is_under_way() {
    let image = |name: &str| json!({"name": name, "image": "i:1", "imagePullPolicy": "IfNotPresent"});
    let mut side = image("side");
    side["restartPolicy"] = json!("Always");
    let p = make_pod(json!({"restartPolicy": "Never",
        "initContainers": [side, image("init")], "containers": [image("app")]}));
    let mut w = World::with(&p);
    assert_eq!((w.runtime.running("side").len(), w.runtime.running("init").len()), (1, 1));
    w.end("side", 1);
    // Until its second instance has been created, and is about to start.
    let start = loop {
        let (id, call) = w.pending.iter().next().expect("the sidecar starts again");
        if call.effect.verb() == "start_container" {
            break *id;
        }
        let id = *id;
        w.perform(id);
    };
    w.end("init", 1);
    assert_eq!(w.phase(), "Pending", "the sidecar may run any moment");
    w.perform(start);
    assert_eq!(w.runtime.running("side").len(), 1);
    w.settle();
    assert_eq!((w.phase(), w.runtime.running("side").len()), ("Failed", 0));
}

#[test]
fn a_container_that_is_to_come_back_has_not_ended_its_pod() {
    let of = |image: &str| {
        make_pod(json!({"restartPolicy": "OnFailure", "containers": [{"name": "a", "image": image}]}))
    };
    let mut w = World::with(&of("img:1"));
    w.desire(&of("img:2"));
    while !w.pending.values().any(|call| call.effect.verb() == "stop_container") {
        let next = *w.pending.keys().next().expect("the old one is stopped");
        w.perform(next);
    }
    w.end("a", 0);
    w.settle();
    assert_eq!((w.phase(), w.runtime.running("a").len(), w.count("start_container")), ("Running", 1, 2));
}

#[test]
fn what_the_runtime_lost_of_a_pod_that_runs_once_does_not_run_twice() {
    for (policy, starts, phase) in
        [("Always", 2, "Running"), ("OnFailure", 2, "Running"), ("Never", 1, "Failed")]
    {
        let mut w = World::with(&one(policy));
        w.runtime.containers.clear();
        w.observe();
        w.wait(secs(60));
        assert_eq!((w.count("start_container"), w.phase()), (starts, phase), "{policy}");
    }
}

/// A pod whose StartContainer call got no answer; with what is still on its way.
fn start_lost() -> (World, super::world::Call) {
    let mut w = World::new();
    w.desire(&one("Never"));
    let (id, call) = loop {
        let (id, call) = w.pending.iter().next().expect("on its way to the start");
        if call.effect.verb() == "start_container" {
            break (*id, call.clone());
        }
        let id = *id;
        w.perform(id);
    };
    w.answer(id, Err(EffectError { class: Class::Unavailable, message: "connection lost".to_owned() }));
    (w, call)
}

#[test]
fn a_lost_start_of_what_was_started_is_not_waited_for() {
    for ended in [false, true] {
        let (mut w, call) = start_lost();
        let deadline = call.deadline.expect("a start has one");
        let _lost = w.apply(&call.effect);
        if ended {
            w.end("a", 1);
        }
        w.kill(KillReason::Removed, None);
        w.wait(secs(5));
        assert!(w.now < deadline && w.finished.is_some(), "ended before: {ended}");
    }
}

#[test]
fn a_lost_start_of_what_was_not_started_is_waited_for() {
    let (mut w, call) = start_lost();
    let deadline = call.deadline.expect("a start has one");
    w.kill(KillReason::Removed, None);
    w.wait(deadline.since(w.now) - secs(1));
    assert!(w.finished.is_none(), "it may still begin");
    w.wait(secs(5));
    assert!(w.finished.is_some());
}
