//! The end of a pod in the API: the terminal phase first, then the DELETE.

use super::*;
use crate::node_shutdown::{POD_MESSAGE, POD_REASON};

#[test]
fn the_end_of_a_pod() {
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut n = Node::new(&[api_pod("u", 5, going.clone())]);
    n.step(published("u", json!({"phase": "Failed", "reason": "X"})));
    assert_eq!(n.calls, [], "its containers may run");
    n.step(StatusEvent::Terminated(key("u")));
    let (id, patch) = n.patch();
    assert_eq!(patch["status"], json!({"phase": "Failed", "reason": "X"}));
    let mut told = going;
    merge_json(&mut told, json!({"status": {"phase": "Failed", "reason": "X"}}));
    n.answer(id, reply(&api_pod("u", 6, told.clone())));
    assert_eq!(n.calls, [], "something of it is left");
    n.step(StatusEvent::Finished(key("u")));
    let (id, call) = n.call();
    assert!(matches!(&call, ApiCall::DeletePod { uid, grace_s: 0, .. } if uid == "u"), "{call:?}");
    n.answer(id, Ok(ApiReply::Done));
    n.applied(&api_pod("u", 7, told.clone()));
    assert_eq!(n.calls, []);
    n.step(StatusEvent::Watch(WatchEvent::Deleted(Arc::new(api_pod("u", 8, told)))));
    assert!(n.machine.is_empty() && n.machine.is_settled());
}

/// A worker that carries on with a termination after a restart is at its end before it knows its pod.
#[test]
fn an_end_that_comes_before_the_status() {
    let mut n = Node::new(&[]);
    n.step(StatusEvent::Terminated(key("u")));
    n.step(StatusEvent::Terminated(key("orphan")));
    n.applied(&api_pod("u", 5, json!({"status": {"phase": "Running"}})));
    n.step(published("u", json!({"phase": "Failed", "reason": "Terminated"})));
    let (_, patch) = n.patch();
    assert_eq!(patch["status"], json!({"phase": "Failed", "reason": "Terminated"}));
    n.step(StatusEvent::Finished(key("orphan")));
    assert_eq!(n.machine.len(), 1, "of what nobody knows nothing is remembered");
}

/// A server that shows an accepted status differently gets the DELETE all the same.
#[test]
fn a_difference_that_stays_does_not_keep_a_pod() {
    let ended = json!({"phase": "Succeeded", "message": "ours"});
    let asked = json!({"metadata": {"deletionTimestamp": "2026-11-21T13:00:00Z"}});
    let mut n = Node::new(&[api_pod("u", 2, asked.clone())]);
    n.step(published("u", ended));
    n.step(StatusEvent::Terminated(key("u")));
    n.step(StatusEvent::Finished(key("u")));
    for version in 3..6 {
        let Some((id, call)) = n.calls.pop() else { break };
        let ApiCall::PatchPodStatus { .. } = call else {
            assert!(matches!(call, ApiCall::DeletePod { grace_s: 0, .. }), "{call:?}");
            return;
        };
        let mut shown = api_pod("u", version, asked.clone());
        shown.status =
            Some(serde_json::from_value(json!({"phase": "Succeeded", "message": "theirs"})).unwrap());
        n.step(StatusEvent::Answer { id, result: reply(&shown) });
    }
    panic!("never deleted");
}

#[test]
fn a_pod_that_never_started_ends_failed_and_is_deleted() {
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut n = Node::new(&[api_pod("u", 5, going.clone())]);
    n.step(StatusEvent::Finished(key("u")));
    let (id, patch) = n.patch();
    assert_eq!(patch["status"], json!({"phase": "Failed"}));
    let mut told = going;
    merge_json(&mut told, json!({"status": {"phase": "Failed"}}));
    n.answer(id, reply(&api_pod("u", 6, told)));
    assert!(matches!(n.call().1, ApiCall::DeletePod { .. }));
}

