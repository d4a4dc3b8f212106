//! Termination: the grace period, its record on disk, and crashes of the agent meanwhile.

use std::sync::Arc;

use agent_types::failure::Class;
use agent_types::kill::KillReason;
use agent_types::machine::{Machine, Outbox};
use agent_types::time::Mono;
use serde_json::json;

use super::world::{REQUEST_TIMEOUT, World, make_pod};
use super::{one, secs, two};
use crate::pod_worker::effect::{Effect, EffectError};
use crate::pod_worker::{PodAction, PodEvent};

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

/// No source has the pod any more when its removal is asked for; the record has its grace period.
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
