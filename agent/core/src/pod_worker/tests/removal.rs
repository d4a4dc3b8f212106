//! The removal of a static pod that had ended: its agent dies, and the manifest comes back under the same UID.

use std::sync::Arc;

use agent_types::failure::Class;
use agent_types::kill::{KillReason, TerminatingRecord};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;

use super::world::{World, make_pod};
use super::{one, secs};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::EffectError;

fn of_a_file(p: &Pod) -> Arc<Pod> {
    let mut p = p.clone();
    p.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    Arc::new(p)
}

fn no_answer() -> EffectError {
    EffectError { class: Class::Unavailable, message: "no answer".to_owned() }
}

/// The pod ended by itself: nothing was to be stopped, and the worker wrote no record.
fn ended_by_itself() -> (World, Arc<Pod>) {
    let p = of_a_file(&one("Never"));
    let mut w = World::with(&p);
    w.end("a", 0);
    w.settle();
    assert_eq!((w.phase(), w.record.clone()), ("Succeeded", None));
    (w, p)
}

/// Ended by itself, and a sidecar was stopped; its record says that it stays.
fn with_a_sidecar() -> (World, Arc<Pod>) {
    let sidecar = json!({"name": "s", "image": "img:1", "restartPolicy": "Always"});
    let p = of_a_file(&make_pod(json!({"restartPolicy": "Never", "initContainers": [sidecar],
        "containers": [{"name": "a", "image": "img:1"}]})));
    let mut w = World::with(&p);
    w.end("a", 0);
    w.settle();
    assert_eq!((w.phase(), w.record.as_ref().map(|r| r.remove)), ("Succeeded", Some(false)));
    (w, p)
}

/// Its containers would come back; the node ended it.
fn past_its_deadline() -> (World, Arc<Pod>) {
    let p = of_a_file(&one("Always"));
    let mut w = World::with(&p);
    w.kill(KillReason::DeadlineExceeded, None);
    w.settle();
    assert_eq!((w.phase(), w.record.as_ref().map(|r| r.remove)), ("Failed", Some(false)));
    (w, p)
}

fn is_of_the_removal(record: Option<&TerminatingRecord>) -> bool {
    record.is_some_and(|record| record.remove && record.ended)
}

/// The next agent takes the pod up, has its manifest, and comes to its end.
fn next_agent(w: &mut World, p: &Arc<Pod>) {
    let (told, end) = (w.statuses.len(), w.phase().to_owned());
    w.crash(w.now.after(secs(120)));
    w.desire(p);
    w.runtime.refuse.clear();
    w.wait(secs(600));
    assert_eq!(w.finished, Some(true), "it begins again when nothing is left");
    assert!(w.statuses[told..].iter().all(|s| s.phase.as_ref() == Some(&end)), "{:?}", &w.statuses[told..]);
    assert!(w.runtime.containers.is_empty() && w.runtime.sandboxes.is_empty() && !w.dirs);
}

/// Simulation: in_place, seed 30274; stopping and resizing, seed 30258.
#[test]
fn what_is_half_removed_goes_before_the_pod_begins_again() {
    for of in [ended_by_itself, with_a_sidecar, past_its_deadline] {
        let (mut w, p) = of();
        w.runtime.refuse.insert("remove_sandbox", no_answer());
        w.kill(KillReason::Removed, None);
        w.wait(secs(30));
        assert_eq!((w.runtime.containers.len(), w.runtime.sandboxes.len()), (0, 1));
        assert!(is_of_the_removal(w.record.as_ref()));
        next_agent(&mut w, &p);
    }
}

/// Nothing is removed yet: the next agent knows of the end, and takes it for no new one (simulation, stopping, seed 138).
#[test]
fn a_pod_that_was_published_as_over_stays_over_until_it_begins_again() {
    for of in [ended_by_itself, with_a_sidecar, past_its_deadline] {
        let (mut w, p) = of();
        w.runtime.refuse.insert("remove_container", no_answer());
        w.kill(KillReason::Removed, None);
        w.settle();
        assert!(is_of_the_removal(w.record.as_ref()) && !w.runtime.containers.is_empty());
        next_agent(&mut w, &p);
    }
}