#[test]
fn a_pod_is_deleted_only_as_it_was_seen() {
    let going = |phase| json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": phase}});
    let mut n = Node::new(&[api_pod("u", 5, going("Failed"))]);
    n.step(StatusEvent::Finished(key("u")));
    let (id, call) = n.call();
    let ApiCall::DeletePod { resource_version, .. } = call else { panic!("{call:?}") };
    assert_eq!(resource_version.as_deref(), Some("5"));
    // A user labelled it.
    n.answer(id, error(Class::Conflict));
    n.wait();
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::FindPod { .. }), "{call:?}");
    n.answer(id, reply(&api_pod("u", 6, going("Failed"))));
    let (id, call) = n.call();
    let ApiCall::DeletePod { resource_version, .. } = call else { panic!("{call:?}") };
    assert_eq!(resource_version.as_deref(), Some("6"));
    // Another pod has the name.
    n.answer(id, error(Class::Conflict));
    n.wait();
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::FindPod { .. }), "{call:?}");
    n.answer(id, reply(&api_pod("other", 7, json!({}))));
    assert_eq!(n.calls, []);
}

/// A pod that a shutdown ended and a ReplicaSet has replaced is deleted once the machine stays.
#[test]
fn what_a_shutdown_left_is_taken_away_when_it_is_over() {
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "o", "controller": true}]);
    let owned = json!({"metadata": {"ownerReferences": owner}, "status": {"phase": "Running"}});
    let ended = json!({"phase": "Failed", "reason": POD_REASON, "message": POD_MESSAGE});
    let mut told = owned.clone();
    merge_json(&mut told, json!({"status": ended}));

    // During the shutdown: published, and not deleted.
    let mut n = Node::new(&[api_pod("u", 5, owned)]);
    n.step(StatusEvent::MachineStays(true));
    n.step(StatusEvent::MachineStays(false));
    n.step(published("u", ended.clone()));
    n.step(StatusEvent::Terminated(key("u")));
    let (id, _) = n.patch();
    n.answer(id, reply(&api_pod("u", 6, told.clone())));
    assert_eq!(n.calls, [], "the machine is about to stop");
    // Called off.
    n.step(StatusEvent::MachineStays(true));
    assert!(matches!(n.call().1, ApiCall::DeletePod { grace_s: 0, .. }));

    // The next boot: once no shutdown is pending and no container of the pod runs.
    for stays_first in [true, false] {
        let mut n = Node::new(&[api_pod("u", 6, told.clone())]);
        n.step(published("u", ended.clone()));
        let (stays, over) = (StatusEvent::MachineStays(true), StatusEvent::Terminated(key("u")));
        let (first, second) = if stays_first { (stays, over) } else { (over, stays) };
        n.step(first);
        assert_eq!(n.calls, [], "{stays_first}");
        n.step(second);
        let (id, call) = n.call();
        let ApiCall::DeletePod { uid, resource_version, .. } = call else { panic!("{call:?}") };
        assert_eq!((uid.as_str(), resource_version.as_deref()), ("u", Some("6")));
        n.answer(id, Ok(ApiReply::Done));
        n.step(StatusEvent::MachineStays(true));
        assert_eq!(n.calls, [], "once");
    }

    // A user asked for its deletion: nothing of it may be left then.
    let mut asked = told.clone();
    merge_json(&mut asked, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let mut n = Node::new(&[api_pod("u", 6, asked)]);
    n.step(StatusEvent::MachineStays(true));
    n.step(published("u", ended.clone()));
    n.step(StatusEvent::Terminated(key("u")));
    assert_eq!(n.calls, [], "its sandbox is there");
    n.step(StatusEvent::Finished(key("u")));
    assert!(matches!(n.call().1, ApiCall::DeletePod { grace_s: 0, .. }));

    // No controller replaces this pod: it stays to be looked at.
    let mut n = Node::new(&[api_pod("u", 6, json!({"status": ended}))]);
    n.step(StatusEvent::MachineStays(true));
    n.step(published("u", ended));
    n.step(StatusEvent::Terminated(key("u")));
    assert_eq!(n.calls, []);
}

#[test]
fn a_pod_that_a_backup_brings_back_is_deleted_again() {
    let going =
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Failed"}});
    let mut n = Node::new(&[api_pod("u", 5, going.clone())]);
    n.step(StatusEvent::Finished(key("u")));
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::DeletePod { .. }));
    n.answer(id, Ok(ApiReply::Done));
    assert_eq!(n.calls, []);
    n.step(StatusEvent::Watch(WatchEvent::Listed(vec![Arc::new(api_pod("u", 4, going))])));
    assert!(matches!(n.call().1, ApiCall::DeletePod { .. }));
}
