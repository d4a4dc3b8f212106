//! Resource claims over real sockets: a driver from its registration by the plugin watcher to the health of its devices.

// A test's helpers fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_core::plugin_registrations::sockets::PluginSockets;
use agent_plugins::testing::FakeDraDriver;
use agent_types::api::{ApiCall, ApiReply, ApiResult, ApiServer};
use agent_types::ids::PodUid;
use agent_types::runtime::claims::{ClaimUse, ClaimUser, ClaimsOfPod, NamedClaim, PodClaims};
use k8s_openapi::api::resource::v1::ResourceClaim;
use orlop_agent::claims::{self, ClaimsHandle};
use orlop_agent::cluster::calls::Caller;
use orlop_agent::devices::DevicePlugins;
use orlop_agent::node::NodeHandles;
use orlop_agent::node::node_events::NodeEvents;
use orlop_agent::plugin_watcher::{self, Handlers};
use orlop_agent::pods::status::StatusStore;
use orlop_agent::serving::metrics::Metrics;
use orlop_agent::tasks::actor::Tasks;
use orlop_agent::testing::VirtualClock;
use orlop_proto::dra_health::v1alpha1::HealthStatus;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use support::{SOON, claims_plan};

const DRIVER: &str = "gpu.example.com";
const HEALTH: &str = "v1alpha1.DRAResourceHealth";

/// An API server whose claims are all allocated to the driver and reserved for the pods `pod-…`.
#[derive(Clone, Default)]
struct Claims(Arc<Mutex<Vec<String>>>);

impl ApiServer for Claims {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        self.0.lock().unwrap().push(call.describe());
        let ApiCall::GetResourceClaim(name) = call else { return Ok(ApiReply::Done) };
        let reserved = ["pod-a", "pod-b"].map(|uid| json!({ "resource": "pods", "name": uid, "uid": uid }));
        let result = json!({ "driver": DRIVER, "pool": "p", "device": "d", "request": "r" });
        let claim: ResourceClaim = serde_json::from_value(json!({
            "metadata": { "namespace": &*name.namespace, "name": &*name.name, "uid": format!("uid-{}", name.name) },
            "spec": {},
            "status": { "reservedFor": reserved, "allocation": { "devices": { "results": [result] } } },
        }))
        .unwrap();
        Ok(ApiReply::ResourceClaim(Box::new(claim)))
    }
}

/// A node with nothing but claims and the plugin watcher.
struct Node {
    dir: tempfile::TempDir,
    tasks: Tasks,
    claims: ClaimsHandle,
    api: Claims,
    changed: mpsc::UnboundedReceiver<(PodUid, PodClaims)>,
    called: Arc<Mutex<Vec<String>>>,
    sockets: watch::Receiver<Arc<PluginSockets>>,
    _client: watch::Sender<Option<Arc<Claims>>>,
}

impl Node {
    fn start() -> Node {
        Node::in_directory(tempfile::tempdir().unwrap())
    }

    fn in_directory(dir: tempfile::TempDir) -> Node {
        std::fs::create_dir_all(dir.path().join("plugins/gpu")).unwrap();
        let clock = Arc::new(VirtualClock::new());
        let tasks = Tasks::new(clock.clone(), CancellationToken::new());
        let api = Claims::default();
        let (to_client, client) = watch::channel(Some(Arc::new(api.clone())));
        let (to, changed) = mpsc::unbounded_channel();
        let called: Arc<Mutex<Vec<String>>> = Arc::default();
        let calls = called.clone();
        let claims = claims::start(claims::Deps {
            root_dir: dir.path(),
            node_name: "n".into(),
            plan: claims_plan(),
            caller: Some(Caller::new(tasks.clone(), client)),
            changed: Box::new(move |uid, claims| drop(to.send((uid, claims)))),
            called: Arc::new(move |driver, method, code, _| {
                calls.lock().unwrap().push(format!("{driver} {method} {code}"));
            }),
            tasks: tasks.clone(),
        });
        let claims = claims.unwrap();
        let node_events = NodeEvents::new(StatusStore::default(), Metrics::new(clock), None, None, None);
        let node = NodeHandles { manager: tasks.mailbox().0, node_events, tasks: tasks.clone() };
        let devices = DevicePlugins::new(dir.path().join("device-plugins"), &node);
        let handlers = Handlers { csi: None, devices, claims: Some(claims.plugins().clone()) };
        let sockets = plugin_watcher::start(dir.path().to_owned(), handlers, &tasks);
        Node { dir, tasks, claims, api, changed, called, sockets, _client: to_client }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn driver(&self, versions: &[&str]) -> FakeDraDriver {
        FakeDraDriver::new(DRIVER, &self.path("plugins/gpu/dra.sock"), versions)
    }

    async fn registry(&self) -> PathBuf {
        let registry = self.path("plugins_registry");
        self.until("a registry", || registry.is_dir()).await;
        registry
    }

    async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..SOON.as_secs() * 10 {
            if is_so() {
                return;
            }
            self.pass(Duration::from_millis(100)).await;
        }
        panic!("not {what}");
    }

