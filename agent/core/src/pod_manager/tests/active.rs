//! Active pods, from their arrival to their end.

use super::*;

fn active(manager: &PodManager) -> String {
    manager.active_pods().iter().map(PodUid::as_str).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_pod_is_active_from_its_arrival_until_its_containers_have_ended() {
    let mut m = manager(&[Source::Api], Leftovers::default());
    let p = pod("u", "web", "api");
    step(&mut m, ManagerEvent::Node(None));
    step(&mut m, update(PodOp::Add, Source::Api, &[&p]));
    assert_eq!(active(&m), "u", "it waits for the first list of the runtime");
    step(&mut m, listed(&[]));
    assert_eq!(active(&m), "u");
    step(&mut m, update(PodOp::Delete, Source::Api, &[&deleted(&p)]));
    assert_eq!(active(&m), "u", "its containers still run");
    step(&mut m, ended("u"));
    assert_eq!(active(&m), "", "its worker lives on");
    step(&mut m, finished("u"));
    assert_eq!(active(&m), "", "its source still has it");
}

#[test]
fn a_removed_pod_is_active_until_its_containers_have_ended() {
    let p = pod("u", "web", "file");
    let mut m = running(&[&p]);
    step(&mut m, file(PodOp::Remove, &[&p]));
    assert_eq!(active(&m), "u");
    step(&mut m, finished("u"));
    assert_eq!(active(&m), "");
}

#[test]
fn a_refused_pod_is_not_active() {
    // Room for two of 400 m.
    let [a, b, c] = ["a", "b", "c"].map(|n| pod(n, n, "file"));
    assert_eq!(active(&running(&[&a, &b, &c])), "a b");
}

#[test]
fn a_pod_that_ended_before_this_agent_is_active_only_if_the_runtime_has_it() {
    let over = |uid: &str| {
        let mut over = Pod::clone(&pod(uid, uid, "api"));
        over.status = Some(serde_json::from_value(json!({"phase": "Succeeded"})).unwrap());
        Arc::new(over)
    };
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, update(PodOp::Add, Source::Api, &[&over("a")]));
    assert_eq!(active(&m), "");
    step(&mut m, listed(&[&over("b")]));
    assert_eq!(active(&m), "b", "no source has named it yet, and its containers may run");
    step(&mut m, ManagerEvent::Node(None));
    assert_eq!(active(&m), "b");
}

#[test]
fn active_pods_are_told_once_all_is_known() {
    let (a, b, stray) = (pod("a", "a", "api"), pod("b", "b", "api"), pod("s", "s", "api"));
    let told = |m: &PodManager| m.active_uids().map(|_| active(m));
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
    step(&mut m, listed(&[&stray]));
    assert_eq!(told(&m), None, "a pod of the API may use something");
    step(&mut m, update(PodOp::Add, Source::Api, &[&a, &b]));
    assert_eq!(told(&m).as_deref(), Some("a b s"), "containers of s may run");
    step(&mut m, update(PodOp::Remove, Source::Api, &[&a]));
    assert_eq!(told(&m).as_deref(), Some("a b s"), "its containers have not ended");
    step(&mut m, ended("a"));
    step(&mut m, finished("s"));
    assert_eq!(told(&m).as_deref(), Some("b"));
}
