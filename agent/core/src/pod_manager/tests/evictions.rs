//! Pressure of the node: admitted pods, evicted pods, and a restart that ends nothing.

use std::collections::BTreeMap;

use agent_types::pressures::Pressures;

use super::*;
use crate::eviction::Victim;

fn short_of_disk() -> ManagerEvent {
    ManagerEvent::Pressures(Pressures { disk: true, ..Pressures::default() })
}

pub(super) fn victim(uid: &str) -> ManagerEvent {
    ManagerEvent::Evict(Box::new(Victim {
        key: pod::key(&pod(uid, uid, "api")),
        signal: "nodefs.available",
        message: "The node was low on resource: ephemeral-storage. ".to_owned(),
        grace_s: Some(1),
        disrupted: true,
        annotations: BTreeMap::new(),
    }))
}

#[test]
fn newcomers_are_refused_and_what_runs_already_is_not() {
    let (old, new) = (pod("old", "old", "api"), pod("new", "new", "api"));
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
    step(&mut m, short_of_disk());
    step(&mut m, update(PodOp::Add, Source::Api, &[&new, &old]));
    let judged = step(&mut m, listed(&[&old]));
    assert_eq!(judged, "+old@0 old:desired +new@0 new:desired new:Failed !new:Evicted synced");
    let fixed = pod("static", "static", "file");
    assert_eq!(step(&mut m, file(PodOp::Add, &[&fixed])), "+static@0 static:desired", "critical");
    step(&mut m, ManagerEvent::Pressures(Pressures::default()));
    step(&mut m, ManagerEvent::Ended(PodUid::from("old")));
    let later = pod("later", "later", "api");
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&later])), "+later@0 later:desired");
}

#[test]
fn who_goes_is_told_once_and_who_is_not_there_is_said_to_be_gone() {
    let a = pod("a", "a", "api");
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
    step(&mut m, listed(&[]));
    step(&mut m, update(PodOp::Add, Source::Api, &[&a]));
    assert_eq!(step(&mut m, victim("b")), "b is not there");
    assert_eq!(step(&mut m, victim("a")), "a:Failed evicted a");
    step(&mut m, ManagerEvent::Ended(PodUid::from("a")));
    assert_eq!(step(&mut m, victim("a")), "a is not there");
}

#[test]
fn an_evicted_pod_keeps_its_reason_and_the_condition() {
    let a = pod("a", "a", "api");
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
    step(&mut m, listed(&[]));
    step(&mut m, update(PodOp::Add, Source::Api, &[&a]));
    let mut out = Outbox::new();
    m.step(Now::default(), victim("a"), &mut out);
    let message = "The node was low on resource: ephemeral-storage. ".to_owned();
    let expected = KillReason::Failed {
        reason: "Evicted".to_owned(),
        message: message.clone(),
        disruption: Some(message),
    };
    assert!(out.as_slice().iter().any(|action| matches!(action,
        ManagerAction::Tell { event: PodEvent::Kill { reason, grace_s: Some(1) }, .. } if *reason == expected)));
}
