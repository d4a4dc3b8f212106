//! The status manager, step by step.

mod deletion;
mod mirror_pods;
mod properties;
mod refusals;
mod unsent;

use serde_json::{Value, json};

use super::*;

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
