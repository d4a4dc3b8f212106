//! The status manager, step by step.

use serde_json::{Value, json};

use super::*;
use crate::node_shutdown::{POD_MESSAGE, POD_REASON};

const SECOND: u64 = 1_000_000_000;

pub(super) fn api_pod(uid: &str, version: u64, extra: Value) -> Pod {
    let mut pod = json!({"metadata": {"uid": uid, "name": "web", "namespace": "ns",
        "resourceVersion": version.to_string()},
        "spec": {"nodeName": "n", "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Pending"}});
    merge_json(&mut pod, extra);
    serde_json::from_value(pod).unwrap()
}

fn merge_json(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge_json(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn key(uid: &str) -> PodKey {
    PodKey { namespace: "ns".into(), name: "web".into(), uid: uid.into() }
}

fn published(uid: &str, status: Value) -> StatusEvent {
    StatusEvent::Published { pod: key(uid), status: Arc::new(serde_json::from_value(status).unwrap()) }
}

fn error(class: Class) -> ApiResult {
    Err(ApiError { call: String::new(), class, code: None, reason: String::new(), message: String::new() })
}

fn forbidden() -> ApiResult {
    error(Class::Invalid).map_err(|e| ApiError { code: Some(403), ..e })
}

fn reply(pod: &Pod) -> ApiResult {
    Ok(ApiReply::Pod(Box::new(pod.clone())))
}

struct Node {
    machine: StatusManager,
    now: u64,
    calls: Vec<(EffectId, ApiCall)>,
    /// UIDs of mirror pods that must be replaced.
    outdated: Vec<String>,
    /// How long it took until the server knew.
    told: Vec<Duration>,
    /// Each report of pods whose status the API does not have.
    untold: Vec<Vec<String>>,
    /// Number of reported failures.
    failed: usize,
}

impl Node {
    /// A manager before its first list of pods.
    fn unheard() -> Node {
        Node {
            machine: StatusManager::new("n"),
            now: SECOND,
            calls: Vec::new(),
            outdated: Vec::new(),
            told: Vec::new(),
            untold: Vec::new(),
            failed: 0,
        }
    }

    fn new(pods: &[Pod]) -> Node {
        let mut n = Node::unheard();
        n.step(StatusEvent::Watch(WatchEvent::Listed(pods.iter().cloned().map(Arc::new).collect())));
        n
    }

    fn step(&mut self, event: StatusEvent) {
        let mut out = Outbox::new();
        let mono = Mono(self.now);
        self.machine.step(Now { mono, ..Now::default() }, event, &mut out);
        for action in out.drain() {
            match action {
                StatusAction::Call { id, call } => self.calls.push((id, call)),
                StatusAction::Outdated { uid, .. } => self.outdated.push(uid),
                StatusAction::Untold(uids) => {
                    self.untold.push(uids.iter().map(ToString::to_string).collect())
                }
                StatusAction::Report(StatusReport::Told { took }) => self.told.push(took),
                StatusAction::Report(StatusReport::Failed { .. }) => self.failed += 1,
                StatusAction::Report(_) => {}
            }
        }
    }

    fn applied(&mut self, pod: &Pod) {
        self.step(StatusEvent::Watch(WatchEvent::Applied(Arc::new(pod.clone()))));
    }

    fn answer(&mut self, id: EffectId, result: ApiResult) {
        self.step(StatusEvent::Answer { id, result });
    }

    fn call(&mut self) -> (EffectId, ApiCall) {
        assert_eq!(self.calls.len(), 1, "{:?}", self.calls);
        self.calls.remove(0)
    }

    fn patch(&mut self) -> (EffectId, Value) {
        match self.call() {
            (id, ApiCall::PatchPodStatus { patch, .. }) => (id, patch),
            other => panic!("{other:?}"),
        }
    }

    /// Lets time pass until the deadline.
    fn wait(&mut self) {
        self.now = self.machine.deadline().expect("something waits").0;
        self.step(StatusEvent::Tick);
    }
}

#[test]
fn the_newest_status_is_patched_without_a_get() {
    let mut n = Node::new(&[api_pod("u", 5, json!({}))]);
    n.step(published("u", json!({"phase": "Pending", "podIP": "1.1.1.1"})));
    let (id, patch) = n.patch();
    let expected = json!({"metadata": {"uid": "u", "resourceVersion": "5"}, "status": {"podIP": "1.1.1.1"}});
    assert_eq!(patch, expected);
    n.step(published("u", json!({"phase": "Pending", "podIP": "1.1.1.2"})));
    n.step(published("u", json!({"phase": "Running", "podIP": "1.1.1.3"})));
    assert_eq!(n.calls, [], "one in flight");
    n.answer(id, reply(&api_pod("u", 6, json!({"status": {"podIP": "1.1.1.1"}}))));
    let (id, patch) = n.patch();
    assert_eq!(patch["status"], json!({"phase": "Running", "podIP": "1.1.1.3"}));
    n.answer(id, reply(&api_pod("u", 7, json!({"status": {"phase": "Running", "podIP": "1.1.1.3"}}))));
    assert!(n.machine.is_settled());
    assert_eq!((n.calls.len(), n.machine.deadline()), (0, None));
    // Older than the answer.
    n.applied(&api_pod("u", 6, json!({"status": {"podIP": "1.1.1.1"}})));
    assert_eq!(n.calls, []);
}

/// The status of a pod with so many containers, of which the first ones are ready.
fn crowd(containers: usize, ready: usize) -> Value {
    let one = |n| json!({"name": format!("c{n}"), "image": "i", "imageID": "", "restartCount": 0, "ready": n < ready});
    json!({"phase": "Running", "containerStatuses": (0..containers).map(one).collect::<Vec<_>>()})
}

#[test]
fn changes_of_many_containers_go_together() {
    for (containers, waits_ms) in [(MANY_CONTAINERS, 0), (100, 200), (1000, 2000)] {
        let told =
            |version, ready| reply(&api_pod("u", version, json!({"status": crowd(containers, ready)})));
        let mut n = Node::new(&[api_pod("u", 5, json!({}))]);
        n.step(published("u", crowd(containers, 0)));
        let (id, _) = n.patch();
        n.step(published("u", crowd(containers, 1)));
        n.answer(id, told(6, 0));
        if waits_ms > 0 {
            assert_eq!(n.calls, [], "{containers}");
            assert_eq!(n.machine.deadline(), Some(Mono(n.now + waits_ms * 1_000_000)), "{containers}");
            n.step(published("u", crowd(containers, 2)));
            n.wait();
        }
        let ready = if waits_ms > 0 { 2 } else { 1 };
        let (id, patch) = n.patch();
        assert_eq!(patch["status"]["containerStatuses"][ready - 1]["ready"], json!(true), "{containers}");
        n.answer(id, told(7, ready));
        // After a while without a change, the next status is sent at once.
        n.now += 10 * SECOND;
        n.step(published("u", crowd(containers, 3)));
        let (id, _) = n.patch();
        n.step(published("u", crowd(containers, 4)));
        n.answer(id, told(8, 3));
        // So is its end.
        n.step(StatusEvent::Terminated(key("u")));
        n.patch();
    }
}

#[test]
fn how_long_it_takes_until_the_server_knows() {
    let mut n = Node::new(&[api_pod("u", 5, json!({}))]);
    n.step(published("u", json!({"phase": "Pending", "podIP": "1.1.1.1"})));
    let (id, _) = n.patch();
    n.now += 2 * SECOND;
    n.step(published("u", json!({"phase": "Pending", "podIP": "1.1.1.2"})));
    n.now += SECOND;
    n.answer(id, reply(&api_pod("u", 6, json!({"status": {"podIP": "1.1.1.1"}}))));
    assert_eq!(n.told, [Duration::from_secs(3)]);
    let (id, _) = n.patch();
    n.now += SECOND;
    n.answer(id, error(Class::Unavailable));
    assert_eq!(n.told.len(), 1, "not told yet");
    n.wait();
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::FindPod { .. }), "{call:?}");
    n.answer(id, reply(&api_pod("u", 6, json!({"status": {"podIP": "1.1.1.1"}}))));
    let (id, _) = n.patch();
    n.answer(id, reply(&api_pod("u", 7, json!({"status": {"podIP": "1.1.1.2"}}))));
    assert!(n.told.len() == 2 && n.told[1] > Duration::from_secs(1), "{:?}", n.told);
    // What the server shows already is no change.
    n.step(published("u", json!({"phase": "Pending", "podIP": "1.1.1.2"})));
    n.now += 100 * SECOND;
    n.step(published("u", json!({"phase": "Running", "podIP": "1.1.1.2"})));
    let (id, _) = n.patch();
    n.now += SECOND;
    n.answer(id, reply(&api_pod("u", 8, json!({"status": {"phase": "Running", "podIP": "1.1.1.2"}}))));
    assert_eq!(n.told.last(), Some(&Duration::from_secs(1)));
}

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

