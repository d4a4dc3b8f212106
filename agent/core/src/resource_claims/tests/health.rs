//! Health of devices: reports that reach workers.

use std::time::Duration;

use super::*;
use crate::resource_claims::api::{DeviceHealth, ReportedHealth};

fn report(node: &mut Node, plugin: u64, device: &str, health: DeviceHealth) -> String {
    let report = ReportedHealth {
        pool: "p".to_owned(),
        device: device.to_owned(),
        health,
        timeout: None,
        message: String::new(),
    };
    node.step(ClaimEvent::Health { plugin: PluginId(plugin), devices: vec![report] })
}

fn pass(node: &mut Node, seconds: u64) {
    node.now.mono = node.now.mono.after(Duration::from_secs(seconds));
}

fn with_pods() -> Node {
    let mut node = Node::new();
    for (uid, claims) in [("a", &["c"][..]), ("b", &["c", "e"])] {
        node.prepare(uid, claims);
        node.settle();
    }
    node
}

#[test]
fn workers_hear_of_changes_of_their_devices() {
    let mut node = with_pods();
    assert_eq!(
        report(&mut node, 1, "c", DeviceHealth::Healthy),
        "health changed:a[d1/x=c=Healthy] changed:b[d1/x=c=Healthy,d2/x=e=Unknown]"
    );
    pass(&mut node, 2);
    assert_eq!(report(&mut node, 1, "c", DeviceHealth::Healthy), "", "no change");
    assert_eq!(report(&mut node, 1, "other", DeviceHealth::Unhealthy), "health", "nobody's device");
    pass(&mut node, 2);
    assert_eq!(
        report(&mut node, 2, "e", DeviceHealth::Unhealthy),
        "health changed:b[d1/x=c=Healthy,d2/x=e=Unhealthy]"
    );
    node.unprepare("b");
    node.settle();
    pass(&mut node, 2);
    assert_eq!(report(&mut node, 2, "e", DeviceHealth::Healthy), "health", "the pod is gone");
}

#[test]
fn a_driver_that_reports_without_end_makes_one_round_a_second() {
    let mut node = with_pods();
    report(&mut node, 2, "e", DeviceHealth::Healthy);
    for health in [DeviceHealth::Unhealthy, DeviceHealth::Healthy, DeviceHealth::Unhealthy] {
        assert_eq!(report(&mut node, 2, "e", health), "");
    }
    let due = node.now.mono.after(Duration::from_secs(1));
    assert_eq!(node.claims.deadline(), Some(due));
    node.now.mono = due;
    assert_eq!(node.step(ClaimEvent::Tick), "health changed:b[d1/x=c=Unknown,d2/x=e=Unhealthy]");
}

#[test]
fn a_silent_driver_makes_its_devices_unknown() {
    let mut node = with_pods();
    report(&mut node, 2, "e", DeviceHealth::Healthy);
    let due = node.now.mono.after(Duration::from_secs(30)).after(Duration::from_nanos(1));
    assert_eq!(node.claims.deadline(), Some(due));
    node.now.mono = due;
    assert_eq!(node.step(ClaimEvent::Tick), "health changed:b[d1/x=c=Unknown,d2/x=e=Unknown]");
    assert_eq!(node.claims.deadline(), None);
}

#[test]
fn the_end_of_a_stream_makes_devices_unknown() {
    for end in [ClaimEvent::HealthEnded(PluginId(2)), ClaimEvent::Deregistered(PluginId(2))] {
        let mut node = with_pods();
        report(&mut node, 2, "e", DeviceHealth::Healthy);
        pass(&mut node, 2);
        assert_eq!(node.step(end), "health changed:b[d1/x=c=Unknown,d2/x=e=Unknown]");
        assert_eq!(node.step(ClaimEvent::HealthEnded(PluginId(2))), "", "again");
    }
}

#[test]
fn without_the_gate_nothing_is_kept() {
    let mut node = Node::of(ResourceClaims::new(ClaimGates { health: false, ..GATES }));
    node.step(ClaimEvent::Tick);
    node.settle();
    node.register(1, "d1");
    node.prepare("a", &["c"]);
    node.settle();
    assert_eq!(report(&mut node, 1, "c", DeviceHealth::Healthy), "");
    assert_eq!(node.step(ClaimEvent::Find { ask: 9, pod: pod("a", &["c"]) }), "ok9[d1/x=c]");
}
