//! Pods of the API are judged by the labels and taints that the Node has in the API.

use super::*;

#[test]
fn pods_of_the_api_are_judged_by_the_node_as_the_api_has_it() {
    let (a, fixed) = (picky(), pod("f", "f", "file"));
    let verdict = |node: ManagerEvent| {
        let mut m = manager(&[Source::File, Source::Api], Leftovers::default());
        step(&mut m, listed(&[]));
        // Static pods belong to the node and do not wait for it.
        assert_eq!(step(&mut m, file(PodOp::Add, &[&fixed])), "+f@0 f:desired");
        assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&a])), "synced");
        step(&mut m, node)
    };
    assert_eq!(verdict(marks(&[("disk", "ssd")], &[])), "+a@0 a:desired");
    let tainted = verdict(marks(&[("disk", "ssd")], &["out"]));
    assert_eq!(tainted, "+a@0 a:desired a:Failed !a:TaintToleration");
    assert_eq!(verdict(marks(&[], &[])), "read");
    assert_eq!(verdict(ManagerEvent::Node(None)), "read");
}

#[test]
fn a_missing_label_is_final_only_after_the_node_was_read_anew() {
    let a = picky();
    let b = Arc::new({
        let mut b = Pod::clone(&picky());
        b.metadata.uid = Some("b".into());
        b.metadata.name = Some("b".into());
        b
    });
    let read = |labels: &[(&str, &str)]| match marks(labels, &[]) {
        ManagerEvent::Node(marks) => ManagerEvent::NodeRead(marks),
        other => panic!("{other:?}"),
    };
    let asking = || {
        let mut m = manager(&[Source::Api], Leftovers::default());
        step(&mut m, listed(&[]));
        step(&mut m, marks(&[], &[]));
        assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&a])), "read synced");
        m
    };
    assert_eq!(step(&mut asking(), read(&[("disk", "ssd")])), "+a@0 a:desired");
    // The watch may be quicker than the answer.
    let mut m = asking();
    assert_eq!(step(&mut m, marks(&[("disk", "ssd")], &[])), "+a@0 a:desired");
    assert_eq!(step(&mut m, read(&[])), "");
    // Who came after the question was put needs one of its own, one at a time.
    let mut m = asking();
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&b])), "");
    assert_eq!(step(&mut m, ManagerEvent::NodeRead(None)), "+a@0 a:desired a:Failed !a:NodeAffinity read");
    assert_eq!(step(&mut m, read(&[("disk", "ssd")])), "+b@0 b:desired");
}

#[test]
fn a_running_pod_that_waits_for_the_node_is_neither_taken_down_nor_forgotten() {
    let a = picky();
    let begun = || {
        let mut m = manager(&[Source::Api], Leftovers::default());
        step(&mut m, listed(&[&a]));
        assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&a])), "synced");
        m
    };
    assert_eq!(step(&mut begun(), marks(&[("disk", "ssd")], &[])), "+a@0 a:desired");
    // Its end needs no permission.
    assert_eq!(step(&mut begun(), update(PodOp::Remove, Source::Api, &[&a])), "+a@0 a:Orphan");
    assert_eq!(step(&mut begun(), update(PodOp::Delete, Source::Api, &[&deleted(&a)])), "+a@0 a:desired");
}
