//! The pod worker against a tiny world: start, restart, termination, adoption, lost answers.

mod attach_limit;
mod cgroups;
mod claims;
mod cpus;
mod devices;
mod ending;
mod env_files;
mod hooks;
mod probes;
mod pull;
mod removal;
mod resize;
mod runtime_class;
mod small_scope;
mod told;
mod users;
mod volumes;
mod world;

use std::time::Duration;

use agent_types::failure::CANCELLED_CALL_MAX;
use k8s_openapi::api::core::v1::ContainerStatus;
use serde_json::json;

use world::{REQUEST_TIMEOUT, SECOND, World, make_pod};

use super::*;
use crate::pod_worker::effect::{Effect, EffectError};
use crate::probe::Outcome;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn two(policy: &str) -> Arc<Pod> {
    make_pod(json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 20, "containers": [
        {"name": "a", "image": "img:1"}, {"name": "b", "image": "img:1"}]}))
}

fn one(policy: &str) -> Arc<Pod> {
    make_pod(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "img:1"}]}))
}

#[test]
fn a_pod_comes_up_in_order_and_rests() {
    let w = World::with(&two("Always"));
    let mutating: Vec<&String> = w.applied.iter().filter(|a| !a.starts_with("inspect")).collect();
    assert_eq!(
        mutating,
        [
            "create_pod_dirs",
            "run_sandbox /0",
            "create_pod_dirs",
            "create_container a/0",
            "start_container c2",
            "create_pod_dirs",
            "create_container b/0",
            "start_container c3"
        ]
    );
    assert_eq!(w.phase(), "Running");
    assert_eq!(w.worker.state_name(), "syncing");
    assert_eq!(w.worker.deadline(), None, "nothing to wait for");
    assert_eq!(w.events_of("Started").len(), 2);
    let ready = w.statuses.last().and_then(|s| s.conditions.clone()).unwrap_or_default();
    assert!(ready.iter().all(|c| c.status == "True"), "{ready:?}");
}

#[test]
fn a_crash_loop_follows_the_numbers_and_says_so() {
    let mut w = World::with(&one("Always"));
    w.exit("a", 1);
    assert_eq!(w.count("start_container"), 2, "the first restart is immediate");
    w.exit("a", 1);
    assert_eq!(w.waiting_reason("a"), "CrashLoopBackOff");
    assert_eq!(w.phase(), "Running");
    assert_eq!(w.events_of("BackOff"), ["Back-off restarting failed container a in pod p_default(u1)"]);
    w.wait(Duration::from_millis(9_900));
    assert_eq!(w.count("start_container"), 2);
    w.wait(Duration::from_millis(200));
    assert_eq!(w.count("start_container"), 3);
    w.exit("a", 1);
    w.wait(secs(19));
    assert_eq!(w.count("start_container"), 3);
    w.wait(secs(2));
    assert_eq!(w.count("start_container"), 4);
    let status = w.statuses.last().and_then(|s| s.container_statuses.clone()).unwrap();
    assert_eq!(status[0].restart_count, 3);
    assert_eq!(w.runtime.containers.len(), 2, "the newest dead instance is kept, older ones are removed");
}

#[test]
fn a_restarted_agent_continues_the_back_off_series() {
    let mut w = World::with(&one("Always"));
    w.exit("a", 1);
    w.exit("a", 1);
    w.wait(secs(11));
    w.exit("a", 1);
    w.wait(secs(5));
    w.crash(Mono(0));
    w.desire(&one("Always"));
    w.settle();
    assert_eq!(w.count("start_container"), 3, "20 s are not over");
    assert_eq!(w.waiting_reason("a"), "CrashLoopBackOff");
    w.wait(secs(15));
    assert_eq!(w.count("start_container"), 4);
}

#[test]
fn adoption_in_an_unchanged_world_changes_nothing() {
    for policy in ["Always", "OnFailure", "Never"] {
        for exits in [None, Some(0), Some(3)] {
            let mut w = World::with(&two(policy));
            if let Some(code) = exits {
                w.exit("a", code);
                w.wait(secs(1));
            }
            let (before, phase) = (w.applied.len(), w.phase().to_owned());
            w.crash(w.now.after(REQUEST_TIMEOUT));
            w.desire(&two(policy));
            w.wait(secs(30));
            let changes: Vec<_> = w.applied[before..].iter().filter(|a| *a != "create_pod_dirs").collect();
            assert!(changes.is_empty(), "{policy} {exits:?}: {changes:?}");
            assert_eq!(w.phase(), phase, "{policy} {exits:?}");
        }
    }
}

