//! Active pods, from their arrival to their end.

use agent_types::runtime::observed::{ContainerObserved, ContainerState};
use proptest::prelude::*;

use super::properties::any_event;
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

/// The first list of the runtime shows running containers of these pods.
pub(super) fn containers_run(uids: &[&str]) -> ManagerEvent {
    ManagerEvent::Running(uids.iter().map(|uid| PodUid::from(*uid)).collect())
}

/// A pod of the API whose status is final.
fn over(uid: &str, phase: &str) -> Arc<Pod> {
    let mut over = Pod::clone(&pod(uid, uid, "api"));
    over.status = Some(serde_json::from_value(json!({"phase": phase})).unwrap());
    Arc::new(over)
}

#[test]
fn a_pod_that_ended_before_this_agent_is_active_only_if_containers_of_it_run() {
    let over = |uid: &str| over(uid, "Succeeded");
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, update(PodOp::Add, Source::Api, &[&over("a"), &over("dead")]));
    assert_eq!(active(&m), "");
    step(&mut m, containers_run(&["b"]));
    step(&mut m, listed(&[&over("b"), &over("dead"), &over("stray")]));
    assert_eq!(
        active(&m),
        "b",
        "no source has named it, and its containers run; those of the others are dead"
    );
    step(&mut m, ManagerEvent::Node(None));
    assert_eq!(active(&m), "b");
}

#[test]
fn a_pod_whose_containers_are_dead_is_active_until_every_source_was_read() {
    let stray = pod("s", "s", "api");
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
    step(&mut m, listed(&[&stray]));
    assert_eq!(active(&m), "s", "the API may want it");
    step(&mut m, update(PodOp::Add, Source::Api, &[]));
    assert_eq!((active(&m).as_str(), m.admitted().count()), ("", 0));
}

#[test]
fn a_pod_that_is_over_is_active_until_a_snapshot_shows_that_its_containers_are_dead() {
    let p = over("a", "Failed");
    let snapshot = |state: ContainerState| {
        let container = ContainerObserved { state, ..ContainerObserved::created("c0", "s", "c", 0, Wall(1)) };
        ManagerEvent::Changed(Arc::new(PodSnapshot {
            pod: pod::key(&p),
            as_of: Mono(1),
            sandboxes: vec![],
            containers: vec![container].into(),
            actuated: None,
        }))
    };
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, listed(&[]));
    // It waits for the Node.
    step(&mut m, update(PodOp::Add, Source::Api, &[&p]));
    assert_eq!(active(&m), "");
    for (state, expected) in
        [(ContainerState::Running, "a"), (ContainerState::Exited, ""), (ContainerState::Unknown, "a")]
    {
        step(&mut m, snapshot(state));
        assert_eq!(active(&m), expected, "{state:?}");
    }
    step(&mut m, ManagerEvent::Node(None));
    assert_eq!(active(&m), "a", "its worker has not looked");
}

#[test]
fn a_pod_whose_final_status_another_writer_set_is_active_until_its_containers_have_ended() {
    for phase in ["Succeeded", "Failed"] {
        let (runs, gone) = (over("r", phase), over("g", phase));
        let mut m = manager(&[Source::Api], Leftovers::default());
        step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
        step(&mut m, containers_run(&["r"]));
        step(&mut m, listed(&[&runs]));
        let words = step(&mut m, update(PodOp::Add, Source::Api, &[&runs, &gone]));
        assert_eq!(words, "+r@0 r:desired +g@0 g:desired synced");
        assert_eq!(active(&m), "r", "the runtime has nothing of g");
        assert_eq!(m.admitted().count(), 0, "neither of them needs room");
        step(&mut m, update(PodOp::Update, Source::Api, &[&runs, &gone]));
        assert_eq!(active(&m), "r");
        step(&mut m, ended("r"));
        assert_eq!(active(&m), "");
    }
}

#[test]
fn the_last_calls_of_an_earlier_agent_keep_a_pod_active() {
    let directories = || BTreeSet::from([PodUid::from("a")]);
    for (fence_until, expected) in [(Mono(9), "a"), (Mono(0), "")] {
        let leftovers = Leftovers { directories: directories(), fence_until, ..Leftovers::default() };
        let mut m = manager(&[Source::Api], leftovers);
        step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
        step(&mut m, listed(&[]));
        step(&mut m, update(PodOp::Add, Source::Api, &[&over("a", "Failed"), &over("b", "Failed")]));
        assert_eq!(active(&m), expected, "a container of it may still come");
        step(&mut m, ended("a"));
        assert_eq!(active(&m), "");
    }
}