/// Each patch names the version that it was made for: one that is applied late, after its caller has given it up, takes
/// nothing back. Who is refused again and again has to go without.
#[test]
fn a_stale_base_is_read_and_then_patched() {
    let mut n = Node::new(&[api_pod("u", 5, json!({}))]);
    n.step(published("u", json!({"phase": "Running"})));
    let foreign = json!([{"type": "example.org/gate", "status": "True"}]);
    for (version, named) in [("5", true), ("6", true), ("7", true), ("8", true), ("9", false)] {
        let (id, patch) = n.patch();
        let mut expected = json!({"metadata": {"uid": "u"}, "status": {"phase": "Running"}});
        if named {
            expected["metadata"]["resourceVersion"] = version.into();
        }
        assert_eq!(patch, expected);
        n.answer(id, error(Class::Conflict));
        n.wait();
        let (id, call) = n.call();
        assert!(matches!(call, ApiCall::FindPod { .. }));
        let next: u64 = version.parse().unwrap();
        n.answer(id, reply(&api_pod("u", next + 1, json!({"status": {"conditions": foreign}}))));
    }
    let (id, _) = n.patch();
    n.answer(id, reply(&api_pod("u", 20, json!({"status": {"phase": "Running"}}))));
    n.step(published("u", json!({"phase": "Running", "podIP": "1.1.1.1"})));
    let (_, patch) = n.patch();
    assert_eq!(patch["metadata"]["resourceVersion"], "20", "the series is over");
}

