//! Mirror pods against tables and against a model of the API server with every fault it can have.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::pod_source::Source;

const SECOND: u64 = 1_000_000_000;

fn static_pod(name: &str, uid: &str) -> Arc<Pod> {
    let pod = json!({"metadata": {"uid": uid, "name": name, "namespace": "ns", "annotations": {
        "kubernetes.io/config.hash": uid, "kubernetes.io/config.source": "file"}},
        "spec": {"nodeName": "n", "priority": 0, "containers": [{"name": "c", "image": "i"}]}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn update(op: PodOp, pod: &Arc<Pod>) -> MirrorEvent {
    MirrorEvent::Static(PodUpdate { source: Source::File, op, pods: vec![Arc::clone(pod)] })
}

fn present() -> MirrorEvent {
    MirrorEvent::Node(NodeView::Present { uid: "node-uid".to_owned() })
}

fn error(class: Class) -> ApiResult {
    Err(ApiError { call: String::new(), class, code: None, reason: String::new(), message: String::new() })
}

/// A machine and its calls.
struct Node {
    machine: MirrorPods,
    now: u64,
    calls: Vec<(EffectId, ApiCall)>,
}

impl Node {
    fn new() -> Node {
        Node { machine: MirrorPods::new("n"), now: SECOND, calls: Vec::new() }
    }

    fn step(&mut self, event: MirrorEvent) -> usize {
        let mut out = Outbox::new();
        let now = Now { mono: Mono(self.now), ..Now::default() };
        self.machine.step(now, event, &mut out);
        let before = self.calls.len();
        for action in out.drain() {
            if let MirrorAction::Call { id, call } = action {
                self.calls.push((id, call));
            }
        }
        self.calls.len() - before
    }

    /// The only call in flight.
    fn call(&mut self) -> (EffectId, ApiCall) {
        assert_eq!(self.calls.len(), 1, "{:?}", self.calls);
        self.calls.remove(0)
    }

    fn answer(&mut self, id: EffectId, result: ApiResult) {
        self.step(MirrorEvent::Answer { id, result });
    }
}

/// What the API server makes of a created pod.
fn stored(call: &ApiCall, uid: &str) -> Arc<Pod> {
    let ApiCall::CreatePod(pod) = call else { panic!("{call:?}") };
    let mut pod = pod.clone();
    pod.metadata.uid = Some(uid.to_owned());
    Arc::new(*pod)
}

#[test]
fn created_once_the_node_is_there_and_the_list_was_read() {
    let mut n = Node::new();
    let web = static_pod("web", "hash");
    assert_eq!(n.step(update(PodOp::Add, &web)), 0);
    assert_eq!(n.step(present()), 0);
    assert_eq!(n.step(MirrorEvent::Node(NodeView::Deleting)), 0);
    assert_eq!(n.step(MirrorEvent::Watch(WatchEvent::Listed(vec![]))), 0);
    assert_eq!(n.step(present()), 1);
    let (id, call) = n.call();
    let ApiCall::CreatePod(pod) = &call else { panic!("{call:?}") };
    let expected = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "ns",
        "annotations": {"kubernetes.io/config.hash": "hash", "kubernetes.io/config.source": "file",
            "kubernetes.io/config.mirror": "hash"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid",
            "controller": true}]},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(serde_json::to_value(pod).unwrap(), expected);
    n.answer(id, Ok(ApiReply::Pod(Box::new((*stored(&call, "m1")).clone()))));
    n.step(MirrorEvent::Watch(WatchEvent::Applied(stored(&call, "m1"))));
    assert_eq!((n.calls.len(), n.machine.deadline()), (0, None));
    let name = ObjectName { namespace: "ns".into(), name: "web".into() };
    assert_eq!(n.machine.mirror_of(&name, &"hash".into()), Some("m1"));
}

fn mirrored() -> (Node, Arc<Pod>, Arc<Pod>) {
    let mut n = Node::new();
    let web = static_pod("web", "hash");
    n.step(update(PodOp::Add, &web));
    n.step(MirrorEvent::Watch(WatchEvent::Listed(vec![])));
    n.step(present());
    let (id, call) = n.call();
    let mirror = stored(&call, "m1");
    n.answer(id, Ok(ApiReply::Pod(Box::new((*mirror).clone()))));
    (n, web, mirror)
}

#[test]
fn a_create_whose_answer_was_lost_is_repeated_and_then_looked_up() {
    let mut n = Node::new();
    n.step(update(PodOp::Add, &static_pod("web", "hash")));
    n.step(MirrorEvent::Watch(WatchEvent::Listed(vec![])));
    n.step(present());
    let mut again = |result: ApiResult| {
        let (id, call) = n.call();
        n.answer(id, result);
        n.now += 60 * SECOND;
        n.step(MirrorEvent::Tick);
        call
    };
    assert!(matches!(again(error(Class::DeadlineExceeded)), ApiCall::CreatePod(_)));
    assert!(matches!(again(error(Class::AlreadyExists)), ApiCall::CreatePod(_)));
    assert!(matches!(again(error(Class::NotFound)), ApiCall::FindPod { .. }));
    assert!(matches!(n.call().1, ApiCall::CreatePod(_)));
}

#[test]
fn deleted_by_somebody_it_comes_back() {
    let (mut n, _, mirror) = mirrored();
    assert_eq!(n.step(MirrorEvent::Watch(WatchEvent::Deleted(mirror))), 1);
    assert!(matches!(n.call().1, ApiCall::CreatePod(_)));
}

#[test]
fn a_mirror_that_is_being_deleted_is_removed_and_made_anew() {
    let (mut n, _, mirror) = mirrored();
    let mut going = (*mirror).clone();
    going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    n.step(MirrorEvent::Watch(WatchEvent::Applied(Arc::new(going.clone()))));
    let (id, call) = n.call();
    let name = ObjectName { namespace: "ns".into(), name: "web".into() };
    assert_eq!(
        call,
        ApiCall::DeletePod { pod: name, uid: "m1".to_owned(), resource_version: None, grace_s: 0 }
    );
    n.answer(id, Ok(ApiReply::Done));
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::CreatePod(_)));
    // An older event about the deleted one means nothing.
    assert_eq!(n.step(MirrorEvent::Watch(WatchEvent::Applied(Arc::new(going)))), 0);
    let again = stored(&call, "m2");
    n.answer(id, Ok(ApiReply::Pod(Box::new((*again).clone()))));
    n.step(MirrorEvent::Watch(WatchEvent::Deleted(mirror)));
    assert_eq!(n.calls, []);
}

