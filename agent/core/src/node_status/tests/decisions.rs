//! Tables and properties of the pure parts: addresses, conditions, images, patches.

use std::net::IpAddr;

use agent_types::resources::machine::{HostNetwork, InterfaceAddress};
use agent_types::resources::requests::is_extended;
use agent_types::runtime::status::{RuntimeFeatures, RuntimeHandler, RuntimeStatus};
use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::{config, machine_facts, merge, network};
use crate::node_status::addresses::{node_addresses, provided_node_ip};
use crate::node_status::inputs::Inputs;
use crate::node_status::*;

fn now() -> Now {
    Now { mono: Mono(100_000_000_000), wall: Wall(1_795_262_400_000_000_000) }
}

fn host() -> HostNetwork {
    let of = |(interface, ip): (&str, &str)| InterfaceAddress {
        interface: interface.to_owned(),
        ip: ip.parse().expect("an address"),
    };
    HostNetwork {
        addresses: [
            ("lo", "127.0.0.1"),
            ("eth0", "169.254.1.1"),
            ("eth0", "192.0.2.1"),
            ("eth0", "fe80::1"),
            ("eth0", "2001:db8::1"),
            ("eth1", "198.51.100.1"),
            ("cni0", "10.88.0.1"),
        ]
        .map(of)
        .to_vec(),
        default_v4: vec!["eth0".into(), "eth1".into()],
        default_v6: vec!["eth0".into()],
        resolved: Vec::new(),
    }
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|t| t.parse().expect("an address")).collect()
}

fn text(addresses: Result<Vec<NodeAddress>, AddressError>) -> String {
    match addresses {
        Ok(list) => list.iter().map(|a| format!("{}={}", a.type_, a.address)).collect::<Vec<_>>().join(" "),
        Err(error) => error.to_string(),
    }
}

#[test]
fn addresses_by_policy() {
    for (given, resolved, hostname, expected) in [
        (&[][..], &[][..], "n1", "InternalIP=192.0.2.1 Hostname=n1"),
        (&["::"], &[], "n1", "InternalIP=2001:db8::1 Hostname=n1"),
        (&["0.0.0.0"], &[], "n1", "InternalIP=192.0.2.1 Hostname=n1"),
        (&["198.51.100.1"], &[], "n1", "InternalIP=198.51.100.1 Hostname=n1"),
        (&["192.0.2.1", "2001:db8::1"], &[], "n1", "InternalIP=192.0.2.1 InternalIP=2001:db8::1 Hostname=n1"),
        (&[], &["203.0.113.9", "198.51.100.1"], "n1", "InternalIP=198.51.100.1 Hostname=n1"),
        (&[], &["2001:db8::1", "198.51.100.1"], "n1", "InternalIP=198.51.100.1 Hostname=n1"),
        (&["::"], &["198.51.100.1", "2001:db8::1"], "n1", "InternalIP=2001:db8::1 Hostname=n1"),
        (&[], &["127.0.0.1"], "n1", "InternalIP=192.0.2.1 Hostname=n1"),
        // A line of /etc/hosts with the loopback interface: DNS has not been asked.
        (&["::"], &["127.0.1.1", "::1"], "n1", "InternalIP=2001:db8::1 Hostname=n1"),
        (&[], &[], "203.0.113.5", "InternalIP=203.0.113.5 Hostname=203.0.113.5"),
        (
            &["203.0.113.9"],
            &[],
            "n1",
            "failed to validate nodeIP: node IP: \"203.0.113.9\" not found in the host's network interfaces",
        ),
        (&["127.0.0.1"], &[], "n1", "failed to validate nodeIP: nodeIP can't be loopback address"),
        (
            &["192.0.2.1", "fe80::1"],
            &[],
            "n1",
            "failed to validate secondaryNodeIP: nodeIP can't be a link-local unicast address",
        ),
    ] {
        let policy =
            AddressPolicy { node_ips: ips(given), hostname: hostname.into(), external_cloud_provider: false };
        let host = HostNetwork { resolved: ips(resolved), ..host() };
        assert_eq!(text(node_addresses(&policy, &host, &[])), expected, "{given:?} {resolved:?}");
    }
    let policy = AddressPolicy { hostname: "n1".into(), ..AddressPolicy::default() };
    let nowhere = HostNetwork { default_v4: Vec::new(), default_v6: Vec::new(), ..host() };
    assert!(text(node_addresses(&policy, &nowhere, &[])).starts_with("can't get ip address of node n1"));
}

