//! Other amounts for a pod that runs.

use std::sync::Arc;
use std::time::Duration;

use agent_types::failure::Class;
use agent_types::kill::KillReason;
use agent_types::machine::{EffectId, Machine};
use agent_types::resources::amounts::Amounts;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::{Value, json};

use super::world::{Call, World, make_pod};
use crate::allocation::actuate::ActuateStep;
use crate::allocation::resize::PendingResize;
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::{Effect, EffectError};

fn pod(memory: &str, generation: i64, policy: Value) -> Arc<Pod> {
    let amounts = json!({"cpu": "1", "memory": memory});
    let container = json!({"name": "a", "image": "r.example/x:1", "resizePolicy": policy,
        "resources": {"requests": amounts, "limits": amounts}});
    let mut p = (*make_pod(json!({"containers": [container]}))).clone();
    p.metadata.generation = Some(generation);
    Arc::new(p)
}

fn condition(w: &World, name: &str) -> Option<PodCondition> {
    let conditions = w.statuses.last()?.conditions.clone()?;
    conditions.into_iter().find(|c| c.type_ == name)
}

fn progress(w: &World) -> Option<(Option<String>, Option<i64>)> {
    condition(w, "PodResizeInProgress").map(|c| (c.reason, c.observed_generation))
}

fn memory(w: &World) -> Option<String> {
    let all = w.statuses.last()?.container_statuses.clone()?;
    Some(all[0].resources.as_ref()?.limits.as_ref()?["memory"].0.clone())
}

#[test]
fn a_container_that_runs_is_given_more_without_a_restart() {
    let mut w = World::with(&pod("64Mi", 1, json!(null)));
    assert_eq!((w.count("resize"), progress(&w), memory(&w)), (0, None, Some("64Mi".to_owned())));
    w.desire(&pod("128Mi", 2, json!(null)));
    assert_eq!(progress(&w), Some((None, Some(2))));
    assert_eq!(memory(&w).as_deref(), Some("64Mi"), "it has not got it yet");
    w.settle();
    assert_eq!((w.count("resize"), progress(&w)), (1, None));
    assert_eq!(memory(&w).as_deref(), Some("128Mi"));
    assert_eq!(w.count("stop_container"), 0);
    let what = r#"{"containers":[{"name":"a","resources":{"limits":{"cpu":"1","memory":"128Mi"},"requests":{"cpu":"1","memory":"128Mi"}}}],"generation":2}"#;
    assert_eq!(w.events_of("ResizeStarted"), [format!("Pod resize started: {what}")]);
    assert_eq!(w.events_of("ResizeCompleted"), [format!("Pod resize completed: {what}")]);
    assert_eq!(w.worker.deadline(), None);
}

#[test]
fn one_whose_policy_wants_it_begins_anew() {
    let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let mut w = World::with(&pod("64Mi", 1, policy.clone()));
    w.desire(&pod("128Mi", 2, policy));
    w.settle();
    assert_eq!((w.count("resize"), w.count("stop_container"), w.count("create_container")), (0, 1, 2));
    assert_eq!(w.events_of("Killing"), ["Container a resize requires restart"]);
    assert_eq!((progress(&w), memory(&w).as_deref()), (None, Some("128Mi")));
    assert_eq!(w.events_of("ResizeCompleted").len(), 1);
}

#[test]
fn what_cannot_be_done_is_told_once_and_tried_again() {
    let mut w = World::with(&pod("64Mi", 1, json!(null)));
    let error =
        EffectError { class: Class::Conflict, message: "cannot decrease memory limits: busy".to_owned() };
    w.runtime.refuse.insert("resize", error);
    w.desire(&pod("32Mi", 2, json!(null)));
    w.settle();
    assert_eq!(progress(&w), Some((Some("Error".to_owned()), Some(2))));
    assert_eq!(
        condition(&w, "PodResizeInProgress").unwrap().message.unwrap(),
        "cannot decrease memory limits: busy"
    );
    w.wait(Duration::from_secs(60));
    assert_eq!(w.events_of("ResizeError").len(), 1);
    assert_eq!(memory(&w).as_deref(), Some("64Mi"));
    w.runtime.refuse.clear();
    w.wait(Duration::from_secs(600));
    assert_eq!((progress(&w), memory(&w).as_deref()), (None, Some("32Mi")));
    assert_eq!(w.events_of("ResizeCompleted").len(), 1);
}