#[test]
fn the_record_is_written_before_anything_goes() {
    let (mut w, p) = ended_by_itself();
    w.runtime.refuse.insert("persist", no_answer());
    w.kill(KillReason::Removed, None);
    w.settle();
    assert_eq!((w.runtime.containers.len(), w.record.clone()), (1, None));
    // A disk that refuses for long keeps nothing.
    w.wait(secs(60));
    assert_eq!(w.finished, Some(false));

    let (mut w, _) = ended_by_itself();
    w.runtime.refuse.insert("persist", no_answer());
    w.kill(KillReason::Removed, None);
    w.settle();
    w.runtime.refuse.remove("persist");
    w.runtime.refuse.insert("remove_sandbox", no_answer());
    w.wait(secs(15));
    assert!(is_of_the_removal(w.record.as_ref()) && w.runtime.containers.is_empty());
    next_agent(&mut w, &p);
}

/// Nothing of it is left in the runtime, but the record on disk says that the pod stays.
#[test]
fn a_record_that_says_that_the_pod_stays_is_replaced_though_nothing_remains() {
    let (mut w, p) = with_a_sidecar();
    w.runtime.containers.clear();
    w.runtime.sandboxes.clear();
    w.observe();
    w.runtime.refuse.insert("remove_pod_dirs", no_answer());
    w.kill(KillReason::Removed, None);
    w.wait(secs(5));
    assert!(is_of_the_removal(w.record.as_ref()));
    next_agent(&mut w, &p);
}

#[test]
fn a_pod_of_the_api_does_not_come_back_and_needs_no_record() {
    let mut w = World::with(&one("Never"));
    w.end("a", 0);
    w.settle();
    w.kill(KillReason::Removed, None);
    w.settle();
    assert_eq!((w.record.clone(), w.finished), (None, Some(false)));
}

fn evicted() -> KillReason {
    KillReason::Failed {
        reason: "Evicted".to_owned(),
        message: "The node was low on it.".to_owned(),
        disruption: None,
    }
}

/// The next agent, which has no record of a server, tells the same end.
fn still_failed_for_the_next_agent(mut w: World, p: &Arc<Pod>) {
    assert_eq!((w.phase(), w.record.as_ref().map(|r| (r.remove, r.ended))), ("Failed", Some((false, false))));
    let told = w.statuses.len();
    w.crash(w.now.after(secs(120)));
    w.desire(p);
    w.wait(secs(600));
    assert!(w.statuses.len() > told);
    let failed = |s: &PodStatus| s.phase.as_deref() == Some("Failed");
    assert!(w.statuses[told..].iter().all(failed), "{:?}", &w.statuses[told..]);
}

/// The sandbox was lost, so no container shows the end that the node decided on (simulation, probing, seed 60363).
#[test]
fn a_decided_end_of_a_pod_without_live_containers_is_recorded() {
    let p = of_a_file(&one("Always"));
    let mut w = World::with(&p);
    w.runtime.refuse.insert("create_container", no_answer());
    w.exit("a", 1);
    w.kill(evicted(), None);
    w.settle();
    still_failed_for_the_next_agent(w, &p);
}

/// Nothing of it was made but its directories.
#[test]
fn a_decided_end_of_a_pod_that_was_begun_is_recorded_though_nothing_remains() {
    let p = of_a_file(&one("Always"));
    let mut w = World::new();
    w.runtime.refuse.insert("run_sandbox", no_answer());
    w.desire(&p);
    w.settle();
    assert!(w.dirs && w.runtime.sandboxes.is_empty());
    w.kill(evicted(), None);
    w.wait(secs(60));
    still_failed_for_the_next_agent(w, &p);
}

/// The next agent admits it again: only so can a refused static pod come to run.
#[test]
fn a_pod_that_the_node_refused_has_no_record() {
    let p = of_a_file(&one("Always"));
    let mut w = World::new();
    w.step(PodEvent::Desired(Arc::clone(&p)));
    w.kill(evicted(), None);
    w.settle();
    assert_eq!((w.phase(), w.record.clone()), ("Failed", None));
}
