//! A server that refuses a patch or does not answer: conflicts, forbidden patches, retries.

use super::*;

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
