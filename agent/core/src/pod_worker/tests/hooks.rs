//! Hooks inside a pod worker: order, grace, failures, cancellation, orphans.

use std::sync::Arc;
use std::time::Duration;

use agent_types::failure::Class;
use agent_types::ids::ContainerId;
use agent_types::kill::KillReason;
use agent_types::machine::Machine;
use agent_types::runtime::labels;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::secs;
use super::world::{World, make_pod};
use crate::lifecycle_hooks::{Hook, HookAction};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult};
use crate::probe::Outcome;

const FINE: EffectResult = Ok(EffectOk::Hook { fell_back: None });

fn failed(class: Class) -> EffectResult {
    Err(EffectError { class, message: "the secret word of c2".to_owned() })
}

fn hooked(lifecycle: Value) -> Arc<Pod> {
    make_pod(json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 20, "containers": [
        {"name": "a", "image": "img:1", "lifecycle": lifecycle}, {"name": "b", "image": "img:1"}]}))
}

fn exec() -> Value {
    json!({"exec": {"command": ["x"]}})
}

fn stops(w: &World) -> Vec<&str> {
    w.applied.iter().filter(|a| a.starts_with("stop_container")).map(String::as_str).collect()
}

fn started(w: &World) -> Option<bool> {
    let status = w.statuses.last().expect("a status");
    status.container_statuses.as_ref().expect("statuses")[0].started
}

#[test]
fn the_next_container_waits_for_post_start() {
    let mut w = World::with(&hooked(json!({"postStart": exec()})));
    assert_eq!((w.count("start_container"), started(&w), w.hooks.len()), (1, Some(false), 1));
    assert_eq!(w.hooks[0].2, None, "it has no limit");
    w.wait(secs(1000));
    assert_eq!(w.count("start_container"), 1);
    assert_eq!(w.end_hook(FINE), "PostStart a");
    assert_eq!((w.count("start_container"), started(&w)), (2, Some(true)));
    assert!(stops(&w).is_empty());
}

#[test]
fn a_post_start_hook_that_fails_kills_its_container_which_is_restarted() {
    let mut w = World::with(&hooked(json!({"postStart": exec()})));
    w.end_hook(failed(Class::Invalid));
    assert_eq!(w.events_of("FailedPostStartHook"), ["PostStartHook failed"]);
    assert_eq!(w.events_of("Killing"), ["FailedPostStartHook"]);
    assert_eq!(stops(&w), ["stop_container c2 20"]);
    let shown: Vec<String> = w
        .statuses
        .iter()
        .filter_map(|s| s.container_statuses.as_ref()?[0].state.as_ref()?.waiting.clone())
        .filter_map(|waiting| Some(format!("{}: {}", waiting.reason?, waiting.message?)))
        .collect();
    assert!(shown.contains(&"PostStartHookError: the secret word of a".to_owned()), "{shown:?}");
    assert_eq!(w.hooks.len(), 1, "the next instance has its own");
    assert_eq!(w.end_hook(FINE), "PostStart a");
    assert_eq!(w.count("start_container"), 3);
}

#[test]
fn nobody_waits_for_the_post_start_hook_of_a_container_that_ended() {
    let mut w = World::with(&hooked(json!({"postStart": exec()})));
    w.exit("a", 1);
    let (id, _, _) = w.hooks[0].clone();
    assert!(w.cancelled.contains(&id));
    w.end_hook(failed(Class::DeadlineExceeded));
    assert!(w.events_of("FailedPostStartHook").is_empty() && stops(&w).is_empty());
    assert_eq!(w.hooks.len(), 1, "of the next instance");
}

#[test]
fn pre_stop_runs_before_the_stop_and_out_of_the_grace() {
    for (takes, left) in [(0, 20), (7, 13), (19, 2), (20, 2), (400, 2)] {
        let mut w = World::with(&hooked(json!({"preStop": exec()})));
        w.kill(KillReason::Removed, None);
        w.settle();
        assert_eq!(stops(&w), ["stop_container c3 20"], "only the one without a hook");
        let deadline = w.hooks[0].2.expect("a limit");
        assert!(deadline <= w.now.after(secs(22)), "the grace, and what a stop is given at least");
        w.wait(secs(takes));
        let cancelled = w.cancelled.contains(&w.hooks[0].0);
        assert_eq!((cancelled, stops(&w).len() == 2), (takes >= 20, takes >= 20), "after {takes} s");
        w.end_hook(if cancelled { failed(Class::DeadlineExceeded) } else { FINE });
        assert_eq!(stops(&w)[1], format!("stop_container c2 {left}"), "after {takes} s");
        assert_eq!((w.finished, w.events_of("FailedPreStopHook").len()), (Some(false), 0));
        assert_eq!(w.events_of("Killing").len(), 2);
    }
}

