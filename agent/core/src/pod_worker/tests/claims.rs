//! Resource claims: prepared before the sandbox, found again by a new agent, given back before the pod has ended.

use std::sync::Arc;
use std::time::Duration;

use agent_types::failure::Class;
use agent_types::kill::KillReason;
use agent_types::runtime::claims::{ClaimedDeviceHealth, ContainerClaims, PodClaims};
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::world::{World, make_pod};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::{EffectError, EffectOk};

fn spec(claim: &Value) -> Value {
    json!({"resourceClaims": [claim], "containers": [
        {"name": "c", "image": "r.example/x:1", "resources": {"claims": [{"name": "a"}]}}, {"name": "d", "image": "r.example/x:1"}]})
}

fn claiming() -> Arc<Pod> {
    make_pod(spec(&json!({"name": "a", "resourceClaimName": "x"})))
}

fn with_status(p: &Pod, status: Value) -> Arc<Pod> {
    Arc::new(Pod { status: Some(serde_json::from_value(status).unwrap()), ..p.clone() })
}

fn refuse(w: &mut World, verb: &'static str) {
    let error = EffectError { class: Class::Retryable { after_ms: 0 }, message: "no driver".to_owned() };
    w.runtime.refuse.insert(verb, error);
}

fn place(w: &World, verb: &str) -> Option<usize> {
    w.applied.iter().position(|applied| applied.split(' ').next() == Some(verb))
}

fn cdi_devices(w: &World, name: &str) -> Vec<String> {
    let named = w.runtime.cdi_devices.iter().find(|(id, _)| w.runtime.containers[*id].name == name);
    named.map(|(_, devices)| devices.clone()).unwrap_or_default()
}

fn waits(w: &World) -> bool {
    w.phase() == "Pending" && w.waiting_reason("c") == "ContainerCreating" && w.count("run_sandbox") == 0
}

#[test]
fn claims_are_prepared_before_the_sandbox_and_containers_get_their_devices() {
    let w = World::with(&claiming());
    assert!(place(&w, "prepare_claims").unwrap() < place(&w, "run_sandbox").unwrap());
    assert_eq!((w.count("prepare_claims"), w.count("find_claims"), w.phase()), (1, 0, "Running"));
    assert_eq!((cdi_devices(&w, "c"), cdi_devices(&w, "d")), (vec!["x.io/c=x".to_owned()], vec![]));
}

#[test]
fn a_pod_without_claims_costs_nothing() {
    let mut w = World::with(&make_pod(json!({"containers": [{"name": "c", "image": "r.example/x:1"}]})));
    w.kill(KillReason::Deleted, None);
    w.settle();
    assert!(w.worker.is_terminated());
    assert_eq!(["prepare_claims", "find_claims", "unprepare_claims"].map(|verb| w.count(verb)), [0, 0, 0]);
}

#[test]
fn a_failure_is_reported_and_tried_again() {
    let mut w = World::new();
    refuse(&mut w, "prepare_claims");
    w.desire(&claiming());
    w.wait(Duration::from_secs(60));
    assert!(waits(&w));
    let told = w.events_of("FailedPrepareDynamicResources");
    assert!((3..=5).contains(&told.len()), "after 5, 10, 20, 40 s: {}", told.len());
    assert_eq!(told[0], "Failed to prepare dynamic resources: prepare dynamic resources: no driver");
    w.runtime.refuse.clear();
    w.wait(Duration::from_secs(90));
    assert_eq!((w.phase(), w.count("run_sandbox")), ("Running", 1));
}

