//! Statuses of static pods, which their mirror pods show.

use super::*;

/// A replaced mirror pod gets the status at once, not at the next reconciliation, nor at the turn of the next
/// patch.
#[test]
fn a_new_mirror_pod_gets_the_status_at_once() {
    let mirror = |api_uid: &str, version: u64| {
        api_pod(api_uid, version, json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "u"}}}))
    };
    let mut n = Node::new(&[mirror("m1", 2)]);
    n.step(published("u", crowd(100, 0)));
    let (id, _) = n.calls.pop().expect("told");
    let mut shown = mirror("m1", 3);
    shown.status = Some(serde_json::from_value(crowd(100, 0)).unwrap());
    n.step(StatusEvent::Answer { id, result: reply(&shown) });
    assert!(n.calls.is_empty());
    n.step(published("u", crowd(100, 1)));
    assert!(n.calls.is_empty());
    n.step(StatusEvent::Watch(WatchEvent::Deleted(Arc::new(shown))));
    n.step(StatusEvent::Watch(WatchEvent::Applied(Arc::new(mirror("m2", 5)))));
    let (_, call) = n.calls.pop().expect("told at once");
    let ApiCall::PatchPodStatus { patch, .. } = call else { panic!("{call:?}") };
    assert_eq!(patch["metadata"]["uid"], "m2");
}

#[test]
fn a_static_pod_is_shown_by_the_mirror_that_names_it_and_never_deleted() {
    let mirror = |hash: &str| {
        json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": hash},
            "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"startTime": "2026-01-01T00:00:00Z", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    };
    let status = json!({"phase": "Failed", "startTime": "2026-02-02T00:00:00Z", "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-02-02T00:00:00Z"}]});
    let mut n = Node::new(&[api_pod("m1", 5, mirror("other"))]);
    n.step(published("hash", status));
    n.step(StatusEvent::Terminated(key("hash")));
    assert_eq!(n.calls, [], "the mirror shows another static pod");
    n.step(StatusEvent::Watch(WatchEvent::Listed(vec![Arc::new(api_pod("m2", 6, mirror("hash")))])));
    let (id, patch) = n.patch();
    assert_eq!(patch["metadata"]["uid"], "m2");
    assert_eq!(patch["status"]["phase"], "Failed");
    assert_eq!(patch["status"].get("startTime"), None);
    n.answer(
        id,
        reply(&api_pod("m2", 7, {
            let mut told = mirror("hash");
            merge_json(
                &mut told,
                json!({"status": {"phase": "Failed", "conditions": [
            {"type": "Ready", "status": "False", "reason": "PodFailed",
                "lastTransitionTime": "1970-01-01T00:00:00Z"}]}}),
            );
            told
        })),
    );
    n.step(StatusEvent::Finished(key("hash")));
    assert!(!n.calls.iter().any(|(_, c)| matches!(c, ApiCall::DeletePod { .. })), "{:?}", n.calls);
}

/// A static pod that was removed and came back unchanged runs again under every restart policy; the API
/// server does not let a client revert the end that its mirror pod shows.
#[test]
fn a_mirror_of_an_ended_run_is_made_anew_and_then_told() {
    let container = |state: Value| json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
    let ended =
        json!({"phase": "Failed", "containerStatuses": container(json!({"terminated": {"exitCode": 1}}))});
    let runs = json!({"phase": "Running", "containerStatuses": container(json!({"running": {}}))});
    let mirror = |uid: &str, version: u64, status: &Value| {
        let meta = json!({"annotations": {"kubernetes.io/config.mirror": "hash"}});
        Arc::new(api_pod(uid, version, json!({"metadata": meta, "status": status})))
    };
    for restarted in [false, true] {
        let mut n = Node::new(&[]);
        n.step(StatusEvent::Watch(WatchEvent::Listed(vec![mirror("m1", 5, &ended)])));
        if !restarted {
            n.step(published("hash", ended.clone()));
            n.step(StatusEvent::Terminated(key("hash")));
            n.step(StatusEvent::Finished(key("hash")));
            n.calls.clear();
            n.machine.flights.clear();
            n.machine.pods.values_mut().for_each(|entry| entry.in_flight = false);
        }
        n.step(published("hash", runs.clone()));
        n.step(StatusEvent::Tick);
        assert_eq!((n.outdated.as_slice(), n.calls.len()), (&["m1".to_owned()][..], 0), "said once");
        n.step(StatusEvent::Watch(WatchEvent::Deleted(mirror("m1", 6, &ended))));
        n.step(StatusEvent::Watch(WatchEvent::Applied(mirror("m2", 7, &json!({})))));
        let (_, patch) = n.patch();
        assert_eq!((&patch["metadata"]["uid"], &patch["status"]["phase"]), (&json!("m2"), &json!("Running")));
    }
}
