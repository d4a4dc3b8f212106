//! Processors of containers: at their creation, and when the shared ones change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_types::failure::Class;
use agent_types::runtime::placement::Placement;
use serde_json::json;

use super::world::{World, make_pod};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::EffectError;

fn placed(own: &str, shared: &str) -> PodEvent {
    PodEvent::Placed(Arc::new(Placement {
        cpus: BTreeMap::from([("own".to_owned(), Arc::from(own))]),
        shared_cpus: Some(Arc::from(shared)),
        ..Placement::default()
    }))
}

fn started() -> World {
    let mut w = World::new();
    w.step(placed("2,6", "0-1,3-5,7"));
    let container = |name: &str| json!({"name": name, "image": "r.example/x:1"});
    w.desire(&make_pod(json!({"containers": [container("own"), container("other")]})));
    w.settle();
    w
}

/// Processors of the container of this name.
fn cpus(w: &World, name: &str) -> String {
    let named = w.runtime.cpus.iter().find(|(id, _)| w.runtime.containers[*id].name == name);
    named.map(|(_, cpus)| cpus.clone()).unwrap_or_default()
}

fn moves(w: &World) -> usize {
    w.count("set_cpus")
}

#[test]
fn containers_are_created_where_they_run_and_need_no_move() {
    let w = started();
    assert_eq!((cpus(&w, "own").as_str(), cpus(&w, "other").as_str()), ("2,6", "0-1,3-5,7"));
    assert_eq!(moves(&w), 0);
}

#[test]
fn the_containers_that_share_move_when_the_shared_processors_change() {
    let mut w = started();
    w.step(placed("2,6", "0-1,4-5"));
    w.settle();
    assert_eq!((cpus(&w, "own").as_str(), cpus(&w, "other").as_str(), moves(&w)), ("2,6", "0-1,4-5", 1));
    w.step(placed("2,6", "0-1,4-5"));
    w.settle();
    assert_eq!(moves(&w), 1, "nothing changed");
}

#[test]
fn a_container_that_does_not_move_is_tried_again_after_a_period() {
    let mut w = started();
    let error = EffectError { class: Class::Conflict, message: "busy".to_owned() };
    w.runtime.refuse.insert("set_cpus", error);
    w.step(placed("2,6", "0"));
    w.settle();
    assert_eq!(cpus(&w, "other"), "0-1,3-5,7");
    w.runtime.refuse.clear();
    w.wait(Duration::from_secs(8));
    assert_eq!(moves(&w), 0, "cpuManagerReconcilePeriod");
    w.wait(Duration::from_secs(22));
    assert_eq!((moves(&w), cpus(&w, "other").as_str()), (1, "0"));
}

#[test]
fn after_a_lost_answer_the_processors_are_sent_again_even_if_the_earlier_ones_are_wanted() {
    let mut w = started();
    let error = EffectError { class: Class::DeadlineExceeded, message: "no answer in time".to_owned() };
    w.runtime.refuse.insert("set_cpus", error);
    w.step(placed("2,6", "0"));
    w.settle();
    w.runtime.refuse.clear();
    w.step(placed("2,6", "0-1,3-5,7"));
    w.wait(Duration::from_secs(30));
    assert_eq!((moves(&w), cpus(&w, "other").as_str()), (1, "0-1,3-5,7"));
}

#[test]
fn a_new_agent_sends_each_running_container_its_processors_once() {
    let mut w = started();
    w.restart_agent();
    w.step(placed("2,6", "0-1,3-5,7"));
    let container = |name: &str| json!({"name": name, "image": "r.example/x:1"});
    w.desire(&make_pod(json!({"containers": [container("own"), container("other")]})));
    w.settle();
    assert_eq!((cpus(&w, "own").as_str(), cpus(&w, "other").as_str(), moves(&w)), ("2,6", "0-1,3-5,7", 1));
}

#[test]
fn a_node_without_static_policy_moves_nothing() {
    let container = json!({"name": "a", "image": "r.example/x:1"});
    let w = World::with(&make_pod(json!({"containers": [container]})));
    assert_eq!(w.count("set_cpus"), 0);
}
