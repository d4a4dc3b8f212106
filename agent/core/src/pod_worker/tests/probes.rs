//! Probes inside a pod worker: status, kills, restarts, termination, another incarnation.

use std::sync::Arc;

use agent_types::kill::KillReason;
use agent_types::machine::Machine;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use serde_json::{Value, json};

use super::secs;
use super::world::{World, make_pod};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::EffectOk;
use crate::probe::{Kind, Outcome};

fn probed(policy: &str, probes: Value) -> Arc<Pod> {
    let mut container = probes;
    container["name"] = json!("a");
    container["image"] = json!("img:1");
    make_pod(json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 20, "containers": [container]}))
}

fn exec() -> Value {
    json!({"exec": {"command": ["x"]}, "failureThreshold": 1})
}

fn bad() -> Outcome {
    Outcome::Failure("no".to_owned())
}

/// Lets time pass until something is asked, and answers it.
fn answer(w: &mut World, outcome: &Outcome) -> Kind {
    for _ in 0..100 {
        if !w.probes.is_empty() {
            let (id, call) = w.probes.remove(0);
            w.step(PodEvent::ProbeDone { id, outcome: outcome.clone() });
            w.settle();
            return call.kind;
        }
        w.wait(secs(1));
    }
    panic!("nothing was asked");
}

fn last(w: &World) -> &PodStatus {
    w.statuses.last().expect("a status")
}

fn container(w: &World) -> &ContainerStatus {
    &last(w).container_statuses.as_ref().expect("statuses")[0]
}

