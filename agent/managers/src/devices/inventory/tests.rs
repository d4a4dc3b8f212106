//! The amounts that a node shows over registrations, lists and ends of connections.

use super::*;
use crate::devices::testing::{GPU, device, devices, seconds, sick};

const NONE: Option<i64> = None;

/// Capacity and allocatable of the resource.
fn shown(inventory: &mut Inventory, now: u64) -> (Option<i64>, Option<i64>) {
    let amounts = inventory.amounts(seconds(now));
    (amounts.capacity.get(GPU).copied(), amounts.allocatable.get(GPU).copied())
}

fn plugged(list: Vec<PluginDevice>) -> (Inventory, Connection) {
    let mut inventory = Inventory::default();
    let connection = inventory.connect(GPU, PluginOptions::default());
    inventory.replace(connection, list).unwrap();
    (inventory, connection)
}

#[test]
fn a_resource_shows_with_its_first_list() {
    let mut inventory = Inventory::default();
    let connection = inventory.connect(GPU, PluginOptions::default());
    assert_eq!(shown(&mut inventory, 0), (NONE, NONE), "registered, no list");
    let sick = sick(device("c", &[]), "Unhealthy");
    inventory.replace(connection, [devices(&["a", "b"]), vec![sick]].concat()).unwrap();
    assert_eq!(shown(&mut inventory, 0), (Some(3), Some(2)));
    inventory.replace(connection, devices(&["a"])).unwrap();
    assert_eq!(shown(&mut inventory, 0), (Some(1), Some(1)), "a list replaces the former");
    inventory.replace(connection, vec![]).unwrap();
    assert_eq!(shown(&mut inventory, 0), (Some(0), Some(0)));
}

#[test]
fn a_stream_that_fails_before_its_first_list_shows_nothing_allocatable() {
    let mut inventory = Inventory::default();
    let connection = inventory.connect(GPU, PluginOptions::default());
    assert!(inventory.end(connection, seconds(10)));
    assert_eq!(shown(&mut inventory, 10), (Some(0), Some(0)));
    assert_eq!(inventory.healthy(GPU), None, "pods do not wait for the resource");
    let amounts = inventory.amounts(seconds(311));
    assert_eq!(amounts.removed, BTreeSet::from([GPU.to_owned()]));
}

#[test]
fn a_plugin_may_be_away_for_five_minutes() {
    let (mut inventory, connection) = plugged(devices(&["a", "b"]));
    assert!(inventory.end(connection, seconds(100)));
    assert_eq!(shown(&mut inventory, 100), (Some(2), Some(0)));
    assert_eq!(shown(&mut inventory, 400), (Some(2), Some(0)), "five minutes");
    let amounts = inventory.amounts(seconds(401));
    assert_eq!((amounts.capacity.len(), amounts.allocatable.len()), (0, 0));
    assert_eq!(amounts.removed, BTreeSet::from([GPU.to_owned()]));
    assert_eq!(inventory.amounts(seconds(402)), NodeDevices::default(), "reported once");
    assert!(inventory.device(GPU, "a").is_some(), "topology and health of devices in use stay");
    let connection = inventory.connect(GPU, PluginOptions::default());
    assert_eq!(shown(&mut inventory, 500), (NONE, NONE));
    inventory.replace(connection, devices(&["a"])).unwrap();
    assert_eq!(shown(&mut inventory, 500), (Some(1), Some(1)), "the resource is back");
}

#[test]
fn a_plugin_that_comes_back_in_time_keeps_its_capacity() {
    let (mut inventory, connection) = plugged(devices(&["a", "b"]));
    inventory.end(connection, seconds(100));
    let connection = inventory.connect(GPU, PluginOptions::default());
    assert_eq!(shown(&mut inventory, 1000), (Some(2), Some(0)), "until the list comes");
    inventory.replace(connection, devices(&["a", "b"])).unwrap();
    assert_eq!(shown(&mut inventory, 1000), (Some(2), Some(2)));
}

