//! Scenarios of the pod manager, in a short notation.

mod evictions;

use agent_types::time::Wall;
use k8s_openapi::api::core::v1::Taint;
use proptest::prelude::*;
use serde_json::json;

use super::*;

mod active;
mod claims;
mod devices;
mod placing;
mod resize;

/// A pod `name` in namespace `ns` with UID `uid`; static unless `source` is `api`.
fn pod(uid: &str, name: &str, source: &str) -> Arc<Pod> {
    let value = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"uid": uid, "name": name, "namespace": "ns",
            "annotations": {"kubernetes.io/config.source": source}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "400m"}}}]}});
    Arc::new(serde_json::from_value(value).unwrap())
}

fn deleted(pod: &Pod) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    Arc::new(pod)
}

fn update(op: PodOp, source: Source, pods: &[&Arc<Pod>]) -> ManagerEvent {
    ManagerEvent::Update(PodUpdate { source, op, pods: pods.iter().map(|p| Arc::clone(p)).collect() })
}

fn file(op: PodOp, pods: &[&Arc<Pod>]) -> ManagerEvent {
    update(op, Source::File, pods)
}

fn listed(pods: &[&Arc<Pod>]) -> ManagerEvent {
    ManagerEvent::Listed(pods.iter().map(|p| pod::key(p)).collect())
}

fn finished(uid: &str) -> ManagerEvent {
    ManagerEvent::Finished(PodUid::from(uid))
}

fn manager(expected: &[Source], leftovers: Leftovers) -> PodManager {
    let admission = AdmissionContext {
        allocatable: [("cpu".to_owned(), agent_types::Quantity::from_milli(1000))].into(),
        ..AdmissionContext::default()
    };
    PodManager::new(expected.iter().copied().collect(), leftovers, Arc::new(admission), Ok(()))
}

/// `+uid` start, `~uid` resume, `uid:word` tell, `-uid` forget, `!uid:reason` rejected, `synced`, `read` the
/// Node. Records are written at once: a worker gets its pod as soon as it was started.
fn step(manager: &mut PodManager, event: ManagerEvent) -> String {
    let mut words = act(manager, Mono(1), event);
    while let Some(at) = words.iter().position(|word| word.starts_with("write")) {
        words.remove(at);
        for word in act(manager, Mono(1), ManagerEvent::Recorded(true)) {
            let begun = word.strip_suffix(":desired").map(|uid| format!("+{uid}@"));
            let after = begun.and_then(|begun| words.iter().position(|w| w.starts_with(&begun)));
            let is_network = |at: &usize| words.get(at + 1).is_some_and(|w| w.contains(":network "));
            let after = after.map(|at| if is_network(&at) { at + 1 } else { at });
            words.insert(after.map_or(words.len(), |at| at + 1), word);
        }
    }
    words.join(" ")
}

