//! Plugins of a container's devices learn of its start, or the container waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::failure::Class;
use agent_types::kill::KillReason;
use agent_types::machine::{EffectId, Machine};
use agent_types::runtime::placement::{ContainerDevices, Placement, PreStartCall};
use serde_json::json;

use super::world::{World, make_pod};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::{Effect, EffectError};

fn placed(pre_start: Result<&[u64], &str>) -> PodEvent {
    placed_with(pre_start, false)
}

fn placed_with(pre_start: Result<&[u64], &str>, lacks_some: bool) -> PodEvent {
    let call = |connection: &u64| PreStartCall {
        connection: *connection,
        resource: "x.io/gpu".to_owned(),
        ids: BTreeSet::from(["a".to_owned()]),
    };
    let devices = ContainerDevices {
        envs: BTreeMap::new(),
        mounts: Vec::new(),
        devices: Vec::new(),
        annotations: BTreeMap::new(),
        cdi_devices: Vec::new(),
        pre_start: pre_start.map(|calls| calls.iter().map(call).collect()).map_err(str::to_owned),
        lacks_some,
        health: BTreeMap::from([("x.io/gpu".to_owned(), BTreeMap::from([("a".to_owned(), true)]))]),
    };
    let devices = BTreeMap::from([("c".to_owned(), devices)]);
    PodEvent::Placed(Arc::new(Placement { devices, ..Placement::default() }))
}

fn begin(w: &mut World, pre_start: Result<&[u64], &str>) {
    w.step(placed(pre_start));
    w.desire(&make_pod(json!({"containers": [{"name": "c", "image": "r.example/x:1"}]})));
    w.settle();
}

#[test]
fn plugins_are_called_before_the_container_is_created() {
    let mut w = World::new();
    begin(&mut w, Ok(&[1]));
    assert_eq!((w.count("pre_start_devices"), w.runtime.running("c").len()), (1, 1));
    let mut w = World::new();
    begin(&mut w, Ok(&[]));
    assert_eq!(
        (w.count("pre_start_devices"), w.runtime.running("c").len()),
        (0, 1),
        "no plugin wants to know"
    );
}

#[test]
fn a_plugin_that_fails_keeps_the_container_waiting() {
    let mut w = World::new();
    let message = "device plugin PreStartContainer rpc failed with err: no".to_owned();
    w.runtime.refuse.insert("pre_start_devices", EffectError { class: Class::Invalid, message });
    begin(&mut w, Ok(&[1]));
    assert_eq!(w.waiting_reason("c"), "CreateContainerConfigError");
    assert!(w.runtime.running("c").is_empty());
    w.runtime.refuse.clear();
    w.wait(Duration::from_secs(60));
    assert_eq!(w.runtime.running("c").len(), 1, "it is tried again");
}

#[test]
fn a_container_whose_resource_is_removed_waits_until_its_plugin_is_back() {
    let mut w = World::new();
    begin(&mut w, Err("endpoint not found in cache for a registered resource: x.io/gpu"));
    assert_eq!(w.waiting_reason("c"), "CreateContainerConfigError");
    assert_eq!(w.count("create_container"), 0);
    w.step(placed(Ok(&[2])));
    w.wait(Duration::from_secs(60));
    assert_eq!((w.count("pre_start_devices"), w.runtime.running("c").len()), (1, 1));
}

/// A container whose plugin registered after the pod's admission.
fn lacking(pre_start: &[u64]) -> World {
    let mut w = World::new();
    w.step(placed_with(Ok(pre_start), true));
    w
}

fn run(w: &mut World) {
    w.desire(&make_pod(json!({"containers": [{"name": "c", "image": "r.example/x:1"}]})));
    w.settle();
}

