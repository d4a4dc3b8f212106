//! The Node machine against a small API server: registration, reports, deletion, faults.

mod decisions;
mod world;

use std::sync::Arc;
use std::time::Duration;

use agent_types::api::ApiCall;
use agent_types::pressures::Pressures;
use agent_types::time::Mono;
use serde_json::json;

use world::{Fault, World, machine_facts, network, peace};

use super::*;
use crate::node_update::report::UpdateShown;

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn patches(w: &mut World) -> Vec<serde_json::Value> {
    let patch = |call| if let ApiCall::PatchNodeStatus { patch, .. } = call { Some(patch) } else { None };
    w.calls.drain(..).filter_map(|(_, call)| patch(call)).collect()
}

#[test]
fn a_ready_node_takes_one_call_and_then_a_heartbeat_in_five_minutes() {
    let mut w = World::started();
    assert_eq!(w.verbs(), ["create"]);
    assert!(w.machine.is_ready());
    let node = w.node();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/arch"], "amd64");
    assert_eq!(node["metadata"]["labels"]["zone"], "a");
    assert_eq!(node["spec"]["taints"][0]["key"], "dedicated");
    assert_eq!(node["spec"]["providerID"], "metal://1");
    assert_eq!(node["status"]["capacity"]["memory"], "16Gi");
    assert_eq!(node["status"]["allocatable"]["cpu"], "4");
    assert_eq!(node["status"]["nodeInfo"]["containerRuntimeVersion"], "containerd://2.1.9");
    assert_eq!(node["status"]["nodeInfo"]["swap"]["capacity"], 7);
    assert_eq!(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10250);
    let kinds: Vec<_> = node["status"]["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
    assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    assert_eq!(
        w.events(),
        ["Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]
    );
    assert_eq!(
        w.facts[..2],
        [NodeFact::Registered { uid: "uid-1".into(), created: true }, NodeFact::Reported { ready: true }]
    );
    w.calls.clear();
    w.run(seconds(3600), &mut peace());
    let times: Vec<Mono> = w.calls.iter().map(|(at, _)| *at).collect();
    assert!((11..=13).contains(&times.len()), "{times:?}");
    assert!(times[1..].windows(2).all(|pair| {
        let apart = pair[1].since(pair[0]);
        apart >= seconds(300) && apart <= seconds(311)
    }));
    for patch in patches(&mut w) {
        for condition in patch["status"]["conditions"].as_array().unwrap() {
            assert_eq!(condition.as_object().unwrap().len(), 2, "heartbeat and type only: {patch}");
        }
        assert_eq!(patch["status"].as_object().unwrap().len(), 2, "{patch}");
    }
    assert!(w.events().is_empty());
}

#[test]
fn an_existing_node_keeps_what_is_the_clusters() {
    let mut w = World::new();
    w.store(json!({"metadata": {"name": "n1", "labels": {"custom": "x", "zone": "b", "kubernetes.io/os": "plan9"}},
        "spec": {"taints": [], "podCIDRs": ["10.0.0.0/24"]},
        "status": {"nodeInfo": {"bootID": "older", "architecture": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "v1", "kubeletVersion": "", "machineID": "",
                "operatingSystem": "", "osImage": "", "systemUUID": ""},
            "capacity": {"hugepages-1Gi": "5Gi", "x.io/gpu": "4", "memory": "16777216Ki"},
            "volumesAttached": [{"name": "v", "devicePath": ""}],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.99"}]}}));
    w.start(&mut peace());
    assert_eq!(w.verbs(), ["create", "get", "patch"]);
    let node = w.node();
    assert_eq!(node["metadata"]["labels"]["custom"], "x");
    assert_eq!(node["metadata"]["labels"]["zone"], "b");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
    assert_eq!(node["spec"]["taints"], json!([]));
    assert_eq!(node["status"]["capacity"].get("hugepages-1Gi"), None);
    assert_eq!(node["status"]["capacity"]["x.io/gpu"], "0");
    assert_eq!(node["status"]["capacity"]["memory"], "16777216Ki", "the same amount keeps its text");
    assert_eq!(node["status"]["nodeInfo"]["kubeProxyVersion"], "");
    assert_eq!(node["status"]["volumesAttached"][0]["name"], "v");
    assert_eq!(
        node["status"]["addresses"],
        json!([{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n1"}])
    );
    assert!(w.events().contains(&"Rebooted"));
    assert_eq!(w.cidrs, [["10.0.0.0/24"]]);
    assert!(matches!(&w.facts[0], NodeFact::Registered { created: false, .. }));
    w.run(seconds(60), &mut peace());
    assert!(!w.events().contains(&"Rebooted"), "said once");
}

#[test]
fn a_node_that_the_watch_has_shown_is_brought_in_line_with_one_call() {
    let there = json!({"metadata": {"name": "n1", "uid": "uid-1", "labels": {"custom": "x"}},
        "spec": {"podCIDRs": ["10.0.0.0/24"]}});
    let listed = |w: &mut World| {
        let node = Arc::new(serde_json::from_value(w.node()).unwrap());
        w.step(NodeStatusEvent::Watched(WatchEvent::Listed(vec![node])), &mut peace());
    };
    let mut w = World::new();
    w.store(there.clone());
    listed(&mut w);
    w.start(&mut peace());
    assert_eq!(w.verbs(), ["patch"]);
    assert!(w.machine.is_ready());
    assert_eq!(w.node()["metadata"]["labels"]["custom"], "x");
    assert_eq!(w.cidrs, [["10.0.0.0/24"]]);
    assert!(matches!(&w.facts[0], NodeFact::Registered { created: false, .. }));

    // The Node was deleted meanwhile. Without an event of the watch the second try creates it, with the
    // event the first does.
    for told in [false, true] {
        let mut w = World::new();
        w.store(there.clone());
        listed(&mut w);
        let old = w.delete();
        if told {
            w.step(NodeStatusEvent::Watched(WatchEvent::Deleted(old)), &mut peace());
        }
        w.start(&mut peace());
        w.run(seconds(1), &mut peace());
        assert_eq!(w.verbs(), if told { &["create"][..] } else { &["patch", "create"] });
        assert!(w.machine.is_ready());
    }
}

#[test]
fn forbidden_to_create_is_said_and_tried_again_slower_and_slower() {
    let mut w = World::new();
    w.start(&mut std::iter::repeat(Fault::Forbidden));
    w.run(seconds(600), &mut std::iter::repeat(Fault::Forbidden));
    assert!(w.calls.len() < 2 * 100, "{}", w.calls.len());
    assert!(
        w.facts.iter().any(|f| matches!(f, NodeFact::Failed { message } if message.contains("Forbidden")))
    );
    // Another client made the Node: that will do.
    w.store(json!({"metadata": {"name": "n1"}}));
    w.run(seconds(8), &mut std::iter::repeat(Fault::Forbidden));
    assert!(w.machine.is_ready());
}

#[test]
fn a_deleted_node_comes_back() {
    for told in [true, false] {
        let mut w = World::started();
        let old = w.delete();
        w.verbs();
        if told {
            w.step(NodeStatusEvent::Watched(WatchEvent::Deleted(old.clone())), &mut peace());
            w.run(seconds(2), &mut peace());
            assert_eq!(w.verbs(), ["get", "create"]);
        } else {
            w.run(seconds(470), &mut peace());
            assert_eq!(w.verbs()[..2], ["patch", "create"]);
        }
        assert!(w.facts.contains(&NodeFact::Deleted));
        assert_eq!(w.node()["metadata"]["uid"], "uid-2");
        // The watch is late: what it says about the old Node means nothing.
        w.step(NodeStatusEvent::Watched(WatchEvent::Deleted(old)), &mut peace());
        w.step(NodeStatusEvent::Watched(WatchEvent::Listed(Vec::new())), &mut peace());
        w.run(seconds(5), &mut peace());
        let verbs = w.verbs();
        assert!(verbs.first() == Some(&"get") && !verbs.contains(&"create"), "{verbs:?}");
        assert!(w.machine.is_ready());
    }
}

#[test]
fn without_registration_the_node_is_waited_for() {
    let mut w = World::with(|c| c.register = false);
    w.start(&mut peace());
    w.run(seconds(60), &mut peace());
    assert!(w.verbs().iter().all(|verb| *verb == "get"));
    assert!(
        w.facts.iter().any(|f| matches!(f, NodeFact::Failed { message } if message.contains("registerNode")))
    );
    w.store(json!({"metadata": {"name": "n1"}}));
    w.run(seconds(11), &mut peace());
    assert!(w.machine.is_ready());
}

#[test]
fn ready_and_addresses_are_reported_at_once_and_pressure_in_the_next_cycle() {
    let mut w = World::new();
    w.input(NodeInput::Machine(Ok(machine_facts())), &mut peace());
    w.input(NodeInput::Network(network("192.0.2.1")), &mut peace());
    w.input(NodeInput::Pleg(Ok(())), &mut peace());
    w.run(seconds(1), &mut peace());
    assert_eq!(w.verbs(), ["create"]);
    assert!(!w.machine.is_ready());
    assert_eq!(
        w.ready(),
        ("False", "[container runtime status check may not have completed yet, network state unknown]")
    );
    w.pass(seconds(2));
    w.runtime_ready(&mut peace());
    assert_eq!(w.verbs(), ["patch"], "in the same step");
    assert!(w.machine.is_ready());
    assert_eq!(w.ready(), ("True", "kubelet is posting ready status"));
    w.run(seconds(1), &mut peace());
    w.input(NodeInput::Network(network("192.0.2.7")), &mut peace());
    assert_eq!(w.verbs(), ["patch"]);
    assert_eq!(w.node()["status"]["addresses"][0]["address"], "192.0.2.7");
    w.input(NodeInput::Pressures(Pressures { memory: true, ..Pressures::default() }), &mut peace());
    assert!(w.verbs().is_empty());
    w.run(seconds(11), &mut peace());
    assert_eq!(w.verbs(), ["patch"]);
    assert_eq!(w.node()["status"]["conditions"][0]["reason"], "KubeletHasInsufficientMemory");
    w.input(NodeInput::Shutdown(Err("node is shutting down".into())), &mut peace());
    w.run(seconds(1), &mut peace());
    assert_eq!(w.ready(), ("False", "node is shutting down"));
    assert!(w.events().ends_with(&["NodeHasInsufficientMemory", "NodeNotReady"]));
}

#[test]
fn a_lost_delay_lock_is_a_condition_and_one_that_was_never_lost_is_none() {
    let found = |w: &mut World| {
        w.run(seconds(11), &mut peace());
        let conditions = w.node()["status"]["conditions"].as_array().unwrap().clone();
        let ours: Vec<_> = conditions.iter().filter(|c| c["type"] == "ShutdownNotDelayed").collect();
        ours.iter().map(|c| format!("{} {} {}", c["status"], c["reason"], c["message"])).collect::<Vec<_>>()
    };
    let mut w = World::started();
    w.input(NodeInput::ShutdownDelay(Ok(())), &mut peace());
    assert_eq!(found(&mut w), [""; 0]);
    w.input(NodeInput::ShutdownDelay(Err("no bus".into())), &mut peace());
    let lost = r#""True" "NoDelayLock" "systemd-logind does not wait for this node's pods: no bus""#;
    assert_eq!(found(&mut w), [lost]);
    w.input(NodeInput::ShutdownDelay(Ok(())), &mut peace());
    let held = r#""False" "DelayLockHeld" "systemd-logind waits for this node's pods""#;
    assert_eq!(found(&mut w), [held]);
}

#[test]
fn an_update_is_shown_while_it_is_under_way_and_its_failure_afterwards() {
    let found = |w: &mut World| {
        w.run(seconds(11), &mut peace());
        let node = w.node();
        let conditions = node["status"]["conditions"].as_array().unwrap().clone();
        let ours = conditions.iter().filter(|c| c["type"].as_str().unwrap_or("").starts_with("Update"));
        let line = |c: &serde_json::Value| format!("{} {} {}", c["type"], c["status"], c["message"]);
        let marks = (
            node["metadata"]["labels"]["orlop.org/version"].as_str().map(str::to_owned),
            node["metadata"]["annotations"]["orlop.org/update-state"].as_str().map(str::to_owned),
        );
        (ours.map(line).collect::<Vec<_>>(), marks)
    };
    let shown =
        |state: &str| UpdateShown { version: "0.1.0".into(), state: state.into(), ..UpdateShown::default() };
    let marks = |state: &str| (Some("0.1.0".to_owned()), Some(state.to_owned()));
    let mut w = World::started();
    w.input(NodeInput::Update(shown("Idle")), &mut peace());
    assert_eq!(found(&mut w), (vec![], marks("Idle")));
    let progressing = Some(("Draining", "update to 0.2.0".to_owned()));
    let drains = UpdateShown { progressing, ..shown("Draining: update to 0.2.0") };
    w.input(NodeInput::Update(drains), &mut peace());
    let under_way = r#""UpdateProgressing" "True" "update to 0.2.0""#.to_owned();
    assert_eq!(found(&mut w), (vec![under_way], marks("Draining: update to 0.2.0")));
    let failed = UpdateShown { failed: Some("0.2.0 runtime: it is down".to_owned()), ..shown("Failed") };
    w.input(NodeInput::Update(failed), &mut peace());
    let over = r#""UpdateProgressing" "False" "no update is under way""#.to_owned();
    let why = r#""UpdateFailed" "True" "0.2.0 runtime: it is down""#.to_owned();
    assert_eq!(found(&mut w), (vec![over, why], marks("Failed")));
}

#[test]
fn a_runtime_that_stops_answering_is_down_after_half_a_minute() {
    let mut w = World::started();
    w.silent = true;
    w.run(seconds(45), &mut peace());
    assert_eq!(w.ready(), ("False", "container runtime is down"));
}

#[test]
fn five_tries_in_a_cycle_the_first_from_what_is_known() {
    let mut w = World::started();
    w.verbs();
    w.input(NodeInput::Pressures(Pressures { disk: true, ..Pressures::default() }), &mut peace());
    w.run(seconds(11), &mut std::iter::repeat(Fault::Unavailable));
    assert_eq!(w.verbs(), ["patch", "get", "get", "get", "get"]);
    assert_eq!(w.closed, 4);
    w.run(seconds(11), &mut peace());
    assert_eq!(w.verbs(), ["get", "patch"]);
    assert_eq!(w.events().last(), Some(&"NodeHasDiskPressure"));
}

#[test]
fn cordoning_and_pod_networks_are_told_and_old_news_is_not() {
    let mut w = World::started();
    w.events();
    let mut node = w.api_node();
    let spec = node.spec.get_or_insert_default();
    spec.unschedulable = Some(true);
    spec.pod_cidrs = Some(vec!["10.1.0.0/24".into()]);
    node.metadata.resource_version = Some("50".into());
    w.step(NodeStatusEvent::Watched(WatchEvent::Applied(Arc::new(node.clone()))), &mut peace());
    assert_eq!(w.events(), ["NodeNotSchedulable"]);
    assert_eq!(w.cidrs, [["10.1.0.0/24"]]);
    node.spec.get_or_insert_default().unschedulable = Some(false);
    node.metadata.resource_version = Some("49".into());
    w.step(NodeStatusEvent::Watched(WatchEvent::Applied(Arc::new(node.clone()))), &mut peace());
    assert!(w.events().is_empty());
    node.metadata.resource_version = Some("51".into());
    w.step(NodeStatusEvent::Watched(WatchEvent::Applied(Arc::new(node))), &mut peace());
    assert_eq!(w.events(), ["NodeSchedulable"]);
}

#[test]
fn a_node_that_the_controller_gave_up_is_ready_again_at_once() {
    let mut w = World::started();
    w.run(seconds(5), &mut peace());
    w.verbs();
    let mut node = w.api_node();
    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.iter_mut().for_each(|c| c.status = "Unknown".into());
    node.metadata.resource_version = Some("90".into());
    w.step(NodeStatusEvent::Watched(WatchEvent::Applied(Arc::new(node))), &mut peace());
    assert_eq!(w.verbs(), ["patch"]);
}

#[test]
fn somebody_who_writes_over_our_status_is_answered_once_a_cycle() {
    let mut w = World::started();
    w.run(seconds(2), &mut peace());
    w.verbs();
    for version in 100..108 {
        let mut node = w.api_node();
        let status = node.status.get_or_insert_default();
        status.addresses.get_or_insert_default()[0].address = "203.0.113.1".into();
        node.metadata.resource_version = Some(version.to_string());
        w.step(NodeStatusEvent::Watched(WatchEvent::Applied(Arc::new(node))), &mut peace());
        w.run(Duration::from_millis(100), &mut peace());
    }
    assert!(w.verbs().is_empty());
    w.run(seconds(11), &mut peace());
    assert_eq!(w.verbs(), ["patch"]);
}

/// Every sequence of four faults, at registration and later while Ready flips: afterwards the Node is there and says
/// the truth, and no second had more than a handful of calls.
#[test]
fn every_short_sequence_of_faults_ends_well() {
    for running in [false, true] {
        for number in 0..world::FAULTS.len().pow(4) {
            let mut rest = number;
            let mut faults = (0..4).map(|_| {
                let fault = world::FAULTS[rest % world::FAULTS.len()];
                rest /= world::FAULTS.len();
                fault
            });
            let mut w = World::new();
            if running {
                w.start(&mut peace());
                w.run(seconds(3), &mut peace());
                w.calls.clear();
                w.input(NodeInput::Network(network("192.0.2.9")), &mut faults);
            } else {
                w.start(&mut faults);
            }
            w.run(seconds(70), &mut faults);
            let about = || format!("sequence {number}, running {running}: {:?}", w.facts);
            assert!(w.machine.is_ready(), "{}", about());
            let address = if running { "192.0.2.9" } else { "192.0.2.1" };
            assert_eq!(w.node()["status"]["addresses"][0]["address"], address, "{}", about());
            assert_eq!(w.ready().0, "True", "{}", about());
            for (at, _) in &w.calls {
                let burst = w.calls.iter().filter(|(other, _)| other >= at && other.since(*at) < seconds(1));
                assert!(burst.count() <= 14, "{}", about());
            }
        }
    }
}

#[test]
fn registration_waits_for_the_runtime_to_be_listed_and_not_for_ever() {
    let mut w = World::new();
    w.input(NodeInput::Machine(Ok(machine_facts())), &mut peace());
    w.input(NodeInput::Network(network("192.0.2.1")), &mut peace());
    w.runtime_ready(&mut peace());
    assert!(w.calls.is_empty(), "it would be shown as not ready");
    w.run(Duration::from_millis(50), &mut peace());
    w.input(NodeInput::Pleg(Ok(())), &mut peace());
    assert_eq!((w.verbs(), w.ready().0), (vec!["create"], "True"));
    let mut w = World::new();
    w.step(NodeStatusEvent::Tick, &mut peace());
    w.run(seconds(1), &mut peace());
    assert_eq!((w.verbs(), w.ready().0), (vec!["create"], "False"));
}

#[test]
fn a_node_whose_drivers_nobody_knows_yet_is_not_ready() {
    let unknown = ("False", "CSINode is not yet initialized");
    // As soon as it is known to be new it is made: its CSINode comes after it.
    for listed in [true, false] {
        let mut w = World::without_csi_node(|_| {});
        w.start(&mut peace());
        assert!(w.verbs().is_empty());
        if listed {
            w.step(NodeStatusEvent::Watched(WatchEvent::Listed(Vec::new())), &mut peace());
        } else {
            w.run(seconds(1), &mut peace());
        }
        assert_eq!((w.verbs(), w.ready()), (vec!["create"], unknown));
        w.input(NodeInput::Storage(Ok(())), &mut peace());
        assert_eq!((w.verbs(), w.ready().0), (vec!["patch"], "True"));
    }
    // One that is there is left as it is meanwhile, for a while.
    for (wait, told, left, verdict) in [
        (seconds(2), Ok(()), 0, ("True", "kubelet is posting ready status")),
        (seconds(4), Err("no right".to_owned()), 1, ("False", "no right")),
    ] {
        let mut w = World::without_csi_node(|_| {});
        w.store(json!({"metadata": {"name": "n1"}}));
        w.start(&mut peace());
        let node = Arc::new(w.api_node());
        w.step(NodeStatusEvent::Watched(WatchEvent::Listed(vec![node])), &mut peace());
        w.run(wait, &mut peace());
        assert_eq!(w.verbs().len(), left);
        w.input(NodeInput::Storage(told), &mut peace());
        w.run(seconds(11), &mut peace());
        assert_eq!(w.ready(), verdict);
    }
}

#[test]
fn what_was_missing_at_registration_is_reported_at_once_and_then_once_a_second() {
    let mut w = World::new();
    w.input(NodeInput::Machine(Ok(machine_facts())), &mut peace());
    w.input(NodeInput::Network(network("192.0.2.1")), &mut peace());
    w.runtime_ready(&mut peace());
    w.run(seconds(1), &mut peace());
    assert_eq!((w.verbs(), w.ready().0), (vec!["create"], "False"));
    w.input(NodeInput::Pleg(Ok(())), &mut peace());
    assert_eq!((w.verbs(), w.ready().0), (vec!["patch"], "True"));
    // It flaps: not again within the second.
    w.input(NodeInput::Pleg(Err("stopped".into())), &mut peace());
    assert_eq!((w.verbs().len(), w.ready().0), (0, "True"));
    w.run(seconds(1), &mut peace());
    assert_eq!((w.verbs(), w.ready().0), (vec!["patch"], "False"));
}

#[test]
fn the_key_of_the_management_api_is_an_annotation_that_stays_until_another_is_known() {
    let mut w = World::started();
    let shown = |w: &World| w.node()["metadata"]["annotations"]["node.orlop.dev/api-key"].clone();
    assert!(shown(&w).is_null());
    for key in ["SHA256:a", "SHA256:b"] {
        w.input(NodeInput::ApiKey(key.to_owned()), &mut peace());
        w.run(seconds(60), &mut peace());
        assert_eq!(shown(&w), key);
    }
}