/// Upstream's hook continues as well, until its container is killed.
#[test]
fn a_hook_that_outlasts_the_grace_goes_on_until_its_container_is_gone() {
    for reason in [Some(KillReason::Removed), None] {
        let mut w = World::with(&hooked(json!({"preStop": exec()})));
        match &reason {
            Some(reason) => w.kill(reason.clone(), None),
            // Its definition changes: the pod lives on.
            None => w.desire(&make_pod(json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 20, "containers": [
                {"name": "a", "image": "img:2", "lifecycle": {"preStop": exec()}}, {"name": "b", "image": "img:1"}]}))),
        }
        w.settle();
        let refused = EffectError { class: Class::Unavailable, message: "away".to_owned() };
        w.runtime.refuse.insert("stop_container", refused);
        w.wait(secs(19));
        assert!(w.events_of("FailedKillPod").is_empty(), "the stop waits for the hook");
        w.wait(secs(2));
        let (id, _, _) = w.hooks[0].clone();
        assert!(!w.events_of("FailedKillPod").is_empty(), "the grace is over: it is stopped");
        assert!(!w.cancelled.contains(&id), "the hook goes on");
        w.runtime.refuse.clear();
        w.wait(secs(20));
        assert!(stops(&w).contains(&"stop_container c2 2"), "{:?}", stops(&w));
        assert!(w.cancelled.contains(&id), "its container is gone");
        w.end_hook(failed(Class::DeadlineExceeded));
        assert!(w.events_of("FailedPreStopHook").is_empty());
    }
}

#[test]
fn a_pre_stop_hook_that_fails_is_told_and_the_stop_follows() {
    let mut w = World::with(&hooked(json!({"preStop": exec()})));
    w.kill(KillReason::Removed, None);
    w.settle();
    w.end_hook(failed(Class::Invalid));
    assert_eq!(w.events_of("FailedPreStopHook"), ["PreStopHook failed"]);
    assert_eq!(w.finished, Some(false));
}

#[test]
fn a_hook_that_cannot_be_run_is_a_failure() {
    let w = World::with(&hooked(json!({"preStop": {"httpGet": {"port": "nowhere"}}, "postStart": {}})));
    // The first restart is immediate, the second backs off.
    assert_eq!(w.events_of("FailedPostStartHook").len(), 2);
    assert_eq!(w.events_of("FailedPreStopHook").len(), 2, "each kill after it had its own");
    assert!(w.hooks.is_empty());
}

#[test]
fn a_shorter_grace_ends_the_hook_sooner() {
    let mut w = World::with(&hooked(json!({"preStop": exec()})));
    w.kill(KillReason::Removed, None);
    w.settle();
    let (id, _, _) = w.hooks[0].clone();
    w.kill(KillReason::Removed, Some(5));
    w.settle();
    assert!(!w.cancelled.contains(&id));
    w.wait(secs(6));
    assert!(w.cancelled.contains(&id));
    w.end_hook(failed(Class::DeadlineExceeded));
    assert_eq!(w.finished, Some(false));
}

#[test]
fn deletion_does_not_wait_for_post_start() {
    let mut w = World::with(&hooked(json!({"postStart": exec(), "preStop": exec()})));
    w.kill(KillReason::Removed, None);
    w.settle();
    let (id, _, _) = w.hooks[0].clone();
    assert!(w.cancelled.contains(&id));
    assert_eq!(w.end_hook(failed(Class::DeadlineExceeded)), "PostStart a");
    assert!(w.events_of("FailedPostStartHook").is_empty());
    assert_eq!(w.end_hook(FINE), "PreStop a");
    assert_eq!(w.finished, Some(false));
}

#[test]
fn hooks_of_sidecars_run_at_once_and_their_stops_in_their_turn() {
    let p = make_pod(json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 20,
        "initContainers": [{"name": "s", "image": "img:1", "restartPolicy": "Always", "lifecycle": {"preStop": exec()}}],
        "containers": [{"name": "a", "image": "img:1", "lifecycle": {"preStop": exec()}}]}));
    let mut w = World::with(&p);
    w.kill(KillReason::Removed, None);
    w.settle();
    assert_eq!(w.hooks.len(), 2);
    w.hooks.sort_by(|(_, a, _), (_, b, _)| b.name.cmp(&a.name));
    assert_eq!(w.end_hook(FINE), "PreStop s");
    assert!(stops(&w).is_empty(), "not before the regular one");
    w.end_hook(FINE);
    assert_eq!(stops(&w), ["stop_container c3 20", "stop_container c2 20"]);
}