fn is_ready(w: &World) -> bool {
    let conditions = last(w).conditions.iter().flatten();
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

#[test]
fn readiness_is_in_the_status_as_soon_as_it_is_known() {
    let mut w = World::with(&probed("Always", json!({"readinessProbe": exec()})));
    assert_eq!((w.phase(), is_ready(&w), container(&w).started), ("Running", false, Some(true)));
    assert_eq!(w.probes.len(), 1, "asked without delay");
    assert_eq!(answer(&mut w, &Outcome::Success), Kind::Readiness);
    assert!(is_ready(&w) && container(&w).ready);
    let published = w.statuses.len();
    answer(&mut w, &Outcome::Success);
    assert_eq!(w.statuses.len(), published, "nothing new");
    answer(&mut w, &bad());
    assert!(!is_ready(&w));
    assert_eq!(w.events_of("Unhealthy"), ["Readiness probe failed: no"]);
    assert_eq!(w.count("stop_container"), 0, "readiness kills nothing");
}

#[test]
fn liveness_kills_with_its_own_grace_and_the_policy_decides_what_follows() {
    for (policy, restarts, message) in [
        ("Always", 2, "Container a failed liveness probe, will be restarted"),
        ("OnFailure", 2, "Container a failed liveness probe, will be restarted"),
        // Nothing of the pod is left to run: it ends as a whole, with its own grace.
        ("Never", 1, "Stopping container a"),
    ] {
        let mut probe = exec();
        probe["terminationGracePeriodSeconds"] = json!(9);
        let mut w = World::with(&probed(policy, json!({ "livenessProbe": probe })));
        assert!(is_ready(&w));
        assert_eq!(answer(&mut w, &bad()), Kind::Liveness);
        assert_eq!(w.events_of("Killing"), [message]);
        assert_eq!(w.events_of("Unhealthy"), ["Liveness probe failed: no"]);
        let grace = if restarts > 1 { " 9" } else { " 20" };
        assert!(
            w.applied.iter().any(|a| a.starts_with("stop_container") && a.ends_with(grace)),
            "{:?}",
            w.applied
        );
        assert_eq!(w.count("start_container"), restarts, "{policy}");
    }
}

#[test]
fn another_reason_to_stop_a_container_does_not_give_it_another_grace() {
    let of = |image: &str| {
        let mut probe = exec();
        probe["terminationGracePeriodSeconds"] = json!(9);
        make_pod(json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 20, "containers": [{
            "name": "a", "image": image, "livenessProbe": probe,
            "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}]}))
    };
    let mut w = World::with(&of("img:1"));
    answer(&mut w, &bad());
    assert_eq!((w.hooks.len(), w.count("stop_container")), (1, 0));
    w.desire(&of("img:2"));
    w.wait(secs(3));
    w.end_hook(Ok(EffectOk::Hook { fell_back: None }));
    let stop = w.applied.iter().find(|a| a.starts_with("stop_container")).expect("the stop follows");
    assert!(stop.ends_with(" 6"), "{stop}: three of nine seconds are gone");
}

#[test]
fn startup_holds_back_started_and_ready() {
    let mut w = World::with(&probed("Always", json!({"startupProbe": exec(), "readinessProbe": exec()})));
    assert_eq!((container(&w).started, container(&w).ready), (Some(false), false));
    assert_eq!(answer(&mut w, &Outcome::Success), Kind::Startup);
    assert_eq!((container(&w).started, container(&w).ready), (Some(true), false));
    assert_eq!(answer(&mut w, &Outcome::Success), Kind::Readiness);
    assert!(is_ready(&w));
}

#[test]
fn a_question_that_changes_nothing_costs_no_pass() {
    let mut w = World::with(&probed("Always", json!({"livenessProbe": exec()})));
    let before = w.applied.len();
    for _ in 0..20 {
        answer(&mut w, &Outcome::Success);
    }
    assert_eq!(w.applied.len(), before, "nothing was done, nothing looked at");
    assert!(w.worker.deadline().is_some_and(|at| at > w.now));
}

#[test]
fn a_pod_on_its_way_out_is_asked_only_whether_it_is_ready_and_then_nothing() {
    let p = probed("Always", json!({"livenessProbe": exec(), "readinessProbe": exec()}));
    let mut w = World::with(&p);
    answer(&mut w, &Outcome::Success);
    w.kill(KillReason::Removed, None);
    assert!(w.probes.iter().all(|(_, call)| call.kind == Kind::Readiness));
    w.settle();
    assert_eq!(w.finished, Some(false));
    assert!(w.probes.is_empty(), "{:?}", w.probes);
}

#[test]
fn probes_of_sidecars_go_on_while_the_pod_ends() {
    let probed = |name: &str, more: Value| {
        let mut container =
            json!({"name": name, "image": "img:1", "livenessProbe": exec(), "startupProbe": exec()});
        for (key, value) in more.as_object().expect("fields") {
            container[key] = value.clone();
        }
        container
    };
    let mut w =
        World::with(&make_pod(json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 60,
        "initContainers": [probed("s", json!({"restartPolicy": "Always"}))],
        "containers": [probed("a", json!({"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}))]})));
    while w.count("start_container") < 2 || !w.probes.is_empty() {
        answer(&mut w, &Outcome::Success);
    }
    w.kill(KillReason::Removed, None);
    w.wait(secs(15));
    let asked: Vec<(String, Kind)> =
        w.probes.iter().map(|(_, call)| (call.name.clone(), call.kind)).collect();
    assert_eq!(asked, [("s".to_owned(), Kind::Liveness)]);
    answer(&mut w, &bad());
    assert_eq!(w.events_of("Unhealthy"), ["Liveness probe failed: no"]);
    w.wait(secs(20));
    assert_eq!((w.count("stop_container"), w.count("start_container")), (0, 2), "nothing comes of it");
}

/// Upstream's numbers: it judges by the end of the instance before the one that it kills.
#[test]
fn the_back_off_counts_the_life_of_what_liveness_kills_as_waited() {
    let mut probe = exec();
    probe["initialDelaySeconds"] = json!(25);
    let mut w = World::with(&probed("Always", json!({ "livenessProbe": probe })));
    for restarts in 1..=4 {
        answer(&mut w, &bad());
        assert_eq!(w.count("start_container"), restarts + 1, "at once");
    }
    answer(&mut w, &bad());
    assert_eq!((w.waiting_reason("a").as_str(), w.count("start_container")), ("CrashLoopBackOff", 5));
    w.wait(secs(38));
    assert_eq!(w.count("start_container"), 5);
    w.wait(secs(3));
    assert_eq!(w.count("start_container"), 6, "40 s after its end");
}

#[test]
fn another_agent_keeps_what_the_api_server_shows() {
    let probes = json!({"startupProbe": exec(), "readinessProbe": exec()});
    let mut w = World::with(&probed("Always", probes.clone()));
    answer(&mut w, &Outcome::Success);
    answer(&mut w, &Outcome::Success);
    assert!(is_ready(&w));
    let mut shown = probed("Always", probes);
    Arc::make_mut(&mut shown).status = w.statuses.last().cloned();
    w.restart_agent();
    let told = w.statuses.len();
    w.desire(&shown);
    w.settle();
    assert!(
        w.statuses[told..].iter().flat_map(|s| s.conditions.iter().flatten()).all(|c| c.status == "True")
    );
    // An answer of its own counts.
    assert_eq!(answer(&mut w, &bad()), Kind::Readiness);
    assert!(!is_ready(&w));
}

#[test]
fn one_that_liveness_killed_and_that_ends_well_is_not_told_to_have_ended_for_good() {
    let mut w = World::with(&probed("OnFailure", json!({"livenessProbe": exec()})));
    while w.probes.is_empty() {
        w.wait(secs(1));
    }
    let (id, _) = w.probes.remove(0);
    w.step(PodEvent::ProbeDone { id, outcome: bad() });
    w.end("a", 0);
    w.settle();
    assert_eq!(w.count("start_container"), 2);
    let shown = |s: &PodStatus| s.container_statuses.as_ref().and_then(|all| all[0].state.clone());
    let ends: Vec<_> = w.statuses.iter().filter_map(|s| shown(s)?.terminated).collect();
    assert!(ends.is_empty(), "{ends:?}");
    let last = container(&w).last_state.as_ref().and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code);
    assert_eq!((last, w.phase()), (Some(0), "Running"));
}
