//! The order of things, and who is swept, with a hierarchy in memory.

use std::sync::Mutex;

use agent_types::node_context::CgroupDriver;
use agent_types::resources::cgroups::name::KUBEPODS;
use agent_types::resources::cgroups::tiers::{Classes, MemoryReserve};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::node::container_manager::*;
use crate::pods::status::StatusStore;
use crate::testing::VirtualClock;

/// Paths and what they were given last.
#[derive(Default)]
struct Memory {
    there: Mutex<BTreeSet<String>>,
    said: Mutex<Vec<String>>,
    changed: Notify,
    /// Bytes in each of them.
    in_use: u64,
    limits: Mutex<Vec<(String, Option<u64>)>>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Memory>);

const DRIVER: CgroupDriver = CgroupDriver::Systemd;

impl Cgroups for Fake {
    async fn apply(
        &self,
        name: &CgroupName,
        values: &CgroupValues,
        make: bool,
    ) -> Result<Applied, DriverError> {
        let weight = values.cpu_weight.unwrap_or_default();
        self.0.limits.lock().unwrap().push((name.unit(), values.memory_max));
        self.say(format!("{} {weight} {make}", name.unit()));
        let new = self.0.there.lock().unwrap().insert(name.path(DRIVER));
        Ok(if new { Applied::Made } else { Applied::Changed })
    }

    async fn remove(&self, name: &CgroupName) -> Result<bool, DriverError> {
        let was_there = self.0.there.lock().unwrap().remove(&name.path(DRIVER));
        if was_there {
            self.say(format!("remove {}", name.unit()));
        }
        Ok(was_there)
    }

    async fn memory_in_use(&self, _: &CgroupName) -> Result<Option<u64>, DriverError> {
        Ok(Some(self.0.in_use))
    }

    async fn children(&self, name: &CgroupName) -> Result<Vec<String>, DriverError> {
        let above = name.path(DRIVER) + "/";
        let there = self.0.there.lock().unwrap();
        let below = there.iter().filter_map(|path| path.strip_prefix(&above));
        Ok(below.filter(|rest| !rest.contains('/')).map(str::to_owned).collect())
    }
}

impl Fake {
    fn say(&self, text: String) {
        self.0.said.lock().unwrap().push(text);
        self.0.changed.notify_one();
    }

    async fn until(&self, text: &str) -> Vec<String> {
        loop {
            if self.0.said.lock().unwrap().iter().any(|said| said == text) {
                return std::mem::take(&mut *self.0.said.lock().unwrap());
            }
            self.0.changed.notified().await;
        }
    }
}

fn name() -> CgroupName {
    CgroupName::default().child(KUBEPODS)
}

fn pod_with(uid: &str) -> PodCgroup {
    let values = CgroupValues { cpu_weight: Some(7), ..CgroupValues::default() };
    PodCgroup { name: name().child(&pod::component(uid)), values }
}