#[test]
fn addresses_belong_to_the_cloud_if_there_is_one() {
    let policy = |given: &[&str]| AddressPolicy {
        node_ips: ips(given),
        hostname: "n1".into(),
        external_cloud_provider: true,
    };
    let there = [NodeAddress { type_: "ExternalIP".into(), address: "203.0.113.1".into() }];
    for (given, existing, expected, annotation) in [
        (&[][..], &[][..], "Hostname=n1", None),
        (&[], &there, "ExternalIP=203.0.113.1", None),
        (&["192.0.2.1"], &there, "ExternalIP=203.0.113.1", Some("192.0.2.1")),
        (&["192.0.2.1"], &[], "InternalIP=192.0.2.1 Hostname=n1", Some("192.0.2.1")),
        (
            &["192.0.2.1", "2001:db8::1"],
            &[],
            "InternalIP=192.0.2.1 InternalIP=2001:db8::1 Hostname=n1",
            Some("192.0.2.1,2001:db8::1"),
        ),
        (&["0.0.0.0"], &[], "InternalIP=192.0.2.1 Hostname=n1", None),
    ] {
        assert_eq!(text(node_addresses(&policy(given), &host(), existing)), expected, "{given:?}");
        assert_eq!(provided_node_ip(&policy(given)).as_deref(), annotation, "{given:?}");
    }
    assert_eq!(
        provided_node_ip(&AddressPolicy { node_ips: ips(&["192.0.2.1"]), ..AddressPolicy::default() }),
        None
    );
}

fn complete() -> Inputs {
    let mut inputs = Inputs::default();
    inputs.take(NodeInput::Machine(Ok(machine_facts())));
    inputs.take(NodeInput::Network(network("192.0.2.1")));
    inputs.take(NodeInput::Pleg(Ok(())));
    inputs.take(NodeInput::Storage(Ok(())));
    inputs.take(NodeInput::Runtime { asked: now().mono, result: Ok(RuntimeStatus::ready()) });
    inputs
}

fn filled(inputs: &Inputs) -> (Node, setters::Notes) {
    let mut node = Node::default();
    let notes = setters::fill(&mut node, &config(), inputs, now());
    (node, notes)
}

fn ready(inputs: &Inputs) -> (String, String) {
    let (node, _) = filled(inputs);
    let conditions = node.status.unwrap().conditions.unwrap();
    let last = conditions.last().unwrap().clone();
    assert_eq!(last.type_, "Ready");
    (last.reason.unwrap(), last.message.unwrap())
}

