//! What is seen of a fleet from outside while its nodes take turns: the worst of its pods, nodes and holders of the group.
//!
//! In: watches of the Deployment, the Nodes and the ConfigMap. Out: [`Extremes`], for as long as the cluster lives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use orlop_harness::cluster::client::{ClusterClient, Object};
use serde_json::Value;

use super::fleet::{CORDONED, NAMESPACE, REPLICAS, TURNS};

/// The worst that was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extremes {
    /// Fewest available pods.
    pub(super) available: i32,
    /// Most nodes that were cordoned for an update at one time.
    pub(super) away: usize,
    /// Most holders of the group.
    pub(super) holders: usize,
}

pub(super) fn lock(seen: &Mutex<Extremes>) -> MutexGuard<'_, Extremes> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn available(deployment: &Deployment) -> i32 {
    deployment.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

/// The nodes' group, as the ConfigMap has it.
pub(super) fn group(turns: &ConfigMap) -> Option<Value> {
    serde_json::from_str(turns.data.as_ref()?.get("default")?).ok()
}

/// Follows pods, nodes and turns until the cluster ends.
pub(super) fn follow_fleet(client: &ClusterClient) -> Arc<Mutex<Extremes>> {
    let seen = Arc::new(Mutex::new(Extremes { available: REPLICAS, away: 0, holders: 0 }));
    let worst = Arc::clone(&seen);
    follow::<Deployment>(client, client.of("default"), move |all| {
        let mut worst = lock(&worst);
        worst.available = all.values().map(available).fold(worst.available, i32::min);
    });
    let worst = Arc::clone(&seen);
    follow::<Node>(client, client.all(), move |all| {
        let is_away = |node: &&Node| {
            node.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(CORDONED))
        };
        let mut worst = lock(&worst);
        worst.away = worst.away.max(all.values().filter(is_away).count());
    });
    let worst = Arc::clone(&seen);
    follow::<ConfigMap>(client, client.of(NAMESPACE), move |all| {
        let held = all.get(TURNS).and_then(group).and_then(|group| group["holders"].as_array().map(Vec::len));
        let mut worst = lock(&worst);
        worst.holders = worst.holders.max(held.unwrap_or(0));
    });
    seen
}

/// Looks at all objects after each change of one.
fn follow<K: Object>(
    client: &ClusterClient,
    api: Api<K>,
    mut look: impl FnMut(&BTreeMap<String, K>) + Send + 'static,
) {
    client.handle().spawn(async move {
        let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
        let mut all = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    all.insert(object.meta().name.clone().unwrap_or_default(), object);
                }
                Ok(watcher::Event::Delete(object)) => {
                    all.remove(object.meta().name.as_deref().unwrap_or_default());
                }
                // A watch that breaks begins again with a list.
                Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => {}
            }
            look(&all);
        }
    });
}
