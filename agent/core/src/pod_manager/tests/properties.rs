//! Random events: one worker for each UID and each name, and every desired pod gets a worker in the end.

use proptest::prelude::*;

use super::*;

pub(super) fn any_event() -> impl Strategy<Value = ManagerEvent> {
    let uid = prop_oneof![Just("1"), Just("2"), Just("3"), Just("4")];
    let pods = uid.clone().prop_map(|uid| pod(uid, if uid < "3" { "a" } else { "b" }, "file"));
    prop_oneof![
        pods.clone().prop_map(|p| file(PodOp::Add, &[&p])),
        pods.clone().prop_map(|p| file(PodOp::Update, &[&p])),
        pods.clone().prop_map(|p| file(PodOp::Remove, &[&p])),
        pods.prop_map(|p| listed(&[&p])),
        uid.clone().prop_map(|uid| ManagerEvent::Ended(PodUid::from(uid))),
        uid.clone().prop_map(|uid| ManagerEvent::Shutdown(ShutdownOrder::End(PodUid::from(uid), 7))),
        uid.prop_map(finished),
        any::<bool>().prop_map(ManagerEvent::Recorded),
        Just(ManagerEvent::Shutdown(ShutdownOrder::Close)),
        Just(ManagerEvent::Shutdown(ShutdownOrder::Open)),
    ]
}

proptest! {
    /// In every course: one worker for a UID, no pod starts next to another of its name, only workers get
    /// events; and in the end every wanted pod has a worker.
    #[test]
    fn one_worker_for_a_uid_and_for_a_name(events in proptest::collection::vec(any_event(), 0..60)) {
        let mut m = manager(&[Source::File], Leftovers::default());
        let mut live: BTreeMap<PodUid, PodKey> = BTreeMap::new();
        let mut check = |m: &mut PodManager, event: ManagerEvent| -> Result<Vec<PodUid>, TestCaseError> {
            let mut out = Outbox::new();
            m.step(Now::default(), event, &mut out);
            let mut fresh = None;
            for action in out.drain() {
                match action {
                    ManagerAction::Start { key, .. } => {
                        fresh = Some(key.uid.clone());
                        prop_assert!(live.insert(key.uid.clone(), key).is_none());
                    }
                    ManagerAction::Tell { uid, event } => {
                        prop_assert!(live.contains_key(&uid));
                        if matches!(event, PodEvent::Desired(_)) && fresh == Some(uid.clone()) {
                            let name = &live[&uid].name;
                            let others = live.values().filter(|k| k.name == *name).count();
                            prop_assert_eq!(others, 1, "{} beside {:?}", uid, live);
                        }
                    }
                    ManagerAction::Forget(uid) => prop_assert!(live.remove(&uid).is_some()),
                    ManagerAction::Rejected { key, .. } => prop_assert!(live.contains_key(&key.uid)),
                    ManagerAction::Synced
                    | ManagerAction::ReadNode
                    | ManagerAction::UnusedDeleted
                    | ManagerAction::Leaving(_)
                    | ManagerAction::Allocated(..)
                    | ManagerAction::Devices(_)
                    | ManagerAction::Resize(_)
                    | ManagerAction::Evicted(_)
                    | ManagerAction::NotThere(_) => {}
                }
            }
            Ok(live.keys().cloned().collect())
        };
        for event in events {
            check(&mut m, event)?;
        }
        check(&mut m, ManagerEvent::Shutdown(ShutdownOrder::Open))?;
        let mut workers = check(&mut m, listed(&[]))?;
        // Every unwanted pod comes to its end.
        for _ in 0..8 {
            for uid in workers.clone() {
                if !m.desired().contains_key(&uid) {
                    workers = check(&mut m, ManagerEvent::Finished(uid))?;
                }
            }
        }
        let names: BTreeSet<_> = m.desired().values().map(|p| pod::name(p).to_owned()).collect();
        let held: BTreeSet<_> =
            workers.iter().filter_map(|uid| m.desired().get(uid)).map(|p| pod::name(p).to_owned()).collect();
        prop_assert_eq!(names, held);
    }
}

fn any_node_event() -> impl Strategy<Value = ManagerEvent> {
    let pods = prop_oneof![Just("1"), Just("2"), Just("3")].prop_map(|uid| {
        let mut pod = Pod::clone(&picky());
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.name = Some(uid.to_owned());
        pod.spec.get_or_insert_default().containers.clear();
        Arc::new(pod)
    });
    let labels = || prop_oneof![Just(vec![]), Just(vec![("disk", "ssd")])];
    prop_oneof![
        pods.clone().prop_map(|p| update(PodOp::Add, Source::Api, &[&p])),
        pods.prop_map(|p| update(PodOp::Remove, Source::Api, &[&p])),
        labels().prop_map(|l| marks(&l, &[])),
        // Answers a request in flight; without one the step is dropped below.
        labels().prop_map(|l| match marks(&l, &[]) {
            ManagerEvent::Node(marks) => ManagerEvent::NodeRead(marks),
            other => other,
        }),
    ]
}

proptest! {
    /// One request at a time; nothing starts before the Node was received; once all is answered, every wanted
    /// pod has a worker.
    #[test]
    fn every_pod_is_judged_in_the_end(events in proptest::collection::vec(any_node_event(), 0..40)) {
        let mut m = manager(&[Source::Api], Leftovers::default());
        let (mut heard, mut asked) = (false, false);
        let mut workers = BTreeSet::new();
        let end = [marks(&[], &[]), ManagerEvent::NodeRead(None), ManagerEvent::NodeRead(None)];
        for event in [listed(&[])].into_iter().chain(events).chain(end) {
            heard |= matches!(event, ManagerEvent::Node(_));
            if matches!(event, ManagerEvent::NodeRead(_)) && !std::mem::take(&mut asked) {
                continue;
            }
            let mut out = Outbox::new();
            m.step(Now::default(), event, &mut out);
            for action in out.drain() {
                match action {
                    ManagerAction::ReadNode => prop_assert!(!std::mem::replace(&mut asked, true)),
                    ManagerAction::Start { key, .. } => {
                        prop_assert!(heard);
                        workers.insert(key.uid);
                    }
                    _ => {}
                }
            }
        }
        prop_assert!(!asked);
        prop_assert!(m.desired().keys().all(|uid| workers.contains(uid)));
    }
}