#[test]
fn a_pod_whose_name_another_node_has_is_given_up() {
    let mut n = Node::new(&[api_pod("u", 5, json!({}))]);
    n.step(published("u", json!({"phase": "Running"})));
    let (id, _) = n.patch();
    n.answer(id, forbidden());
    n.wait();
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::FindPod { .. }), "{call:?}");
    n.answer(id, error(Class::NotFound));
    assert_eq!(n.calls, []);
    assert_eq!(n.failed, 0, "nobody needs to hear of it");
}

#[test]
fn a_status_that_is_forbidden_for_good_is_complained_of_and_seldom_tried_again() {
    let mut n = Node::new(&[api_pod("u", 5, json!({}))]);
    n.step(published("u", json!({"phase": "Running"})));
    let (id, _) = n.patch();
    n.answer(id, forbidden());
    n.wait();
    let (id, _) = n.call();
    n.answer(id, reply(&api_pod("u", 5, json!({}))));
    let (id, _) = n.patch();
    n.answer(id, forbidden());
    assert_eq!(n.failed, 1);
    assert_eq!(n.calls, [], "not at once");
}

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

/// As kube-apiserver 1.36 answers: structs that are empty come back as `{}`.
#[test]
fn a_status_as_the_server_gives_it_back_is_no_difference() {
    let container = |last: Value| {
        let mut status = json!({"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "started": true, "state": {"running": {"startedAt": "2026-11-21T13:00:00Z"}}});
        if !last.is_null() {
            status["lastState"] = last;
        }
        json!({"phase": "Running", "containerStatuses": [status]})
    };
    let shown = api_pod("u", 2, json!({"status": container(json!({}))}));
    let mut n = Node::new(&[shown]);
    n.step(published("u", container(Value::Null)));
    assert!(n.calls.is_empty(), "{:?}", n.calls);
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
fn a_server_that_is_away_is_probed_with_one_call() {
    let pods: Vec<Pod> = (0..100)
        .map(|i| api_pod(&format!("u{i}"), 5, json!({"metadata": {"name": format!("p{i}")}})))
        .collect();
    let mut n = Node::new(&pods);
    for i in 0..100 {
        let pod =
            PodKey { namespace: "ns".into(), name: format!("p{i}").into(), uid: format!("u{i}").into() };
        let status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
        n.step(StatusEvent::Published { pod, status: Arc::new(status) });
    }
    assert_eq!(n.calls.len(), CALLS_MAX);
    for (id, _) in std::mem::take(&mut n.calls) {
        n.answer(id, error(Class::Unavailable));
    }
    let mut probes = 0;
    while n.now < 300 * SECOND {
        n.wait();
        assert!(n.calls.len() <= 1);
        for (id, _) in std::mem::take(&mut n.calls) {
            probes += 1;
            n.answer(id, error(Class::Unavailable));
        }
    }
    assert!((30..150).contains(&probes), "{probes} probes in five minutes");
}

#[test]
fn what_ended_for_good_does_not_run_again() {
    let ended = json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"terminated": {"exitCode": 1}}}]}});
    let mut n = Node::new(&[api_pod("u", 5, ended)]);
    n.step(published(
        "u",
        json!({"phase": "Running", "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
        "ready": true, "restartCount": 0, "state": {"running": {}}}]}),
    ));
    assert_eq!(n.calls, []);
    assert!(n.machine.is_settled());
}