fn act(manager: &mut PodManager, mono: Mono, event: ManagerEvent) -> Vec<String> {
    let mut out = Outbox::new();
    manager.step(Now { mono, wall: Wall(1) }, event, &mut out);
    let words = out.drain().map(|action| match action {
        ManagerAction::Start { key, beginning: Beginning::Fresh, fence_until } => {
            format!("+{}@{}", key.uid, fence_until.0)
        }
        ManagerAction::Start { key, fence_until, .. } => format!("~{}@{}", key.uid, fence_until.0),
        ManagerAction::Forget(uid) => format!("-{uid}"),
        ManagerAction::Rejected { key, rejection, short_of } => {
            format!(
                "!{}:{}{}",
                key.uid,
                rejection.reason,
                short_of.map(|r| format!(" for {r}")).unwrap_or_default()
            )
        }
        ManagerAction::Synced => "synced".to_owned(),
        ManagerAction::Evicted(victim) => format!("evicted {}", victim.key.uid),
        ManagerAction::NotThere(uid) => format!("{uid} is not there"),
        ManagerAction::ReadNode => "read".to_owned(),
        ManagerAction::UnusedDeleted => "deleted".to_owned(),
        ManagerAction::Allocated(all, _) => format!("write{}", all.len()),
        ManagerAction::Devices(_) => "devices".to_owned(),
        ManagerAction::Resize(note) => format!("{note:?}"),
        ManagerAction::Leaving(pods) => {
            let words: Vec<_> = pods.iter().map(|pod| format!("{}={}", pod.key.uid, pod.priority)).collect();
            format!("[{}]", words.join(" "))
        }
        ManagerAction::Tell { uid, event } => match event {
            PodEvent::Desired(_) => format!("{uid}:desired"),
            PodEvent::Kill { reason: KillReason::Failed { .. }, .. } => format!("{uid}:Failed"),
            PodEvent::Kill { reason: KillReason::Shutdown { again }, grace_s } => {
                format!("{uid}:Shutdown {again} {grace_s:?}")
            }
            PodEvent::Kill { reason, .. } => format!("{uid}:{reason:?}"),
            PodEvent::Observed(_) => format!("{uid}:observed"),
            PodEvent::Network(network) => format!("{uid}:network {}", network.is_ok()),
            PodEvent::ResizePending(pending) => {
                format!("{uid}:{}", pending.map_or("settled".to_owned(), |p| p.reason))
            }
            other => format!("{uid}:{other:?}"),
        },
    });
    words.collect()
}

/// A manager with one source that was read and delivered `pods`.
fn running(pods: &[&Arc<Pod>]) -> PodManager {
    let mut m = manager(&[Source::File], Leftovers::default());
    step(&mut m, listed(&[]));
    step(&mut m, file(PodOp::Add, pods));
    m
}

#[test]
fn nothing_starts_before_the_runtime_was_listed() {
    let (a, stray) = (pod("a", "a", "file"), pod("s", "s", "file"));
    let mut m = manager(&[Source::File], Leftovers::default());
    assert_eq!(step(&mut m, file(PodOp::Add, &[&a])), "");
    assert!(!m.is_synced());
    assert_eq!(step(&mut m, listed(&[&stray])), "+a@0 a:desired +s@0 s:Orphan synced");
    assert!(m.is_synced());
}

#[test]
fn static_pods_do_not_wait_for_the_api_but_orphans_do() {
    let (a, stray) = (pod("a", "a", "file"), pod("s", "s", "file"));
    let mut m = manager(&[Source::File, Source::Api], Leftovers::default());
    assert_eq!(step(&mut m, listed(&[&stray])), "");
    assert_eq!(step(&mut m, file(PodOp::Add, &[&a])), "+a@0 a:desired");
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[])), "+s@0 s:Orphan synced");
}

#[test]
fn an_unknown_pod_of_an_unread_source_is_taken_up_not_down() {
    let ours = pod("x", "x", "api");
    let mut m = manager(&[Source::File, Source::Api], Leftovers::default());
    step(&mut m, listed(&[&ours]));
    step(&mut m, ManagerEvent::Node(None));
    assert_eq!(step(&mut m, file(PodOp::Add, &[])), "");
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&ours])), "+x@0 x:desired synced");
}

/// A pod `a` for nodes with the label `disk: ssd`.
fn picky() -> Arc<Pod> {
    let mut pod = Pod::clone(&pod("a", "a", "api"));
    pod.spec.get_or_insert_default().node_selector = Some([("disk".to_owned(), "ssd".to_owned())].into());
    Arc::new(pod)
}

fn marks(labels: &[(&str, &str)], taints: &[&str]) -> ManagerEvent {
    ManagerEvent::Node(Some(NodeMarks {
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        taints: taints
            .iter()
            .map(|key| Taint { key: (*key).to_owned(), effect: "NoExecute".into(), ..Taint::default() })
            .collect(),
        ..NodeMarks::default()
    }))
}

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
fn mirror_pods_do_not_run() {
    let mut mirror = (*pod("m", "a", "api")).clone();
    mirror.metadata.annotations.as_mut().unwrap().insert(CONFIG_MIRROR.to_owned(), "1".to_owned());
    let mut m = running(&[]);
    assert_eq!(step(&mut m, update(PodOp::Add, Source::Api, &[&Arc::new(mirror)])), "");
}

