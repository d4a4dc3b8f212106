//! The pod's own cgroup: before everything, after everything.

use std::sync::Arc;
use std::time::Duration;

use agent_types::failure::Class;
use agent_types::kill::KillReason;
use agent_types::node_context::NodeContext;
use agent_types::time::Mono;
use serde_json::json;

use super::world::{SECOND, World, context, make_pod};
use crate::pod_worker::effect::{Effect, EffectError};
use crate::pod_worker::{PodWorker, WorkerContext};

/// A world whose pods have cgroups.
fn world(per_qos: bool) -> World {
    fenced(per_qos, Mono(0))
}

/// The same, where calls of an earlier agent are over at `fence_until`.
fn fenced(per_qos: bool, fence_until: Mono) -> World {
    let mut node = NodeContext::new("n");
    node.cgroup.per_qos = per_qos;
    let context = WorkerContext { specs: Arc::new(node), ..(*context()).clone() };
    let mut w = World::new();
    w.worker = PodWorker::new(w.worker.key().clone(), Arc::new(context), fence_until);
    w
}

fn pod() -> Arc<k8s_openapi::api::core::v1::Pod> {
    make_pod(json!({"containers": [{"name": "a", "image": "r.example/x:1"}],
        "volumes": [{"name": "v", "emptyDir": {}}]}))
}

/// Carries everything out, in order; the verbs that matter here.
fn verbs(w: &mut World) -> Vec<&'static str> {
    let mut seen = Vec::new();
    while let Some((id, call)) = w.pending.iter().next() {
        let (id, verb) = (*id, call.effect.verb());
        if let Effect::EnsureCgroup { cgroup, .. } = &call.effect {
            assert_eq!(cgroup.name.unit(), "kubepods-besteffort-podu1.slice");
        }
        let matters = [
            "ensure_cgroup",
            "remove_cgroup",
            "run_sandbox",
            "start_container",
            "tear_down_volumes",
            "remove_pod_dirs",
        ];
        seen.extend(matters.into_iter().filter(|m| *m == verb));
        w.perform(id);
    }
    seen
}

#[test]
fn a_cgroup_is_there_before_the_sandbox_and_until_volumes_are_gone() {
    let mut w = world(true);
    w.desire(&pod());
    assert_eq!(verbs(&mut w), ["ensure_cgroup", "run_sandbox", "start_container"]);
    w.settle();
    assert_eq!(w.phase(), "Running");
    w.kill(KillReason::Removed, None);
    assert_eq!(verbs(&mut w), ["tear_down_volumes", "remove_cgroup", "remove_pod_dirs"]);
}

#[test]
fn without_cgroups_nothing_is_asked_for() {
    let mut w = world(false);
    w.desire(&pod());
    assert_eq!(verbs(&mut w), ["run_sandbox", "start_container"]);
    w.settle();
    w.kill(KillReason::Removed, None);
    assert_eq!(verbs(&mut w), ["tear_down_volumes", "remove_pod_dirs"]);
}

#[test]
fn a_cgroup_that_cannot_be_made_holds_the_sandbox_back() {
    let mut w = world(true);
    let error = EffectError { class: Class::Invalid, message: "no bus".to_owned() };
    w.runtime.refuse.insert("ensure_cgroup", error);
    w.desire(&pod());
    w.settle();
    assert_eq!(w.count("run_sandbox"), 0);
    assert_eq!(w.events_of("FailedCreatePodContainer"), ["unable to ensure pod container exists: no bus"]);
    w.runtime.refuse.clear();
    w.wait(Duration::from_secs(20));
    w.settle();
    assert_eq!(w.phase(), "Running");
}

#[test]
fn a_new_agent_sees_to_it_before_it_makes_anything() {
    let mut w = world(true);
    w.desire(&pod());
    w.settle();
    w.kill(KillReason::Ended, None);
    w.settle();
    assert_eq!(w.count("remove_cgroup"), 1, "the pod is kept, its cgroup is not");
    assert!(w.dirs);
}

#[test]
fn what_was_made_while_a_removal_may_be_under_way_is_looked_at_again_before_the_sandbox() {
    let mut w = fenced(true, Mono(61 * SECOND));
    w.desire(&pod());
    w.settle();
    assert_eq!(
        (w.count("ensure_cgroup"), w.count("run_sandbox")),
        (1, 0),
        "an earlier agent's calls are not over"
    );
    w.wait(Duration::from_secs(61));
    assert_eq!((w.count("ensure_cgroup"), w.count("run_sandbox")), (2, 1));
    assert_eq!(w.phase(), "Running");
}

/// With 64 MiB and 1 CPU, then with 32 MiB and 2 CPUs.
fn of(memory: &str, cpu: &str) -> Arc<k8s_openapi::api::core::v1::Pod> {
    let container = json!({"name": "a", "image": "r.example/x:1",
        "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}});
    make_pod(json!({ "containers": [container] }))
}

/// Simulation, resizing, seed 40015: the container was made with its earlier limit, and the cgroup had the new one already.
#[test]
fn a_cgroup_is_not_lowered_under_a_container_that_is_being_made() {
    for verb in ["create_container", "start_container"] {
        let mut w = world(true);
        w.desire(&of("64Mi", "1"));
        let under_way = loop {
            let (id, call) = w.pending.iter().next().expect("on its way to the start");
            let id = *id;
            if call.effect.verb() == verb {
                break id;
            }
            w.perform(id);
        };
        w.desire(&of("32Mi", "2"));
        while let Some(id) = w.pending.keys().copied().find(|id| *id != under_way) {
            assert_ne!(w.pending[&id].effect.verb(), "ensure_cgroup", "{verb}");
            w.perform(id);
        }
        w.settle();
        let did = ["ensure_cgroup", "resize", "create_container", "stop_container"].map(|verb| w.count(verb));
        assert_eq!((did, w.phase()), ([1, 1, 1, 0], "Running"), "{verb}");
    }
}
