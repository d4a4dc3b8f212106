//! Init containers and sidecars: their order, and an init container that fails.

use agent_types::kill::KillReason;
use serde_json::json;

use super::world::{World, make_pod};

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