#[test]
fn a_pod_that_ends_is_kept_until_it_is_removed() {
    for (code, phase) in [(0, "Succeeded"), (7, "Failed")] {
        let mut w = World::with(&one("Never"));
        w.exit("a", code);
        assert_eq!((w.phase(), w.worker.state_name()), (phase, "terminated"));
        assert_eq!(w.runtime.containers.len(), 1);
        assert!(w.dirs && w.finished.is_none());
        w.desire(&one("Never"));
        w.wait(secs(60));
        assert_eq!(w.count("start_container"), 1, "a terminal phase absorbs");
        w.kill(KillReason::Removed, None);
        w.settle();
        assert_eq!(w.finished, Some(false));
        assert!(w.runtime.containers.is_empty() && w.runtime.sandboxes.is_empty() && !w.dirs);
    }
}

#[test]
fn on_failure_restarts_until_success() {
    let mut w = World::with(&one("OnFailure"));
    w.exit("a", 1);
    assert_eq!(w.phase(), "Running");
    w.exit("a", 0);
    assert_eq!(w.phase(), "Succeeded");
}

#[test]
fn removal_stops_with_the_pods_grace_then_leaves_nothing() {
    let mut w = World::with(&two("Always"));
    w.kill(KillReason::Removed, None);
    assert_eq!(w.record.as_ref().map(|r| r.grace_s), Some(20), "written before the first stop");
    w.settle();
    let stops: Vec<_> = w.applied.iter().filter(|a| a.starts_with("stop_container")).collect();
    assert_eq!(stops, ["stop_container c2 20", "stop_container c3 20"]);
    assert_eq!(w.finished, Some(false));
    assert!(w.runtime.containers.is_empty() && w.runtime.sandboxes.is_empty() && !w.dirs);
    assert_eq!(w.events_of("Killing"), ["Stopping container a", "Stopping container b"]);
    assert!(w.worker.in_flight() == 0 && w.worker.deadline().is_none());
}

#[test]
fn nothing_is_stopped_before_the_record_is_durable() {
    let mut w = World::with(&two("Always"));
    let mut out = Outbox::new();
    let now = w.now();
    w.worker.step(now, PodEvent::Kill { reason: KillReason::Removed, grace_s: None }, &mut out);
    let actions: Vec<_> = out.drain().collect();
    assert!(actions.iter().any(|a| matches!(a, PodAction::Persist { .. })));
    assert!(!actions.iter().any(|a| matches!(a, PodAction::Effect { .. })), "{actions:?}");
}

#[test]
fn grace_only_shrinks_and_a_longer_stop_is_repeated_shorter() {
    let mut w = World::with(&one("Always"));
    w.kill(KillReason::Removed, Some(25));
    let first: Vec<_> = w.pending.keys().copied().collect();
    w.kill(KillReason::Removed, Some(5));
    assert_eq!(w.cancelled, first);
    w.kill(KillReason::Removed, Some(60));
    let lost = EffectError { class: Class::DeadlineExceeded, message: "cancelled".to_owned() };
    w.answer(first[0], Err(lost));
    w.settle();
    let stops: Vec<_> = w.applied.iter().filter(|a| a.starts_with("stop_container")).collect();
    assert_eq!(stops, ["stop_container c2 5"]);
    assert!(w.events_of("FailedKillPod").is_empty());
}

#[test]
fn an_orphan_gets_one_second_which_a_stop_rounds_up_to_two() {
    let mut w = World::with(&one("Always"));
    w.crash(Mono(0));
    w.kill(KillReason::Orphan, None);
    w.settle();
    assert!(w.applied.contains(&"stop_container c2 2".to_owned()), "{:?}", w.applied);
    assert_eq!(w.finished, Some(false));
    assert!(w.runtime.containers.is_empty());
}