#[test]
fn devices_that_a_container_lacks_are_allocated_after_the_calls_and_before_its_creation() {
    let mut w = lacking(&[1]);
    run(&mut w);
    assert_eq!((w.count("pre_start_devices"), w.count("allocate_devices")), (1, 1));
    // The answer came without the placement: nothing is created without devices.
    assert_eq!(
        (w.waiting_reason("c").as_str(), w.count("create_container")),
        ("CreateContainerConfigError", 0)
    );
    w.step(placed(Ok(&[1])));
    w.wait(Duration::from_secs(60));
    assert_eq!((w.count("allocate_devices"), w.runtime.running("c").len()), (1, 1));
}

#[test]
fn a_container_whose_devices_are_refused_at_its_start_waits_and_asks_again() {
    let mut w = lacking(&[]);
    let message =
        "requested number of devices unavailable for x.io/gpu. Requested: 1, Available: 0".to_owned();
    w.runtime.refuse.insert("allocate_devices", EffectError { class: Class::Invalid, message });
    run(&mut w);
    assert_eq!(
        (w.waiting_reason("c").as_str(), w.count("create_container")),
        ("CreateContainerConfigError", 0)
    );
    w.runtime.refuse.clear();
    w.wait(Duration::from_secs(60));
    assert!(w.count("allocate_devices") > 0, "it asks again");
    assert_eq!(w.count("create_container"), 0);
    w.step(placed(Ok(&[])));
    w.wait(Duration::from_secs(60));
    assert_eq!(w.runtime.running("c").len(), 1);
}

/// Performs all calls but the allocation of devices, whose plugin hangs; its effect.
fn settle_without_plugin(w: &mut World) -> Option<EffectId> {
    for _ in 0..2_000 {
        let is_other = |effect: &Effect| !matches!(effect, Effect::AllocateDevices { .. });
        let other = w.pending.iter().find(|(_, call)| is_other(&call.effect)).map(|(id, _)| *id);
        match other {
            Some(id) => w.perform(id),
            None if w.worker.deadline().is_some_and(|due| due <= w.now) => w.step(PodEvent::Tick),
            None => return w.pending.keys().next().copied(),
        }
    }
    panic!("the worker does not come to rest: {:?}", w.applied);
}

/// Container `a` runs, and exit code 42 of it restarts all; container `c` waits for a plugin that hangs, with this effect.
fn waiting_for_plugin() -> (World, EffectId) {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let mut w = lacking(&[]);
    w.desire(&make_pod(json!({"restartPolicy": "Never", "containers": [
        {"name": "a", "image": "r.example/x:1", "restartPolicy": "Never", "restartPolicyRules": [rule]},
        {"name": "c", "image": "r.example/x:1"}]})));
    let asked = settle_without_plugin(&mut w).expect("c lacks devices");
    assert_eq!((w.runtime.running("a").len(), w.cancelled.len()), (1, 0));
    (w, asked)
}

fn not_any_more() -> EffectError {
    EffectError { class: Class::Invalid, message: "the container does not start any more".to_owned() }
}

#[test]
fn a_plugin_that_hangs_does_not_hold_up_restart_all_containers() {
    let (mut w, asked) = waiting_for_plugin();
    w.end("a", 42);
    settle_without_plugin(&mut w);
    assert_eq!(w.cancelled, [asked], "once");
    assert_eq!(w.count("remove_container"), 0, "the answer is awaited");
    w.answer(asked, Err(not_any_more()));
    w.step(placed(Ok(&[])));
    w.wait(Duration::from_secs(60));
    assert_eq!(w.count("remove_container"), 1);
    assert_eq!((w.runtime.running("a").len(), w.runtime.running("c").len()), (1, 1));
}

#[test]
fn a_pod_that_is_to_end_asks_for_no_devices_any_more() {
    let (mut w, asked) = waiting_for_plugin();
    w.kill(KillReason::Removed, None);
    settle_without_plugin(&mut w);
    assert_eq!(w.cancelled, [asked]);
    w.answer(asked, Err(not_any_more()));
    w.wait(Duration::from_secs(60));
    assert_eq!((w.count("create_container"), w.finished), (1, Some(false)));
}
