//! Records and directories of an earlier agent.

use super::*;

#[test]
fn leftovers_are_taken_up() {
    let [a, b] = ["a", "b"].map(|n| pod(n, n, "file"));
    let record = TerminatingRecord {
        pod: pod::key(&b),
        reason: KillReason::Removed,
        grace_s: 5,
        since: Wall(1),
        remove: true,
        ended: false,
    };
    let directories = ["a", "b", "c"].map(PodUid::from).into();
    let leftovers =
        Leftovers { records: vec![record], directories, fence_until: Mono(7), ..Leftovers::default() };
    let mut m = manager(&[Source::File], leftovers);
    step(&mut m, file(PodOp::Add, &[&a, &b]));
    let after = step(&mut m, listed(&[&a, &b]));
    assert_eq!(after, "~b@7 b:desired +a@7 a:desired +c@7 c:Orphan synced");
}

/// Its pod ended and was to be kept; while no agent ran, its source forgot it (simulation, seed 136).
#[test]
fn a_resumed_pod_that_nobody_wants_is_removed_once_everything_was_read() {
    let [a, b] = ["a", "b"].map(|n| pod(n, n, "api"));
    let record = |pod: &Pod| TerminatingRecord {
        pod: pod::key(pod),
        reason: KillReason::DeadlineExceeded,
        grace_s: 5,
        since: Wall(1),
        remove: false,
        ended: false,
    };
    let leftovers = Leftovers { records: vec![record(&a), record(&b)], ..Leftovers::default() };
    let mut m = manager(&[Source::File, Source::Api], leftovers);
    step(&mut m, ManagerEvent::Node(None));
    assert_eq!(step(&mut m, listed(&[&a, &b])), "~a@0 ~b@0");
    assert_eq!(step(&mut m, file(PodOp::Add, &[])), "");
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&b])), "b:desired a:Removed synced");
    assert_eq!(step(&mut m, update(PodOp::Update, Source::Api, &[&b])), "b:desired");
}