#[test]
fn an_agent_that_was_killed_in_the_middle_goes_on() {
    let mut w = World::with(&pod("64Mi", 1, json!(null)));
    w.desire(&pod("128Mi", 2, json!(null)));
    assert!(w.pending.values().any(|c| matches!(&c.effect, Effect::Resize { .. })));
    let mut shown = (*pod("128Mi", 2, json!(null))).clone();
    shown.status = w.statuses.last().cloned();
    w.crash(Mono(0));
    w.desire(&Arc::new(shown));
    w.settle();
    assert_eq!((w.count("resize"), progress(&w), memory(&w).as_deref()), (1, None, Some("128Mi")));
    assert_eq!((w.count("create_container"), w.events_of("ResizeCompleted").len()), (1, 1));
}

#[test]
fn a_request_that_waits_is_told_once_for_each_reason_and_generation() {
    let mut w = World::with(&pod("64Mi", 1, json!(null)));
    let pending = |reason: &str, message: &str, generation| {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        let event = format!("Pod resize {reason}: {message}");
        Some(PendingResize { reason, message, generation: Some(generation), event })
    };
    for now in [
        pending("Deferred", "used: 1", 2),
        pending("Deferred", "used: 2", 2),
        pending("Deferred", "used: 2", 3),
    ] {
        w.step(PodEvent::ResizePending(now));
    }
    let shown = condition(&w, "PodResizePending").unwrap();
    assert_eq!((shown.message.as_deref(), shown.observed_generation), (Some("used: 2"), Some(3)));
    assert_eq!(
        w.events_of("ResizeDeferred"),
        ["Pod resize Deferred: used: 1", "Pod resize Deferred: used: 2"]
    );
    w.step(PodEvent::ResizePending(pending("Infeasible", "never", 4)));
    assert_eq!(w.events_of("ResizeInfeasible"), ["Pod resize Infeasible: never"]);
    w.step(PodEvent::ResizePending(None));
    assert_eq!(condition(&w, "PodResizePending"), None);
    w.step(PodEvent::ResizePending(pending("Deferred", "used: 3", 5)));
    w.kill(KillReason::Ended, None);
    w.settle();
    assert_eq!(condition(&w, "PodResizePending"), None, "a pod that has ended asks for nothing");
}

#[test]
fn a_container_that_ended_meanwhile_is_looked_at_again() {
    let mut w = World::with(&pod("64Mi", 1, json!(null)));
    w.desire(&pod("128Mi", 2, json!(null)));
    let id = *w.pending.keys().next().unwrap();
    let Effect::Resize { steps } = &w.pending[&id].effect else { panic!("{:?}", w.pending) };
    assert!(matches!(steps.last(), Some(ActuateStep::Container { name, .. }) if name == "a"));
    w.end("a", 1);
    let error = EffectError { class: Class::NotFound, message: "gone".to_owned() };
    w.answer(id, Err(error));
    w.wait(Duration::from_secs(30));
    assert_eq!(w.events_of("ResizeError"), Vec::<String>::new());
    assert_eq!((progress(&w), memory(&w).as_deref(), w.phase()), (None, Some("128Mi"), "Running"));
}

/// Two containers, with these requests of processor time; a change restarts the first one if `restarts`.
fn pair(a: &str, b: &str, generation: i64, restarts: bool) -> Arc<Pod> {
    let policy = restarts.then(|| json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]));
    let of = |name: &str, cpu: &str, policy: Option<Value>| {
        json!({"name": name, "image": "r.example/x:1", "resizePolicy": policy,
            "resources": {"requests": {"cpu": cpu}}})
    };
    let containers = [of("a", a, policy), of("b", b, None)];
    let mut p = (*make_pod(json!({ "containers": containers }))).clone();
    p.metadata.generation = Some(generation);
    Arc::new(p)
}

/// What the containers that run have, in order of their names.
fn requests(w: &World) -> Vec<(String, i64)> {
    let running = |name: &str| w.runtime.running(name);
    let all = ["a", "b"].into_iter().flat_map(running).map(|id| w.runtime.containers[&id].clone());
    all.map(|c| (c.name, c.actuated.unwrap_or_default().cpu_request_milli)).collect()
}

/// Carries out one call after the other. The sum of what runs is never above that of the pod, which is the same before and after.
fn never_above(w: &mut World, sum: i64) {
    for _ in 0..200 {
        let has = requests(w);
        assert!(has.iter().map(|(_, cpu)| cpu).sum::<i64>() <= sum, "{has:?}");
        match w.pending.keys().next().copied() {
            Some(id) => w.perform(id),
            None => return,
        }
    }
    panic!("the worker does not come to rest: {:?}", w.applied);
}

