//! Each condition of a choice, and the order of the devices.

use super::*;
use crate::devices::manager::DeviceManager;
use crate::devices::plugin::PluginOptions;
use crate::devices::testing::{
    GPU, app, device, devices, gpus, manager, plug, plug_with, seconds, serve, set, sick,
};

const ASKS: PluginOptions = PluginOptions { pre_start_required: false, preferred_allocation: true };

/// A choice for container `c` of pod `p`.
fn choose_in(
    manager: &DeviceManager,
    required: usize,
    nodes: Option<&[u32]>,
    reusable: &[&str],
) -> Result<Choice, String> {
    let request = ChoiceRequest {
        uid: "p",
        container: "c",
        resource: GPU,
        required,
        nodes: nodes.map(|nodes| NodeMask::of(nodes.iter().copied())),
        runs_already: false,
        reusable: &set(reusable),
        reserved: &BTreeSet::new(),
    };
    choose(&manager.inventory, &manager.records, request).map_err(|error| error.to_string())
}

fn chosen(ids: &[&str]) -> Result<Choice, String> {
    Ok(Choice::Devices(set(ids)))
}

fn refused(message: &str) -> Result<Choice, String> {
    Err(message.to_owned())
}

/// Container `c` of pod `p` has the first of two devices.
fn served() -> (DeviceManager, Connection) {
    let mut manager = manager();
    let connection = plug(&mut manager, GPU, devices(&["a", "b"]));
    serve(&mut manager, "p", &app("c", &[(GPU, 1)])).unwrap();
    assert_eq!(gpus(&manager, "p", "c"), ["a"]);
    (manager, connection)
}

#[test]
fn another_number_than_before_is_refused_whatever_the_plugin_does() {
    let (mut manager, connection) = served();
    let message =
        refused("pod \"p\" container \"c\" changed request for resource \"example.com/gpu\" from 1 to 2");
    assert_eq!(choose_in(&manager, 2, None, &[]), message);
    manager.end(connection, seconds(0));
    assert_eq!(choose_in(&manager, 2, None, &[]), message);
}

#[test]
fn a_container_that_runs_since_before_the_start_needs_nothing() {
    let mut manager = manager();
    let connection = plug(&mut manager, GPU, devices(&["a"]));
    manager.end(connection, seconds(0));
    let request = ChoiceRequest {
        uid: "p",
        container: "c",
        resource: GPU,
        required: 1,
        nodes: None,
        runs_already: true,
        reusable: &BTreeSet::new(),
        reserved: &BTreeSet::new(),
    };
    assert_eq!(choose(&manager.inventory, &manager.records, request), Ok(Choice::Nothing));
}

#[test]
fn a_removed_resource_is_refused_while_pods_have_devices_of_it() {
    let (mut manager, connection) = served();
    manager.end(connection, seconds(0));
    assert_eq!(manager.node_devices(seconds(301)).removed.len(), 1);
    assert_eq!(
        choose_in(&manager, 1, None, &[]),
        refused("cannot allocate unregistered device example.com/gpu")
    );
}

#[test]
fn without_a_healthy_device_even_a_limit_of_zero_is_refused() {
    let (mut manager, connection) = served();
    let message = refused("no healthy devices present; cannot allocate unhealthy devices example.com/gpu");
    manager.list(connection, vec![sick(device("a", &[]), "Unhealthy")]).unwrap();
    assert_eq!(choose_in(&manager, 1, None, &[]), message, "the container has its device already");
    let mut manager = crate::devices::testing::manager();
    plug(&mut manager, GPU, vec![]);
    assert_eq!(choose_in(&manager, 0, None, &[]), message);
    assert_eq!(choose_in(&manager, 1, None, &["x"]), message, "before devices are used again");
}

#[test]
fn a_device_that_is_not_healthy_any_more_is_refused() {
    let (mut manager, connection) = served();
    manager.list(connection, vec![sick(device("a", &[]), "Unhealthy"), device("b", &[])]).unwrap();
    assert_eq!(
        choose_in(&manager, 1, None, &[]),
        refused(
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu"
        )
    );
}

#[test]
fn nothing_is_needed_for_a_record_or_a_limit_of_zero() {
    let (manager, _) = served();
    assert_eq!(choose_in(&manager, 1, None, &[]), Ok(Choice::Nothing));
    let mut manager = crate::devices::testing::manager();
    plug(&mut manager, GPU, devices(&["a"]));
    assert_eq!(choose_in(&manager, 0, None, &[]), Ok(Choice::Nothing));
}

#[test]
fn devices_of_init_containers_come_first_whether_healthy_or_not() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a", "b"]));
    assert_eq!(choose_in(&manager, 1, None, &["x", "y"]), chosen(&["x"]));
    assert_eq!(choose_in(&manager, 2, None, &["x"]), chosen(&["a", "x"]));
    assert_eq!(
        choose_in(&manager, 4, None, &["x"]),
        refused("requested number of devices unavailable for example.com/gpu. Requested: 3, Available: 2")
    );
}

#[test]
fn too_few_free_devices() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a", "b"]));
    serve(&mut manager, "other", &app("c", &[(GPU, 1)])).unwrap();
    assert_eq!(choose_in(&manager, 1, None, &[]), chosen(&["b"]));
    assert_eq!(
        choose_in(&manager, 2, None, &[]),
        refused("requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1")
    );
}

