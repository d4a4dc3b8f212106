//! Conditions under which the status may show a pod as ended.

use std::sync::Arc;

use agent_types::failure::{CANCELLED_CALL_MAX, Class};
use agent_types::kill::KillReason;
use agent_types::runtime::observed::SandboxState;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;

use super::world::{World, make_pod};
use super::{one, secs};
use crate::pod_worker::api::PodEvent;
use crate::pod_worker::effect::{Effect, EffectError};

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

/// Its sandbox is lost, its container runs on and ends well when it is asked to.
fn lose_sandbox(w: &mut World) {
    for sandbox in w.runtime.sandboxes.values_mut() {
        sandbox.state = SandboxState::NotReady;
    }
    w.look();
    assert!(w.pending.values().any(|call| call.effect.verb() == "stop_container"), "its sandbox is to go");
    w.end("a", 0);
    w.settle();
}

#[test]
fn what_ends_well_because_its_sandbox_was_lost_comes_back() {
    for (policy, sandboxes, phase) in
        [("Always", 2, "Running"), ("OnFailure", 2, "Running"), ("Never", 1, "Succeeded")]
    {
        let mut w = World::with(&one(policy));
        lose_sandbox(&mut w);
        assert_eq!((w.count("run_sandbox"), w.phase()), (sandboxes, phase), "{policy}");
        assert_eq!(w.runtime.running("a").len(), sandboxes - 1, "{policy}");
        assert!(w.waiting_reason("a").is_empty(), "{policy}: it did not crash");
    }
    // By itself it ended for good.
    let mut w = World::with(&one("OnFailure"));
    w.exit("a", 0);
    assert_eq!((w.phase(), w.worker.state_name()), ("Succeeded", "terminated"));
}

#[test]
fn while_init_containers_run_again_in_the_new_sandbox_the_pod_has_not_ended() {
    let p =
        make_pod(json!({"restartPolicy": "OnFailure", "initContainers": [{"name": "i", "image": "img:1"}],
        "containers": [{"name": "a", "image": "img:1"}]}));
    let mut w = World::with(&p);
    w.exit("i", 0);
    lose_sandbox(&mut w);
    assert_eq!((w.runtime.running("i").len(), w.worker.state_name()), (1, "syncing"));
    w.exit("i", 0);
    assert_eq!((w.runtime.running("a").len(), w.phase()), (1, "Running"));
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

#[test]
fn a_pod_that_the_api_shows_as_over_ends() {
    // An earlier agent wrote it, and its call arrived late; or another client wrote it.
    for (phase, running) in [("Failed", 0), ("Succeeded", 0), ("Running", 1)] {
        let mut pod = (*one("Always")).clone();
        let mut w = World::with(&Arc::new(pod.clone()));
        assert_eq!(w.runtime.running("a").len(), 1);
        pod.status = Some(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() });
        w.desire(&Arc::new(pod));
        w.wait(secs(60));
        assert_eq!(w.runtime.running("a").len(), running, "{phase}");
        assert_eq!(w.count("start_container"), 1, "{phase}: and never begins again");
    }
}

/// A new agent has not inspected the pod yet when the machine begins to stop (simulation, stopping, seed
/// 116).
#[test]
fn a_pod_that_had_ended_by_itself_keeps_its_end_when_the_machine_stops() {
    let shutdown = || KillReason::Shutdown { again: false };
    for (policy, code, phase, reason) in [
        ("Never", 0, "Succeeded", None),
        ("OnFailure", 0, "Succeeded", None),
        ("Never", 1, "Failed", None),
        // It would have begun again.
        ("OnFailure", 1, "Failed", Some("Terminated")),
        ("Always", 0, "Failed", Some("Terminated")),
    ] {
        let p = one(policy);
        let mut w = World::with(&p);
        let id = w.runtime.running("a")[0].clone();
        let wall = w.wall();
        w.runtime.exit(wall, &id, code);
        w.restart_agent();
        w.desire(&p);
        w.kill(shutdown(), Some(5));
        w.settle();
        let said = w.statuses.last().and_then(|s| s.reason.clone());
        assert_eq!((w.phase(), said.as_deref()), (phase, reason), "{policy}, {code}");
    }
    // A container that ran until then and exits with 0 at the stop has not succeeded.
    let mut w = World::with(&one("Never"));
    w.kill(shutdown(), Some(5));
    w.settle();
    assert_eq!(w.phase(), "Failed");
}

