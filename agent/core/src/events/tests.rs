//! The recorder, step by step.

use agent_types::event::ContainerList;
use agent_types::time::Wall;

use super::*;

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
        list: ContainerList::Regular,
        claim: None,
        resource_version: Some("7".to_owned()),
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
        self.step(RecorderEvent::Answer { id, result: Ok(agent_types::api::ApiReply::Done) });
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
            "resourceVersion": "7", "fieldPath": "spec.containers{c}"},
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

fn error(class: Class, code: Option<u16>) -> ApiResult {
    Err(ApiError { call: String::new(), class, code, reason: String::new(), message: String::new() })
}

#[test]
fn similar_events_become_one() {
    let mut n = Node::new();
    let mut messages = Vec::new();
    for i in 0..12 {
        n.now += SECOND;
        n.record(fact("Pulling", &format!("Pulling image {i}")));
        match n.done() {
            ApiCall::CreateEvent(event) => messages.push((event.message.unwrap(), event.count)),
            ApiCall::PatchEvent { patch, .. } => {
                messages.push((patch["message"].as_str().unwrap().to_owned(), None));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(messages[8], ("Pulling image 8".to_owned(), Some(1)));
    assert_eq!(messages[9], ("(combined from similar events): Pulling image 9".to_owned(), Some(1)));
    assert_eq!(messages[11], ("(combined from similar events): Pulling image 11".to_owned(), None));
    n.now += 601 * SECOND;
    n.record(fact("Pulling", "Pulling image z"));
    let ApiCall::CreateEvent(event) = n.done() else { panic!() };
    assert_eq!(event.message.as_deref(), Some("Pulling image z"));
}

#[test]
fn spam_about_one_object_is_dropped_and_others_are_heard() {
    let mut n = Node::new();
    let mut told = 0;
    for i in 0..60 {
        n.now += SECOND;
        n.record(fact("Killing", &format!("Stopping {}", i % 3)));
        while !n.calls.is_empty() {
            n.done();
            told += 1;
        }
    }
    assert_eq!(told, 25);
    n.record(Fact { about: InvolvedObject::of_pod(&key("db")), ..fact("Killing", "Stopping 0") });
    assert_eq!(n.calls.len(), 1);
}

#[test]
fn while_the_server_is_away_the_queue_is_bounded_and_then_told_in_order() {
    let mut n = Node::new();
    for i in 0..3_000 {
        let about = InvolvedObject::of_pod(&key(&format!("p{i}")));
        n.record(Fact { about, ..fact("Started", "Container started") });
    }
    assert_eq!((n.machine.waiting(), n.calls.len()), (QUEUE_MAX, CALLS_MAX));
    assert_eq!(n.machine.dropped(), 3_000 - (QUEUE_MAX + CALLS_MAX) as u64);
    for (id, _) in std::mem::take(&mut n.calls) {
        n.step(RecorderEvent::Answer { id, result: error(Class::Unavailable, None) });
    }
    assert_eq!(n.calls, []);
    let mut told = 0;
    for _ in 0..20_000 {
        match n.machine.deadline() {
            _ if !n.calls.is_empty() => {
                n.done();
                told += 1;
            }
            Some(deadline) => {
                n.now = deadline.0;
                n.step(RecorderEvent::Tick);
            }
            None => break,
        }
    }
    assert_eq!((told, n.machine.waiting()), (QUEUE_MAX + CALLS_MAX, 0));
}

#[test]
fn what_each_answer_means() {
    // Class, HTTP code, whether it is an update: what is called next.
    let next = |class: Class, code: Option<u16>, update: bool| {
        let mut n = Node::new();
        n.record(fact("BackOff", "Back-off"));
        if update {
            n.done();
            n.record(fact("BackOff", "Back-off"));
        }
        let (id, _) = n.calls.remove(0);
        n.step(RecorderEvent::Answer { id, result: error(class, code) });
        if let Some(deadline) = n.machine.deadline() {
            n.now = deadline.0;
            n.step(RecorderEvent::Tick);
        }
        n.calls.pop().map(|(_, call)| call.describe().split(' ').next().unwrap_or("").to_owned())
    };
    let called = |verb: &str| Some(verb.to_owned());
    assert_eq!(next(Class::Invalid, Some(403), false), None);
    assert_eq!(next(Class::AlreadyExists, Some(409), false), None);
    assert_eq!(next(Class::Unavailable, None, false), called("create"));
    assert_eq!(next(Class::Retryable { after_ms: 10 }, Some(429), false), called("create"));
    assert_eq!(next(Class::DeadlineExceeded, None, true), called("patch"));
    assert_eq!(next(Class::NotFound, Some(404), true), called("create"));
    assert_eq!(next(Class::NotFound, Some(404), false), None, "its namespace is gone");
}

#[test]
fn without_cluster_dns_the_node_is_told_as_well() {
    let of = |reason: &'static str| EventFact {
        kind: EventKind::Warning,
        reason,
        message: "pod: \"p_ns(u)\". …".to_owned(),
        container: None,
        list: ContainerList::Regular,
        claim: None,
        resource_version: None,
    };
    assert_eq!(Fact::of_node_beside(&of("DNSConfigForming")), None);
    let fact = Fact::of_node_beside(&of("MissingClusterDNS")).unwrap();
    assert_eq!(fact.about, InvolvedObject::Node);
    assert!(fact.message.starts_with("kubelet does not have ClusterDNS IP configured"), "{}", fact.message);
}

#[test]
fn of_a_claim_the_same_is_told_under_its_own_name() {
    let claim = ClaimId { name: "data".to_owned(), uid: "claim-1".to_owned() };
    let mut of_pod = EventFact {
        kind: EventKind::Normal,
        reason: "FileSystemResizeSuccessful",
        message: "larger".to_owned(),
        container: None,
        list: ContainerList::Regular,
        claim: None,
        resource_version: None,
    };
    assert_eq!(Fact::of_claim_beside(&key("web"), &of_pod), None);
    of_pod.claim = Some(claim);
    let fact = Fact::of_claim_beside(&key("web"), &of_pod).unwrap();
    let event = object::event(fact, "n", Wall(0), 10);
    let about = &event.involved_object;
    let (kind, version) = (about.kind.as_deref(), about.api_version.as_deref());
    assert_eq!((kind, version), (Some("PersistentVolumeClaim"), Some("v1")));
    assert_eq!((about.name.as_deref(), about.uid.as_deref()), (Some("data"), Some("claim-1")));
    let (namespace, name) = (event.metadata.namespace.as_deref(), event.metadata.name.as_deref());
    assert_eq!((about.namespace.as_deref(), namespace, name), (Some("ns"), Some("ns"), Some("data.a")));
    assert_eq!((event.reason.as_deref(), event.message.as_deref()), (Some(of_pod.reason), Some("larger")));
}

#[test]
fn a_pod_whose_name_is_taken() {
    let duplicate = DuplicateName { pod: key("web"), source: crate::pod_source::Source::File };
    let fact = Fact::left_out(&duplicate);
    assert_eq!((fact.kind, fact.reason.as_str()), (EventKind::Warning, "FailedValidation"));
    assert_eq!(
        fact.message,
        "Error validating pod web_ns(u) from file due to duplicate pod name \"web\", ignoring"
    );
}
