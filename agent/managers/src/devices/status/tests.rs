//! Health, podresources and the fit check over lists that change.

use super::*;
use crate::devices::testing::{GPU, NIC, app, device, devices, manager, plug, seconds, serve, set, sick};

fn health(manager: &DeviceManager) -> Vec<(String, bool)> {
    manager.health("p", "c").remove(GPU).unwrap_or_default().into_iter().collect()
}

#[test]
fn a_device_is_unhealthy_only_while_its_plugin_lists_it_so() {
    let mut manager = manager();
    let connection = plug(&mut manager, GPU, devices(&["a", "b"]));
    assert!(manager.health("p", "c").is_empty());
    serve(&mut manager, "p", &app("c", &[(GPU, 2)])).unwrap();
    let shown = |a, b| vec![("a".to_owned(), a), ("b".to_owned(), b)];
    assert_eq!(health(&manager), shown(true, true));
    let list = vec![sick(device("a", &[]), "anything"), device("b", &[])];
    assert_eq!(manager.list(connection, list), Some(set(&["p"])), "the pod is synced");
    assert_eq!(health(&manager), shown(false, true));
    assert!(manager.end(connection, seconds(0)));
    manager.node_devices(seconds(301));
    assert_eq!(health(&manager), shown(false, true), "the plugin's end changes nothing");
    plug(&mut manager, GPU, devices(&["b"]));
    assert_eq!(health(&manager), shown(true, true), "a device that vanished is healthy");
}

#[test]
fn only_pods_with_devices_of_the_resource_are_synced() {
    let mut manager = manager();
    let connection = plug(&mut manager, GPU, devices(&["a", "b"]));
    plug(&mut manager, NIC, devices(&["a"]));
    serve(&mut manager, "p", &app("c", &[(GPU, 1)])).unwrap();
    serve(&mut manager, "q", &app("c", &[(NIC, 1)])).unwrap();
    let list = vec![sick(device("a", &[]), "Unhealthy"), sick(device("b", &[]), "Unhealthy")];
    assert_eq!(manager.list(connection, list), Some(set(&["p"])));
    assert_eq!(manager.list(connection, vec![]), Some(set(&[])));
    assert_eq!(manager.list(connection, devices(&["a"])), Some(set(&["p"])), "the device is back");
}

#[test]
fn podresources_has_the_nodes_of_the_allocation_and_for_free_devices_those_of_now() {
    let mut manager = manager();
    let connection = plug(&mut manager, GPU, vec![device("a", &[0, 1]), device("b", &[])]);
    serve(&mut manager, "p", &app("c", &[(GPU, 2)])).unwrap();
    let list = vec![device("a", &[3]), device("b", &[2]), sick(device("c", &[2]), "Unhealthy")];
    manager.list(connection, list).unwrap();
    let nodes = |a: &[i64], b: &[i64]| {
        let of = |nodes: &[i64]| nodes.iter().copied().collect::<BTreeSet<i64>>();
        let devices = BTreeMap::from([("a".to_owned(), of(a)), ("b".to_owned(), of(b))]);
        BTreeMap::from([(GPU.to_owned(), devices)])
    };
    assert_eq!(manager.devices_of("p", "c"), nodes(&[0, 1], &[]));
    assert_eq!(manager.allocatable_devices(), nodes(&[3], &[2]));
    assert!(manager.devices_of("p", "other").is_empty());
    manager.end(connection, seconds(0));
    assert!(manager.allocatable_devices()[GPU].is_empty());
}

#[test]
fn a_pod_with_devices_fits_while_its_plugin_is_away() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a", "b", "c"]));
    plug(&mut manager, NIC, devices(&["n"]));
    serve(&mut manager, "p", &app("c", &[(GPU, 1)])).unwrap();
    serve(&mut manager, "q", &app("c", &[(GPU, 1), (NIC, 1)])).unwrap();
    let raised = BTreeMap::from([(GPU.to_owned(), 2), (NIC.to_owned(), 1)]);
    assert_eq!(manager.raised_allocatable("p"), raised, "all resources, of all pods");
    assert!(manager.raised_allocatable("r").is_empty());
}