#[test]
fn termination_survives_a_crash_with_what_is_left_of_the_grace() {
    let mut w = World::with(&two("Always"));
    w.kill(KillReason::Removed, None);
    w.now = w.now.after(secs(8));
    w.crash(w.now.after(REQUEST_TIMEOUT));
    assert_eq!(w.worker.state_name(), "terminating");
    w.desire(&two("Always"));
    w.settle();
    let stops: Vec<_> = w.applied.iter().filter(|a| a.starts_with("stop_container")).collect();
    assert_eq!(stops, ["stop_container c2 12", "stop_container c3 12"]);
    w.wait(REQUEST_TIMEOUT * 2);
    assert_eq!(w.finished, Some(true), "it was desired again meanwhile");
}

#[test]
fn a_static_pod_that_is_back_counts_its_restarts_on() {
    let of = |source: &str| {
        let mut p = (*one("Always")).clone();
        let source = ("kubernetes.io/config.source".to_owned(), source.to_owned());
        p.metadata.annotations.get_or_insert_default().extend([source]);
        Arc::new(p)
    };
    for (source, back, expected) in [
        ("file", true, "remove_pod_dirs but the logs"),
        ("file", false, "remove_pod_dirs"),
        ("api", true, "remove_pod_dirs"),
    ] {
        let mut w = World::with(&of(source));
        w.kill(KillReason::Removed, None);
        if back {
            w.desire(&of(source));
        }
        w.settle();
        assert_eq!(w.finished, Some(back), "{source}");
        assert_eq!(w.applied.iter().rfind(|a| a.starts_with("remove_pod_dirs")).unwrap(), expected);
    }
}

#[test]
fn a_lost_answer_to_run_sandbox_is_looked_at_not_repeated() {
    let mut w = World::new();
    w.desire(&one("Always"));
    while !w.pending.values().any(|c| matches!(c.effect, Effect::RunSandbox { .. })) {
        let id = *w.pending.keys().next().expect("on its way to the sandbox");
        w.perform(id);
    }
    let (id, call) = w.pending.pop_first().expect("the sandbox");
    assert!(w.apply(&call.effect).is_ok());
    let lost = EffectError { class: Class::Unavailable, message: "connection reset".to_owned() };
    w.answer(id, Err(lost));
    w.settle();
    assert_eq!(w.count("run_sandbox"), 1);
    assert_eq!(w.phase(), "Running", "what is there is adopted at once");
}

/// A world with a RunSandbox in flight, and its deadline. The answer is an error of the class; the call was
/// not applied.
fn sandbox_unanswered(class: Class) -> (World, Mono) {
    let mut w = World::new();
    w.desire(&one("Always"));
    while !w.pending.values().any(|c| matches!(c.effect, Effect::RunSandbox { .. })) {
        let id = *w.pending.keys().next().expect("on its way to the sandbox");
        w.perform(id);
    }
    let (id, call) = w.pending.pop_first().expect("the sandbox");
    w.answer(id, Err(EffectError { class, message: "connection reset".to_owned() }));
    (w, call.deadline.expect("every call but a pull has one"))
}

#[test]
fn silence_counts_as_absence_only_after_the_calls_deadline() {
    let (mut w, deadline) = sandbox_unanswered(Class::DeadlineExceeded);
    w.wait(deadline.since(w.now) - secs(1));
    assert_eq!(w.count("run_sandbox"), 0);
    w.wait(secs(3));
    assert_eq!(w.count("run_sandbox"), 1);
    assert_eq!(w.phase(), "Running");
}

#[test]
fn a_call_whose_connection_broke_is_over_soon() {
    let (mut w, _) = sandbox_unanswered(Class::Interrupted);
    w.wait(CANCELLED_CALL_MAX - secs(1));
    assert_eq!(w.count("run_sandbox"), 0);
    w.wait(secs(3));
    assert_eq!((w.count("run_sandbox"), w.phase()), (1, "Running"));
}

#[test]
fn what_never_reached_the_runtime_is_asked_again_after_its_back_off() {
    let (mut w, _) = sandbox_unanswered(Class::Unavailable);
    w.wait(secs(2));
    assert_eq!((w.count("run_sandbox"), w.phase()), (1, "Running"));
}

