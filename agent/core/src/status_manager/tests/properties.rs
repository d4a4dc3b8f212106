//! Random interleavings of workers, other writers and every fault of an API server; after all faults are
//! healed the API shows the last statuses, and ended pods are gone.

use std::collections::VecDeque;

use agent_types::ids::ContainerId;
use proptest::prelude::*;

use super::*;
use crate::checkers::{self, Invariant, TraceEvent};

const UIDS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug, Default)]
struct Worker {
    said: Option<PodStatus>,
    ended: bool,
    terminated: bool,
    finished: bool,
}

/// An API server with a watch that lags behind, and the workers of three pods.
struct World {
    node: Node,
    pods: BTreeMap<String, Pod>,
    version: u64,
    news: VecDeque<WatchEvent<Pod>>,
    workers: BTreeMap<&'static str, Worker>,
    forced: BTreeSet<&'static str>,
    count: u32,
    checks: Vec<Box<dyn Invariant>>,
}

impl World {
    fn new() -> World {
        let pods: Vec<Pod> =
            UIDS.iter().map(|uid| api_pod(uid, 1, json!({"metadata": {"name": uid}}))).collect();
        let mut world = World {
            node: Node::new(&pods),
            pods: pods.into_iter().map(|p| (pod::uid(&p).to_owned(), p)).collect(),
            version: 1,
            news: VecDeque::new(),
            workers: UIDS.iter().map(|uid| (*uid, Worker::default())).collect(),
            forced: BTreeSet::new(),
            count: 0,
            checks: checkers::api_side(),
        };
        for uid in UIDS {
            let (pod, id) = (PodUid::from(uid), ContainerId::from(uid));
            let name = "a".to_owned();
            world.note(&TraceEvent::ContainerCreated { pod, name, attempt: 0, id: id.clone() });
            world.note(&TraceEvent::ContainerStarted { id });
        }
        world
    }

    /// Shows an event to the checkers that the simulator uses, too.
    fn note(&mut self, event: &TraceEvent) {
        let at = Mono(self.node.now);
        checkers::observe_all(&mut self.checks, at, event).unwrap_or_else(|broken| panic!("{broken}"));
    }

    fn store(&mut self, mut pod: Pod) -> Pod {
        self.version += 1;
        pod.metadata.resource_version = Some(self.version.to_string());
        self.pods.insert(pod::uid(&pod).to_owned(), pod.clone());
        self.news.push_back(WatchEvent::Applied(Arc::new(pod.clone())));
        pod
    }

