//! Secrets and ConfigMaps: one watch for each object, or repeated requests, as the configuration requires.
//!
//! In: the pods that the node wants, events of watches, answers of calls. Out: [`Fetched`]. [`WatchedObjects`] has the
//! decisions. Invariant: the lock is never held across an await.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_manager::ManagerEvent;
use agent_types::api::{ApiCall, ApiReply, ApiServer, ObjectName};
use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::objects::{Fetched, ObjectKind, ObjectRef};
use agent_types::time::Mono;
use agent_volumes::account::ASK_AFTER;
use agent_volumes::references;
use agent_volumes::watched::{ObjectNews, WatchAction, WatchedObjects};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{ObjectPolicy, ObjectWatches, Values};
use crate::cluster::calls::Caller;
use crate::pods::desired_pods::DesiredPods;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;
use crate::tasks::stops::AgentStops;

/// How long a request waits for the first event of a watch (upstream's).
const SYNC_WAIT: Duration = Duration::from_secs(1);

/// The objects that pods of this node use.
pub(super) struct ObjectStore<A> {
    caller: Caller<A>,
    watches: Arc<dyn ObjectWatches>,
    policy: ObjectPolicy,
    /// Trust bundles are watched: the feature gate is on.
    bundles: bool,
    tasks: Tasks,
    state: Arc<Lock<ObjectsState>>,
    /// Counts updates of objects.
    learned: watch::Sender<u64>,
}

#[derive(Default)]
struct ObjectsState {
    watched: WatchedObjects,
    running: BTreeMap<ObjectRef, CancellationToken>,
    fetched: BTreeMap<ObjectRef, (Mono, Fetched)>,
}

impl<A: ApiServer> ObjectStore<A> {
    pub(super) fn new(
        caller: Caller<A>,
        watches: Arc<dyn ObjectWatches>,
        policy: ObjectPolicy,
        bundles: bool,
        tasks: &Tasks,
    ) -> ObjectStore<A> {
        let (learned, _) = watch::channel(0);
        ObjectStore { caller, watches, policy, bundles, tasks: tasks.clone(), state: Arc::default(), learned }
    }

    pub(super) fn reread_after(&self) -> Option<Duration> {
        match self.policy {
            ObjectPolicy::Watch => None,
            ObjectPolicy::Fetch { every, .. } => Some(every),
        }
    }

    /// The object's contents; waits a moment if its watch has not delivered yet.
    pub(super) async fn fetch(&self, object: ObjectRef) -> Fetched {
        match self.policy {
            ObjectPolicy::Fetch { ttl, .. } if !always_watched(object.kind) => self.asked(object, ttl).await,
            _ => self.known(object).await,
        }
    }

