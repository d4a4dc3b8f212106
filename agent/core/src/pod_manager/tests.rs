//! Scenarios of the pod manager, in a short notation.

mod active;
mod admission;
mod claims;
mod devices;
mod evictions;
mod leftovers;
mod node_view;
mod placing;
mod preemption;
mod properties;
mod resize;
mod shutdown;
mod successors;
mod unused;

use agent_types::time::Wall;
use k8s_openapi::api::core::v1::Taint;
use serde_json::json;

use super::*;

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

/// `+uid` start, `~uid` resume, `uid:word` an event for the worker, `-uid` forget, `!uid:reason` rejected,
/// `synced`, `read` the Node. Records are written at once: a worker gets its pod as soon as it was started.
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

const CRITICAL: i32 = 2_000_000_000;

fn ended(uid: &str) -> ManagerEvent {
    ManagerEvent::Ended(PodUid::from(uid))
}
