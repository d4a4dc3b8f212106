//! The cluster's side of an update against an API server that keeps one Node and one ConfigMap.

use std::collections::BTreeMap;

use agent_types::ids::PodKey;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::pods::status::PodView;
use crate::tasks::actor::Tasks;
use crate::testing::VirtualClock;

/// One Node, one ConfigMap, and what is refused.
#[derive(Default)]
struct FakeCluster {
    node: Lock<Node>,
    map: Lock<Option<ConfigMap>>,
    evicted: Lock<Vec<String>>,
    /// Pods that a budget keeps.
    kept: BTreeSet<String>,
    /// Pods whose budgets the API server does not understand.
    odd: BTreeSet<String>,
    /// Other nodes that write the ConfigMap between a read and a write.
    overtakes: Lock<u32>,
    is_away: bool,
}

fn error(call: &ApiCall, class: Class, code: u16) -> ApiError {
    ApiError { code: Some(code), ..ApiError::without_status(call, class, "refused") }
}

impl FakeCluster {
    fn replace(&self, call: &ApiCall, mut map: ConfigMap) -> ApiResult {
        let mut stored = self.map.lock();
        let version = |map: &ConfigMap| map.metadata.resource_version.clone();
        if stored.as_ref().map(version) != Some(version(&map)) {
            return Err(error(call, Class::Conflict, 409));
        }
        let next = version(&map).and_then(|v| v.parse::<u64>().ok()).unwrap_or(0) + 1;
        map.metadata.resource_version = Some(next.to_string());
        *stored = Some(map.clone());
        Ok(ApiReply::ConfigMap(Box::new(map)))
    }

    fn overtaken(&self) {
        let mut left = self.overtakes.lock();
        if *left > 0 {
            *left -= 1;
            if let Some(map) = self.map.lock().as_mut() {
                map.metadata.resource_version = Some(format!("9{left}"));
            }
        }
    }
}

impl ApiServer for FakeCluster {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        if self.is_away {
            return Err(ApiError::without_status(call, Class::Unavailable, "no connection"));
        }
        match call {
            ApiCall::PatchNode { patch, .. } => {
                let mut node = self.node.lock();
                if patch["metadata"]["resourceVersion"].as_str() != node.metadata.resource_version.as_deref()
                {
                    return Err(error(call, Class::Conflict, 409));
                }
                let is_cordoned = patch["spec"]["unschedulable"].as_bool();
                node.spec.get_or_insert_default().unschedulable = is_cordoned;
                let marks = patch["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
                let kept =
                    marks.into_iter().filter_map(|(key, value)| Some((key, value.as_str()?.to_owned())));
                node.metadata.annotations = Some(kept.collect());
                node.metadata.resource_version = Some("8".to_owned());
                Ok(ApiReply::Node(Box::new(node.clone())))
            }
            ApiCall::EvictPod { pod, .. } if self.kept.contains(&*pod.name) => {
                let kind = Class::Retryable { after_ms: 0 };
                Err(ApiError { message: "the budget web".into(), ..error(call, kind, 429) })
            }
            ApiCall::EvictPod { pod, .. } if self.odd.contains(&*pod.name) => {
                Err(error(call, Class::Unavailable, 500))
            }
            ApiCall::EvictPod { pod, .. } => {
                self.evicted.lock().push(pod.name.to_string());
                Ok(ApiReply::Done)
            }
            ApiCall::GetConfigMap(_) => {
                let map = self.map.lock().clone();
                self.overtaken();
                map.map(|map| ApiReply::ConfigMap(Box::new(map)))
                    .ok_or_else(|| error(call, Class::NotFound, 404))
            }
            ApiCall::CreateConfigMap(map) => {
                let mut map = map.as_ref().clone();
                map.metadata.resource_version = Some("1".to_owned());
                *self.map.lock() = Some(map.clone());
                Ok(ApiReply::ConfigMap(Box::new(map)))
            }
            ApiCall::ReplaceConfigMap(map) => self.replace(call, map.as_ref().clone()),
            other => panic!("not asked for: {other:?}"),
        }
    }
}

fn side(mut fake: FakeCluster) -> (ClusterSide<FakeCluster>, Arc<FakeCluster>) {
    let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}});
    fake.node = Lock::new(serde_json::from_value(node).expect("a node"));
    let seen = fake.node.lock().clone();
    let fake = Arc::new(fake);
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let (_, client) = watch::channel(Some(Arc::clone(&fake)));
    let (_, watched) = watch::channel(Some(Arc::new(seen)));
    let side = ClusterSide {
        caller: Caller::new(tasks, client),
        node_name: "n".into(),
        node: watched,
        patched: Lock::default(),
        group: "default".to_owned(),
    };
    (side, fake)
}

