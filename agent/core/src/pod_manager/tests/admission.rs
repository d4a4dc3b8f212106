//! Admission: pods that need room, pods that need none, and the order in which pods are judged.

use super::*;

#[test]
fn admission_counts_who_needs_room() {
    // Room for two of 400 m.
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|n| pod(n, n, "file"));
    let mut m = running(&[&a, &b]);
    assert_eq!(step(&mut m, file(PodOp::Add, &[&c])), "+c@0 c:desired c:Failed !c:UnexpectedAdmissionError");
    // A refused pod is not tried again, not even when there is room; an ended one makes room.
    assert_eq!(step(&mut m, ManagerEvent::Ended(PodUid::from("a"))), "");
    assert_eq!(step(&mut m, file(PodOp::Add, &[&d])), "+d@0 d:desired");
}

#[test]
fn what_is_over_in_the_api_needs_no_room_of_a_new_agent() {
    // Room for two of 400 m; the ended pod came first, and its containers still exist.
    for phase in ["Succeeded", "Failed"] {
        let [a, b, c] = ["a", "b", "c"].map(|n| pod(n, n, "api"));
        let mut over = (*a).clone();
        over.status = Some(serde_json::from_value(json!({"phase": phase})).unwrap());
        let over = Arc::new(over);
        let mut m = manager(&[Source::Api], Leftovers::default());
        step(&mut m, ManagerEvent::Node(None));
        step(&mut m, listed(&[&over, &b, &c]));
        let after = step(&mut m, update(PodOp::Add, Source::Api, &[&over, &b, &c]));
        assert_eq!(after, "+a@0 a:desired +b@0 b:desired +c@0 c:desired synced");
        // Who is over is not judged either: the room is taken by now.
        let late = Arc::new(Pod { metadata: pod("d", "d", "api").metadata.clone(), ..(*over).clone() });
        let after = step(&mut m, update(PodOp::Add, Source::Api, &[&late]));
        assert_eq!(after, "+d@0 d:desired");
        // The same for a pod whose termination began before this agent, whether the pod or the runtime's list
        // arrives first.
        for listed_first in [true, false] {
            let record = TerminatingRecord {
                pod: pod::key(&over),
                reason: KillReason::Ended,
                grace_s: 5,
                since: Wall(1),
                remove: false,
                ended: false,
            };
            let leftovers = Leftovers { records: vec![record], fence_until: Mono(7), ..Leftovers::default() };
            let mut m = manager(&[Source::Api], leftovers);
            step(&mut m, ManagerEvent::Node(None));
            let pods = update(PodOp::Add, Source::Api, &[&over, &b, &c]);
            let list = listed(&[&over, &b, &c]);
            let events = if listed_first { [list, pods] } else { [pods, list] };
            let said = events.map(|event| step(&mut m, event)).join(" ");
            assert!(said.contains("+b@0 b:desired +c@0 c:desired"), "{said}");
        }
    }
}

#[test]
fn whoever_runs_already_is_judged_first() {
    let [a, b, c] = ["a", "b", "c"].map(|n| pod(n, n, "file"));
    let mut m = manager(&[Source::File], Leftovers::default());
    step(&mut m, file(PodOp::Add, &[&a, &b, &c]));
    let after = step(&mut m, listed(&[&c]));
    assert_eq!(
        after,
        "+c@0 c:desired +a@0 a:desired +b@0 b:desired b:Failed !b:UnexpectedAdmissionError synced"
    );
}

#[test]
fn a_deleted_pod_needs_no_admission() {
    let mut m = running(&[&pod("a", "a", "file"), &pod("b", "b", "file")]);
    let c = deleted(&pod("c", "c", "api"));
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&c])), "+c@0 c:desired");
}
