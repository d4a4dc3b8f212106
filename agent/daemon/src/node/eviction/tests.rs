//! The shell of the eviction manager with fake signals: conditions, admission and kills reach their receivers.

use std::collections::BTreeMap;
use std::sync::Mutex;

use agent_core::eviction::PodUse;
use agent_types::pod;
use agent_types::pressures::Pressures;
use agent_types::resources::observation::Observation;
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::PodStatus;
use orlop_config::kubelet::eviction::Signal;
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::node::eviction::*;
use crate::serving::metrics::Metrics;
use crate::testing::VirtualClock;

/// Available memory, and the usage of each pod, MiB.
#[derive(Default)]
struct FakeSenses {
    left: Mutex<i64>,
    uses: Mutex<BTreeMap<String, u64>>,
    press: Notify,
}

impl Senses for FakeSenses {
    fn observe(&self) -> EvictionFuture<'_, (Observations, Option<Layout>)> {
        let available = *self.left.lock().unwrap() << 20;
        let observation = Observation { at: Wall(0), available, capacity: 1 << 40 };
        let found = [(Signal::MemoryAvailable, observation)].into();
        Box::pin(async move { (found, Some(Layout::default())) })
    }

    fn uses(&self, _measure: Measure, pods: Vec<ShownPod>) -> EvictionFuture<'_, Result<Uses, String>> {
        let uses = self.uses.lock().unwrap().clone();
        let of = move |pod: &ShownPod| {
            let memory = Some(uses.get(&pod.name)? << 20);
            Some((pod.uid.as_str().into(), PodUse { memory, ..PodUse::default() }))
        };
        Box::pin(async move { Ok(pods.iter().filter_map(of).collect()) })
    }

    fn reclaim(&self, _what: Reclaim) -> EvictionFuture<'_, ()> {
        Box::pin(async {})
    }

    fn pressed(&self) -> EvictionFuture<'_, ()> {
        Box::pin(self.press.notified())
    }
}

fn pod_named(name: &str) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"containers": []}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

#[tokio::test(start_paused = true)]
async fn the_kernels_hint_ends_the_right_pod_and_the_next_one_waits_for_its_room() {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let senses = Arc::new(FakeSenses { left: Mutex::new(1 << 19), ..FakeSenses::default() });
    *senses.uses.lock().unwrap() =
        [("small", 1), ("hog", 900), ("over", 2000)].map(|(n, m)| (n.to_owned(), m)).into();
    let statuses = StatusStore::default();
    let mut wanted = DesiredPods::new();
    for (name, phase) in [("small", "Running"), ("hog", "Running"), ("over", "Succeeded")] {
        let p = pod_named(name);
        let status = PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() };
        statuses.publish(&pod::key(&p), Arc::new(status));
        wanted.insert(pod::key(&p).uid, p);
    }
    wanted.insert("unborn".into(), pod_named("unborn"));
    let (_view, desired) = watch::channel(wanted);
    let (manager, mut inbox) = tasks.mailbox::<ManagerEvent>();
    let (own, mine) = tasks.mailbox();
    let metrics = Metrics::new(Arc::new(VirtualClock::new()));
    let node_events = NodeEvents::new(statuses.clone(), metrics, None, None, Some(own.clone()));
    let config = serde_json::from_value(json!({"evictionHard": {"memory.available": "100Mi"}})).unwrap();
    let config = EvictionConfig::new(&config).unwrap();
    let node = NodeHandles { manager, node_events: node_events.clone(), tasks: tasks.clone() };
    let eviction = PreparedEviction { config, senses: senses.clone(), own, inbox: mine };
    eviction.start(Deps { node: &node, going: BTreeSet::new(), desired, statuses });
    assert!(tokio::time::timeout(std::time::Duration::from_secs(9), inbox.recv()).await.is_err());
    *senses.left.lock().unwrap() = 50;
    let began = tasks.now().mono;
    senses.press.notify_one();
    let pressures = Pressures { memory: true, ..Pressures::default() };
    assert!(matches!(inbox.recv().await, ManagerEvent::Pressures(told) if told == pressures));
    let ManagerEvent::Evict(victim) = inbox.recv().await else { panic!("nobody goes") };
    assert_eq!((&*victim.key.name, victim.grace_s), ("hog", Some(1)), "of those that run");
    assert!(tasks.now().mono.since(began).is_zero(), "at once");
    senses.press.notify_one();
    assert!(tokio::time::timeout(std::time::Duration::from_secs(20), inbox.recv()).await.is_err());
    senses.uses.lock().unwrap().remove("hog");
    *senses.left.lock().unwrap() = 60;
    node_events.released(&"hog".into());
    let next = inbox.recv().await;
    assert!(matches!(next, ManagerEvent::Evict(_)), "{next:?}");
}
