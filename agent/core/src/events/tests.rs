//! The recorder, step by step.

use super::*;
use crate::time::Wall;

const SECOND: u64 = 1_000_000_000;

fn key(name: &str) -> PodKey {
    PodKey { namespace: "ns".into(), name: name.into(), uid: "u".into() }
}

fn fact(reason: &'static str, message: &str) -> Fact {
    let fact = EventFact {
        kind: EventKind::Normal,
        reason,
        message: message.to_owned(),
        container: Some("c".to_owned()),
        init: false,
    };
    Fact::of_pod(&key("web"), &fact)
}

struct Node {
    machine: Recorder,
    now: u64,
    calls: Vec<(EffectId, ApiCall)>,
}

impl Node {
    fn new() -> Node {
        let machine = Recorder::new("n", Rate { per_second: 50, burst: 100 });
        Node { machine, now: SECOND, calls: Vec::new() }
    }

    fn step(&mut self, event: RecorderEvent) {
        let mut out = Outbox::new();
        let now = Now { mono: Mono(self.now), wall: Wall(1_700_000_000_000_000_000 + self.now as i64) };
        self.machine.step(now, event, &mut out);
        for action in out.drain() {
            if let RecorderAction::Call { id, call } = action {
                self.calls.push((id, call));
            }
        }
    }

    fn record(&mut self, fact: Fact) {
        self.step(RecorderEvent::Record(fact));
    }

    fn done(&mut self) -> ApiCall {
        let (id, call) = self.calls.remove(0);
        self.step(RecorderEvent::Answer { id, result: Ok(crate::api::ApiReply::Done) });
        call
    }
}

#[test]
fn an_event_as_upstream_writes_it() {
    let mut n = Node::new();
    n.record(fact("Started", "Container started"));
    let ApiCall::CreateEvent(event) = n.done() else { panic!() };
    let expected = json!({"apiVersion": "v1", "kind": "Event",
        "metadata": {"name": "web.17979cfe71c4ca00", "namespace": "ns"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "web", "uid": "u",
            "fieldPath": "spec.containers{c}"},
        "reason": "Started", "message": "Container started", "type": "Normal", "count": 1,
        "source": {"component": "kubelet", "host": "n"},
        "firstTimestamp": "2023-11-14T22:13:21Z", "lastTimestamp": "2023-11-14T22:13:21Z",
        "reportingComponent": "kubelet", "reportingInstance": "n"});
    assert_eq!(serde_json::to_value(event).unwrap(), expected);
    n.record(Fact::of_node(EventKind::Normal, "Starting", "Starting kubelet."));
    let ApiCall::CreateEvent(event) = n.done() else { panic!() };
    let object = serde_json::to_value(&event.involved_object).unwrap();
    assert_eq!(object, json!({"kind": "Node", "name": "n", "uid": "n"}));
    assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
}

#[test]
fn the_same_again_raises_the_count() {
    let mut n = Node::new();
    n.record(fact("BackOff", "Back-off"));
    let ApiCall::CreateEvent(first) = n.done() else { panic!() };
    n.now += SECOND;
    n.record(fact("BackOff", "Back-off"));
    let ApiCall::PatchEvent { event, patch } = n.done() else { panic!() };
    assert_eq!(Some(&*event.name), first.metadata.name.as_deref());
    assert_eq!(patch["count"], 2);
    assert_eq!(patch["lastTimestamp"], "2023-11-14T22:13:22Z");
}
