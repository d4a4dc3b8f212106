//! The dispatcher's rules, as sequences of events and what they lead to.

use super::*;
use agent_core::runtime::observed::{SandboxObserved, SandboxState};
use agent_core::time::Wall;

fn pod(name: &str, uid: &str) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("default".to_owned());
    pod.metadata.uid = Some(uid.to_owned());
    Arc::new(pod)
}

fn update(op: PodOp, pods: &[&Arc<Pod>]) -> DispatchEvent {
    DispatchEvent::Update(PodUpdate {
        source: Source::File,
        op,
        pods: pods.iter().map(|p| Arc::clone(p)).collect(),
    })
}

fn snapshot(of: &Arc<Pod>, sandboxes: usize) -> Arc<PodSnapshot> {
    let sandbox = |n: usize| SandboxObserved {
        id: format!("sb{n}").into(),
        attempt: 0,
        state: SandboxState::Ready,
        created: Wall(0),
        ips: Vec::new(),
        host_network: false,
    };
    Arc::new(PodSnapshot {
        pod: pod::key(of),
        as_of: Mono(1),
        sandboxes: (0..sandboxes).map(sandbox).collect(),
        containers: Vec::new(),
    })
}

/// Short words for actions: `+uid` start, `~uid` resume, `-uid` forget, `uid:what` tell, `synced`.
fn step(d: &mut Dispatcher, event: DispatchEvent) -> String {
    let mut out = Outbox::new();
    d.step(Now::default(), event, &mut out);
    let word = |a: &DispatchAction| match a {
        DispatchAction::Start { key, beginning: Beginning::Fresh, fence_until } => {
            format!("+{}@{}", key.uid, fence_until.0)
        }
        DispatchAction::Start { key, beginning: Beginning::Resume(_), fence_until } => {
            format!("~{}@{}", key.uid, fence_until.0)
        }
        DispatchAction::Tell { uid, event } => {
            let what = match event {
                PodEvent::Desired(_) => "desired".to_owned(),
                PodEvent::Kill { reason, .. } => format!("{reason:?}"),
                PodEvent::Observed(_) => "observed".to_owned(),
                PodEvent::Network(n) => format!("network {}", n.is_ok()),
                other => format!("{other:?}"),
            };
            format!("{uid}:{what}")
        }
        DispatchAction::Forget(uid) => format!("-{uid}"),
        DispatchAction::Synced => "synced".to_owned(),
    };
    out.as_slice().iter().map(word).collect::<Vec<_>>().join(" ")
}

fn dispatcher(leftovers: Leftovers) -> Dispatcher {
    Dispatcher::new(BTreeSet::from([Source::File]), leftovers, Ok(()))
}

fn synced() -> Dispatcher {
    let mut d = dispatcher(Leftovers::default());
    step(&mut d, update(PodOp::Add, &[]));
    assert_eq!(step(&mut d, DispatchEvent::Listed(Vec::new())), "synced");
    d
}

#[test]
fn nothing_happens_before_sources_and_runtime_are_known() {
    let (a, b) = (pod("a", "ua"), pod("b", "ub"));
    let mut d = dispatcher(Leftovers::default());
    assert_eq!(step(&mut d, DispatchEvent::Changed(snapshot(&b, 1))), "");
    assert_eq!(step(&mut d, update(PodOp::Add, &[&a])), "");
    assert!(!d.is_synced());
    let after = step(&mut d, DispatchEvent::Listed(vec![pod::key(&b)]));
    assert_eq!(after, "+ub@0 ub:Orphan synced +ua@0 ua:desired");
    assert!(d.is_synced());

    let mut d = dispatcher(Leftovers::default());
    assert_eq!(step(&mut d, DispatchEvent::Listed(vec![pod::key(&b)])), "");
    assert_eq!(step(&mut d, update(PodOp::Add, &[&b])), "synced +ub@0 ub:desired");
}

#[test]
fn added_changed_removed() {
    let mut d = synced();
    let a = pod("a", "ua");
    assert_eq!(step(&mut d, update(PodOp::Add, &[&a])), "+ua@0 ua:desired");
    assert_eq!(step(&mut d, update(PodOp::Update, &[&a])), "ua:desired");
    assert_eq!(step(&mut d, DispatchEvent::Changed(snapshot(&a, 1))), "ua:observed");
    assert_eq!(step(&mut d, update(PodOp::Remove, &[&a])), "ua:Removed");
    assert_eq!(step(&mut d, DispatchEvent::Changed(snapshot(&a, 0))), "ua:observed");
    assert_eq!(step(&mut d, DispatchEvent::Finished("ua".into())), "-ua");
    assert_eq!(step(&mut d, DispatchEvent::Changed(snapshot(&a, 0))), "");
}

