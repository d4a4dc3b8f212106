//! The handle of the owner of resource claims, for pod workers and readers.
//!
//! In: claims of pods. Out: events for the owner, its answers, its view. Invariant: every question gets one answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_core::resource_claims::api::{ClaimEvent, ClaimsView};
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::runtime::claims::{ClaimsOfPod, PodClaims};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::{oneshot, watch};

use super::plugins::DraPlugins;
use crate::pods::desired_pods::ActivePods;
use crate::pods::execute::PodClaimsDriver;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;
use crate::tasks::stops::AgentStops;

/// Period of the check that unprepares claims of pods that are not active. Upstream: pkg/kubelet/cm/dra/manager.go.
const RECONCILE: Duration = Duration::from_secs(60);

/// Questions that wait for the owner.
#[derive(Debug, Default)]
pub(super) struct Asks {
    last: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Result<PodClaims, String>>>,
}

impl Asks {
    /// The channel for the answer to this question.
    pub(super) fn take(&mut self, ask: u64) -> Option<oneshot::Sender<Result<PodClaims, String>>> {
        self.waiting.remove(&ask)
    }
}

/// The node's resource claims; clones share them.
#[derive(Clone)]
pub struct ClaimsHandle {
    pub(super) to: Sender<ClaimEvent>,
    pub(super) asks: Arc<Lock<Asks>>,
    pub(super) plugins: DraPlugins,
    pub(super) view: watch::Receiver<Arc<ClaimsView>>,
    /// True if a claim has a reference.
    pub(super) referenced: watch::Receiver<bool>,
    pub(super) tasks: Tasks,
}

impl ClaimsHandle {
    /// Prepares the claims of a pod, before its sandbox is created.
    ///
    /// # Errors
    /// Upstream's text after `prepare dynamic resources: `.
    pub async fn prepare(&self, pod: ClaimsOfPod) -> Result<PodClaims, String> {
        let pod = Arc::new(pod);
        self.ask(|ask| ClaimEvent::Prepare { ask, pod }).await
    }

    /// The devices of a pod's claims, for a container in an existing sandbox.
    ///
    /// # Errors
    /// Upstream's text.
    pub async fn find(&self, pod: ClaimsOfPod) -> Result<PodClaims, String> {
        let pod = Arc::new(pod);
        self.ask(|ask| ClaimEvent::Find { ask, pod }).await
    }

    /// Unprepares the claims of a pod, after its containers have ended.
    ///
    /// # Errors
    /// Upstream's text after `unprepare dynamic resources: `.
    pub async fn unprepare(&self, uid: PodUid) -> Result<(), String> {
        self.ask(|ask| ClaimEvent::Unprepare { ask, uid }).await.map(drop)
    }

    /// The node's claims for the pod resources API and metrics.
    #[must_use]
    pub fn view(&self) -> Arc<ClaimsView> {
        self.view.borrow().clone()
    }

    /// Plugins of drivers, for the plugin watcher.
    #[must_use]
    pub fn plugins(&self) -> &DraPlugins {
        &self.plugins
    }

    /// Unprepares claims of pods that are not active, every 60 s while claims have references.
    pub fn follow(&self, active: watch::Receiver<ActivePods>) {
        let (to, mut referenced, tasks) = (self.to.clone(), self.referenced.clone(), self.tasks.clone());
        self.tasks.start(async move {
            // Without references there is no timer. An error means that the owner has ended.
            while referenced.wait_for(|referenced| *referenced).await.is_ok() {
                tasks.wait_until(tasks.now().mono.after(RECONCILE)).await;
                let pods = active.borrow().clone();
                if pods.synced {
                    to.send(ClaimEvent::ActivePods(pods.uids));
                }
            }
        });
    }

    async fn ask(&self, event: impl FnOnce(u64) -> ClaimEvent) -> Result<PodClaims, String> {
        let (tell, told) = oneshot::channel();
        let ask = {
            let mut asks = self.asks.lock();
            asks.last += 1;
            let ask = asks.last;
            asks.waiting.insert(ask, tell);
            ask
        };
        if !self.to.send(event(ask)) {
            self.asks.lock().take(ask);
            return Err(AgentStops.into());
        }
        told.await.unwrap_or_else(|_| Err(AgentStops.into()))
    }
}

impl PodClaimsDriver for ClaimsHandle {
    fn prepare(&self, pod: ClaimsOfPod) -> BoxFuture<'_, Result<PodClaims, String>> {
        ClaimsHandle::prepare(self, pod).boxed()
    }

    fn find(&self, pod: ClaimsOfPod) -> BoxFuture<'_, Result<PodClaims, String>> {
        ClaimsHandle::find(self, pod).boxed()
    }

    fn unprepare(&self, pod: PodUid) -> BoxFuture<'_, Result<(), String>> {
        ClaimsHandle::unprepare(self, pod).boxed()
    }
}
