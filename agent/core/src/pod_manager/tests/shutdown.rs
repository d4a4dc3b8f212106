//! The machine is about to stop, or the shutdown is called off.

use super::*;

#[test]
fn a_static_pod_that_an_earlier_agent_ended_begins_anew_when_the_shutdown_is_called_off() {
    let s = pod("s", "s", "file");
    let record = TerminatingRecord {
        pod: pod::key(&s),
        reason: KillReason::Shutdown { again: true },
        grace_s: 3,
        since: Wall(1),
        remove: false,
        ended: false,
    };
    for called_off_first in [true, false] {
        let leftovers = Leftovers { records: vec![record.clone()], ..Leftovers::default() };
        let mut m = manager(&[Source::File], leftovers);
        step(&mut m, ManagerEvent::Shutdown(ShutdownOrder::Close));
        step(&mut m, file(PodOp::Add, &[&s]));
        let open = ManagerEvent::Shutdown(ShutdownOrder::Open);
        if called_off_first {
            assert_eq!(step(&mut m, open), "");
            assert_eq!(step(&mut m, listed(&[&s])), "~s@0 s:desired s:Removed synced");
        } else {
            assert_eq!(step(&mut m, listed(&[&s])), "~s@0 s:desired synced");
            assert_eq!(step(&mut m, open), "s:Removed");
        }
        assert_eq!(step(&mut m, finished("s")), "-s +s@0 s:desired");
    }
}

#[test]
fn while_the_machine_stops_nothing_begins() {
    let mut m = manager(&[Source::File, Source::Api], Leftovers::default());
    step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
    let fixed = pod("s", "s", "file");
    let mut critical = (*pod("a", "a", "api")).clone();
    critical.spec.as_mut().unwrap().priority = Some(2_000_000_000);
    let critical = Arc::new(critical);
    step(&mut m, listed(&[]));
    step(&mut m, file(PodOp::Add, &[&fixed]));
    step(&mut m, update(PodOp::Add, Source::Api, &[&critical]));
    let order = |order| ManagerEvent::Shutdown(order);
    let end = |uid: &str| order(ShutdownOrder::End(PodUid::from(uid), 7));
    assert_eq!(step(&mut m, order(ShutdownOrder::Close)), "[a=2000000000 s=0]");
    assert_eq!(step(&mut m, end("s")), "s:Shutdown true Some(7)");
    assert_eq!(step(&mut m, end("a")), "a:Shutdown false Some(7)");
    assert_eq!(step(&mut m, end("nobody")), "");
    // Newcomers: the API's are made elsewhere, static pods come back with the next boot.
    let (late, late_static) = (pod("b", "b", "api"), pod("t", "t", "file"));
    let rejected = "+b@0 b:desired b:Failed !b:NodeShutdown";
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&late])), rejected);
    assert_eq!(step(&mut m, file(PodOp::Add, &[&late_static])), "");
    // A pod that is being deleted may still end as it wants.
    let going = deleted(&pod("c", "c", "api"));
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&going])), "+c@0 c:desired");
    for uid in ["s", "a", "c"] {
        step(&mut m, ManagerEvent::Ended(PodUid::from(uid)));
    }
    assert_eq!(step(&mut m, order(ShutdownOrder::Open)), "s:Removed +t@0 t:desired");
    assert_eq!(step(&mut m, finished("s")), "-s +s@0 s:desired", "static pods begin anew");
}
