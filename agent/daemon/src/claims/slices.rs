//! Deletion of ResourceSlices of drivers that are gone.
//!
//! In: drivers. Out: requests, repeated until they succeed. Invariants: one deletion of a driver at a time; it ends when a plugin of the
//! driver is connected again, because the driver publishes its slices then. Upstream: `wipeResourceSlices` in pkg/kubelet/cm/dra/plugin.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_types::api::{ApiCall, ApiError, ApiServer};
use agent_types::backoff::Backoff;
use agent_types::entropy::Entropy;
use agent_types::failure::Class;
use agent_types::lock::Lock;
use tokio_util::sync::CancellationToken;

use crate::cluster::calls::Caller;
use crate::tasks::actor::Tasks;

/// Waits between two requests.
const AGAIN: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(300));
/// Upstream's jitter of the waits, percent.
const JITTER_PERCENT: u32 = 20;
/// Requests of one deletion, as upstream.
const REQUESTS_MAX: u32 = 100;
/// Deletions at one time: a plugin can invent names of drivers.
const DELETIONS_MAX: usize = 256;

/// Deletions that run; clones share them.
pub(super) struct SliceDeletions<A> {
    /// `None` on a node without a cluster, which has no slices.
    caller: Option<Caller<A>>,
    node_name: Arc<str>,
    running: Arc<Lock<BTreeMap<Option<String>, CancellationToken>>>,
    tasks: Tasks,
}

impl<A: ApiServer> SliceDeletions<A> {
    pub(super) fn new(caller: Option<Caller<A>>, node_name: Arc<str>, tasks: Tasks) -> SliceDeletions<A> {
        SliceDeletions { caller, node_name, running: Arc::default(), tasks }
    }

    /// Deletes the slices of a driver on this node; `None`: of all drivers.
    pub(super) fn start(&self, driver: Option<String>) {
        let Some(caller) = self.caller.clone() else { return };
        let end = CancellationToken::new();
        {
            let mut running = self.running.lock();
            if running.contains_key(&driver) {
                return;
            }
            if running.len() >= DELETIONS_MAX {
                tracing::warn!(
                    driver,
                    "too many deletions of ResourceSlices: those of this driver stay until the agent starts again"
                );
                return;
            }
            running.insert(driver.clone(), end.clone());
        }
        let (running, tasks) = (self.running.clone(), self.tasks.clone());
        let call = ApiCall::DeleteResourceSlices { node: self.node_name.clone(), driver: driver.clone() };
        self.tasks.start(async move {
            tokio::select! {
                // A request that is dropped may have been applied; the driver publishes the slices again.
                biased;
                () = end.cancelled() => {}
                () = delete(&caller, &call, &tasks) => {}
            }
            // After an early end another deletion may have taken this entry.
            let mut running = running.lock();
            if !end.is_cancelled() {
                running.remove(&driver);
            }
        });
    }

    /// Ends the deletion for a driver that can be used again.
    pub(super) fn end(&self, driver: &str) {
        if let Some(end) = self.running.lock().remove(&Some(driver.to_owned())) {
            end.cancel();
        }
    }
}

async fn delete<A: ApiServer>(caller: &Caller<A>, call: &ApiCall, tasks: &Tasks) {
    // The seed spreads the retries of nodes that start at the same time: their clocks differ.
    let mut entropy = Entropy::new(tasks.now().mono.0);
    // The node may wait long for its identity. This wait does not count as a failure.
    for failures in 0..REQUESTS_MAX {
        let Some(client) = caller.client().await else { return };
        match client.call(call).await {
            Ok(_) => return,
            Err(ApiError { class: Class::NotFound, .. }) => return,
            Err(error) => tracing::debug!(%error, "ResourceSlices are not deleted yet"),
        }
        let wait = AGAIN.jittered(failures, JITTER_PERCENT, &mut entropy);
        tasks.wait_until(tasks.now().mono.after(wait)).await;
    }
    tracing::warn!(call = call.describe(), "ResourceSlices are not deleted: the API server refuses");
}