#[test]
fn resources_of_a_checkpoint_wait_for_their_plugins() {
    let mut inventory = Inventory::restored([GPU.to_owned()], seconds(10));
    assert_eq!(shown(&mut inventory, 310), (Some(0), Some(0)));
    assert!(inventory.healthy(GPU).is_some_and(BTreeSet::is_empty), "the resource is one of the manager's");
    assert_eq!(inventory.amounts(seconds(311)).removed, BTreeSet::from([GPU.to_owned()]));
}

#[test]
fn a_replaced_connection_changes_nothing_any_more() {
    let (mut inventory, old) = plugged(devices(&["a"]));
    let new = inventory.connect(GPU, PluginOptions::default());
    inventory.replace(new, devices(&["b", "c"])).unwrap();
    assert_eq!(inventory.replace(old, devices(&["a"])), None);
    assert!(!inventory.end(old, seconds(1)));
    assert_eq!(shown(&mut inventory, 1), (Some(2), Some(2)));
    assert!(inventory.end(new, seconds(2)));
    assert!(!inventory.end(new, seconds(300)), "the end counts once");
    assert_eq!(inventory.replace(new, devices(&["b"])), None, "and nothing comes behind it");
    assert_eq!(inventory.amounts(seconds(303)).removed.len(), 1);
}

#[test]
fn a_list_that_says_the_same_changes_nothing() {
    let list = || vec![device("a", &[0]), sick(device("b", &[]), "Unhealthy")];
    let (mut inventory, connection) = plugged(list());
    assert_eq!(inventory.replace(connection, list()), None);
    let mut other_order = list();
    other_order.reverse();
    assert_eq!(inventory.replace(connection, other_order), None);
    for differs in [
        vec![device("a", &[1]), sick(device("b", &[]), "Unhealthy")],
        vec![device("a", &[1]), sick(device("b", &[]), "hot")],
        vec![device("a", &[1]), device("b", &[])],
        vec![device("a", &[1])],
        vec![],
    ] {
        assert!(inventory.replace(connection, differs.clone()).is_some(), "{differs:?}");
        assert_eq!(inventory.replace(connection, differs), None);
    }
    inventory.replace(connection, list()).unwrap();
    inventory.end(connection, seconds(1));
    let connection = inventory.connect(GPU, PluginOptions::default());
    assert!(inventory.replace(connection, list()).is_some(), "a is healthy again");
    assert_eq!(shown(&mut inventory, 1), (Some(2), Some(1)));
}

#[test]
fn an_empty_first_list_is_a_change() {
    let mut inventory = Inventory::default();
    let connection = inventory.connect(GPU, PluginOptions::default());
    assert!(inventory.replace(connection, vec![]).is_some());
    assert_eq!(inventory.replace(connection, vec![]), None);
    assert_eq!(shown(&mut inventory, 0), (Some(0), Some(0)));
}

#[test]
fn only_the_word_healthy_is_healthy_and_the_last_of_two_devices_counts() {
    let words = ["", "healthy", "Unhealthy", "HEALTHY", "unknown"];
    let list = words.iter().zip(["a", "b", "c", "d", "e"]).map(|(word, id)| sick(device(id, &[]), word));
    let (mut inventory, connection) = plugged(list.collect());
    assert_eq!(shown(&mut inventory, 0), (Some(5), Some(0)));
    inventory.replace(connection, vec![device("a", &[0]), sick(device("a", &[1]), "Unhealthy")]).unwrap();
    assert_eq!(shown(&mut inventory, 0), (Some(1), Some(0)));
    assert_eq!(inventory.nodes_of(GPU, "a"), BTreeSet::from([1]));
}

#[test]
fn a_list_names_the_devices_that_changed() {
    let mut inventory = Inventory::default();
    let connection = inventory.connect(GPU, PluginOptions::default());
    let mut changed = |list: Vec<PluginDevice>| {
        inventory.replace(connection, list).unwrap().changed.into_iter().collect::<Vec<String>>()
    };
    assert_eq!(changed(devices(&["a", "b"])), ["a", "b"], "new in the list");
    assert_eq!(changed(vec![device("a", &[0]), sick(device("b", &[]), "Unhealthy")]), ["b"]);
    assert_eq!(changed(devices(&["b"])), ["b"]);
    assert!(changed(vec![]).is_empty(), "a device that vanishes concerns nobody");
    assert_eq!(changed(devices(&["b"])), ["b"], "one that comes back does");
}