#[tokio::test(start_paused = true)]
async fn pods_wait_for_what_is_above_and_only_orphans_are_swept() {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let metrics = Metrics::new(Arc::new(VirtualClock::new()));
    let node_events = NodeEvents::new(StatusStore::default(), metrics.clone(), None, None, None);
    let fake = Fake::default();
    for uid in ["old-1", "new-1", "waits-1"] {
        let path = name().child(&pod::component(uid)).path(DRIVER);
        fake.0.there.lock().unwrap().insert(path);
    }
    let config = Config { kubepods: name(), ..Config::default() };
    let plan = ContainerManagerPlan { driver: Arc::new(fake.clone()), config };
    let manager = ContainerManager::new(plan, &metrics, &tasks);
    let pods = manager.pods();
    let (view, known) = watch::channel(KnownPods::default());
    let own = pod_with("new-1");
    let ensured = {
        let pods = pods.clone();
        async move { pods.ensure(&own).await }
    };
    let ensured = tokio::spawn(ensured);
    manager.start(known, node_events, &tasks);
    ensured.await.unwrap().unwrap();
    let said = fake.until("kubepods-podnew_1.slice 7 true").await;
    assert_eq!(said.last().map(String::as_str), Some("kubepods-podnew_1.slice 7 true"));
    let place = |text: &str| said.iter().position(|said| said.starts_with(text));
    let (root, burstable) = (place("kubepods.slice"), place("kubepods-burstable.slice"));
    assert!(root < burstable && place("kubepods-besteffort.slice 1 true").is_some(), "{said:?}");
    // The class' share follows from pods that are not all known yet.
    let shares: Vec<&String> =
        said.iter().filter(|said| said.starts_with("kubepods-burstable.slice")).collect();
    assert_eq!(shares, ["kubepods-burstable.slice 0 true"]);
    view.send_modify(|known| {
        known.workers.insert(PodUid::from("new-1"));
        // It may run, and waits for its worker (simulation, mounting, seed 30013).
        known.wanted.insert(PodUid::from("waits-1"));
        known.synced = true;
    });
    assert_eq!(
        fake.until("remove kubepods-podold_1.slice").await.last().map(String::as_str),
        Some("remove kubepods-podold_1.slice")
    );
    // The cgroup of a pod that is over is removed from every class.
    pods.remove(&PodUid::from("new-1")).await.unwrap();
    pods.remove(&PodUid::from("new-1")).await.unwrap();
    assert_eq!(fake.until("remove kubepods-podnew_1.slice").await, ["remove kubepods-podnew_1.slice"]);
    let text = metrics.text_without_pods();
    let counted = |operation: &str| {
        let name = "kubelet_cgroup_manager_duration_seconds_count{operation_type=";
        text.lines().find_map(|l| l.strip_prefix(&format!("{name}\"{operation}\"}} ")).map(str::to_owned))
    };
    let counts = ["create", "update", "destroy"].map(counted);
    // Three above; the pod's own was there, and the class has its share; then the orphan's and the pod's were removed.
    assert_eq!(counts, [Some("3"), Some("2"), Some("2")].map(|n| n.map(str::to_owned)));
    tasks.stop().cancel();
}

#[tokio::test(start_paused = true)]
async fn a_class_that_uses_more_than_is_left_to_it_is_not_killed_for_it() {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let metrics = Metrics::new(Arc::new(VirtualClock::new()));
    let node_events = NodeEvents::new(StatusStore::default(), metrics.clone(), None, None, None);
    let fake = Fake(Arc::new(Memory { in_use: 150, ..Memory::default() }));
    let reserve = Some(MemoryReserve { allocatable: 100, percent: 50 });
    let config =
        Config { kubepods: name(), classes: Classes { reserve, ..Classes::default() }, ..Config::default() };
    let plan = ContainerManagerPlan { driver: Arc::new(fake.clone()), config };
    let (_view, known) = watch::channel(KnownPods { synced: true, ..KnownPods::default() });
    ContainerManager::new(plan, &metrics, &tasks).start(known, node_events, &tasks);
    fake.until("kubepods-besteffort.slice 1 true").await;
    let limits = fake.0.limits.lock().unwrap().clone();
    let of = |unit: &str| limits.iter().find(|(name, _)| name == unit).and_then(|(_, limit)| *limit);
    assert_eq!((of("kubepods.slice"), of("kubepods-besteffort.slice")), (None, Some(150)));
    tasks.stop().cancel();
}

#[test]
fn only_other_pods_are_news() {
    let pod = |name: &str| {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        Arc::new(pod)
    };
    let (a, b) = (pod("a"), pod("b"));
    let mut known = KnownPods::default();
    assert!(!known.see([].iter()));
    assert!(known.see([a.clone()].iter()) && !known.see([a.clone()].iter()));
    assert!(
        known.see([a.clone(), b.clone()].iter()) && known.see([b].iter()) && known.see([pod("b")].iter())
    );
}