    async fn pass(&self, time: Duration) {
        self.tasks.wait_until(self.tasks.now().mono.after(time)).await;
    }
}

fn pod(uid: &str) -> ClaimsOfPod {
    ClaimsOfPod {
        namespace: "ns".to_owned(),
        pod: uid.to_owned(),
        uid: uid.to_owned(),
        scheduling_group: None,
        claims: vec![NamedClaim { name: "c".to_owned(), is_of_template: false }],
        containers: vec![ClaimUser {
            name: "main".to_owned(),
            uses: vec![ClaimUse {
                claim: "c".to_owned(),
                request: String::new(),
                status_name: Some("claim:x".to_owned()),
            }],
        }],
    }
}

fn health(claims: &PodClaims) -> &str {
    &claims.containers["main"].health["claim:x"][0].health
}

#[tokio::test(start_paused = true)]
async fn a_driver_prepares_and_unprepares_over_one_connection() {
    let node = Node::start();
    let driver = node.driver(&["v1.DRAPlugin"]);
    let _services = driver.serve();
    std::fs::create_dir(node.registry().await.join("sub")).unwrap();
    let socket = node.path("plugins_registry/sub/gpu-reg.sock");
    let registration = driver.register(&socket);
    assert_eq!(driver.next_told().await, "");
    node.until("registered", || node.sockets.borrow().actual.contains(&socket.display().to_string())).await;

    let prepared = node.claims.prepare(pod("pod-a")).await.unwrap();
    assert_eq!(prepared.containers["main"].cdi_devices, ["example.com/gpu=d"]);
    node.claims.prepare(pod("pod-b")).await.unwrap();
    assert_eq!(*driver.calls.lock().unwrap(), ["prepare uid-c"], "a shared claim is prepared once");
    let checkpoint = std::fs::read_to_string(node.path("dra_manager_state")).unwrap();
    assert!(checkpoint.contains("pod-a") && checkpoint.contains("example.com/gpu=d"), "{checkpoint}");
    let view = node.claims.view();
    assert_eq!((view.claims.len(), view.in_use.get(DRIVER)), (1, Some(&1)));

    node.claims.unprepare("pod-a".into()).await.unwrap();
    assert_eq!(driver.calls.lock().unwrap().len(), 1);
    node.claims.unprepare("pod-b".into()).await.unwrap();
    assert_eq!(*driver.calls.lock().unwrap(), ["prepare uid-c", "unprepare uid-c"]);
    assert!(node.claims.view().claims.is_empty());
    assert_eq!(*driver.connected.lock().unwrap(), 1);
    let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin";
    let called =
        ["NodePrepareResources", "NodeUnprepareResources"].map(|m| format!("{DRIVER} {path}/{m} OK"));
    assert_eq!(*node.called.lock().unwrap(), called);
    assert_eq!(node.api.0.lock().unwrap()[0], "delete resourceslices on node n");

    registration.stop();
    node.until("deregistered", || node.sockets.borrow().desired.is_empty()).await;
    let error = node.claims.prepare(pod("pod-a")).await.unwrap_err();
    assert_eq!(error, format!("DRA driver {DRIVER} is not registered"));
    node.pass(Duration::from_secs(31)).await;
    let deletion = format!("delete resourceslices of driver {DRIVER} on node n");
    assert!(node.api.0.lock().unwrap().contains(&deletion));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_crashes_is_called_again_when_it_is_back() {
    let node = Node::start();
    let driver = node.driver(&["v1.DRAPlugin"]);
    let services = driver.serve();
    let _registration = driver.register(&node.registry().await.join("gpu-reg.sock"));
    assert_eq!(driver.next_told().await, "");
    node.claims.prepare(pod("pod-a")).await.unwrap();
    // A connection that was of use is made again at once.
    node.pass(Duration::from_secs(2)).await;
    services.stop();
    driver.drop_connections();
    node.pass(Duration::from_secs(1)).await;
    let error = node.claims.unprepare("pod-a".into()).await.unwrap_err();
    let begin = "NodeUnprepareResources: rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while \
                 dialing: dial unix ";
    assert!(error.starts_with(begin), "{error}");
    let _services = driver.serve();
    node.until("connected", || *driver.connected.lock().unwrap() == 2).await;
    node.pass(Duration::from_millis(100)).await;
    node.claims.unprepare("pod-a".into()).await.unwrap();
    node.pass(Duration::from_secs(60)).await;
    assert_eq!(node.api.0.lock().unwrap().iter().filter(|call| call.starts_with("delete")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_health_of_a_device_reaches_the_pods() {
    let mut node = Node::start();
    let driver = node.driver(&["v1.DRAPlugin", HEALTH]);
    let _services = driver.serve();
    let _registration = driver.register(&node.registry().await.join("gpu-reg.sock"));
    assert_eq!(driver.next_told().await, "");
    let prepared = node.claims.prepare(pod("pod-a")).await.unwrap();
    assert_eq!(health(&prepared), "Unknown");
    for (reported, shown) in [(HealthStatus::Healthy, "Healthy"), (HealthStatus::Unhealthy, "Unhealthy")] {
        driver.health.send_replace(Some(reported));
        let (uid, claims) = node.changed.recv().await.unwrap();
        assert_eq!((uid.as_str(), health(&claims)), ("pod-a", shown));
    }
    let file = node.path("dra_health_state");
    node.until("written", || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("Unhealthy")))
        .await;
    driver.drop_connections();
    node.until("connected again", || *driver.connected.lock().unwrap() == 2).await;
    driver.health.send_replace(Some(HealthStatus::Healthy));
    node.pass(Duration::from_secs(6)).await;
    let found = node.claims.find(pod("pod-a")).await.unwrap();
    assert_eq!(health(&found), "Healthy");
}

#[tokio::test(start_paused = true)]
async fn refusals_have_upstreams_words() {
    let node = Node::start();
    let registry = node.registry().await;
    let driver = node.driver(&["v1.DRAPlugin"]);
    let _first = driver.register(&registry.join("a.sock"));
    assert_eq!(driver.next_told().await, "");
    let _second = driver.register(&registry.join("b.sock"));
    let endpoint = &driver.info.endpoint;
    let expected = format!(
        "RegisterPlugin error -- plugin registration failed with err: endpoint {endpoint} already registered for DRA driver plugin \
         {DRIVER}"
    );
    assert_eq!(driver.next_told().await, expected);
    let old = node.driver(&["1.0.0"]);
    let _third = old.register(&registry.join("c.sock"));
    let words = old.next_told().await;
    let begin = "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA driver plugin ";
    assert!(words.starts_with(begin) && words.contains("none of services"), "{words}");
    let mut other = node.driver(&["v1.DRAPlugin"]);
    other.info.r#type = "CSIPlugin".to_owned();
    let socket = registry.join("d.sock");
    let _fourth = other.register(&socket);
    let words = other.next_told().await;
    let expected = format!(
        "RegisterPlugin error -- no handler registered for plugin type: CSIPlugin at socket {}",
        socket.display()
    );
    assert_eq!(words, expected);
    assert_eq!(node.sockets.borrow().actual.len(), 1);
}