#[test]
fn a_changed_static_pod_waits_for_the_end_of_its_predecessor() {
    let mut d = synced();
    let (old, new) = (pod("a", "u1"), pod("a", "u2"));
    step(&mut d, update(PodOp::Add, &[&old]));
    assert_eq!(step(&mut d, update(PodOp::Remove, &[&old])), "u1:Removed");
    assert_eq!(step(&mut d, update(PodOp::Add, &[&new])), "");
    assert_eq!(step(&mut d, DispatchEvent::Finished("u1".into())), "-u1 +u2@0 u2:desired");
}

#[test]
fn a_pod_changed_while_the_agent_was_down_waits_as_well() {
    let (old, new) = (pod("a", "u1"), pod("a", "u2"));
    let mut d = dispatcher(Leftovers::default());
    step(&mut d, update(PodOp::Add, &[&new]));
    assert_eq!(step(&mut d, DispatchEvent::Listed(vec![pod::key(&old)])), "+u1@0 u1:Orphan synced");
    assert_eq!(step(&mut d, DispatchEvent::Finished("u1".into())), "-u1 +u2@0 u2:desired");
}

#[test]
fn removed_while_it_waited_never_starts_and_wanted_again_starts_again() {
    let mut d = synced();
    let (old, new) = (pod("a", "u1"), pod("a", "u2"));
    step(&mut d, update(PodOp::Add, &[&old]));
    step(&mut d, update(PodOp::Remove, &[&old]));
    step(&mut d, update(PodOp::Add, &[&new]));
    assert_eq!(step(&mut d, update(PodOp::Remove, &[&new])), "");
    assert_eq!(step(&mut d, update(PodOp::Add, &[&old])), "u1:desired");
    assert_eq!(step(&mut d, DispatchEvent::Finished("u1".into())), "-u1 +u1@0 u1:desired");
}

#[test]
fn what_an_earlier_incarnation_left_is_taken_up_behind_the_fence() {
    let (a, gone) = (pod("a", "ua"), pod("b", "ub"));
    let record = TerminatingRecord {
        pod: pod::key(&gone),
        reason: KillReason::Removed,
        grace_s: 30,
        since: Wall(0),
        remove: true,
    };
    let leftovers = Leftovers {
        records: vec![record],
        directories: ["ua", "ub", "uc"].map(PodUid::from).into(),
        fence_until: Mono(7),
    };
    let mut d = dispatcher(leftovers);
    step(&mut d, update(PodOp::Add, &[&a]));
    let after = step(&mut d, DispatchEvent::Listed(vec![pod::key(&gone)]));
    assert_eq!(after, "~ub@7 +uc@7 uc:Orphan synced +ua@7 ua:desired");
    // A second life of the same pod has no calls of earlier incarnations.
    step(&mut d, update(PodOp::Remove, &[&a]));
    step(&mut d, update(PodOp::Add, &[&a]));
    assert_eq!(step(&mut d, DispatchEvent::Finished("ua".into())), "-ua +ua@0 ua:desired");
}

#[test]
fn workers_hear_of_the_network_when_it_changes_and_when_they_start() {
    let mut d = synced();
    let (a, b) = (pod("a", "ua"), pod("b", "ub"));
    step(&mut d, update(PodOp::Add, &[&a]));
    let down = || DispatchEvent::Network(Err("cni is not ready".to_owned()));
    assert_eq!(step(&mut d, down()), "ua:network false");
    assert_eq!(step(&mut d, down()), "");
    assert_eq!(step(&mut d, update(PodOp::Add, &[&b])), "+ub@0 ub:network false ub:desired");
    assert_eq!(step(&mut d, DispatchEvent::Network(Ok(()))), "ua:network true ub:network true");
}

#[test]
fn something_unknown_in_the_runtime_is_an_orphan() {
    let mut d = synced();
    let stray = pod("stray", "us");
    assert_eq!(step(&mut d, DispatchEvent::Changed(snapshot(&stray, 0))), "");
    assert_eq!(step(&mut d, DispatchEvent::Changed(snapshot(&stray, 1))), "+us@0 us:Orphan us:observed");
}
