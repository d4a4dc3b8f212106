//! The pod worker against a tiny world: start, restart, termination, adoption, lost answers.

mod attach_limit;
mod cgroups;
mod claims;
mod cpus;
mod devices;
mod ending;
mod env_files;
mod failed_starts;
mod hooks;
mod init_containers;
mod lost_answers;
mod many;
mod never_ran;
mod probes;
mod pull;
mod removal;
mod resize;
mod restarts;
mod runtime;
mod runtime_class;
mod small_scope;
mod specs;
mod termination;
mod told;
mod users;
mod volumes;
mod world;

use std::time::Duration;

use serde_json::json;

use world::{REQUEST_TIMEOUT, World, make_pod};

use super::*;

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