#[test]
fn a_changed_static_pod_waits_for_its_predecessor() {
    let (mut n, web, _) = mirrored();
    let key = |p: &Arc<Pod>| pod::key(p);
    n.step(MirrorEvent::Worker(key(&web)));
    let next = static_pod("web", "hash2");
    n.step(update(PodOp::Remove, &web));
    assert_eq!(n.step(MirrorEvent::Synced), 0, "its worker still runs");
    assert_eq!(n.step(update(PodOp::Add, &next)), 0);
    assert_eq!(n.step(MirrorEvent::Forgotten("hash".into())), 1);
    let (id, call) = n.call();
    assert!(matches!(&call, ApiCall::DeletePod { uid, .. } if uid == "m1"));
    n.step(MirrorEvent::Worker(key(&next)));
    n.answer(id, error(Class::NotFound));
    assert!(matches!(n.call().1, ApiCall::CreatePod(_)));
}

#[test]
fn an_orphan_goes_once_every_source_was_read() {
    let (mut n, web, _) = mirrored();
    assert_eq!(n.step(update(PodOp::Remove, &web)), 0);
    assert_eq!(n.step(MirrorEvent::Synced), 1);
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::DeletePod { .. }));
    n.answer(id, Ok(ApiReply::Done));
    assert_eq!(n.calls, []);
}

#[test]
fn somebody_elses_pod_is_never_deleted() {
    let mut n = Node::new();
    n.step(update(PodOp::Add, &static_pod("web", "hash")));
    n.step(MirrorEvent::Watch(WatchEvent::Listed(vec![])));
    n.step(present());
    n.step(MirrorEvent::Synced);
    let (id, call) = n.call();
    let mut other = (*stored(&call, "u")).clone();
    other.metadata.annotations = None;
    n.answer(id, error(Class::AlreadyExists));
    n.now += SECOND;
    n.step(MirrorEvent::Tick);
    for _ in 0..5 {
        let (id, call) = n.call();
        assert!(matches!(call, ApiCall::FindPod { .. }), "{call:?}");
        n.answer(id, Ok(ApiReply::Pod(Box::new(other.clone()))));
        n.step(MirrorEvent::Tick);
        if n.calls.is_empty() {
            n.now = n.machine.deadline().unwrap().0;
            n.step(MirrorEvent::Tick);
        }
    }
}

#[test]
fn an_outdated_mirror_is_made_anew() {
    let (mut n, _, mirror) = mirrored();
    let name = name_of(&mirror);
    let outdated = |uid: &str| MirrorEvent::Outdated { name: name.clone(), uid: uid.to_owned() };
    assert_eq!(n.step(outdated("another")), 0);
    assert_eq!(n.step(outdated(pod::uid(&mirror))), 1);
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::DeletePod { .. }), "{call:?}");
    n.answer(id, Ok(ApiReply::Done));
    let (id, call) = n.call();
    assert!(matches!(call, ApiCall::CreatePod(_)), "{call:?}");
    n.answer(id, Ok(ApiReply::Pod(Box::new((*stored(&call, "new")).clone()))));
    assert_eq!(n.calls, []);
}

#[test]
fn the_watch_tells_whether_the_node_is_there() {
    let mut node = k8s_openapi::api::core::v1::Node::default();
    node.metadata.uid = Some("u".into());
    let mut deleting = node.clone();
    deleting.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let (node, deleting) = (Arc::new(node), Arc::new(deleting));
    let present = || Some(NodeView::Present { uid: "u".into() });
    for (event, view) in [
        (WatchEvent::Listed(vec![node.clone()]), present()),
        (WatchEvent::Applied(node.clone()), present()),
        (WatchEvent::Applied(deleting), Some(NodeView::Deleting)),
        (WatchEvent::Deleted(node), Some(NodeView::Missing)),
        (WatchEvent::Listed(Vec::new()), Some(NodeView::Missing)),
        (WatchEvent::Lost("x".into()), None),
    ] {
        assert_eq!(NodeView::heard(&event), view, "{event:?}");
    }
}

mod properties;