#[test]
fn ready_says_what_is_wrong() {
    let down = |runtime: Result<(), &str>, network: Result<(), &str>| {
        let status = RuntimeStatus {
            runtime_ready: runtime.map_err(str::to_owned),
            network_ready: network.map_err(str::to_owned),
            ..RuntimeStatus::ready()
        };
        NodeInput::Runtime { asked: now().mono, result: Ok(status) }
    };
    let old = NodeInput::Runtime { asked: Mono(0), result: Ok(RuntimeStatus::ready()) };
    let silent = NodeInput::Runtime { asked: now().mono, result: Err("no answer".into()) };
    for (inputs, reason, message) in [
        (vec![], "KubeletReady", "kubelet is posting ready status"),
        (vec![silent], "KubeletReady", "kubelet is posting ready status"),
        (vec![old], "KubeletNotReady", "container runtime is down"),
        (
            vec![down(Err("RuntimeReady=false reason:X message:Y"), Ok(()))],
            "KubeletNotReady",
            "container runtime not ready: RuntimeReady=false reason:X message:Y",
        ),
        (
            vec![down(Ok(()), Err("NetworkReady=false reason:N message:no cni"))],
            "KubeletNotReady",
            "container runtime network not ready: NetworkReady=false reason:N message:no cni",
        ),
        (
            vec![NodeInput::Pleg(Err("pleg was last seen active 4m0s ago; threshold is 3m0s".into()))],
            "KubeletNotReady",
            "PLEG is not healthy: pleg was last seen active 4m0s ago; threshold is 3m0s",
        ),
        (
            vec![
                NodeInput::Pleg(Err("PLEG is not healthy: x".into())),
                NodeInput::Storage(Err("CSINode is not there".into())),
                NodeInput::Shutdown(Err("node is shutting down".into())),
            ],
            "KubeletNotReady",
            "[PLEG is not healthy: x, CSINode is not there, node is shutting down]",
        ),
        (
            vec![NodeInput::Storage(Err("same".into())), NodeInput::Shutdown(Err("same".into()))],
            "KubeletNotReady",
            "same",
        ),
        (
            vec![NodeInput::SoftRequirements(Some("no cpu.weight".into()))],
            "KubeletReady",
            "kubelet is posting ready status. WARNING: no cpu.weight",
        ),
        (
            vec![NodeInput::Machine(Err("no /proc".into()))],
            "KubeletNotReady",
            "missing node capacity for resources: ephemeral-storage",
        ),
    ] {
        let mut all = complete();
        let about = format!("{inputs:?}");
        inputs.into_iter().for_each(|input| all.take(input));
        assert_eq!(ready(&all), (reason.to_owned(), message.to_owned()), "{about}");
    }
}

#[test]
fn what_is_not_known_is_not_claimed() {
    let (node, notes) = filled(&Inputs::default());
    let status = node.status.unwrap();
    assert_eq!(status.capacity.unwrap()["cpu"].0, "0");
    assert_eq!(status.addresses, None);
    assert_eq!(status.images, None);
    assert_eq!(status.features, None);
    assert_eq!(status.declared_features, None);
    assert_eq!(status.node_info.unwrap().container_runtime_version, "containerd://Unknown");
    assert_eq!(notes.problems, ["the machine cannot be read: the machine has not been read yet"]);
}

#[test]
fn images_handlers_features_and_devices() {
    let mut inputs = complete();
    let image = |name: &str, tags: usize, size_bytes| NodeImage {
        repo_digests: vec![format!("{name}@sha256:1")],
        repo_tags: (0..tags).map(|n| format!("{name}:{n}")).collect(),
        size_bytes,
    };
    inputs.take(NodeInput::Images(vec![image("small", 1, 1), image("large", 9, 100), image("b", 1, 5)]));
    let handler = |name: &str| RuntimeHandler {
        name: name.into(),
        recursive_read_only_mounts: true,
        user_namespaces: name.is_empty(),
    };
    let status = RuntimeStatus {
        handlers: vec![handler("runc"), handler("")],
        features: Some(RuntimeFeatures { supplemental_groups_policy: true, ..RuntimeFeatures::default() }),
        ..RuntimeStatus::ready()
    };
    inputs.take(NodeInput::Runtime { asked: now().mono, result: Ok(status) });
    inputs.take(NodeInput::Devices(DeviceResources {
        capacity: [("x.io/gpu".to_owned(), 4)].into(),
        allocatable: [("x.io/gpu".to_owned(), 3)].into(),
        removed: vec!["x.io/old".into()],
        has_checkpoint: true,
    }));
    let mut node = Node::default();
    let config =
        NodeStatusConfig { images_max: 2, declared_features: vec!["B".into(), "A".into()], ..config() };
    setters::fill(&mut node, &config, &inputs, now());
    let status = serde_json::to_value(node.status).unwrap();
    assert_eq!(status["images"].as_array().unwrap().len(), 2);
    assert_eq!(
        status["images"][0],
        json!({"names": ["large@sha256:1", "large:0", "large:1", "large:2", "large:3"], "sizeBytes": 100})
    );
    assert_eq!(status["images"][1]["sizeBytes"], 5);
    assert_eq!(status["runtimeHandlers"][0]["name"], "");
    assert_eq!(status["runtimeHandlers"][0]["features"]["userNamespaces"], true);
    assert_eq!(status["runtimeHandlers"][1]["name"], "runc");
    assert_eq!(status["features"], json!({"supplementalGroupsPolicy": true}));
    assert_eq!(status["declaredFeatures"], json!(["A", "B"]));
    assert_eq!(status["capacity"]["x.io/gpu"], "4");
    assert_eq!(status["allocatable"]["x.io/gpu"], "3");
    assert_eq!(status["capacity"]["x.io/old"], "0");
    for (name, extended) in [
        ("x.io/gpu", true),
        ("cpu", false),
        ("hugepages-2Mi", false),
        ("kubernetes.io/batch", false),
        ("a.kubernetes.io/b", false),
    ] {
        assert_eq!(is_extended(name), extended, "{name}");
    }
}