    async fn known(&self, object: ObjectRef) -> Fetched {
        let mut learned = self.learned.subscribe();
        let look = async {
            loop {
                learned.borrow_and_update();
                if let Some(known) = self.state.lock().watched.known(&object) {
                    return known;
                }
                // The sender lives as long as this store.
                if learned.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        if let Ok(known) = timeout(SYNC_WAIT, look).await {
            return known;
        }
        self.state.lock().watched.missed(&object);
        let kind = match object.kind {
            ObjectKind::Secret => "secret",
            ObjectKind::ConfigMap => "configmap",
            ObjectKind::Services => "service",
            ObjectKind::RuntimeClass => "runtimeclass",
            ObjectKind::TrustBundles => "clustertrustbundle",
        };
        Fetched::Unknown(format!("failed to sync {kind} cache: timed out waiting for the condition"))
    }

    async fn asked(&self, object: ObjectRef, ttl: Duration) -> Fetched {
        let now = self.tasks.now().mono;
        if let Some((at, known)) = self.state.lock().fetched.get(&object)
            && now.since(*at) < ttl
        {
            return known.clone();
        }
        let name =
            ObjectName { namespace: object.namespace.as_str().into(), name: object.name.as_str().into() };
        let call = match object.kind {
            ObjectKind::ConfigMap => ApiCall::GetConfigMap(name),
            ObjectKind::Secret => ApiCall::GetSecret(name),
            ObjectKind::Services | ObjectKind::RuntimeClass | ObjectKind::TrustBundles => {
                return self.known(object).await;
            }
        };
        let Some(client) = self.caller.client().await else {
            return Fetched::Unknown(AgentStops.into());
        };
        let news = match client.call(&call).await {
            Ok(ApiReply::ConfigMap(found)) => found.news(),
            Ok(ApiReply::Secret(found)) => found.news(),
            Ok(_) => ObjectNews::Lost(format!("{object}: an answer to another question")),
            Err(e) if e.class == Class::NotFound => ObjectNews::Missing,
            Err(e) => ObjectNews::Lost(e.to_string()),
        };
        let fetched = match news {
            ObjectNews::Found { data, .. } => Fetched::Found(data),
            ObjectNews::Missing => Fetched::Missing,
            ObjectNews::Lost(why) => return Fetched::Unknown(why),
        };
        if !ttl.is_zero() {
            self.state.lock().fetched.insert(object, (now, fetched.clone()));
        }
        fetched
    }

    /// Keeps one watch for each object that the node's pods use.
    pub(super) async fn follow(&self, mut desired: watch::Receiver<DesiredPods>, to: Sender<ManagerEvent>) {
        let mut seen: BTreeMap<PodUid, Arc<Pod>> = BTreeMap::new();
        loop {
            let now = desired.borrow_and_update().clone();
            for (uid, pod) in &now {
                if seen.get(uid).is_none_or(|before| !Arc::ptr_eq(before, pod)) {
                    let mut objects = references::of_pod(pod);
                    objects.extend(references::services(pod));
                    objects.retain(|object| self.bundles || object.kind != ObjectKind::TrustBundles);
                    self.pod(uid, objects, &to);
                }
            }
            for uid in seen.keys().filter(|uid| !now.contains_key(*uid)) {
                self.pod(uid, BTreeSet::new(), &to);
            }
            seen = now;
            if desired.changed().await.is_err() {
                return;
            }
        }
    }

    fn pod(&self, uid: &PodUid, objects: BTreeSet<ObjectRef>, to: &Sender<ManagerEvent>) {
        let mut state = self.state.lock();
        let actions = state.watched.pod(uid, objects);
        self.perform(&mut state, actions, to);
    }

    fn perform(&self, state: &mut ObjectsState, actions: Vec<WatchAction>, to: &Sender<ManagerEvent>) {
        for action in actions {
            match action {
                WatchAction::Begin(object)
                    if self.policy == ObjectPolicy::Watch || always_watched(object.kind) =>
                {
                    let stop = self.tasks.stop().child_token();
                    state.running.insert(object.clone(), stop.clone());
                    self.listen(object, stop, to.clone());
                }
                WatchAction::Begin(_) => {}
                WatchAction::End(object) => {
                    state.fetched.remove(&object);
                    if let Some(stop) = state.running.remove(&object) {
                        stop.cancel();
                    }
                }
                WatchAction::Changed(pods) => {
                    to.send(ManagerEvent::SourcesChanged(pods));
                }
            }
        }
    }

    fn listen(&self, object: ObjectRef, stop: CancellationToken, to: Sender<ManagerEvent>) {
        let (state, learned) = (self.state.clone(), self.learned.clone());
        let (watches, tasks) = (self.watches.clone(), self.tasks.clone());
        self.tasks.start(async move {
            if matches!(object.kind, ObjectKind::Secret | ObjectKind::ConfigMap) {
                tokio::select! {
                    // Both may be dropped at any await.
                    () = stop.cancelled() => return,
                    () = tasks.wait_until(tasks.now().mono.after(ASK_AFTER)) => {}
                }
            }
            let mut news = watches.watch(&object);
            loop {
                let news = tokio::select! {
                    // Receiving is cancel-safe.
                    biased;
                    () = stop.cancelled() => return,
                    news = news.recv() => news,
                };
                let Some(news) = news else { return };
                if let ObjectNews::Lost(why) = &news {
                    tracing::debug!(object = %object, namespace = object.namespace, why, "watch lost");
                }
                let mut state = state.lock();
                if stop.is_cancelled() {
                    return;
                }
                for action in state.watched.heard(&object, news) {
                    match action {
                        WatchAction::Changed(pods) => {
                            to.send(ManagerEvent::SourcesChanged(pods));
                        }
                        WatchAction::End(ended) => {
                            state.running.remove(&ended);
                            learned.send_modify(|count| *count += 1);
                            return;
                        }
                        WatchAction::Begin(_) => {}
                    }
                }
                drop(state);
                learned.send_modify(|count| *count += 1);
            }
        });
    }
}

/// True for kinds that are watched independently of the strategy for Secrets and ConfigMaps.
fn always_watched(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::Services | ObjectKind::RuntimeClass | ObjectKind::TrustBundles)
}