/// Simulation, resizing, seed 30354: another container was started with more, or grew, before the restarted one had ended.
#[test]
fn no_container_grows_before_another_one_has_given_back() {
    for restarts in [true, false] {
        let mut w = World::with(&pair("3", "1", 1, restarts));
        w.desire(&pair("1", "3", 2, restarts));
        never_above(&mut w, 4000);
        assert_eq!(requests(&w), [("a".to_owned(), 1000), ("b".to_owned(), 3000)], "{restarts}");
        assert_eq!(progress(&w), None);
    }
}

#[test]
fn no_container_starts_before_another_one_has_given_back() {
    for restarts in [true, false] {
        let mut w = World::with(&pair("3", "1", 1, restarts));
        // On its way to its next instance, whose image is looked for, when the pod is given other amounts.
        w.end("b", 1);
        while !w.pending.values().any(|call| call.effect.verb() == "inspect_image") {
            w.perform(*w.pending.keys().next().expect("it starts again"));
        }
        w.desire(&pair("1", "3", 2, restarts));
        never_above(&mut w, 4000);
        w.wait(Duration::from_secs(30));
        assert_eq!(requests(&w), [("a".to_owned(), 1000), ("b".to_owned(), 3000)], "{restarts}");
    }
}

/// Memory that is in use is not given back: the others do not wait for ever.
#[test]
fn a_resize_that_fails_holds_no_start_up() {
    let mut w = World::with(&pair("3", "1", 1, false));
    let error = EffectError { class: Class::Conflict, message: "in use".to_owned() };
    w.runtime.refuse.insert("resize", error);
    w.desire(&pair("1", "3", 2, false));
    w.settle();
    w.exit("b", 1);
    w.wait(Duration::from_secs(30));
    assert_eq!(requests(&w), [("a".to_owned(), 3000), ("b".to_owned(), 3000)]);
}

/// The pod's container is made with 64 MiB, and its start is asked for.
fn starting() -> (World, EffectId) {
    let mut w = World::new();
    w.desire(&pod("64Mi", 1, json!(null)));
    loop {
        let start = |call: &&Call| matches!(call.effect, Effect::StartContainer { .. });
        if let Some((id, _)) = w.pending.iter().find(|(_, call)| start(call)) {
            let id = *id;
            return (w, id);
        }
        w.perform(*w.pending.keys().next().unwrap());
    }
}

#[test]
fn one_that_begins_to_run_meanwhile_has_what_it_was_made_with() {
    let (mut w, start) = starting();
    w.desire(&pod("128Mi", 2, json!(null)));
    while let Some(id) = w.pending.keys().copied().find(|id| *id != start) {
        w.perform(id);
    }
    let open = |w: &World| {
        let shown = progress(w);
        assert_eq!((shown, w.events_of("ResizeCompleted").len()), (Some((None, Some(2))), 0));
    };
    open(&w);
    // It runs, and no look has shown it yet.
    w.perform(start);
    open(&w);
    w.settle();
    assert_eq!((w.count("resize"), progress(&w), memory(&w).as_deref()), (1, None, Some("128Mi")));
    assert_eq!(w.events_of("ResizeCompleted").len(), 1);
}

#[test]
fn one_that_was_made_with_other_amounts_and_never_ran_is_made_anew() {
    let (mut w, _) = starting();
    // The start never arrived.
    w.crash(Mono(0));
    let made = w.runtime.containers.values_mut().next().unwrap();
    made.actuated = Some(Amounts::of(
        pod("64Mi", 1, json!(null)).spec.as_ref().unwrap().containers[0].resources.as_ref(),
    ));
    w.desire(&pod("128Mi", 2, json!(null)));
    w.settle();
    let did = ["create_container", "remove_container", "start_container", "resize"].map(|verb| w.count(verb));
    assert_eq!((did, memory(&w).as_deref()), ([2, 1, 1, 0], Some("128Mi")));
}

#[test]
fn a_pod_that_ends_is_not_told_to_have_what_it_does_not_get_any_more() {
    let mut w = World::with(&pod("64Mi", 1, json!(null)));
    w.kill(KillReason::DeadlineExceeded, Some(30));
    w.desire(&pod("128Mi", 2, json!(null)));
    assert_eq!(progress(&w), Some((None, Some(2))));
    assert_eq!((w.count("resize"), w.events_of("ResizeStarted").len()), (0, 0));
}
