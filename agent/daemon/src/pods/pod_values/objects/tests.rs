//! Watches begin and end with pods, and fetches wait for the first news.

use std::sync::Mutex;

use agent_types::api::ApiResult;
use agent_types::objects::ObjectData;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::cluster::watches::Opening;
use crate::testing::VirtualClock;

struct NoServer;

impl ApiServer for NoServer {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        panic!("{}", call.describe());
    }
}

/// Watches whose events the test sends, by the objects' names, in the order of their beginnings.
#[derive(Default)]
struct TestWatches(Mutex<Vec<(String, mpsc::Sender<ObjectNews>)>>);

impl ObjectWatches for TestWatches {
    fn watch(&self, object: &ObjectRef) -> mpsc::Receiver<ObjectNews> {
        let (to, news) = mpsc::channel(4);
        self.0.lock().unwrap().push((object.name.clone(), to));
        news
    }

    fn pod_certificates(&self) -> Opening<PodCertificateRequest> {
        panic!("requests are watched");
    }
}

struct StoreFixture {
    store: Arc<ObjectStore<NoServer>>,
    watches: Arc<TestWatches>,
    desired: watch::Sender<DesiredPods>,
    manager: Inbox<ManagerEvent>,
    tasks: Tasks,
}

fn fixture() -> StoreFixture {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let (_, client) = watch::channel(Some(Arc::new(NoServer)));
    let watches = Arc::new(TestWatches::default());
    let caller = Caller::new(tasks.clone(), client);
    let store = ObjectStore::new(caller, watches.clone(), ObjectPolicy::Watch, false, &tasks);
    let (desired, view) = watch::channel(DesiredPods::new());
    let (to, manager) = tasks.mailbox();
    let store = Arc::new(store);
    let follower = store.clone();
    tasks.start(async move { follower.follow(view, to).await });
    StoreFixture { store, watches, desired, manager, tasks }
}

impl StoreFixture {
    /// The node wants a pod with one variable from this Secret.
    fn want(&self, secret: &str) {
        let env = json!([{"name": "V", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]);
        let pod = json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u"},
            "spec": {"enableServiceLinks": false, "containers": [{"name": "c", "env": env}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.desired.send_replace([("u".into(), Arc::new(pod))].into());
    }

    /// The last watch on an object of this name.
    async fn watch(&self, name: &str) -> mpsc::Sender<ObjectNews> {
        loop {
            let all = self.watches.0.lock().unwrap().clone();
            match all.into_iter().rfind(|(of, _)| of == name) {
                Some((_, to)) => return to,
                None => self.pass(Duration::from_millis(10)).await,
            }
        }
    }

    async fn pass(&self, time: Duration) {
        self.tasks.wait_until(self.tasks.now().mono.after(time)).await;
    }

    async fn changed(&mut self) {
        assert!(matches!(self.manager.recv().await, ManagerEvent::SourcesChanged(_)));
    }
}

fn secret(name: &str) -> ObjectRef {
    ObjectRef { kind: ObjectKind::Secret, namespace: "ns".to_owned(), name: name.to_owned() }
}

fn found(value: &str) -> ObjectNews {
    let data = [("k".to_owned(), value.as_bytes().to_vec())].into();
    ObjectNews::Found { data: ObjectData { data, ..ObjectData::default() }, immutable: false }
}

fn value(fetched: Fetched) -> String {
    match fetched {
        Fetched::Found(data) => String::from_utf8(data.data["k"].clone()).unwrap(),
        Fetched::Missing => "missing".to_owned(),
        Fetched::Unknown(why) => why,
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_waits_for_its_watch_and_the_manager_hears_of_changes() {
    let mut f = fixture();
    f.want("s");
    let watch = f.watch("s").await;
    let (fetched, ()) = tokio::join!(f.store.fetch(secret("s")), async {
        f.pass(Duration::from_millis(100)).await;
        watch.send(found("one")).await.unwrap();
    });
    assert_eq!(value(fetched), "one");
    watch.send(found("two")).await.unwrap();
    f.changed().await;
    assert_eq!(value(f.store.fetch(secret("s")).await), "two");
    watch.send(ObjectNews::Lost("down".to_owned())).await.unwrap();
    assert_eq!(value(f.store.fetch(secret("s")).await), "two");
}

#[tokio::test(start_paused = true)]
async fn a_fetch_has_an_answer_within_a_second() {
    let mut f = fixture();
    f.want("s");
    let began = f.tasks.now().mono;
    let why = "failed to sync secret cache: timed out waiting for the condition";
    assert_eq!(value(f.store.fetch(secret("s")).await), why);
    let took_ms = f.tasks.now().mono.since(began).as_millis();
    assert!((1000..1100).contains(&took_ms), "{took_ms}");
    f.watch("s").await.send(found("one")).await.unwrap();
    f.changed().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_with_its_last_pod_and_the_next_one_is_new() {
    let f = fixture();
    f.want("s");
    let first = f.watch("s").await;
    first.send(found("old")).await.unwrap();
    assert_eq!(value(f.store.fetch(secret("s")).await), "old");
    f.want("t");
    first.closed().await;
    f.watch("t").await;
    f.want("s");
    f.pass(Duration::from_millis(100)).await;
    let second = f.watch("s").await;
    assert!(!second.is_closed());
    second.send(found("new")).await.unwrap();
    assert_eq!(value(f.store.fetch(secret("s")).await), "new");
}

#[tokio::test(start_paused = true)]
async fn a_fetch_ends_with_the_node() {
    let f = fixture();
    f.want("s");
    let (fetched, ()) = tokio::join!(f.store.fetch(secret("s")), async {
        f.watch("s").await;
        f.tasks.stop().cancel();
    });
    assert_eq!(value(fetched), "the agent stops");
    assert_eq!(value(f.store.fetch(secret("s")).await), "the agent stops");
}
