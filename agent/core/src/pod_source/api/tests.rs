//! The API source against tables of watch events.

use serde_json::{Value, json};

use super::*;
use crate::pod_source::PodOp;

fn pod(uid: &str, name: &str, extra: Value) -> Arc<Pod> {
    let mut pod = json!({"metadata": {"uid": uid, "name": name, "namespace": "ns"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    merge(&mut pod, extra);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn plain(uid: &str, name: &str) -> Arc<Pod> {
    pod(uid, name, json!({}))
}

fn step(source: &mut ApiSource, event: WatchEvent<Pod>) -> Vec<ApiSourceAction> {
    let mut out = Outbox::new();
    source.step(Now::default(), ApiSourceEvent::Watch(event), &mut out);
    out.drain().collect()
}

fn delivered(source: &mut ApiSource, event: WatchEvent<Pod>) -> Vec<(PodOp, Vec<String>)> {
    let deliver = |action| match action {
        ApiSourceAction::Deliver(update) => {
            assert_eq!(update.source, Source::Api);
            Some((update.op, update.pods.iter().map(|p| pod::uid(p).to_owned()).collect()))
        }
        ApiSourceAction::Report(_) => None,
    };
    step(source, event).into_iter().filter_map(deliver).collect()
}

fn op(op: PodOp, uids: &[&str]) -> (PodOp, Vec<String>) {
    (op, uids.iter().map(|u| (*u).to_owned()).collect())
}

#[test]
fn nothing_before_the_first_list_and_an_empty_list_makes_ready() {
    let mut source = ApiSource::new("n");
    assert_eq!(delivered(&mut source, WatchEvent::Applied(plain("1", "a"))), []);
    assert_eq!(delivered(&mut source, WatchEvent::Deleted(plain("1", "a"))), []);
    assert!(!source.is_ready());
    assert_eq!(delivered(&mut source, WatchEvent::Listed(vec![])), [op(PodOp::Add, &[])]);
    assert!(source.is_ready() && source.is_empty());
    assert_eq!(delivered(&mut source, WatchEvent::Listed(vec![])), []);
}

#[test]
fn new_pods_of_a_list_come_by_age() {
    let made = |uid: &str, second: u32| {
        pod(uid, uid, json!({"metadata": {"creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")}}))
    };
    let mut source = ApiSource::new("n");
    let listed = WatchEvent::Listed(vec![made("a", 7), made("b", 3), made("c", 5), made("d", 3)]);
    assert_eq!(delivered(&mut source, listed), [op(PodOp::Add, &["b", "d", "c", "a"])]);
}

#[test]
fn changes_one_by_one() {
    let mut source = ApiSource::new("n");
    let first = delivered(&mut source, WatchEvent::Listed(vec![plain("1", "a"), plain("2", "b")]));
    assert_eq!(first, [op(PodOp::Add, &["1", "2"])]);
    assert_eq!(delivered(&mut source, WatchEvent::Applied(plain("1", "a"))), []);
    let labelled = pod("1", "a", json!({"metadata": {"labels": {"x": "y"}}}));
    assert_eq!(delivered(&mut source, WatchEvent::Applied(labelled.clone())), [op(PodOp::Update, &["1"])]);
    let running = pod("1", "a", json!({"metadata": {"labels": {"x": "y"}}, "status": {"phase": "Running"}}));
    assert_eq!(delivered(&mut source, WatchEvent::Applied(running)), [op(PodOp::Reconcile, &["1"])]);
    let going = pod(
        "1",
        "a",
        json!({"metadata": {"labels": {"x": "y"}, "deletionTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 5}, "status": {"phase": "Running"}}),
    );
    assert_eq!(delivered(&mut source, WatchEvent::Applied(going)), [op(PodOp::Delete, &["1"])]);
    assert_eq!(delivered(&mut source, WatchEvent::Deleted(labelled.clone())), [op(PodOp::Remove, &["1"])]);
    assert_eq!(delivered(&mut source, WatchEvent::Deleted(labelled)), []);
    // Another pod has the name, and the watch did not report that the first is gone.
    let replaced = delivered(&mut source, WatchEvent::Applied(plain("3", "b")));
    assert_eq!(replaced, [op(PodOp::Remove, &["2"]), op(PodOp::Add, &["3"])]);
    assert_eq!(delivered(&mut source, WatchEvent::Deleted(plain("2", "b"))), []);
    let relist = delivered(&mut source, WatchEvent::Listed(vec![plain("4", "d")]));
    assert_eq!(relist, [op(PodOp::Remove, &["3"]), op(PodOp::Add, &["4"])]);
    assert_eq!(source.len(), 1);
}

#[test]
fn losing_the_server_changes_nothing_and_is_said_once() {
    let mut source = ApiSource::new("n");
    step(&mut source, WatchEvent::Listed(vec![plain("1", "a")]));
    let lost = || WatchEvent::Lost("refused".to_owned());
    let said = [ApiSourceAction::Report(ApiSourceReport::Lost("refused".to_owned()))];
    assert_eq!(step(&mut source, lost()), said);
    assert_eq!(step(&mut source, lost()), []);
    assert_eq!(step(&mut source, WatchEvent::Applied(plain("1", "a"))), []);
    assert_eq!(step(&mut source, lost()), said);
    assert_eq!(source.len(), 1);
}

#[test]
fn hostile_pods_are_named_or_delivered_and_never_believed() {
    let mut source = ApiSource::new("n");
    let long = "x".repeat(100_000);
    let ignored = [
        plain("", "a"),
        plain("../../etc", "a"),
        plain("1", ""),
        plain("1", "A_b"),
        plain("1", &long),
        pod("1", "a", json!({"metadata": {"namespace": "../x"}})),
        pod("1", "a", json!({"metadata": {"namespace": null}})),
        pod("1", "a", json!({"spec": {"nodeName": "other"}})),
        Arc::new(Pod::default()),
    ];
    for pod in ignored {
        let actions = step(&mut source, WatchEvent::Listed(vec![pod.clone()]));
        let reported = actions.iter().any(|a| {
            matches!(a, ApiSourceAction::Report(ApiSourceReport::Ignored { pod, problem })
                if pod.len() < 1000 && problem.len() < 2000)
        });
        assert!(reported, "{actions:?}");
        assert_eq!(source.len(), 0);
    }
    // It claims to come from a file; it does not.
    let liar = pod("1", "a", json!({"metadata": {"annotations": {"kubernetes.io/config.source": "file"}}}));
    let actions = step(&mut source, WatchEvent::Applied(liar));
    let Some(ApiSourceAction::Deliver(update)) = actions.first() else { panic!("{actions:?}") };
    assert!(!pod::is_static(&update.pods[0]));
    // No spec, no containers: delivered, so that admission can say why it cannot run.
    let empty = pod("2", "b", json!({"spec": null}));
    assert_eq!(delivered(&mut source, WatchEvent::Applied(empty)), [op(PodOp::Add, &["2"])]);
}
