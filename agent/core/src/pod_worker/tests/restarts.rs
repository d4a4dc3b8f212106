//! Restarts of containers: back-off, restart policy, changed images.

use std::time::Duration;

use agent_types::time::Mono;
use serde_json::json;

use super::world::{World, make_pod};
use super::{one, secs, two};
use crate::pod_worker::PodEvent;
use crate::probe::Outcome;

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
fn on_failure_restarts_until_success() {
    let mut w = World::with(&one("OnFailure"));
    w.exit("a", 1);
    assert_eq!(w.phase(), "Running");
    w.exit("a", 0);
    assert_eq!(w.phase(), "Succeeded");
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