fn with_sidecars(policy: &str, lifecycle: &Value) -> Arc<Pod> {
    let sidecar = |name: &str| json!({"name": name, "image": "img:1", "restartPolicy": "Always", "lifecycle": lifecycle});
    make_pod(json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 20,
        "initContainers": [sidecar("s1"), sidecar("s2")], "containers": [{"name": "a", "image": "img:1"}]}))
}

#[test]
fn a_pod_that_ends_by_itself_stops_its_sidecars_one_after_the_other_after_all_their_hooks_were_called() {
    let mut w = World::with(&with_sidecars("Never", &json!({"preStop": exec()})));
    w.exit("a", 0);
    assert_eq!((w.hooks.len(), stops(&w).len()), (2, 0), "both at once, and nobody is stopped before them");
    assert_eq!(w.events_of("Killing"), ["Stopping container s1", "Stopping container s2"]);
    assert_eq!(w.end_hook(FINE), "PreStop s1");
    assert!(stops(&w).is_empty(), "it is the other one's turn");
    assert_eq!(w.end_hook(FINE), "PreStop s2");
    assert_eq!(stops(&w), ["stop_container c3 20", "stop_container c2 20"]);
    assert_eq!((w.phase(), w.worker.state_name()), ("Succeeded", "terminated"));
}

/// Performs all calls but the stop of `held`, for so long.
fn wait_but(w: &mut World, held: &ContainerId, d: Duration) {
    let end = w.now.after(d);
    let of_held = |e: &Effect| matches!(e, Effect::StopContainer { container, .. } if container == held);
    loop {
        if let Some(id) = w.pending.iter().find(|(_, c)| !of_held(&c.effect)).map(|(id, _)| *id) {
            w.perform(id);
        } else if let Some(due) = w.worker.deadline().filter(|due| *due <= end) {
            w.now = w.now.max(due);
            w.step(PodEvent::Tick);
        } else {
            w.now = w.now.max(end);
            return;
        }
    }
}

#[test]
fn when_the_grace_is_over_sidecars_are_stopped_at_once_next_to_a_container_that_does_not_end() {
    let mut w = World::with(&with_sidecars("Always", &json!({})));
    let deaf = w.runtime.running("a")[0].clone();
    w.kill(KillReason::Removed, None);
    wait_but(&mut w, &deaf, secs(19));
    let all = ["Stopping container a", "Stopping container s1", "Stopping container s2"];
    assert_eq!(w.events_of("Killing"), all, "told at once, whoever's turn it is");
    assert!(stops(&w).is_empty());
    wait_but(&mut w, &deaf, secs(2));
    assert_eq!(stops(&w), ["stop_container c2 2", "stop_container c3 2"]);
}

#[test]
fn sidecars_wait_for_no_init_container_and_for_no_ephemeral_one() {
    let sidecar = json!({"name": "s", "image": "img:1", "restartPolicy": "Always"});
    let plain = |name: &str| json!({"name": name, "image": "img:1"});
    let of = |init: Value, ephemeral: Value| {
        make_pod(json!({"terminationGracePeriodSeconds": 20, "initContainers": init,
            "containers": [plain("a")], "ephemeralContainers": ephemeral}))
    };
    for (p, deaf) in
        [(of(json!([sidecar, plain("i")]), json!([])), "i"), (of(json!([sidecar]), json!([plain("e")])), "e")]
    {
        let mut w = World::with(&p);
        let held = w.runtime.running(deaf)[0].clone();
        w.kill(KillReason::Removed, None);
        wait_but(&mut w, &held, secs(1));
        assert!(w.runtime.running("a").is_empty() && w.runtime.running("s").is_empty(), "{deaf}");
        assert_eq!(w.runtime.running(deaf).len(), 1, "it has its grace");
    }
}