fn with_topology(options: PluginOptions) -> DeviceManager {
    let mut manager = manager();
    let list = vec![
        device("dev1", &[1]),
        device("dev2", &[1, 2]),
        device("dev3", &[2]),
        device("dev4", &[2]),
        device("dev5", &[]),
    ];
    plug_with(&mut manager, GPU, options, list);
    manager
}

#[test]
fn free_devices_are_split_by_the_hint() {
    let manager = with_topology(ASKS);
    let split = |available: &[&str], nodes: Option<&[u32]>| {
        let nodes = nodes.map(|nodes| NodeMask::of(nodes.iter().copied()));
        let Split { aligned, unaligned, rest } = split(&manager.inventory, GPU, &set(available), nodes);
        [aligned, unaligned, rest].map(|ids| ids.into_iter().collect::<Vec<String>>().join(" "))
    };
    let all = ["dev1", "dev2", "dev3", "dev4", "dev5"];
    assert_eq!(split(&["dev1", "dev2"], Some(&[2])), ["dev2", "dev1", ""]);
    assert_eq!(split(&all, Some(&[2])), ["dev2 dev3 dev4", "dev1", "dev5"]);
    assert_eq!(split(&all, Some(&[1])), ["dev1 dev2", "dev3 dev4", "dev5"]);
    assert_eq!(split(&all, Some(&[0])), ["", "dev1 dev2 dev3 dev4", "dev5"]);
    assert_eq!(split(&all, None), ["", "", "dev1 dev2 dev3 dev4 dev5"], "no hint");
    let mut plain = crate::devices::testing::manager();
    plug(&mut plain, GPU, devices(&["a"]));
    let split = super::split(&plain.inventory, GPU, &set(&["a"]), Some(NodeMask::of([0])));
    assert_eq!(split, Split { rest: set(&["a"]), ..Split::default() }, "no device has topology");
}

#[test]
fn devices_of_the_hint_come_before_others_and_those_without_topology_last() {
    let manager = with_topology(PluginOptions::default());
    assert_eq!(choose_in(&manager, 2, Some(&[2]), &[]), chosen(&["dev2", "dev3"]));
    assert_eq!(choose_in(&manager, 3, Some(&[2]), &[]), chosen(&["dev2", "dev3", "dev4"]));
    assert_eq!(choose_in(&manager, 4, Some(&[2]), &[]), chosen(&["dev1", "dev2", "dev3", "dev4"]));
    assert_eq!(choose_in(&manager, 1, Some(&[3]), &[]), chosen(&["dev1"]));
}

fn question(available: &[&str], must_include: &[&str], size: usize) -> PreferredQuestion {
    PreferredQuestion {
        connection: Connection(1),
        resource: GPU.to_owned(),
        available: set(available),
        must_include: set(must_include),
        size,
    }
}

fn asked(choice: Result<Choice, String>) -> (PreferredQuestion, OpenChoice) {
    match choice {
        Ok(Choice::Ask(question, open)) => (question, open),
        other => panic!("no question: {other:?}"),
    }
}

#[test]
fn the_plugin_chooses_among_aligned_devices_if_there_are_more_than_needed() {
    let manager = with_topology(ASKS);
    let (asks, open) = asked(choose_in(&manager, 2, Some(&[2]), &[]));
    assert_eq!(asks, question(&["dev2", "dev3", "dev4"], &[], 2));
    for (preferred, got) in [
        (&["dev4", "dev3"][..], ["dev3", "dev4"]),
        (&[], ["dev2", "dev3"]),
        (&["dev4"], ["dev2", "dev4"]),
        (&["dev1", "dev5", "strange"], ["dev2", "dev3"]),
    ] {
        assert_eq!(open.clone().finish(&set(preferred)), Ok(set(&got)), "{preferred:?}");
    }
}

#[test]
fn the_plugin_chooses_the_rest_if_there_are_fewer_aligned_devices_than_needed() {
    let manager = with_topology(ASKS);
    assert_eq!(choose_in(&manager, 3, Some(&[2]), &[]), chosen(&["dev2", "dev3", "dev4"]), "just enough");
    let (asks, open) = asked(choose_in(&manager, 4, Some(&[1]), &["x"]));
    let all = ["dev1", "dev2", "dev3", "dev4", "dev5", "x"];
    assert_eq!(
        asks,
        question(&all, &["dev1", "dev2", "x"], 4),
        "aligned and reused devices are chosen already"
    );
    for (preferred, last) in [(&["dev5"][..], "dev5"), (&[], "dev3"), (&["dev1", "dev2"], "dev3")] {
        let got = set(&["dev1", "dev2", "x", last]);
        assert_eq!(open.clone().finish(&set(preferred)), Ok(got), "{preferred:?}");
    }
}

#[test]
fn without_topology_the_plugin_is_asked_even_if_all_are_needed() {
    let mut manager = manager();
    plug_with(&mut manager, GPU, ASKS, devices(&["a", "b"]));
    let (asks, open) = asked(choose_in(&manager, 2, Some(&[0]), &[]));
    assert_eq!(asks, question(&["a", "b"], &[], 2));
    assert_eq!(open.finish(&set(&["b"])), Ok(set(&["a", "b"])));
}
