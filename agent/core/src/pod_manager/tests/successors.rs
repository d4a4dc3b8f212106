//! The end of a pod, and the pod that starts after it: a new pod of the same name, or the same pod again.

use super::*;

#[test]
fn a_changed_static_pod_waits_for_its_predecessor() {
    let (old, new) = (pod("1", "a", "file"), pod("2", "a", "file"));
    let mut m = running(&[&old]);
    assert_eq!(step(&mut m, file(PodOp::Remove, &[&old])), "1:Removed");
    assert_eq!(step(&mut m, file(PodOp::Add, &[&new])), "");
    assert_eq!(step(&mut m, finished("1")), "-1 +2@0 2:desired");
}

#[test]
fn successors_start_one_after_another_and_a_removed_one_never() {
    let pods: Vec<Arc<Pod>> = ["1", "2", "3"].iter().map(|uid| pod(uid, "a", "file")).collect();
    let mut m = running(&[&pods[0]]);
    step(&mut m, file(PodOp::Add, &[&pods[1], &pods[2]]));
    assert_eq!(step(&mut m, file(PodOp::Remove, &[&pods[0]])), "1:Removed");
    assert_eq!(step(&mut m, file(PodOp::Remove, &[&pods[1]])), "");
    assert_eq!(step(&mut m, finished("1")), "-1 +3@0 3:desired");
}

#[test]
fn a_predecessor_found_in_the_runtime_goes_first_even_while_the_api_is_silent() {
    let (old, new) = (pod("1", "a", "file"), pod("2", "a", "file"));
    let mut m = manager(&[Source::File, Source::Api], Leftovers::default());
    step(&mut m, listed(&[&old]));
    assert_eq!(step(&mut m, file(PodOp::Add, &[&new])), "+1@0 1:Orphan");
    assert_eq!(step(&mut m, finished("1")), "-1 +2@0 2:desired");
}

#[test]
fn updates_reach_the_worker_and_a_finished_pod_that_is_wanted_starts_again() {
    let a = pod("a", "a", "file");
    let mut m = running(&[&a]);
    assert_eq!(step(&mut m, file(PodOp::Update, &[&a])), "a:desired");
    assert_eq!(step(&mut m, finished("a")), "-a +a@0 a:desired");
    assert_eq!(step(&mut m, file(PodOp::Remove, &[&a])), "a:Removed");
    // Wanted again while its worker still takes it down: the worker knows, and it starts once more.
    assert_eq!(step(&mut m, file(PodOp::Add, &[&a])), "a:desired");
    assert_eq!(step(&mut m, finished("a")), "-a +a@0 a:desired");
}

#[test]
fn a_deleted_pod_is_brought_to_its_end_once() {
    let a = pod("a", "a", "api");
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, listed(&[]));
    step(&mut m, ManagerEvent::Node(None));
    step(&mut m, update(PodOp::Add, Source::Api, &[&a]));
    let gone = deleted(&a);
    assert_eq!(step(&mut m, update(PodOp::Delete, Source::Api, &[&gone])), "a:desired");
    assert_eq!(step(&mut m, finished("a")), "-a");
    assert_eq!(step(&mut m, update(PodOp::Reconcile, Source::Api, &[&gone])), "");
    assert_eq!(step(&mut m, update(PodOp::Remove, Source::Api, &[&gone])), "");
}

#[test]
fn a_pod_of_the_api_that_was_taken_down_is_over_also_if_it_is_wanted_again() {
    let a = pod("a", "a", "api");
    let begun = || {
        let mut m = manager(&[Source::Api], Leftovers::default());
        step(&mut m, listed(&[]));
        step(&mut m, ManagerEvent::Node(None));
        step(&mut m, update(PodOp::Add, Source::Api, &[&a]));
        m
    };
    // A restored API server shows the pod as it was before its deletion was requested, or again after it was
    // gone.
    for gone in
        [update(PodOp::Delete, Source::Api, &[&deleted(&a)]), update(PodOp::Remove, Source::Api, &[&a])]
    {
        let mut m = begun();
        step(&mut m, gone);
        assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&a])), "a:desired");
        assert_eq!(step(&mut m, finished("a")), "-a", "its end is told meanwhile");
        assert_eq!(step(&mut m, update(PodOp::Reconcile, Source::Api, &[&a])), "");
        // Once no source shows it any more, nothing of it is remembered.
        assert_eq!(step(&mut m, update(PodOp::Remove, Source::Api, &[&a])), "");
        assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&a])), "+a@0 a:desired");
    }
}