#[test]
fn a_new_incarnation_creates_nothing_before_the_fence() {
    let mut w = World::new();
    w.worker = PodWorker::new(w.worker.key().clone(), world::context(), Mono(30 * SECOND));
    w.desire(&one("Always"));
    w.wait(secs(28));
    assert_eq!(w.count("run_sandbox"), 0);
    w.wait(secs(3));
    assert_eq!(w.phase(), "Running");
}

#[test]
fn a_stale_snapshot_starts_nothing_twice() {
    let mut w = World::with(&one("Always"));
    let old = agent_types::runtime::observed::PodSnapshot { containers: Vec::new().into(), ..w.snapshot() };
    let stale =
        Arc::new(agent_types::runtime::observed::PodSnapshot { as_of: Mono(w.now.0 - 10_000_000), ..old });
    w.step(PodEvent::Observed(stale));
    w.settle();
    assert_eq!(w.count("create_container"), 1);
}

#[test]
fn a_dead_sandbox_is_replaced_and_containers_keep_counting() {
    let mut w = World::with(&two("Always"));
    let id = w.runtime.sandboxes.keys().next().cloned().unwrap();
    let wall = w.wall();
    w.runtime.stop_sandbox(wall, &id);
    w.observe();
    assert_eq!(w.events_of("SandboxChanged").len(), 1);
    assert_eq!(w.count("run_sandbox"), 2);
    assert!(w.applied.contains(&"create_container a/1".to_owned()), "{:?}", w.applied);
    w.wait(secs(1));
    assert_eq!(w.phase(), "Running");
    w.wait(secs(600));
    assert_eq!(w.runtime.sandboxes.len(), 2, "the old one still holds the dead instances");
}

#[test]
fn a_changed_image_replaces_that_container_only() {
    let mut w = World::with(&two("Always"));
    let changed = make_pod(json!({"restartPolicy": "Always", "containers": [
        {"name": "a", "image": "img:2"}, {"name": "b", "image": "img:1"}]}));
    w.desire(&changed);
    w.settle();
    assert_eq!(w.events_of("Killing"), ["Container a definition changed, will be restarted"]);
    let images: Vec<_> =
        ["a", "b"].map(|n| w.runtime.containers[&w.runtime.running(n)[0]].image.clone()).into();
    assert_eq!(images, ["img:2", "img:1"]);
    assert_eq!(w.count("stop_container"), 1);
}

