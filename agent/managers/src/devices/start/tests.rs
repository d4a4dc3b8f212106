//! The work before a container starts, and the changes to its spec.

use super::*;
use crate::devices::plugin::{AllocateResponse, PluginOptions};
use crate::devices::run_options::{DeviceMount, DeviceNode};
use crate::devices::testing::{GPU, NIC, app, devices, manager, plug, plug_with, seconds, serve, set};
use crate::node_mask::NodeMask;

const PRE_START: PluginOptions = PluginOptions { pre_start_required: true, preferred_allocation: false };

#[test]
fn a_plugin_that_wants_to_know_of_the_start_is_asked() {
    let mut manager = manager();
    let connection = plug_with(&mut manager, GPU, PRE_START, devices(&["a", "b"]));
    plug(&mut manager, NIC, devices(&["n"]));
    let wants = app("c", &[(GPU, 2), (NIC, 1), ("cpu", 1)]);
    let error = manager.start_work("p", &wants, true).unwrap_err().to_string();
    assert_eq!(
        error,
        "no devices found allocated in local cache for pod p, container c, resource example.com/gpu"
    );
    serve(&mut manager, "p", &wants).unwrap();
    let question = PreStartQuestion { connection, resource: GPU.to_owned(), ids: set(&["a", "b"]) };
    let work = StartWork { pre_start: vec![question], allocate: false };
    assert_eq!(manager.start_work("p", &wants, true), Ok(work));
    manager.end(connection, seconds(0));
    let error = manager.start_work("p", &wants, true).unwrap_err().to_string();
    assert_eq!(
        error,
        "device plugin PreStartContainer rpc failed with err: endpoint example.com/gpu has been stopped"
    );
}

#[test]
fn a_removed_resource_keeps_the_container_from_its_start() {
    let mut manager = manager();
    let connection = plug(&mut manager, GPU, devices(&["a"]));
    let wants = app("c", &[(GPU, 1)]);
    serve(&mut manager, "p", &wants).unwrap();
    manager.end(connection, seconds(0));
    assert_eq!(manager.start_work("p", &wants, true), Ok(StartWork::default()), "within five minutes");
    manager.node_devices(seconds(301));
    let error = manager.start_work("p", &wants, true).unwrap_err().to_string();
    assert_eq!(error, "endpoint not found in cache for a registered resource: example.com/gpu");
    assert_eq!(manager.start_work("p", &app("c", &[(GPU, 0)]), true), Ok(StartWork::default()));
}

#[test]
fn an_active_pod_without_devices_gets_them_before_the_start() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a"]));
    let wants = app("c", &[(GPU, 1)]);
    let work =
        |manager: &DeviceManager, is_active| manager.start_work("p", &wants, is_active).unwrap().allocate;
    assert!(work(&manager, true));
    assert!(!work(&manager, false));
    let mut claimed = wants.clone();
    claimed.devices.claimed.insert(GPU.to_owned());
    assert_eq!(manager.start_work("p", &claimed, true), Ok(StartWork::default()), "a claim provides it");
    serve(&mut manager, "p", &wants).unwrap();
    assert!(!work(&manager, true));
}

#[test]
fn after_a_start_of_the_agent_no_plugin_is_asked_until_it_registers() {
    let mut manager = manager();
    plug_with(&mut manager, GPU, PRE_START, devices(&["a"]));
    let wants = app("c", &[(GPU, 1)]);
    serve(&mut manager, "p", &wants).unwrap();
    let manager = DeviceManager::start(NodeMask::default(), Some(manager.state()), seconds(0));
    assert_eq!(manager.start_work("p", &wants, true), Ok(StartWork::default()));
}

fn options(host: &str) -> RunOptions {
    let text = |name: &str| format!("{name}-{host}");
    RunOptions {
        envs: [("BOTH".to_owned(), text("env")), (text("ENV"), String::new())].into(),
        mounts: vec![
            DeviceMount { container_path: "/m".to_owned(), host_path: text("/m"), read_only: true },
            DeviceMount { container_path: text("/m"), host_path: text("/m"), read_only: false },
        ],
        devices: vec![DeviceNode {
            container_path: "/dev/x".to_owned(),
            host_path: text("/dev/x"),
            permissions: "rw".to_owned(),
        }],
        annotations: [("both".to_owned(), text("annotation"))].into(),
        cdi_devices: vec!["vendor.com/both=1".to_owned(), text("vendor.com/own=")],
    }
}

#[test]
fn among_equal_keys_the_first_resource_counts() {
    let mut manager = manager();
    plug(&mut manager, NIC, devices(&["n"]));
    plug(&mut manager, GPU, devices(&["g"]));
    assert_eq!(manager.run_options("p", "c"), None);
    manager.begin("p", &app("c", &[(NIC, 1), (GPU, 1)]), None, false);
    for host in ["gpu", "nic"] {
        let response = AllocateResponse { encoded: vec![], options: options(host) };
        manager.allocated("p", Ok(Some(response)));
    }
    let got = manager.run_options("p", "c").unwrap();
    assert_eq!(got.envs["BOTH"], "env-gpu");
    assert_eq!(got.envs.len(), 3);
    let mounts: Vec<&str> = got.mounts.iter().map(|mount| mount.host_path.as_str()).collect();
    assert_eq!(mounts, ["/m-gpu", "/m-gpu", "/m-nic"]);
    assert_eq!(got.devices, options("gpu").devices);
    assert_eq!(got.annotations, options("gpu").annotations);
    assert_eq!(got.cdi_devices, ["vendor.com/both=1", "vendor.com/own=-gpu", "vendor.com/own=-nic"]);
}