#[test]
fn a_probe_that_ends_a_pod_which_never_restarts_ends_it_as_a_whole() {
    let probe =
        json!({"exec": {"command": ["x"]}, "failureThreshold": 1, "terminationGracePeriodSeconds": 9});
    let mut w = World::with(&make_pod(json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 20,
        "initContainers": [{"name": "s", "image": "img:1", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "img:1", "livenessProbe": probe, "lifecycle": {"preStop": exec()}}]})));
    while w.probes.is_empty() {
        w.wait(secs(1));
    }
    let (id, _) = w.probes.remove(0);
    w.step(PodEvent::ProbeDone { id, outcome: Outcome::Failure("no".to_owned()) });
    w.settle();
    assert_eq!((w.worker.state_name(), w.hooks.len()), ("terminating", 1));
    assert_eq!(w.events_of("Killing"), ["Stopping container a", "Stopping container s"]);
    // What is down stays down while the hook runs.
    w.exit("s", 1);
    w.wait(secs(5));
    assert_eq!(w.count("start_container"), 2);
    w.end_hook(FINE);
    assert_eq!(stops(&w), ["stop_container c3 15"], "out of the pod's grace");
    assert_eq!((w.phase(), w.worker.state_name()), ("Failed", "terminated"));
}

#[test]
fn an_orphan_runs_the_hook_that_its_maker_wrote_down() {
    let mut w = World::with(&hooked(json!({})));
    for c in w.runtime.containers.values_mut().filter(|c| c.name == "a") {
        let written = |text: &str| text.to_owned();
        c.annotations.insert(
            labels::PRE_STOP_HANDLER.to_owned(),
            written(r#"{"httpGet": {"port": "web", "path": "/bye"}}"#),
        );
        c.annotations
            .insert(labels::CONTAINER_PORTS.to_owned(), written(r#"[{"name": "web", "containerPort": 81}]"#));
    }
    w.crash(Mono(0));
    w.kill(KillReason::Orphan, None);
    w.settle();
    let HookAction::HttpGet { get, .. } = &w.hooks[0].1.action else { panic!("a GET") };
    assert_eq!((get.url().as_str(), w.hooks[0].1.hook), ("http://10.0.0.9:81/bye", Hook::PreStop));
    w.end_hook(FINE);
    assert_eq!(w.finished, Some(false));
}

/// The runtime's order of a pod's addresses does not matter.
#[test]
fn a_hook_asks_the_address_that_the_status_shows() {
    let mut w = World::with(&hooked(json!({"preStop": {"httpGet": {"port": 80}}})));
    for s in w.runtime.sandboxes.values_mut() {
        s.ips = ["fd00:0::9", "10.0.0.9", "10.0.0.10"].map(str::to_owned).to_vec();
    }
    w.observe();
    let shown = w.statuses.last().and_then(|s| s.pod_ips.clone()).unwrap_or_default();
    assert_eq!(shown.iter().map(|ip| ip.ip.as_str()).collect::<Vec<_>>(), ["10.0.0.9", "fd00::9"]);
    w.kill(KillReason::Removed, None);
    w.settle();
    let HookAction::HttpGet { get, .. } = &w.hooks[0].1.action else { panic!("a GET") };
    assert_eq!(get.url(), "http://10.0.0.9:80/");
}

#[test]
fn a_fallback_to_plain_text_is_told() {
    let mut w = World::with(&hooked(json!({"postStart": exec()})));
    w.end_hook(Ok(EffectOk::Hook { fell_back: Some("10.0.0.9:443".to_owned()) }));
    let text = "request to HTTPS lifecycle hook 10.0.0.9:443 got HTTP response, retry with HTTP succeeded";
    assert_eq!(w.events_of("LifecycleHTTPFallback"), [text]);
    assert_eq!(w.count("start_container"), 2);
}

#[test]
fn nobody_waits_for_the_pre_stop_hook_of_a_container_that_ended_and_its_successor_waits_for_the_answer() {
    let mut w = World::with(&hooked(json!({"postStart": exec(), "preStop": exec()})));
    // The first instance is killed for it.
    w.end_hook(failed(Class::Invalid));
    let (hook, call, _) = w.hooks[0].clone();
    assert_eq!(call.hook, Hook::PreStop);
    w.exit("a", 1);
    assert!(w.cancelled.contains(&hook) && stops(&w).is_empty());
    let begun = w.count("start_container");
    w.wait(secs(1000));
    assert_eq!(w.count("start_container"), begun);
    assert_eq!(w.end_hook(failed(Class::DeadlineExceeded)), "PreStop a");
    assert_eq!((w.count("start_container"), w.events_of("FailedPreStopHook").len()), (begun + 1, 0));
    assert_eq!(w.hooks[0].1.hook, Hook::PostStart);
}
