//! Critical pods: the pods that they preempt, and the resources that are reserved for them meanwhile.

use super::*;

/// A pod of the API that asks for processor time and has a priority.
fn asking(uid: &str, cpu: &str, priority: i32) -> Arc<Pod> {
    let mut pod = Pod::clone(&pod(uid, uid, "api"));
    let spec = pod.spec.get_or_insert_default();
    spec.priority = Some(priority);
    let amounts = serde_json::from_value(json!({"requests": {"cpu": cpu}})).unwrap();
    spec.containers.iter_mut().for_each(|c| c.resources = Some(Clone::clone(&amounts)));
    Arc::new(pod)
}

/// A node of 1000m whose pods run.
fn busy(pods: &[&Arc<Pod>]) -> PodManager {
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, listed(&[]));
    step(&mut m, marks(&[], &[]));
    step(&mut m, update(PodOp::Add, Source::Api, pods));
    m
}

#[test]
fn a_critical_pod_waits_until_room_is_made_for_it() {
    let add = |pod: &Arc<Pod>| update(PodOp::Add, Source::Api, &[pod]);
    let mut m = busy(&[&asking("a", "300m", 0), &asking("b", "600m", 0)]);
    let (critical, small, late) =
        (asking("c", "300m", CRITICAL), asking("s", "100m", 0), asking("l", "200m", 0));
    assert_eq!(step(&mut m, add(&critical)), "a:Failed !a:Preempting for cpu");
    assert_eq!(step(&mut m, ManagerEvent::Tick), "", "nobody is chosen twice");
    assert_eq!(step(&mut m, add(&small)), "+s@0 s:desired s:Failed !s:OutOfcpu", "its room is kept");
    assert_eq!(step(&mut m, ended("a")), "+c@0 c:desired");
    // The next one: 600m and 300m run.
    assert_eq!(step(&mut m, add(&late)), "+l@0 l:desired l:Failed !l:OutOfcpu");
    let huge = asking("h", "900m", CRITICAL);
    assert_eq!(step(&mut m, add(&huge)), "+h@0 h:desired h:Failed !h:UnexpectedAdmissionError");
}

#[test]
fn critical_pods_do_not_make_room_twice() {
    let mut m = busy(&[&asking("a", "500m", 0), &asking("b", "500m", 0)]);
    let critical = |uid: &str| asking(uid, "200m", CRITICAL);
    let both = [&critical("c"), &critical("d")];
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &both)), "a:Failed !a:Preempting for cpu");
    assert_eq!(step(&mut m, ended("a")), "+c@0 c:desired +d@0 d:desired");
}

#[test]
fn a_critical_pod_that_is_removed_keeps_no_room() {
    let mut m = busy(&[&asking("a", "900m", 0)]);
    let critical = asking("c", "300m", CRITICAL);
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&critical])), "a:Failed !a:Preempting for cpu");
    assert_eq!(step(&mut m, update(PodOp::Remove, Source::Api, &[&critical])), "");
    step(&mut m, ended("a"));
    let next = update(PodOp::Add, Source::Api, &[&asking("n", "900m", 0)]);
    assert_eq!(step(&mut m, next), "+n@0 n:desired");
}
