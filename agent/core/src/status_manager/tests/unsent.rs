//! Reports of pods whose status the API server does not have.

use super::*;

#[test]
fn who_asks_hears_what_the_server_does_not_know() {
    let mut n = Node::new(&[api_pod("u", 5, json!({})), api_pod("v", 5, json!({"metadata": {"name": "v"}}))]);
    n.step(published("u", json!({"phase": "Running"})));
    assert_eq!(n.untold.len(), 0, "nobody asked");
    n.step(StatusEvent::AskUntold);
    n.step(StatusEvent::Tick);
    let (id, _) = n.patch();
    n.answer(id, error(Class::Unavailable));
    n.step(published("v", json!({"phase": "Running"})));
    assert_eq!(n.untold, [vec!["u"], vec!["u", "v"]], "said when it changes");
    n.wait();
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::FindPod { .. }), "{call:?}");
    n.answer(id, reply(&api_pod("u", 6, json!({}))));
    for _ in 0..2 {
        let (id, call) = n.calls.remove(0);
        let ApiCall::PatchPodStatus { pod, .. } = call else { panic!("{call:?}") };
        let shown = json!({"metadata": {"name": *pod.name}, "status": {"phase": "Running"}});
        let uid = if &*pod.name == "v" { "v" } else { "u" };
        n.answer(id, reply(&api_pod(uid, 7, shown)));
    }
    assert_eq!(n.untold.last(), Some(&Vec::new()));
    n.step(StatusEvent::AskUntold);
    assert_eq!(n.untold.iter().filter(|untold| untold.is_empty()).count(), 2, "who asks is answered");
}

#[test]
fn an_end_that_nobody_may_tell_is_not_told() {
    let mut n =
        Node::new(&[api_pod("u", 5, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))]);
    n.step(StatusEvent::AskUntold);
    // A new agent found none of its containers: it has no status for it.
    n.step(StatusEvent::Terminated(key("u")));
    assert_eq!(n.untold.last(), Some(&vec!["u".to_owned()]));
    n.step(StatusEvent::Finished(key("u")));
    let (id, patch) = n.patch();
    assert_eq!(patch["status"], json!({"phase": "Failed"}));
    assert_eq!(n.untold.len(), 2, "still");
    let ended =
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Failed"}});
    n.answer(id, reply(&api_pod("u", 6, ended)));
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::DeletePod { .. }), "{call:?}");
    n.answer(id, Ok(ApiReply::Done));
    assert_eq!(n.untold.last(), Some(&Vec::new()));
}

/// A new agent continues a termination before its first list of the API's pods: none of them was published by
/// it.
#[test]
fn what_is_not_known_yet_was_not_told() {
    let mut n = Node::unheard();
    n.step(StatusEvent::Terminated(key("u")));
    n.step(StatusEvent::AskUntold);
    assert_eq!(n.untold.last(), Some(&vec!["u".to_owned()]));
    // It is gone from the API.
    n.step(StatusEvent::Watch(WatchEvent::Listed(Vec::new())));
    assert_eq!(n.untold.last(), Some(&Vec::new()));
}