#[test]
fn a_claim_of_a_template_is_prepared_when_the_status_names_it() {
    let p = make_pod(spec(&json!({"name": "a", "resourceClaimTemplateName": "t"})));
    let mut w = World::with(&p);
    assert!(waits(&w));
    let text = "Failed to prepare dynamic resources: prepare dynamic resources: pod \"default/p\": ResourceClaim not created yet";
    assert_eq!(w.events_of("FailedPrepareDynamicResources"), [text]);
    let named = json!({"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "made"}]});
    w.desire(&with_status(&p, named));
    w.settle();
    assert_eq!((w.phase(), cdi_devices(&w, "c")), ("Running", vec!["x.io/c=made".to_owned()]), "at once");
}

#[test]
fn a_claim_that_no_object_was_needed_for_is_left_out() {
    let p = make_pod(spec(&json!({"name": "a", "resourceClaimTemplateName": "t"})));
    let w = World::with(&with_status(&p, json!({"resourceClaimStatuses": [{"name": "a"}]})));
    assert_eq!((w.phase(), w.count("prepare_claims")), ("Running", 0));
}

#[test]
fn each_sandbox_has_its_claims_prepared() {
    let mut w = World::with(&claiming());
    let (wall, id) = (w.wall(), w.runtime.sandboxes.keys().next().unwrap().clone());
    w.runtime.stop_sandbox(wall, &id);
    w.observe();
    w.wait(Duration::from_secs(60));
    assert_eq!((w.count("prepare_claims"), w.count("run_sandbox")), (2, 2));
}

#[test]
fn a_new_agent_finds_the_devices_of_a_sandbox_that_lives() {
    let mut w = World::with(&claiming());
    w.restart_agent();
    w.desire(&claiming());
    w.settle();
    assert_eq!((w.count("prepare_claims"), w.count("find_claims")), (1, 1));
    w.runtime.cdi_devices.clear();
    w.exit("c", 1);
    w.wait(Duration::from_secs(60));
    assert_eq!((cdi_devices(&w, "c"), w.count("find_claims")), (vec!["x.io/c=x".to_owned()], 1));
}

#[test]
fn a_container_without_its_devices_is_not_created() {
    let mut w = World::with(&claiming());
    w.restart_agent();
    w.runtime.prepared = false;
    w.desire(&claiming());
    w.settle();
    w.exit("c", 1);
    w.wait(Duration::from_secs(60));
    assert_eq!(
        (w.waiting_reason("c").as_str(), w.count("create_container")),
        ("CreateContainerConfigError", 2)
    );
    w.runtime.prepared = true;
    w.wait(Duration::from_secs(60));
    assert_eq!((w.runtime.running("c").len(), w.count("create_container")), (1, 3), "it is asked for again");
}

#[test]
fn claims_are_given_back_after_the_containers_and_before_the_end() {
    let mut w = World::with(&claiming());
    refuse(&mut w, "unprepare_claims");
    w.kill(KillReason::Deleted, None);
    w.wait(Duration::from_secs(60));
    assert_eq!((w.worker.state_name(), w.phase()), ("terminating", "Running"), "the end is not told");
    assert!(w.runtime.running("c").is_empty());
    w.runtime.refuse.clear();
    w.wait(Duration::from_secs(30));
    assert!(w.worker.is_terminated());
    assert_eq!((w.count("unprepare_claims"), w.runtime.prepared), (1, false));
    assert!(place(&w, "stop_sandbox").unwrap() < place(&w, "unprepare_claims").unwrap());
}

#[test]
fn a_pod_that_waits_for_its_claims_gives_them_back_at_once() {
    let mut w = World::new();
    refuse(&mut w, "prepare_claims");
    w.desire(&claiming());
    w.wait(Duration::from_secs(40));
    w.kill(KillReason::Deleted, None);
    w.settle();
    assert!(w.worker.is_terminated());
    assert_eq!(w.count("unprepare_claims"), 1);
}

#[test]
fn an_agent_that_dies_in_the_middle_gives_back_what_the_pod_has() {
    let mut w = World::with(&claiming());
    refuse(&mut w, "unprepare_claims");
    w.kill(KillReason::Removed, None);
    w.wait(Duration::from_secs(60));
    w.crash(Mono(0));
    w.runtime.refuse.clear();
    w.step(PodEvent::Tick);
    w.wait(Duration::from_secs(60));
    assert_eq!((w.count("unprepare_claims"), w.finished), (1, Some(false)));
}

#[test]
fn a_pod_without_a_specification_gives_its_claims_back() {
    let mut w = World::with(&claiming());
    w.crash(Mono(0));
    w.kill(KillReason::Orphan, None);
    w.wait(Duration::from_secs(60));
    assert_eq!((w.count("unprepare_claims"), w.finished, w.runtime.prepared), (1, Some(false), false));
}

#[test]
fn other_health_changes_the_status() {
    let mut w = World::with(&claiming());
    let device =
        ClaimedDeviceHealth { resource_id: "v".to_owned(), health: "Unhealthy".to_owned(), message: None };
    let own = ContainerClaims {
        health: [("claim:a".to_owned(), vec![device])].into(),
        ..ContainerClaims::default()
    };
    w.step(PodEvent::ClaimsChanged(Arc::new(PodClaims { containers: [("c".to_owned(), own)].into() })));
    w.settle();
    let status = w.statuses.last().unwrap().container_statuses.clone().unwrap();
    let found = serde_json::to_value(&status[0].allocated_resources_status).unwrap();
    assert_eq!(
        found,
        json!([{"name": "claim:a", "resources": [{"resourceID": "v", "health": "Unhealthy"}]}])
    );
}

#[test]
fn an_answer_to_an_earlier_question_does_not_count() {
    let mut w = World::new();
    let p = claiming();
    w.desire(&p);
    while w.count("prepare_claims") == 0
        && !w.pending.values().any(|call| call.effect.verb() == "prepare_claims")
    {
        let id = *w.pending.keys().next().unwrap();
        w.perform(id);
    }
    let id = *w.pending.iter().find(|(_, call)| call.effect.verb() == "prepare_claims").unwrap().0;
    let more = json!({"extendedResourceClaimStatus": {"resourceClaimName": "more", "requestMappings": []}});
    w.desire(&with_status(&p, more));
    w.answer(id, Ok(EffectOk::Claims(Box::default())));
    w.settle();
    assert_eq!(
        (w.phase(), cdi_devices(&w, "c")),
        ("Running", vec!["x.io/c=x".to_owned()]),
        "it was prepared again"
    );
}
