//! Starts that fail and are tried again: pulls, configurations, sandboxes, a node without network.

use agent_types::failure::Class;
use serde_json::json;

use super::world::{World, make_pod};
use super::{one, secs};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::EffectError;

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
