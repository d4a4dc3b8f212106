//! The status manager, step by step.

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

fn said(uid: &str, status: Value) -> StatusEvent {
    StatusEvent::Published { pod: key(uid), status: Arc::new(serde_json::from_value(status).unwrap()) }
}

fn error(class: Class) -> ApiResult {
    Err(ApiError { call: String::new(), class, code: None, reason: String::new(), message: String::new() })
}

fn reply(pod: &Pod) -> ApiResult {
    Ok(ApiReply::Pod(Box::new(pod.clone())))
}

struct Node {
    machine: StatusManager,
    now: u64,
    calls: Vec<(EffectId, ApiCall)>,
}

impl Node {
    fn new(pods: &[Pod]) -> Node {
        let mut n = Node { machine: StatusManager::new("n"), now: SECOND, calls: Vec::new() };
        n.step(StatusEvent::Watch(WatchEvent::Listed(pods.iter().cloned().map(Arc::new).collect())));
        n
    }

    fn step(&mut self, event: StatusEvent) {
        let mut out = Outbox::new();
        let mono = Mono(self.now);
        self.machine.step(Now { mono, ..Now::default() }, event, &mut out);
        for action in out.drain() {
            if let StatusAction::Call { id, call } = action {
                self.calls.push((id, call));
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
    n.step(said("u", json!({"phase": "Pending", "podIP": "1.1.1.1"})));
    let (id, patch) = n.patch();
    let expected = json!({"metadata": {"uid": "u", "resourceVersion": "5"}, "status": {"podIP": "1.1.1.1"}});
    assert_eq!(patch, expected);
    n.step(said("u", json!({"phase": "Pending", "podIP": "1.1.1.2"})));
    n.step(said("u", json!({"phase": "Running", "podIP": "1.1.1.3"})));
    assert_eq!(n.calls, [], "one in flight");
    n.answer(id, reply(&api_pod("u", 6, json!({"status": {"podIP": "1.1.1.1"}}))));
    let (id, patch) = n.patch();
    assert_eq!(patch["status"], json!({"phase": "Running", "podIP": "1.1.1.3"}));
    n.answer(id, reply(&api_pod("u", 7, json!({"status": {"phase": "Running", "podIP": "1.1.1.3"}}))));
    assert!(n.machine.is_settled());
    assert_eq!((n.calls.len(), n.machine.deadline()), (0, None));
    // Older than what the answer showed.
    n.applied(&api_pod("u", 6, json!({"status": {"podIP": "1.1.1.1"}})));
    assert_eq!(n.calls, []);
}

#[test]
fn a_stale_base_is_read_and_then_patched_without_version() {
    let mut n = Node::new(&[api_pod("u", 5, json!({}))]);
    n.step(said("u", json!({"phase": "Running"})));
    let (id, _) = n.patch();
    n.answer(id, error(Class::Conflict));
    n.wait();
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::GetPod(_)));
    let foreign = json!([{"type": "example.org/gate", "status": "True"}]);
    n.answer(id, reply(&api_pod("u", 9, json!({"status": {"conditions": foreign}}))));
    let (_, patch) = n.patch();
    assert_eq!(patch, json!({"metadata": {"uid": "u"}, "status": {"phase": "Running"}}));
}

#[test]
fn the_end_of_a_pod() {
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut n = Node::new(&[api_pod("u", 5, going.clone())]);
    n.step(said("u", json!({"phase": "Failed", "reason": "X"})));
    assert_eq!(n.calls, [], "its containers may run");
    n.step(StatusEvent::Terminated("u".into()));
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
