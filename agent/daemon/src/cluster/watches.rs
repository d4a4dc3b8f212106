//! The watches on the node's pods and on the own Node, from the moment the node has an identity.
//!
//! In: the client's view. Out: watch events, in order, through bounded channels. Invariant: a slow consumer slows the
//! stream down; nothing is dropped.

use std::future::Future;
use std::sync::Arc;

use agent_apiserver::ApiClient;
use agent_core::api::WatchEvent;
use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::sync::{mpsc, watch};

use crate::actor::Tasks;

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