/// A static pod that was removed and came back unchanged runs again, whatever its restart policy; the API
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

/// A server restored to an earlier state has lower versions than the known ones.
#[test]
fn a_list_is_the_truth_whatever_was_known() {
    let mut n = Node::new(&[api_pod("u", 90, json!({"status": {"phase": "Running", "podIP": "1.1.1.1"}}))]);
    n.step(published("u", json!({"phase": "Running", "podIP": "1.1.1.1"})));
    assert_eq!(n.calls, []);
    n.step(StatusEvent::Watch(WatchEvent::Listed(vec![Arc::new(api_pod("u", 50, json!({})))])));
    let (_, patch) = n.patch();
    assert_eq!(patch["metadata"]["resourceVersion"], "50");
    assert_eq!(patch["status"], json!({"phase": "Running", "podIP": "1.1.1.1"}));
}

#[test]
fn a_pod_is_deleted_only_as_it_was_seen() {
    let going = |phase| json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": phase}});
    let mut n = Node::new(&[api_pod("u", 5, going("Failed"))]);
    n.step(StatusEvent::Finished(key("u")));
    let (id, call) = n.call();
    let ApiCall::DeletePod { resource_version, .. } = call else { panic!("{call:?}") };
    assert_eq!(resource_version.as_deref(), Some("5"));
    // Somebody labelled it.
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

    // Somebody asked for its deletion: nothing of it may be left then.
    let mut asked = told.clone();
    merge_json(&mut asked, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let mut n = Node::new(&[api_pod("u", 6, asked)]);
    n.step(StatusEvent::MachineStays(true));
    n.step(published("u", ended.clone()));
    n.step(StatusEvent::Terminated(key("u")));
    assert_eq!(n.calls, [], "its sandbox is there");
    n.step(StatusEvent::Finished(key("u")));
    assert!(matches!(n.call().1, ApiCall::DeletePod { grace_s: 0, .. }));

    // Nobody replaces this one: it stays to be looked at.
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

mod properties;