/// A pod whose StartContainer call got no answer; with the call that is still in flight.
fn start_lost() -> (World, super::world::Call) {
    start_lost_by(Class::DeadlineExceeded)
}

fn start_lost_by(class: Class) -> (World, super::world::Call) {
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
    w.answer(id, Err(EffectError { class, message: "no answer".to_owned() }));
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

#[test]
fn what_may_still_be_started_is_looked_at_again_before_it_is_removed() {
    let (mut w, call) = start_lost_by(Class::Interrupted);
    w.wait(secs(1));
    // The call is applied late, without an event.
    let _late = w.apply(&call.effect);
    w.kill(KillReason::Removed, Some(30));
    w.wait(CANCELLED_CALL_MAX + secs(1));
    assert_eq!(w.count("stop_container"), 1, "it ran: it has its grace");
    assert!(w.finished.is_some());
}

/// The pod as the API has it after its end was published.
fn told_over(p: &Pod, phase: &str) -> Arc<Pod> {
    let mut p = p.clone();
    p.status = Some(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() });
    Arc::new(p)
}

#[test]
fn what_is_kept_of_a_pod_goes_when_space_is_short_and_its_end_is_told() {
    let p = one("Never");
    let mut w = World::with(&p);
    w.end("a", 3);
    w.settle();
    assert_eq!((w.phase(), w.runtime.containers.len()), ("Failed", 1));
    w.step(PodEvent::DeleteUnused);
    w.settle();
    assert_eq!(w.runtime.containers.len(), 1, "the API does not know yet how it ended");
    assert!(w.worker.is_stripped(), "nobody is to wait for it");

    let over = told_over(&p, "Failed");
    w.desire(&over);
    let before = w.statuses.last().cloned();
    w.step(PodEvent::DeleteUnused);
    assert!(!w.worker.is_stripped());
    let removal = w.pending.values().find_map(|call| match &call.effect {
        Effect::RemoveContainer { log, .. } => log.clone(),
        _ => None,
    });
    assert!(removal.is_some_and(|log| log.even_newest), "its logs go, too");
    w.settle();
    assert!(w.runtime.containers.is_empty() && w.runtime.sandboxes.is_empty());
    assert!(w.worker.is_stripped());
    assert_eq!(
        (w.statuses.last().cloned(), w.count("remove_pod_dirs")),
        (before, 0),
        "it is as over as it was"
    );
    w.wait(secs(600));
    assert_eq!((w.worker.state_name(), w.count("start_container")), ("terminated", 1));
    w.kill(KillReason::Removed, None);
    w.settle();
    assert_eq!((w.worker.state_name(), w.count("remove_pod_dirs")), ("finished", 1));
}

#[test]
fn what_is_kept_of_a_static_pod_stays_for_only_the_runtime_knows_that_it_ended() {
    let mut p = (*one("Never")).clone();
    p.metadata
        .annotations
        .get_or_insert_default()
        .insert("kubernetes.io/config.source".into(), "file".into());
    let mut w = World::with(&told_over(&p, "Running"));
    w.end("a", 0);
    w.desire(&told_over(&p, "Succeeded"));
    w.step(PodEvent::DeleteUnused);
    w.settle();
    assert_eq!((w.runtime.containers.len(), w.worker.is_stripped()), (1, true));
}

#[test]
fn logs_of_superseded_instances_go_and_the_newest_stays() {
    let mut w = World::with(&one("Always"));
    let mut logs = Vec::new();
    for _ in 0..3 {
        w.end("a", 1);
        while let Some((id, call)) = w.pending.iter().next() {
            let id = *id;
            if let Effect::RemoveContainer { log, .. } = &call.effect {
                logs.extend(log.clone());
            }
            w.perform(id);
        }
        w.wait(secs(600));
    }
    assert!(logs.len() >= 2 && logs.iter().all(|log| !log.even_newest), "{logs:?}");
}
