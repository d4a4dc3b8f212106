//! Events of a worker that are about neither hooks nor probes: looks that fail, resolvers, features.

use std::sync::Arc;

use agent_types::failure::Class;
use serde_json::{Value, json};

use super::world::{World, make_pod};
use super::{one, secs};
use crate::pod_worker::effect::EffectError;

fn refuse(w: &mut World, class: Class) {
    w.runtime.refuse.insert("inspect", EffectError { class, message: "no".to_owned() });
}

fn changes(w: &mut World) {
    w.exit("a", 1);
    w.wait(secs(3));
}

#[test]
fn a_look_that_fails_is_told_once_until_one_succeeds() {
    let mut w = World::with(&one("Always"));
    refuse(&mut w, Class::Invalid);
    w.desire(&make_pod(json!({"restartPolicy": "Always", "containers": [{"name": "a", "image": "img:2"}]})));
    w.wait(secs(60));
    assert_eq!(w.events_of("FailedSync"), ["error determining status: no"]);
    w.runtime.refuse.clear();
    w.wait(secs(60));
    refuse(&mut w, Class::Invalid);
    w.desire(&one("Always"));
    w.wait(secs(60));
    assert_eq!(w.events_of("FailedSync").len(), 2);
    assert!(w.events_of("FailedPodSandBoxStatus").is_empty());
}

#[test]
fn a_new_sandbox_that_cannot_be_looked_at_is_told_as_that() {
    let mut w = World::new();
    w.desire(&one("Always"));
    while w.runtime.sandboxes.is_empty() {
        let next = *w.pending.keys().next().expect("something to do before there is a sandbox");
        w.perform(next);
    }
    refuse(&mut w, Class::Invalid);
    w.wait(secs(60));
    assert_eq!(w.events_of("FailedPodSandBoxStatus"), ["Unable to get pod sandbox status: no"]);
    assert!(w.events_of("FailedSync").is_empty());
}

#[test]
fn events_have_the_version_of_the_pod_that_they_are_about() {
    let mut pod = (*one("Always")).clone();
    pod.metadata.resource_version = Some("17".to_owned());
    let mut w = World::with(&Arc::new(pod));
    changes(&mut w);
    assert!(!w.events.is_empty(), "it was started");
    assert!(w.events.iter().all(|e| e.resource_version.as_deref() == Some("17")), "{:?}", w.events);
}

#[test]
fn a_runtime_that_is_away_is_not_the_pods_trouble() {
    let mut w = World::with(&one("Always"));
    refuse(&mut w, Class::Unavailable);
    changes(&mut w);
    assert!(w.events_of("FailedSync").is_empty(), "{:?}", w.events);
}

#[test]
fn what_is_odd_about_a_resolver_is_told_with_each_sandbox() {
    let spec = json!({"dnsPolicy": "odd", "containers": [{"name": "a", "image": "img:1"}]});
    let mut w = World::with(&make_pod(spec));
    w.exit("a", 1);
    w.wait(secs(60));
    assert_eq!(w.events_of("DNSConfigForming"), ["too long"]);
    assert!(World::with(&one("Always")).events_of("DNSConfigForming").is_empty());
}

#[test]
fn a_change_that_needs_a_feature_of_other_nodes_is_told() {
    let of = |amount: Value| {
        make_pod(json!({"containers": [{"name": "a", "image": "img:1"}],
            "resources": {"requests": {"cpu": amount}}}))
    };
    let mut w = World::with(&of(json!("1")));
    w.desire(&of(json!("1")));
    assert!(w.events_of("FailedNodeDeclaredFeaturesCheck").is_empty());
    w.desire(&of(json!("2")));
    assert_eq!(
        w.events_of("FailedNodeDeclaredFeaturesCheck"),
        ["Pod requires node features that are not available: InPlacePodLevelResourcesVerticalScaling"]
    );
}

/// PLEG looks after each call, also between a container's creation and its start.
#[test]
fn that_a_container_was_made_is_not_told_while_it_is_started() {
    let mut w = World::new();
    w.desire(&one("Always"));
    for _ in 0..100 {
        let Some(next) = w.pending.keys().next().copied() else { break };
        w.perform(next);
        w.look();
    }
    let told = |w: &World| -> Vec<(bool, bool)> {
        let containers = w.statuses.iter().map(|s| s.container_statuses.iter().flatten().next());
        containers
            .map(|c| {
                let c = c.expect("it has one container");
                (c.container_id.is_some(), c.state.as_ref().is_some_and(|s| s.running.is_some()))
            })
            .collect()
    };
    assert!(told(&w).iter().all(|(has_id, runs)| has_id == runs), "{:?}", told(&w));
    assert_eq!(told(&w).last(), Some(&(true, true)));

    // An event reports a failed start.
    let no = EffectError { class: Class::Invalid, message: "no".to_owned() };
    w.runtime.refuse.insert("start_container", no);
    w.exit("a", 1);
    w.wait(secs(60));
    let last = w.statuses.last().and_then(|s| s.container_statuses.as_ref()?.first()).expect("a status");
    let state = last.state.as_ref().and_then(|s| s.waiting.as_ref()).expect("it waits");
    assert_eq!((last.container_id.is_some(), state.reason.as_deref()), (true, Some("RunContainerError")));
}