    fn remove(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            self.note(&TraceEvent::ApiGone { pod: uid.into() });
            self.news.push_back(WatchEvent::Deleted(Arc::new(pod)));
        }
    }

    fn apply(&mut self, call: &ApiCall) -> ApiResult {
        match call {
            ApiCall::FindPod { pod, .. } => {
                self.pods.get(&*pod.name).map_or_else(|| error(Class::NotFound), reply)
            }
            ApiCall::PatchPodStatus { pod, patch } => self.patch(&pod.name, patch),
            ApiCall::DeletePod { pod, uid, resource_version, grace_s } => {
                let Some(shown) = self.pods.get(&*pod.name) else { return error(Class::NotFound) };
                if *resource_version != shown.metadata.resource_version {
                    return error(Class::Conflict);
                }
                assert_eq!((*grace_s, uid.as_str()), (0, &*pod.name));
                self.note(&TraceEvent::ApiDeletedByAgent { pod: uid.as_str().into(), mirror: false });
                self.remove(uid);
                Ok(ApiReply::Done)
            }
            other => panic!("{other:?}"),
        }
    }

    fn patch(&mut self, name: &str, patch: &Value) -> ApiResult {
        let Some(shown) = self.pods.get(name).cloned() else { return error(Class::NotFound) };
        let version = patch["metadata"].get("resourceVersion").and_then(Value::as_str);
        if version.is_some_and(|v| Some(v) != shown.metadata.resource_version.as_deref()) {
            return error(Class::Conflict);
        }
        assert_eq!(patch["metadata"]["uid"], name);
        let mut pod = shown.clone();
        let mut status = serde_json::to_value(&shown.status).unwrap();
        apply_patch(&mut status, &patch["status"]);
        pod.status = Some(serde_json::from_value(status).unwrap());
        assert_ne!(pod.status, shown.status, "a patch that changes nothing");
        self.note(&TraceEvent::api_status(&pod));
        let stored = self.store(pod);
        reply(&stored)
    }

    fn publish(&mut self, uid: &'static str) {
        self.count += 1;
        let Some(worker) = self.workers.get_mut(uid).filter(|w| !w.finished) else { return };
        let phase = if worker.ended { "Succeeded" } else { "Running" };
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let ip = format!("10.0.0.{}", self.count);
        let status = json!({"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready});
        let status: PodStatus = serde_json::from_value(status).unwrap();
        worker.said = Some(status.clone());
        self.node.step(StatusEvent::Published { pod: key_of(uid), status: Arc::new(status) });
    }

    fn end(&mut self, uid: &'static str) {
        let Some(worker) = self.workers.get_mut(uid).filter(|w| !w.finished) else { return };
        match (worker.ended, worker.terminated) {
            (false, _) => {
                worker.ended = true;
                self.publish(uid);
            }
            (true, false) => {
                worker.terminated = true;
                self.note(&TraceEvent::ContainerExited { id: uid.into() });
                self.node.step(StatusEvent::Terminated(key_of(uid)));
            }
            (true, true) => {
                worker.finished = true;
                self.note(&TraceEvent::ContainerRemoved { id: uid.into() });
                self.node.step(StatusEvent::Finished(key_of(uid)));
            }
        }
    }

    fn answer(&mut self, fault: u8) {
        if self.node.calls.is_empty() {
            return;
        }
        let (id, call) = self.node.calls.remove(0);
        let result = match fault {
            0 => {
                let _lost = self.apply(&call);
                error(Class::DeadlineExceeded)
            }
            1 => error(Class::Unavailable),
            2 => error(Class::Retryable { after_ms: 1500 }),
            3 => error(Class::Invalid),
            _ => self.apply(&call),
        };
        self.node.answer(id, result);
    }

    fn deliver(&mut self) {
        if let Some(news) = self.news.pop_front() {
            self.node.step(StatusEvent::Watch(news));
        }
    }

    fn relist(&mut self) {
        self.news.clear();
        let all = self.pods.values().cloned().map(Arc::new).collect();
        self.node.step(StatusEvent::Watch(WatchEvent::Listed(all)));
    }

    /// Another client writes a condition, asks for the deletion, or removes the pod.
    fn meddle(&mut self, uid: &'static str, how: u8) {
        let Some(mut pod) = self.pods.get(uid).cloned() else { return };
        match how {
            0 => {
                self.remove(uid);
                self.forced.insert(uid);
            }
            1 => {
                let time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
                pod.metadata.deletion_timestamp.get_or_insert(time);
                self.note(&TraceEvent::ApiDeletionAsked { pod: uid.into() });
                self.store(pod);
            }
            _ => {
                let status = pod.status.get_or_insert_default();
                let conditions = status.conditions.get_or_insert_default();
                let gate = json!({"type": format!("example.org/{how}"), "status": "True"});
                let gate: k8s_openapi::api::core::v1::PodCondition = serde_json::from_value(gate).unwrap();
                conditions.retain(|c| c.type_ != gate.type_);
                conditions.push(gate);
                self.store(pod);
            }
        }
    }

    fn step(&mut self, op: u8, which: u8, how: u8) {
        let uid = UIDS[usize::from(which) % UIDS.len()];
        match op {
            0..=2 => self.publish(uid),
            3 => self.end(uid),
            4 | 5 => self.deliver(),
            6 => self.relist(),
            7..=9 => self.answer(how),
            10 => self.meddle(uid, how),
            _ => {
                self.node.now += u64::from(how) * SECOND;
                self.node.step(StatusEvent::Tick);
            }
        }
        let mut names: Vec<String> = self.node.calls.iter().map(|(_, c)| c.describe()).collect();
        let calls = names.len();
        names.iter_mut().for_each(|n| *n = n.rsplit('/').next().unwrap_or("").to_owned());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), calls, "one call in flight for each pod");
    }

    /// No more faults, until nothing moves.
    fn heal(&mut self) {
        self.relist();
        for _ in 0..2_000 {
            if !self.news.is_empty() {
                self.deliver();
            } else if !self.node.calls.is_empty() {
                self.answer(u8::MAX);
            } else if self.node.machine.deadline().is_some() {
                self.node.wait();
            } else {
                assert!(self.node.machine.is_settled());
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn check(&self) {
        for (uid, worker) in &self.workers {
            let Some(shown) = self.pods.get(*uid) else {
                assert!(worker.finished || self.forced.contains(uid), "{uid} was deleted early");
                continue;
            };
            let deleting = shown.metadata.deletion_timestamp.is_some();
            assert!(!(worker.finished && deleting), "{uid} is over and was not deleted");
            let status = shown.status.as_ref().unwrap();
            if let Some(said) = &worker.said {
                assert_eq!(status.pod_ip, said.pod_ip, "{uid}: the newest status");
                assert_eq!(status.pod_ips, said.pod_ips, "{uid}: the newest status");
                if worker.terminated || !worker.ended {
                    assert_eq!(status.phase, said.phase);
                }
            }
        }
        let over =
            self.workers.iter().filter(|(uid, w)| w.finished && !self.pods.contains_key(**uid)).count();
        assert!(self.node.machine.len() <= UIDS.len() - over, "pods that are gone are forgotten");
    }
}

fn key_of(uid: &str) -> PodKey {
    PodKey { namespace: "ns".into(), name: uid.into(), uid: uid.into() }
}

/// What the API server does with a strategic merge patch of a status.
fn apply_patch(status: &mut Value, patch: &Value) {
    let fields = status.as_object_mut().unwrap();
    for (field, new) in patch.as_object().unwrap() {
        let key = match field.as_str() {
            "conditions" => "type",
            "podIPs" | "hostIPs" => "ip",
            _ => "",
        };
        if field.starts_with("$setElementOrder/") {
            continue;
        }
        if new.is_null() {
            fields.remove(field);
        } else if key.is_empty() {
            fields.insert(field.clone(), new.clone());
        } else {
            let list = fields.entry(field.clone()).or_insert(json!([])).as_array_mut().unwrap();
            for item in new.as_array().unwrap() {
                let found = list.iter_mut().find(|old| old[key] == item[key]);
                match (item.get("$patch").is_some(), found) {
                    (true, _) => list.retain(|old| old[key] != item[key]),
                    (false, Some(old)) => apply_patch(old, item),
                    (false, None) => list.push(item.clone()),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn after_all_faults_the_api_shows_the_truth(
        ops in proptest::collection::vec((0u8..12, 0u8..3, 0u8..6), 0..150),
    ) {
        let mut world = World::new();
        for (op, which, how) in ops {
            world.step(op, which, how);
        }
        world.heal();
        world.check();
        // Everybody's end.
        for uid in UIDS {
            world.meddle(uid, 1);
            (0..3).for_each(|_| world.end(uid));
        }
        world.heal();
        world.check();
        prop_assert!(world.pods.is_empty() && world.node.machine.is_empty());
    }

    #[test]
    fn a_patch_turns_one_status_into_the_other(
        before in proptest::collection::vec((0u8..4, 0u8..3), 0..4),
        after in proptest::collection::vec((0u8..4, 0u8..3), 0..4),
    ) {
        let status = |list: &[(u8, u8)]| {
            let unique: BTreeMap<u8, u8> = list.iter().copied().collect();
            let conditions: Vec<Value> = unique
                .iter()
                .map(|(name, value)| match value {
                    0 => json!({"type": name.to_string(), "status": "True", "reason": "r"}),
                    _ => json!({"type": name.to_string(), "status": value.to_string()}),
                })
                .collect();
            let ips: Vec<Value> = unique.keys().map(|name| json!({"ip": name.to_string()})).collect();
            let mut status = json!({"conditions": conditions, "podIPs": ips});
            if let Some(value) = unique.get(&0) {
                status["phase"] = json!(value.to_string());
            }
            serde_json::from_value::<PodStatus>(status).unwrap()
        };
        let (before, after) = (status(&before), status(&after));
        let guard = Guard { uid: "u", resource_version: None };
        let mut applied = serde_json::to_value(&before).unwrap();
        if let Some(patch) = status_patch(&before, &after, &guard) {
            apply_patch(&mut applied, &patch["status"]);
        }
        let sorted = |status: &PodStatus| {
            let mut status = status.clone();
            status.conditions.iter_mut().for_each(|l| l.sort_by(|a, b| a.type_.cmp(&b.type_)));
            status.pod_ips.iter_mut().for_each(|l| l.sort_by(|a, b| a.ip.cmp(&b.ip)));
            status
        };
        prop_assert_eq!(sorted(&serde_json::from_value(applied).unwrap()), sorted(&after));
    }
}