#[test]
fn news_for_all_workers() {
    let [a, b] = ["a", "b"].map(|n| pod(n, n, "file"));
    let mut m = running(&[&a]);
    assert_eq!(step(&mut m, ManagerEvent::Network(Ok(()))), "");
    assert_eq!(step(&mut m, ManagerEvent::Network(Err("no cni".into()))), "a:network false");
    assert_eq!(step(&mut m, file(PodOp::Add, &[&b])), "+b@0 b:network false b:desired");
}

#[test]
fn snapshots_go_to_the_worker_or_make_an_orphan() {
    let (a, stray) = (pod("a", "a", "file"), pod("s", "s", "file"));
    let mut m = running(&[&a]);
    let snapshot = |pod: &Pod| PodSnapshot {
        pod: pod::key(pod),
        as_of: Mono(1),
        sandboxes: vec![],
        containers: vec![].into(),
        actuated: None,
    };
    assert_eq!(step(&mut m, ManagerEvent::Changed(Arc::new(snapshot(&a)))), "a:observed");
    assert_eq!(step(&mut m, ManagerEvent::Changed(Arc::new(snapshot(&stray)))), "");
    let sandbox = agent_types::runtime::observed::SandboxObserved {
        id: "1".into(),
        attempt: 0,
        state: agent_types::runtime::observed::SandboxState::Ready,
        created: Wall(0),
        ips: vec![],
        host_network: false,
        runtime_handler: String::new(),
    };
    let full = PodSnapshot { sandboxes: vec![sandbox], ..snapshot(&stray) };
    assert_eq!(step(&mut m, ManagerEvent::Changed(Arc::new(full))), "+s@0 s:Orphan");
}

/// A pod of the API that asks for processor time and has a priority.
fn asking(uid: &str, cpu: &str, priority: i32) -> Arc<Pod> {
    let mut pod = Pod::clone(&pod(uid, uid, "api"));
    let spec = pod.spec.get_or_insert_default();
    spec.priority = Some(priority);
    let amounts = serde_json::from_value(json!({"requests": {"cpu": cpu}})).unwrap();
    spec.containers.iter_mut().for_each(|c| c.resources = Some(Clone::clone(&amounts)));
    Arc::new(pod)
}

const CRITICAL: i32 = 2_000_000_000;

fn ended(uid: &str) -> ManagerEvent {
    ManagerEvent::Ended(PodUid::from(uid))
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

fn any_event() -> impl Strategy<Value = ManagerEvent> {
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

#[test]
fn those_that_are_over_give_up_what_nobody_needs() {
    let pods = [pod("a", "a", "file"), pod("b", "b", "file")];
    let mut m = running(&pods.each_ref());
    assert_eq!(step(&mut m, ManagerEvent::DeleteUnused), "deleted", "nobody is over");
    step(&mut m, ManagerEvent::Ended(PodUid::from("a")));
    step(&mut m, ManagerEvent::Ended(PodUid::from("b")));
    assert_eq!(step(&mut m, ManagerEvent::DeleteUnused), "a:DeleteUnused b:DeleteUnused");
    assert_eq!(step(&mut m, ManagerEvent::Stripped(PodUid::from("c"))), "", "it was not asked");
    assert_eq!(step(&mut m, ManagerEvent::Stripped(PodUid::from("a"))), "");
    step(&mut m, file(PodOp::Remove, &[&pods[1]]));
    assert_eq!(step(&mut m, finished("b")), "deleted -b", "gone altogether");
    assert_eq!(step(&mut m, ManagerEvent::Stripped(PodUid::from("a"))), "", "once");
}