#[tokio::test]
async fn a_cordon_is_taken_back_although_the_watch_is_behind() {
    let (side, fake) = side(FakeCluster::default());
    assert_eq!(side.cordon("0.2.0-7").await, WorkResult::Done);
    assert_eq!(fake.node.lock().spec.as_ref().and_then(|spec| spec.unschedulable), Some(true));
    // The watch still shows the Node as it was.
    assert_eq!(side.uncordon().await, WorkResult::Done);
    assert_eq!(fake.node.lock().spec.as_ref().and_then(|spec| spec.unschedulable), None);
    assert_eq!(fake.node.lock().metadata.annotations, Some(BTreeMap::new()));
}

#[tokio::test]
async fn a_patch_of_an_old_node_is_made_anew() {
    let (mut side, fake) = side(FakeCluster::default());
    let (show, watched) = watch::channel(side.newest());
    side.node = watched;
    assert_eq!(side.cordon("0.2.0-7").await, WorkResult::Done);
    // Somebody else has changed the Node, and its versions cannot be compared.
    fake.node.lock().metadata.resource_version = Some("opaque".to_owned());
    show.send_replace(Some(Arc::new(fake.node.lock().clone())));
    assert!(matches!(side.uncordon().await, WorkResult::Failed(_)));
    assert_eq!(side.uncordon().await, WorkResult::Done);
    assert_eq!(fake.node.lock().spec.as_ref().and_then(|spec| spec.unschedulable), None);
}

fn pods(names: &[(&str, &str)]) -> (DesiredPods, PodViews) {
    let (mut desired, mut statuses) = (DesiredPods::new(), PodViews::new());
    for (name, phase) in names {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": name, "uid": name}}))
                .expect("a pod");
        let uid = PodUid::from(*name);
        let key = PodKey { namespace: "ns".into(), name: (*name).into(), uid: uid.clone() };
        let status = Arc::new(PodStatus { phase: Some((*phase).to_owned()), ..PodStatus::default() });
        statuses.insert(uid.clone(), PodView { key, status });
        desired.insert(uid, Arc::new(pod));
    }
    (desired, statuses)
}

#[tokio::test]
async fn pods_are_evicted_and_budgets_are_obeyed() {
    let (side, fake) =
        side(FakeCluster { kept: BTreeSet::from(["web".to_owned()]), ..FakeCluster::default() });
    let (mut desired, statuses) = pods(&[("db", "Running"), ("job", "Succeeded"), ("web", "Running")]);
    let waits = WorkResult::Wait("waits for the list of the node's pods".to_owned());
    assert_eq!(side.drain(false, &DesiredPods::new(), &PodViews::new()).await, waits);
    let blocked = DrainBlocked { pod: "ns/web".to_owned(), budget: "the budget web".to_owned() };
    assert_eq!(side.drain(true, &desired, &statuses).await, WorkResult::Blocked(blocked));
    assert_eq!(*fake.evicted.lock(), ["db"]);
    // The API server has deleted it, and its containers still run.
    for uid in ["db", "web"] {
        desired.remove(&PodUid::from(uid));
    }
    let waits = WorkResult::Wait("waits for the end of ns/db, ns/web".to_owned());
    assert_eq!(side.drain(true, &desired, &statuses).await, waits);
    let (desired, statuses) = pods(&[("job", "Succeeded")]);
    assert_eq!(side.drain(true, &desired, &statuses).await, WorkResult::Done);
}

#[tokio::test]
async fn a_pod_that_cannot_be_evicted_keeps_no_other_one() {
    let odd = BTreeSet::from(["a".to_owned()]);
    let (side, fake) = side(FakeCluster { odd, ..FakeCluster::default() });
    let (desired, statuses) = pods(&[("a", "Running"), ("db", "Running")]);
    assert!(matches!(side.drain(true, &desired, &statuses).await, WorkResult::Failed(_)));
    assert_eq!(*fake.evicted.lock(), ["db"]);
}

#[tokio::test]
async fn a_slot_of_the_group_is_taken_over_others_writes_and_given_back() {
    let (side, fake) = side(FakeCluster::default());
    assert_eq!(side.take_slot("0.2.0-7", Wall(0)).await, WorkResult::Done);
    let text = |fake: &FakeCluster| fake.map.lock().as_ref().and_then(|map| map.data.clone()).expect("data");
    assert!(text(&fake)["default"].contains("\"node\":\"n\""), "{:?}", text(&fake));
    *fake.overtakes.lock() = 2;
    assert_eq!(side.give_back("0.2.0-7", Some("it broke"), Wall(0)).await, WorkResult::Done);
    assert!(text(&fake)["default"].contains("n: it broke"), "{:?}", text(&fake));
    let halted = side.take_slot("0.2.0-8", Wall(0)).await;
    assert!(matches!(&halted, WorkResult::Wait(words) if words.contains("halted")), "{halted:?}");
}

#[tokio::test]
async fn a_read_that_failed_is_no_empty_group() {
    let (side, fake) = side(FakeCluster { is_away: true, ..FakeCluster::default() });
    assert!(matches!(side.take_slot("0.2.0-7", Wall(0)).await, WorkResult::Failed(_)));
    assert!(matches!(side.give_back("0.2.0-7", None, Wall(0)).await, WorkResult::Failed(_)));
    assert!(fake.map.lock().is_none(), "nothing was written");
}