#[test]
fn a_resumed_termination_keeps_its_pod_active_whatever_its_status_is() {
    let p = over("a", "Failed");
    let record = TerminatingRecord {
        pod: pod::key(&p),
        reason: KillReason::Deleted,
        grace_s: 5,
        since: Wall(1),
        remove: true,
        ended: false,
    };
    for named_first in [true, false] {
        let leftovers = Leftovers { records: vec![record.clone()], ..Leftovers::default() };
        let mut m = manager(&[Source::Api], leftovers);
        let update = update(PodOp::Add, Source::Api, &[&p]);
        step(&mut m, containers_run(&["a"]));
        let events = if named_first { [update, listed(&[&p])] } else { [listed(&[&p]), update] };
        for event in events {
            step(&mut m, event);
        }
        assert_eq!((active(&m).as_str(), m.admitted().count()), ("a", 0));
        step(&mut m, ended("a"));
        assert_eq!(active(&m), "");
    }
}

#[test]
fn a_resumed_termination_with_dead_containers_keeps_nothing_unless_calls_may_be_under_way() {
    let [wanted, stray] = [pod("a", "a", "api"), pod("b", "b", "api")];
    for (ended, fence_until, expected) in
        [(false, Mono(0), ""), (true, Mono(0), ""), (true, Mono(9), ""), (false, Mono(9), "a b")]
    {
        let record = |pod: &Pod| TerminatingRecord {
            pod: pod::key(pod),
            reason: KillReason::Ended,
            grace_s: 5,
            since: Wall(1),
            remove: false,
            ended,
        };
        let records = vec![record(&wanted), record(&stray)];
        let mut m = manager(&[Source::Api], Leftovers { records, fence_until, ..Leftovers::default() });
        step(&mut m, update(PodOp::Add, Source::Api, &[&wanted]));
        step(&mut m, listed(&[&wanted, &stray]));
        assert_eq!(active(&m), expected, "{ended} {fence_until:?}");
    }
}

#[test]
fn a_pod_that_is_over_and_whose_containers_run_takes_part_in_a_shutdown_and_in_evictions() {
    let runs = over("r", "Failed");
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
    step(&mut m, containers_run(&["r"]));
    step(&mut m, listed(&[&runs]));
    step(&mut m, update(PodOp::Add, Source::Api, &[&runs]));
    assert_eq!(step(&mut m, evictions::victim("r")), "r:Failed evicted r");
    assert_eq!(step(&mut m, ManagerEvent::DeleteUnused), "deleted", "its containers have not ended");
    assert_eq!(step(&mut m, ManagerEvent::Shutdown(ShutdownOrder::Close)), "[r=0]");
    step(&mut m, ended("r"));
    assert_eq!(step(&mut m, evictions::victim("r")), "r is not there");
    assert_eq!(step(&mut m, ManagerEvent::DeleteUnused), "r:DeleteUnused");
}

#[test]
fn active_pods_are_told_once_all_is_known() {
    let (a, b, stray) = (pod("a", "a", "api"), pod("b", "b", "api"), pod("s", "s", "api"));
    let told = |m: &PodManager| m.is_synced().then(|| active(m));
    let mut m = manager(&[Source::Api], Leftovers::default());
    step(&mut m, ManagerEvent::Node(Some(NodeMarks::default())));
    step(&mut m, containers_run(&["s"]));
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

/// The values that follow the revision.
fn shown(m: &PodManager) -> (BTreeSet<PodUid>, Vec<*const Pod>, bool) {
    (m.active_pods(), m.admitted().map(Arc::as_ptr).collect(), m.is_synced())
}

proptest! {
    /// What is shown changes only with its revision, and no pod that needs room is inactive.
    #[test]
    fn an_equal_revision_means_the_same_active_pods(
        events in proptest::collection::vec(any_event(), 0..60),
        live in any::<bool>(),
    ) {
        let mut m = manager(&[Source::File], Leftovers::default());
        let live: &[&str] = if live { &["1", "3"] } else { &[] };
        step(&mut m, containers_run(live));
        let mut before = (m.active_revision(), shown(&m));
        for event in events {
            // The pods of the last step stay in memory, so that a pointer does not come twice.
            let kept: Vec<Arc<Pod>> = m.admitted().cloned().collect();
            m.step(Now::default(), event, &mut Outbox::new());
            let after = (m.active_revision(), shown(&m));
            prop_assert!(before.0 != after.0 || before.1 == after.1, "{:?} became {:?}", before, after);
            let inactive = m.workers.iter().find(|(uid, w)| w.needs_room() && !after.1.0.contains(*uid));
            prop_assert!(inactive.is_none());
            drop(kept);
            before = after;
        }
    }
}

#[test]
fn news_that_change_no_pod_do_not_change_the_revision() {
    let mut m = running(&[&pod("a", "a", "file"), &pod("b", "b", "file")]);
    let revision = m.active_revision();
    for event in [
        ManagerEvent::Network(Err("no cni".into())),
        ManagerEvent::Pressures(Pressures::default()),
        ManagerEvent::SourcesChanged(BTreeSet::from([PodUid::from("a")])),
        ManagerEvent::Tick,
    ] {
        step(&mut m, event);
        assert_eq!(m.active_revision(), revision);
    }
    step(&mut m, ended("a"));
    assert_ne!(m.active_revision(), revision);
}