#[test]
fn a_filled_node_does_not_change_by_filling_it_again() {
    let inputs = complete();
    let (node, _) = filled(&inputs);
    let mut again = node.clone();
    let later = Now { wall: Wall(now().wall.0 + 60_000_000_000), ..now() };
    let notes = setters::fill(&mut again, &config(), &inputs, later);
    assert!(!patch::differs(&node, &again));
    assert!(notes.events.is_empty());
    assert_eq!(patch::node_status(&node, &node), None);
}

fn condition() -> impl Strategy<Value = Value> {
    (0..4usize, prop::bool::ANY, 0..3u8, 0..3i64).prop_map(|(kind, status, message, time)| {
        let kind = ["Ready", "MemoryPressure", "DiskPressure", "NetworkUnavailable"][kind];
        json!({"type": kind,
            "status": if status { "True" } else { "False" }, "message": format!("m{message}"),
            "lastHeartbeatTime": format!("2026-01-01T00:00:0{time}Z")})
    })
}

fn node() -> impl Strategy<Value = Node> {
    let map = || prop::collection::btree_map("[a-c]", "[1-3]", 0..3);
    let conditions = prop::collection::vec(condition(), 0..4).prop_map(|list| {
        let mut seen = std::collections::BTreeSet::new();
        list.into_iter().filter(|c| seen.insert(c["type"].to_string())).collect::<Vec<_>>()
    });
    let addresses = prop::collection::vec((0..2usize, "[1-3]"), 0..4).prop_map(|list| {
        let kind = |at: usize| ["InternalIP", "Hostname"][at];
        list.into_iter().map(|(at, a)| json!({"type": kind(at), "address": a})).collect::<Vec<_>>()
    });
    let images = prop::collection::vec("[a-c]", 0..3);
    (map(), map(), map(), conditions, addresses, images).prop_map(
        |(labels, annotations, capacity, conditions, addresses, images)| {
            let images: Vec<Value> = images.into_iter().map(|i| json!({"names": [i]})).collect();
            serde_json::from_value(json!({
                "metadata": {"name": "n1", "uid": "u", "labels": labels, "annotations": annotations},
                "spec": {"podCIDR": "10.0.0.0/24"},
                "status": {"capacity": capacity, "conditions": conditions, "addresses": addresses, "images": images},
            }))
            .expect("a node")
        },
    )
}

/// Order of conditions aside, which no patch needs to change.
fn comparable(node: &Value) -> Value {
    let mut node = node.clone();
    if let Some(conditions) = node["status"]["conditions"].as_array_mut() {
        conditions.sort_by_key(|c| c["type"].to_string());
    }
    node
}

proptest! {
    #[test]
    fn a_patch_turns_one_node_into_the_other(old in node(), new in node()) {
        let value = |n: &Node| serde_json::to_value(n).expect("a node");
        match patch::node_status(&old, &new) {
            Some(patch) => {
                let merged = merge(&value(&old), &patch);
                prop_assert_eq!(comparable(&merged), comparable(&value(&new)), "{}", patch);
            }
            None => prop_assert_eq!(comparable(&value(&old)), comparable(&value(&new))),
        }
    }

    #[test]
    fn nothing_is_patched_if_nothing_changed(node in node()) {
        prop_assert_eq!(patch::node_status(&node, &node), None);
        prop_assert!(!patch::differs(&node, &node));
    }
}