#[test]
fn a_changed_image_is_started_at_once_whatever_the_policy_and_the_end_of_the_one_before() {
    for (policy, crashes) in [("Never", 0), ("OnFailure", 2), ("Always", 2)] {
        let of = |image: &str| {
            make_pod(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": image}]}))
        };
        let mut w = World::with(&of("img:1"));
        for _ in 0..crashes {
            w.exit("a", 1);
            w.wait(secs(15));
        }
        assert_eq!(w.count("start_container"), crashes + 1);
        w.desire(&of("img:2"));
        // It is asked to stop and ends well.
        w.end("a", 0);
        w.settle();
        assert_eq!(
            w.count("start_container"),
            crashes + 2,
            "{policy}: the series of the old image is not its own"
        );
        assert_eq!((w.phase(), w.worker.state_name()), ("Running", "syncing"), "{policy}");
        assert_eq!(w.runtime.containers[&w.runtime.running("a")[0]].image, "img:2");
    }
}

#[test]
fn one_that_was_killed_to_come_back_has_not_ended_its_pod_while_it_waits() {
    let probe = json!({"exec": {"command": ["x"]}, "failureThreshold": 1, "periodSeconds": 1});
    let p = make_pod(json!({"restartPolicy": "OnFailure", "containers": [
        {"name": "a", "image": "img:1", "livenessProbe": probe}]}));
    let mut w = World::with(&p);
    for _ in 0..3 {
        while w.probes.is_empty() {
            w.wait(secs(1));
        }
        while let Some((id, _)) = w.probes.pop() {
            w.step(PodEvent::ProbeDone { id, outcome: Outcome::Failure("no".to_owned()) });
        }
        w.end("a", 0);
        w.settle();
    }
    assert_eq!((w.waiting_reason("a").as_str(), w.worker.state_name()), ("CrashLoopBackOff", "syncing"));
    w.wait(secs(60));
    assert_eq!((w.runtime.running("a").len(), w.phase()), (1, "Running"));
}

#[test]
fn image_pulls_fail_back_off_and_recover() {
    let mut w = World::new();
    w.runtime.absent_images.push("img:1".to_owned());
    let denied = EffectError { class: Class::Retryable { after_ms: 0 }, message: "no route".to_owned() };
    w.runtime.refuse.insert("pull_image", denied);
    w.desire(&one("Always"));
    w.settle();
    assert_eq!(w.waiting_reason("a"), "ErrImagePull");
    w.wait(secs(3));
    assert_eq!(w.waiting_reason("a"), "ImagePullBackOff");
    assert_eq!(w.events_of("Failed")[1..], ["Error: ErrImagePull", "Error: ImagePullBackOff"]);
    let tried = w.events_of("Pulling").len();
    w.wait(secs(9));
    assert_eq!((tried, w.events_of("Pulling").len()), (1, 2));
    w.runtime.refuse.clear();
    w.wait(secs(25));
    assert_eq!(w.phase(), "Running");
    assert_eq!(w.events_of("Pulled").len(), 1);
}

#[test]
fn a_bad_container_does_not_stop_the_next_one() {
    let mut w = World::with(&make_pod(json!({"containers": [
        {"name": "a", "image": "img:1", "workingDir": "bad"}, {"name": "b", "image": "img:1"}]})));
    assert_eq!(w.waiting_reason("a"), "CreateContainerConfigError");
    assert_eq!(w.runtime.running("b").len(), 1);
    let tries = w.events_of("Failed").len();
    w.wait(secs(16));
    assert_eq!((tries, w.events_of("Failed").len()), (1, 2), "10 s x (1..1.5)");
}

#[test]
fn a_failing_sandbox_is_retried_with_the_requeue_period() {
    let mut w = World::new();
    let e = EffectError { class: Class::Retryable { after_ms: 0 }, message: "cni".to_owned() };
    w.runtime.refuse.insert("run_sandbox", e);
    w.desire(&one("Always"));
    w.settle();
    w.wait(secs(60));
    let tries = w.events_of("FailedCreatePodSandBox");
    assert!((4..=7).contains(&tries.len()), "{}", tries.len());
    assert_eq!(tries[0], "Failed to create pod sandbox: cni");
    assert_eq!(w.phase(), "Pending");
}

#[test]
fn init_containers_run_one_after_another_before_the_rest() {
    let p = make_pod(json!({
        "initContainers": [
            {"name": "i1", "image": "img:1"}, {"name": "side", "image": "img:1", "restartPolicy": "Always"},
            {"name": "i2", "image": "img:1"}],
        "containers": [{"name": "a", "image": "img:1"}]}));
    let mut w = World::with(&p);
    assert_eq!((w.runtime.running("i1").len(), w.count("start_container"), w.phase()), (1, 1, "Pending"));
    w.exit("i1", 0);
    assert_eq!((w.runtime.running("side").len(), w.runtime.running("i2").len()), (1, 1));
    assert_eq!(w.runtime.running("a").len(), 0);
    w.exit("i2", 0);
    assert_eq!((w.runtime.running("a").len(), w.phase()), (1, "Running"));
    w.exit("side", 1);
    assert_eq!(w.runtime.running("side").len(), 1, "sidecars restart");
    w.kill(KillReason::Removed, None);
    w.settle();
    let stops: Vec<_> = w.applied.iter().filter(|a| a.starts_with("stop_container")).collect();
    assert_eq!(stops.len(), 2);
    assert!(stops[0].starts_with("stop_container c5"), "the regular container first: {stops:?}");
    assert_eq!(w.finished, Some(false));
}

#[test]
fn a_failed_init_container_fails_a_pod_that_never_restarts() {
    let p = make_pod(json!({"restartPolicy": "Never",
        "initContainers": [{"name": "i1", "image": "img:1"}], "containers": [{"name": "a", "image": "img:1"}]}));
    let mut w = World::with(&p);
    w.exit("i1", 5);
    assert_eq!((w.phase(), w.worker.state_name()), ("Failed", "terminated"));
    assert_eq!(w.count("start_container"), 1);
    assert!(w.runtime.sandboxes.values().all(|s| s.ips.is_empty()), "the sandbox was stopped");
}

#[test]
fn active_deadline_fails_the_pod() {
    let p = make_pod(json!({"activeDeadlineSeconds": 30, "containers": [{"name": "a", "image": "img:1"}]}));
    let mut w = World::with(&p);
    w.wait(secs(29));
    assert_eq!(w.phase(), "Running");
    w.wait(secs(2));
    assert_eq!((w.phase(), w.worker.state_name()), ("Failed", "terminated"));
    assert_eq!(w.statuses.last().and_then(|s| s.reason.clone()).as_deref(), Some("DeadlineExceeded"));
    assert_eq!(w.events_of("DeadlineExceeded").len(), 1);
}

#[test]
fn a_rejected_pod_is_failed_and_never_started() {
    let mut w = World::new();
    w.desire(&one("Always"));
    let reason = KillReason::Failed {
        reason: "OutOfcpu".to_owned(),
        message: "Pod was rejected: x".to_owned(),
        disruption: None,
    };
    w.kill(reason, None);
    w.settle();
    w.wait(secs(20));
    assert_eq!((w.phase(), w.worker.state_name(), w.count("run_sandbox")), ("Failed", "terminated", 0));
    let status = w.worker.status().unwrap();
    let words = (status.reason.as_deref(), status.message.as_deref(), status.qos_class.as_deref());
    assert_eq!(words, (Some("OutOfcpu"), Some("Pod was rejected: x"), Some("BestEffort")));
    assert_eq!(status.container_statuses, None);
    // A new agent adds nothing to the status that the API shows.
    let mut shown = one("Always");
    Arc::make_mut(&mut shown).status = Some(status.clone());
    w.restart_agent();
    w.desire(&shown);
    w.settle();
    assert_eq!(w.worker.status().map(|s| s.container_statuses.clone()), Some(None));
}

/// Reason and exit code with which the containers of a list are shown to have ended; `None` for one that waits.
fn ends(list: Option<&Vec<ContainerStatus>>) -> Vec<Option<(String, i32)>> {
    let state = |c: &ContainerStatus| c.state.as_ref().and_then(|s| s.terminated.clone());
    list.into_iter()
        .flatten()
        .map(|c| state(c).map(|t| (t.reason.unwrap_or_default(), t.exit_code)))
        .collect()
}

#[test]
fn a_pod_that_ends_before_its_containers_ran_shows_them_as_lost() {
    let lost = || Some(("ContainerStatusUnknown".to_owned(), 137));
    // An image that is nowhere; a directory that no container can be made in; a pod that nothing was made of.
    for container in
        [json!({"name": "a", "image": "img:1"}), json!({"name": "a", "image": "img:2", "workingDir": "bad"})]
    {
        for reason in [
            KillReason::Deleted,
            KillReason::Failed { reason: "Evicted".into(), message: "m".into(), disruption: None },
        ] {
            let mut w = World::new();
            w.runtime
                .refuse
                .insert("pull_image", EffectError { class: Class::Invalid, message: "no".to_owned() });
            w.runtime.absent_images.push("img:1".to_owned());
            w.desire(&make_pod(json!({"restartPolicy": "Always", "containers": [container]})));
            w.wait(secs(30));
            assert_eq!(w.phase(), "Pending");
            w.kill(reason, None);
            w.settle();
            let last = w.statuses.last().unwrap();
            assert_eq!(
                (last.phase.as_deref(), ends(last.container_statuses.as_ref())),
                (Some("Failed"), vec![lost()])
            );
        }
    }
    // One that waits for its network, and one that waits for its first init container.
    for (init, of_init, of_regular) in [
        (json!([]), vec![], lost()),
        (json!([{"name": "i", "image": "img:1"}, {"name": "j", "image": "img:1"}]), vec![lost(), None], None),
    ] {
        let mut w = World::new();
        w.step(PodEvent::Network(Err("away".to_owned())));
        w.desire(&make_pod(json!({"activeDeadlineSeconds": 30, "initContainers": init, "containers": [{"name": "a", "image": "img:1"}]})));
        w.wait(secs(40));
        let last = w.statuses.last().unwrap();
        assert_eq!(last.reason.as_deref(), Some("DeadlineExceeded"));
        assert_eq!(ends(last.init_container_statuses.as_ref()), of_init);
        assert_eq!(ends(last.container_statuses.as_ref()), [of_regular]);
    }
}

#[test]
fn network_not_ready_waits_and_is_told() {
    let mut w = World::new();
    w.step(PodEvent::Network(Err("cni plugin not initialized".to_owned())));
    w.desire(&one("Always"));
    w.settle();
    w.wait(secs(10));
    assert_eq!(w.events_of("NetworkNotReady"), ["network is not ready: cni plugin not initialized"]);
    assert_eq!(w.count("run_sandbox"), 0);
    w.step(PodEvent::Network(Ok(())));
    w.settle();
    assert_eq!(w.phase(), "Running");
}

#[test]
fn a_kill_does_not_wait_for_a_pull() {
    let mut w = World::new();
    w.runtime.absent_images.push("img:1".to_owned());
    w.desire(&one("Always"));
    while !w.pending.values().any(|c| matches!(c.effect, Effect::PullImage { .. })) {
        let id = *w.pending.keys().next().expect("on its way to the pull");
        w.perform(id);
    }
    let (pull, _) = w.pending.pop_first().expect("the pull");
    w.kill(KillReason::Removed, None);
    w.settle();
    assert_eq!((w.cancelled.as_slice(), w.finished), (&[pull][..], Some(false)));
    let lost = EffectError { class: Class::DeadlineExceeded, message: "cancelled".to_owned() };
    w.answer(pull, Err(lost));
    assert!(w.pending.is_empty() && w.worker.deadline().is_none());
}

#[test]
fn a_shorter_grace_is_recorded_before_it_is_used() {
    let mut w = World::with(&two("Always"));
    w.kill(KillReason::Deleted, None);
    w.kill(KillReason::Deleted, Some(3));
    assert_eq!(w.record.as_ref().map(|r| r.grace_s), Some(3));
    w.crash(w.now.after(REQUEST_TIMEOUT));
    w.settle();
    let stops: Vec<_> = w.applied.iter().filter(|a| a.starts_with("stop_container")).collect();
    assert_eq!(stops, ["stop_container c2 3", "stop_container c3 3"]);
}

/// The last status before the crash had reached the API; the list that the agent then got was older
/// (simulation, seed 88).
#[test]
fn a_stale_status_is_not_repeated_of_a_pod_that_is_half_removed() {
    let pod = |phase: &str| {
        let mut pod = (*two("Always")).clone();
        pod.status = serde_json::from_value(json!({"phase": phase})).unwrap();
        pod.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        Arc::new(pod)
    };
    for (now_shown, expected) in [("Pending", None), ("Failed", Some("Failed"))] {
        let mut w = World::with(&two("Always"));
        w.desire(&pod("Pending"));
        let not_removed = EffectError { class: Class::Unavailable, message: "no answer".to_owned() };
        w.runtime.refuse.insert("remove_sandbox", not_removed);
        w.wait(secs(30));
        assert_eq!((w.phase(), w.runtime.containers.len(), w.finished), ("Failed", 0, None));
        w.crash(w.now.after(REQUEST_TIMEOUT));
        w.statuses.clear();
        w.desire(&pod("Pending"));
        w.desire(&pod(now_shown));
        w.settle();
        assert_eq!(w.statuses.last().and_then(|s| s.phase.as_deref()), expected);
        w.runtime.refuse.clear();
        w.wait(REQUEST_TIMEOUT * 2);
        assert_eq!(w.finished, Some(false));
    }
}

/// Nobody knows the pod any more when its removal is asked for; the record knows its grace.
#[test]
fn the_removal_of_a_resumed_pod_leaves_it_its_grace() {
    let mut w = World::with(&two("Always"));
    w.kill(KillReason::DeadlineExceeded, None);
    w.crash(w.now.after(REQUEST_TIMEOUT));
    w.kill(KillReason::Removed, None);
    w.settle();
    let stops: Vec<_> = w.applied.iter().filter(|a| a.starts_with("stop_container")).collect();
    assert_eq!(stops, ["stop_container c2 20", "stop_container c3 20"]);
    w.wait(REQUEST_TIMEOUT * 2);
    assert_eq!(w.finished, Some(false), "it was to be kept, and is not any more");
}
