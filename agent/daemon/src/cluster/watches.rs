//! The watches on the node's pods, on the own Node and on single objects, from the moment the node has an identity.
//!
//! In: the client's view. Out: the receivers of the client's own events, in order and bounded; updates of objects.
//! Invariant: a slow consumer slows the stream down; no event is dropped.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use agent_apiserver::ApiClient;
use agent_core::container_spec::services;
use agent_types::api::WatchEvent;
use agent_types::objects::{Bundle, ObjectData, ObjectKind, ObjectRef};
use agent_volumes::watched::ObjectNews;
use k8s_openapi::Metadata;
use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::{mpsc, oneshot, watch};

use crate::pods::pod_values::{ObjectWatches, Values, soon};
use crate::tasks::actor::Tasks;

/// The consumers only sort news into mailboxes.
const NEWS_MAX: usize = 16;

/// A watch that begins when the node has an identity, even if no task waits for its events yet; the receiver of the
/// events is sent when the watch begins. Dropping the receiver ends the watch.
pub type Opening<T> = oneshot::Receiver<mpsc::Receiver<WatchEvent<T>>>;

/// The driver's view of the API server; `None` until the node has an identity.
type ClientReceiver = watch::Receiver<Option<Arc<ApiClient>>>;

/// Opens the watch on the node's pods once there is a client.
#[must_use]
pub fn pods(client: ClientReceiver, node_name: &str, tasks: &Tasks) -> Opening<Pod> {
    let name = node_name.to_owned();
    open(client, tasks, move |client| client.watch_pods(&name))
}

/// Opens the watch on the own Node once there is a client.
#[must_use]
pub fn node(client: ClientReceiver, node_name: &str, tasks: &Tasks) -> Opening<Node> {
    let name = node_name.to_owned();
    open(client, tasks, move |client| client.watch_node(&name))
}

fn open<T, F>(
    mut client: ClientReceiver,
    tasks: &Tasks,
    watch: impl FnOnce(&ApiClient) -> (mpsc::Receiver<WatchEvent<T>>, F) + Send + 'static,
) -> Opening<T>
where
    T: Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (mut opened, opening) = oneshot::channel();
    tasks.start(async move {
        // The view's sender lives as long as the node.
        let client = tokio::select! {
            client = client.wait_for(Option::is_some) => client.map(|client| client.clone()),
            () = opened.closed() => return,
        };
        let Ok(Some(client)) = client else { return };
        let (events, driver) = watch(&client);
        if opened.send(events).is_ok() {
            driver.await;
        }
    });
    opening
}

/// Watches on single objects, by name: a node may have no others.
pub struct Objects {
    client: ClientReceiver,
    node_name: Arc<str>,
    tasks: Tasks,
}

impl Objects {
    /// The watches begin when there is a client.
    #[must_use]
    pub fn new(client: ClientReceiver, node_name: &str, tasks: &Tasks) -> Objects {
        Objects { client, node_name: node_name.into(), tasks: tasks.clone() }
    }
}

impl ObjectWatches for Objects {
    fn watch(&self, object: &ObjectRef) -> mpsc::Receiver<ObjectNews> {
        let (to, news) = mpsc::channel(NEWS_MAX);
        let (mut client, object) = (self.client.clone(), object.clone());
        let tasks = self.tasks.clone();
        self.tasks.start(async move {
            let client = tokio::select! {
                client = client.wait_for(Option::is_some) => client.map(|c| c.clone()),
                () = to.closed() => return,
            };
            let Ok(Some(client)) = client else { return };
            for times in 0.. {
                let again = match object.kind {
                    ObjectKind::ConfigMap => {
                        let (from, driver) = client.watch_config_map(&object.namespace, &object.name);
                        pass_on(from, driver, &to, times).await
                    }
                    ObjectKind::Services => {
                        let (from, driver) = client.watch_services(&object.namespace, &object.name);
                        pass_all(from, driver, &to, variables).await;
                        None
                    }
                    ObjectKind::TrustBundles => {
                        let (from, driver) = client.watch_trust_bundles();
                        pass_all(from, driver, &to, bundles).await;
                        None
                    }
                    ObjectKind::RuntimeClass => {
                        let (from, driver) = client.watch_runtime_class(&object.name);
                        pass_on(from, driver, &to, times).await
                    }
                    ObjectKind::Secret => {
                        let (from, driver) = client.watch_secret(&object.namespace, &object.name);
                        pass_on(from, driver, &to, times).await
                    }
                };
                let Some(wait) = again else { return };
                tasks.wait_until(tasks.now().mono.after(wait)).await;
            }
        });
        news
    }

