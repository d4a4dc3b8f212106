//! The simulator's API server behind the driver's trait, and the watches that the real driver would keep.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_core::events::Rate;
use agent_core::lease::LeaseConfig;
use agent_core::node_status::{AddressPolicy, NodeStatusConfig};
use agent_linux::clock::Clock;
use agent_sim::fake_api::{FakeApi, Key, Requester, Resource, Selector, WatchLine};
use agent_types::api::{ApiCall, ApiError, ApiResult, ApiServer, WatchEvent};
use agent_types::failure::Class;
use agent_types::objects::{ObjectData, ObjectKind, ObjectRef};
use agent_types::resources::node_allocatable::Reservations;
use agent_types::time::Now;
use agent_volumes::watched::ObjectNews;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use orlop_agent::cluster::watches::Opening;
use orlop_agent::cluster::{ApiDrivers, ClusterPlan};
use orlop_agent::pods::pod_values::{ObjectPolicy, ObjectWatches, Values};
use orlop_agent::tasks::actor::Tasks;
use orlop_agent::testing::VirtualClock;
use orlop_config::kubelet::KubeletConfiguration;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// An API server that survives the agents; clones share it.
#[derive(Clone)]
pub struct TestApi {
    api: Arc<Mutex<FakeApi>>,
    clock: Arc<VirtualClock>,
    changed: Arc<Notify>,
    up: watch::Sender<bool>,
}

impl ApiServer for TestApi {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        if !*self.up.borrow() {
            return Err(ApiError::without_status(call, Class::Unavailable, "connection refused"));
        }
        self.with(|api, now| api.call(now.wall, &Requester::Node("node".to_owned()), call))
    }
}

impl TestApi {
    pub fn new(clock: Arc<VirtualClock>) -> TestApi {
        let (up, _) = watch::channel(true);
        TestApi { api: Arc::default(), clock, changed: Arc::default(), up }
    }

    /// Reads or changes the server's state.
    pub fn with<T>(&self, f: impl FnOnce(&mut FakeApi, Now) -> T) -> T {
        let answer = f(&mut self.api.lock().unwrap(), self.clock.now());
        self.changed.notify_waiters();
        answer
    }

    /// Sets whether the server answers.
    pub fn set_up(&self, up: bool) {
        self.up.send_replace(up);
        self.changed.notify_waiters();
    }

    /// A pod in the state that the scheduler leaves.
    pub fn run_pod(&self, name: &str) -> Key {
        self.run_pod_with(name, &json!([]))
    }

    /// The same with volumes, all mounted by its container below `/v`.
    pub fn run_pod_with(&self, name: &str, volumes: &Value) -> Key {
        let names = volumes.as_array().into_iter().flatten().map(|v| v["name"].as_str().unwrap());
        let mounts: Vec<Value> =
            names.map(|name| json!({"name": name, "mountPath": format!("/v/{name}")})).collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"terminationGracePeriodSeconds": 30, "restartPolicy": "Always", "serviceAccountName": "default",
            "volumes": volumes,
            "containers": [{"name": "main", "image": super::IMAGE, "command": ["x"], "volumeMounts": mounts}]}});
        self.with(|api, now| {
            let key = api.create_pod(now.wall, &pod).unwrap();
            api.bind(now.wall, &key, "node").unwrap();
            key
        })
    }

    pub fn object(&self, key: &Key) -> Option<Value> {
        // A read is not a change: it wakes no task.
        self.api.lock().unwrap().object(key).map(|object| Value::clone(object))
    }

    /// Virtual time passes until `wanted` holds.
    pub async fn until(&self, what: &str, key: &Key, wanted: impl Fn(Option<&Value>) -> bool) {
        let look = async {
            loop {
                let changed = self.changed.notified();
                if wanted(self.object(key).as_ref()) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(super::SOON, look).await.is_err() {
            panic!("{key} not {what}: {:#?}", self.object(key));
        }
    }

    /// The drivers of an agent: a client, and watches with the real driver's rules.
    pub fn connect(&self, tasks: &Tasks) -> ApiDrivers<TestApi> {
        let (_, client) = watch::channel(Some(Arc::new(self.clone())));
        ApiDrivers {
            client,
            pods: opened(self.watch::<Pod>(tasks, Resource::Pods, Selector::node("node"))),
            node: opened(self.watch::<Node>(tasks, Resource::Nodes, Selector::name("node"))),
            objects: Arc::new(TestObjects { api: self.clone(), tasks: tasks.clone() }),
            reconnect: Arc::default(),
            cluster_problems: Default::default(),
        }
    }

    fn watch<T: DeserializeOwned + Send + Sync + 'static>(
        &self,
        tasks: &Tasks,
        resource: Resource,
        selector: Selector,
    ) -> mpsc::Receiver<WatchEvent<T>> {
        let (to, events) = mpsc::channel(16);
        let this = self.clone();
        tasks.start(async move {
            let typed = |object: &Value| Arc::new(serde_json::from_value(object.clone()).unwrap());
            let mut seen = None;
            loop {
                let changed = this.changed.notified();
                let up = *this.up.borrow();
                let mut out = Vec::new();
                match seen {
                    Some(_) if !up => {
                        seen = None;
                        out.push(WatchEvent::Lost("connection refused".to_owned()));
                    }
                    None if !up => {}
                    None => {
                        let (objects, version) = this.api.lock().unwrap().list(resource, &selector);
                        out.push(WatchEvent::Listed(objects.iter().map(|o| typed(o)).collect()));
                        seen = Some(version);
                    }
                    Some(version) => {
                        let lines =
                            this.api.lock().unwrap().changes_since(resource, &selector, version).unwrap();
                        for line in lines {
                            seen = Some(line.version());
                            match line {
                                WatchLine::Added(o) | WatchLine::Modified(o) => {
                                    out.push(WatchEvent::Applied(typed(&o)))
                                }
                                WatchLine::Deleted(o) => out.push(WatchEvent::Deleted(typed(&o))),
                                WatchLine::Bookmark(_) => {}
                            }
                        }
                    }
                }
                for event in out {
                    if to.send(event).await.is_err() {
                        return;
                    }
                }
                // Subscribed before the look: a change since then is not missed.
                changed.await;
            }
        });
        events
    }
}

