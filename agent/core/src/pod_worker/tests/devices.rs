//! Plugins of a container's devices learn of its start, or the container waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::failure::Class;
use agent_types::runtime::placement::{ContainerDevices, Placement, PreStartCall};
use serde_json::json;

use super::world::{World, make_pod};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::EffectError;

fn placed(pre_start: Result<&[u64], &str>) -> PodEvent {
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