    fn pod_certificates(&self) -> Opening<PodCertificateRequest> {
        let name = self.node_name.clone();
        open(self.client.clone(), &self.tasks, move |client| client.watch_pod_certificates(&name))
    }
}

/// The Services as variables of containers.
fn variables(services: &BTreeMap<String, Arc<Service>>) -> ObjectData {
    let vars = services::variables(services.values().map(|s| &**s));
    let data = vars.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
    ObjectData { data, ..ObjectData::default() }
}

/// The ClusterTrustBundles as contents of volumes.
fn bundles(all: &BTreeMap<String, Arc<ClusterTrustBundle>>) -> ObjectData {
    let bundles = all.iter().map(|(name, object)| (name.clone(), Bundle::from(&**object))).collect();
    ObjectData { bundles, ..ObjectData::default() }
}

/// Sends the combined contents of all watched objects after each change of one, until the receiver is dropped.
async fn pass_all<T: Metadata<Ty = ObjectMeta>>(
    mut from: mpsc::Receiver<WatchEvent<T>>,
    driver: impl Future<Output = ()>,
    to: &mpsc::Sender<ObjectNews>,
    made: impl Fn(&BTreeMap<String, Arc<T>>) -> ObjectData,
) {
    let name = |object: &T| object.metadata().name.clone().unwrap_or_default();
    let pass = async {
        let mut known: BTreeMap<String, Arc<T>> = BTreeMap::new();
        while let Some(event) = from.recv().await {
            match event {
                WatchEvent::Listed(all) => known = all.into_iter().map(|s| (name(&s), s)).collect(),
                WatchEvent::Applied(object) => {
                    known.insert(name(&object), object);
                }
                WatchEvent::Deleted(object) => {
                    known.remove(&name(&object));
                }
                WatchEvent::Lost(why) => {
                    if to.send(ObjectNews::Lost(why)).await.is_err() {
                        return;
                    }
                    continue;
                }
            }
            let data = made(&known);
            if to.send(ObjectNews::Found { data, immutable: false }).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        // Every branch can be dropped at any await: the watch is over then.
        () = driver => {}
        () = pass => {}
        () = to.closed() => {}
    }
}

/// Sends the contents of an object after each change, until the receiver is dropped. If the watch is refused at its
/// start, which may be temporary, returns the pause before the next attempt.
async fn pass_on<T: Values>(
    mut from: mpsc::Receiver<WatchEvent<T>>,
    driver: impl Future<Output = ()>,
    to: &mpsc::Sender<ObjectNews>,
    times: usize,
) -> Option<Duration> {
    let pass = async {
        let mut begun = false;
        while let Some(event) = from.recv().await {
            let news = match event {
                WatchEvent::Listed(objects) => objects.first().map_or(ObjectNews::Missing, |o| o.news()),
                WatchEvent::Applied(object) => object.news(),
                WatchEvent::Deleted(_) => ObjectNews::Missing,
                WatchEvent::Lost(why) => match soon(&why, times).filter(|_| !begun) {
                    Some(wait) => return Some(wait),
                    None => ObjectNews::Lost(why),
                },
            };
            begun = true;
            if to.send(news).await.is_err() {
                return None;
            }
        }
        None
    };
    tokio::select! {
        // Every branch can be dropped at any await: the watch is over then.
        () = driver => None,
        again = pass => again,
        () = to.closed() => None,
    }
}
