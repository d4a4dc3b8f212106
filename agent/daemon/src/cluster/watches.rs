//! The watches on the node's pods, on the own Node and on single objects, from the moment the node has an identity.
//!
//! In: the client's view. Out: watch events, in order, through bounded channels. Invariant: a slow consumer slows the
//! stream down; nothing is dropped.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use agent_apiserver::ApiClient;
use agent_core::api::WatchEvent;
use agent_core::container_spec::services;
use agent_core::volume::watched::ObjectNews;
use agent_core::volume::{ObjectData, ObjectKind, ObjectRef};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use tokio::sync::{mpsc, watch};

use crate::actor::Tasks;
use crate::sources::{ObjectWatches, Values, soon};

/// The consumers only sort events into mailboxes.
const EVENTS_MAX: usize = 16;

/// Starts both watches; they begin once there is a client.
pub fn start(
    client: watch::Receiver<Option<Arc<ApiClient>>>,
    node_name: &str,
    tasks: &Tasks,
) -> (mpsc::Receiver<WatchEvent<Pod>>, mpsc::Receiver<WatchEvent<Node>>) {
    let name = node_name.to_owned();
    let pods = follow(client.clone(), tasks, move |client| client.watch_pods(&name));
    let name = node_name.to_owned();
    let node = follow(client, tasks, move |client| client.watch_node(&name));
    (pods, node)
}

fn follow<T, F>(
    mut client: watch::Receiver<Option<Arc<ApiClient>>>,
    tasks: &Tasks,
    open: impl FnOnce(&ApiClient) -> (mpsc::Receiver<WatchEvent<T>>, F) + Send + 'static,
) -> mpsc::Receiver<WatchEvent<T>>
where
    T: Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (to, events) = mpsc::channel(EVENTS_MAX);
    let all = tasks.clone();
    tasks.start(async move {
        // The view's sender lives as long as the node.
        let Ok(Some(client)) = client.wait_for(Option::is_some).await.map(|client| client.clone()) else {
            return;
        };
        let (mut from, driver) = open(&client);
        all.start(driver);
        while let Some(event) = from.recv().await {
            if to.send(event).await.is_err() {
                return;
            }
        }
    });
    events
}

/// Watches on single objects, by name: no other is granted to a node.
pub struct Objects {
    client: watch::Receiver<Option<Arc<ApiClient>>>,
    tasks: Tasks,
}

impl Objects {
    /// They begin once there is a client.
    #[must_use]
    pub fn new(client: watch::Receiver<Option<Arc<ApiClient>>>, tasks: &Tasks) -> Objects {
        Objects { client, tasks: tasks.clone() }
    }
}

impl ObjectWatches for Objects {
    fn watch(&self, object: &ObjectRef) -> mpsc::Receiver<ObjectNews> {
        let (to, news) = mpsc::channel(EVENTS_MAX);
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
                        pass_services(from, driver, &to).await;
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
}

/// What containers are told of all the Services that are watched, after each change of one, until nobody listens any more.
async fn pass_services(
    mut from: mpsc::Receiver<WatchEvent<Service>>,
    driver: impl Future<Output = ()>,
    to: &mpsc::Sender<ObjectNews>,
) {
    let name = |service: &Service| service.metadata.name.clone().unwrap_or_default();
    let pass = async {
        let mut services: BTreeMap<String, Arc<Service>> = BTreeMap::new();
        while let Some(event) = from.recv().await {
            match event {
                WatchEvent::Listed(all) => services = all.into_iter().map(|s| (name(&s), s)).collect(),
                WatchEvent::Applied(service) => {
                    services.insert(name(&service), service);
                }
                WatchEvent::Deleted(service) => {
                    services.remove(&name(&service));
                }
                WatchEvent::Lost(why) => {
                    if to.send(ObjectNews::Lost(why)).await.is_err() {
                        return;
                    }
                    continue;
                }
            }
            let vars = services::variables(services.values().map(|s| &**s));
            let data = vars.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
            let data = ObjectData { data, ..ObjectData::default() };
            if to.send(ObjectNews::Found { data, immutable: false }).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        // All three may be dropped at any await: the watch is over then.
        () = driver => {}
        () = pass => {}
        () = to.closed() => {}
    }
}

/// Until nobody listens any more; or, if the watch is refused at its very start as it may be for a moment, how long
/// until another one is to be tried.
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
        // All three may be dropped at any await: the watch is over then.
        () = driver => None,
        again = pass => again,
        () = to.closed() => None,
    }
}
