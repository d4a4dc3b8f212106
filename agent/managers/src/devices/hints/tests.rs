//! Hints with devices that are free, recorded, used again or without topology.

use super::*;
use crate::devices::testing::{
    GPU, NIC, app, container, device, devices, manager, plug, pod, seconds, serve, sick,
};
use crate::request::Kind;

/// `0+ 1+ 01-`: the hints of a list; `any` and `none` where there is no list.
fn text(hints: &[Hints]) -> Vec<String> {
    let of_hint = |hint: &Hint| {
        let nodes: String = hint.nodes.unwrap_or_default().nodes().map(|node| node.to_string()).collect();
        format!("{nodes}{}", if hint.preferred { "+" } else { "-" })
    };
    let of_list = |hints: &Hints| match hints {
        Hints::NoPreference => "any".to_owned(),
        Hints::On(hints) if hints.is_empty() => "none".to_owned(),
        Hints::On(hints) => hints.iter().map(of_hint).collect::<Vec<String>>().join(" "),
    };
    hints.iter().map(of_list).collect()
}

fn of_container(manager: &DeviceManager, uid: &str, container: ContainerRequest) -> Vec<String> {
    let pod = pod(uid, vec![container]);
    text(&manager.container_hints(&pod, &pod.containers[0]))
}

/// Two devices on node 0, one on node 1.
fn on_two_nodes() -> DeviceManager {
    let mut manager = manager();
    plug(&mut manager, GPU, vec![device("a", &[0]), device("b", &[0]), device("c", &[1])]);
    manager
}

#[test]
fn resources_that_nobody_registered_have_no_hints() {
    assert!(of_container(&manager(), "p", app("c", &[(GPU, 1), ("cpu", 1)])).is_empty());
}

#[test]
fn without_topology_there_is_no_preference() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a"]));
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 5)])), ["any"]);
    let restored = on_two_nodes().state();
    let restored = DeviceManager::start(NodeMask::of(0..4), Some(restored), seconds(0));
    assert_eq!(of_container(&restored, "p", app("c", &[(GPU, 1)])), ["any"], "no list since the start");
}

#[test]
fn the_fewest_nodes_that_could_ever_have_the_devices_are_preferred() {
    let mut manager = on_two_nodes();
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 0)])), ["0+ 1+ 01-"]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 1)])), ["0+ 1+ 01-"]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 2)])), ["0+ 01-"]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 3)])), ["01+"]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 4)])), ["none"]);
    serve(&mut manager, "other", &app("c", &[(GPU, 1)])).unwrap();
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 2)])), ["01-"], "node 0 has two, one in use");
}

#[test]
fn unhealthy_devices_count_for_the_preference_only() {
    let mut manager = manager();
    plug(&mut manager, GPU, vec![device("a", &[0]), sick(device("b", &[0]), "Unhealthy"), device("c", &[1])]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 2)])), ["01-"]);
}

#[test]
fn a_device_of_several_nodes_is_on_each() {
    let mut manager = manager();
    plug(&mut manager, GPU, vec![device("a", &[0, 1]), device("b", &[1])]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 2)])), ["1+ 01-"]);
}

#[test]
fn a_container_with_devices_has_the_hints_of_these() {
    let mut manager = on_two_nodes();
    serve(&mut manager, "p", &app("c", &[(GPU, 2)])).unwrap();
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 2)])), ["0+ 01-"]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 1)])), ["none"], "another number");
}

#[test]
fn devices_that_are_used_again_lie_on_the_nodes() {
    let mut manager = on_two_nodes();
    serve(&mut manager, "p", &container("init", Kind::Init, &[(GPU, 1)])).unwrap();
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 1)])), ["0+ 01-"]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 3)])), ["01+"]);
    assert_eq!(of_container(&manager, "q", app("c", &[(GPU, 3)])), ["none"], "another pod");
}

#[test]
fn a_device_that_vanished_counts_in_no_set_of_nodes() {
    let mut manager = manager();
    let connection = plug(&mut manager, GPU, vec![device("a", &[0]), device("b", &[1])]);
    serve(&mut manager, "p", &app("c", &[(GPU, 1)])).unwrap();
    manager.list(connection, vec![device("b", &[1])]).unwrap();
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 1)])), ["none"]);
}

#[test]
fn devices_without_topology_count_in_no_set_of_nodes() {
    let mut manager = manager();
    plug(&mut manager, GPU, vec![device("a", &[0]), device("b", &[])]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 1)])), ["0+"]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 2)])), ["none"]);
}

#[test]
fn nodes_that_the_machine_does_not_have_do_not_count() {
    let mut manager = manager();
    plug(&mut manager, GPU, vec![device("a", &[1, 9]), device("b", &[9])]);
    assert_eq!(of_container(&manager, "p", app("c", &[(GPU, 1)])), ["1+"]);
    let mut manager = crate::devices::testing::manager();
    plug(&mut manager, GPU, vec![device("a", &[9])]);
    assert_eq!(
        of_container(&manager, "p", app("c", &[(GPU, 1)])),
        ["none"],
        "all nodes of the machine, in vain"
    );
}

#[test]
fn a_claimed_resource_has_hints_and_resources_are_sorted() {
    let mut manager = on_two_nodes();
    plug(&mut manager, NIC, devices(&["n"]));
    let mut wants = app("c", &[(GPU, 3), (NIC, 1)]);
    wants.devices.claimed.insert(GPU.to_owned());
    assert_eq!(of_container(&manager, "p", wants), ["01+", "any"]);
}

#[test]
fn a_pod_asks_for_the_most_that_its_containers_have_at_once() {
    let mut manager = on_two_nodes();
    let containers = vec![
        container("init", Kind::Init, &[(GPU, 2)]),
        container("sidecar", Kind::Sidecar, &[(GPU, 1)]),
        app("app", &[(GPU, 1), (NIC, 1)]),
    ];
    let pod = pod("p", containers);
    assert_eq!(text(&manager.pod_hints(&pod)), ["0+ 01-"]);
    for container in &pod.containers {
        serve(&mut manager, "p", container).unwrap();
    }
    assert_eq!(text(&manager.pod_hints(&pod)), ["0+ 01-"], "two distinct devices in three records");
    let more = crate::devices::testing::pod("p", vec![app("app", &[(GPU, 1)])]);
    assert_eq!(text(&manager.pod_hints(&more)), ["none"]);
}