/// A watch that has begun.
fn opened<T>(events: mpsc::Receiver<WatchEvent<T>>) -> Opening<T> {
    let (opened, opening) = oneshot::channel();
    assert!(opened.send(events).is_ok());
    opening
}

/// Watches on single objects, by name.
struct TestObjects {
    api: TestApi,
    tasks: Tasks,
}

impl ObjectWatches for TestObjects {
    fn watch(&self, object: &ObjectRef) -> mpsc::Receiver<ObjectNews> {
        match object.kind {
            ObjectKind::ConfigMap => self.news::<ConfigMap>(Resource::ConfigMaps, object),
            ObjectKind::Secret => self.news::<Secret>(Resource::Secrets, object),
            ObjectKind::RuntimeClass => self.news::<RuntimeClass>(Resource::RuntimeClasses, object),
            ObjectKind::Services | ObjectKind::TrustBundles => {
                // The fake server has none.
                let (to, news) = mpsc::channel(1);
                self.tasks.start(async move {
                    let none = ObjectNews::Found { data: ObjectData::default(), immutable: false };
                    if to.send(none).await.is_ok() {
                        to.closed().await;
                    }
                });
                news
            }
        }
    }

    fn pod_certificates(&self) -> Opening<PodCertificateRequest> {
        panic!("the fake server has none");
    }
}

impl TestObjects {
    fn news<T: Values + DeserializeOwned>(
        &self,
        resource: Resource,
        object: &ObjectRef,
    ) -> mpsc::Receiver<ObjectNews> {
        let namespace = Some(object.namespace.clone()).filter(|n| !n.is_empty());
        let selector = Selector { namespace, ..Selector::name(&object.name) };
        self.api
            .with(|api, _| api.may_watch(&Requester::Node("node".to_owned()), resource, &selector))
            .unwrap();
        let mut events = self.api.watch::<T>(&self.tasks, resource, selector);
        let (to, news) = mpsc::channel(16);
        self.tasks.start(async move {
            while let Some(event) = events.recv().await {
                let one = match event {
                    WatchEvent::Listed(all) => all.first().map_or(ObjectNews::Missing, |o| o.news()),
                    WatchEvent::Applied(o) => o.news(),
                    WatchEvent::Deleted(_) => ObjectNews::Missing,
                    WatchEvent::Lost(why) => ObjectNews::Lost(why),
                };
                if to.send(one).await.is_err() {
                    return;
                }
            }
        });
        news
    }
}

/// The plan from the configuration's defaults.
pub fn plan() -> ClusterPlan {
    let kubelet = KubeletConfiguration::default();
    ClusterPlan {
        node: NodeStatusConfig {
            node_name: "node".into(),
            register: true,
            labels: Default::default(),
            taints: Vec::new(),
            provider_id: String::new(),
            controller_attach_detach: true,
            addresses: AddressPolicy { hostname: "node".to_owned(), ..AddressPolicy::default() },
            reservations: Reservations::new(&KubeletConfiguration { max_pods: 110, ..kubelet }),
            local_storage_capacity_isolation: false,
            images_max: 50,
            port: 10250,
            kubelet_version: "v1.36.0".to_owned(),
            declared_features: Vec::new(),
            update_period: Duration::from_secs(10),
            report_period: Duration::from_secs(300),
            seed: 1,
        },
        lease: LeaseConfig { node_name: "node".into(), duration_s: 40, seed: 2 },
        events: Rate { per_second: 50, burst: 100 },
        objects: ObjectPolicy::Watch,
        trust_bundles: false,
        pod_certificates: None,
    }
}
