//! Secrets and ConfigMaps: one watch for each object, or repeated requests, as the configuration requires.
//!
//! ```text
//! desired pods ─┐
//! watches ──────┼─► mailbox ─► one task: ObjectTable ─┬─► watches begin and end
//! fetches ──────┘                                     ├─► the manager: changed pods
//!                                                     └─► answers to fetches
//! ```
//! In: the pods that the node wants, events of watches, answers of calls. Out: [`Fetched`]. [`ObjectTable`] has the decisions.
//! Invariant: answers of calls, which are kept for their lifetime, are behind a lock of their own, as a cache without decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_manager::ManagerEvent;
use agent_types::api::{ApiCall, ApiReply, ApiServer, ObjectName};
use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::machine::{Machine, Outbox};
use agent_types::objects::{Fetched, ObjectKind, ObjectRef};
use agent_types::time::{Mono, Now};
use agent_volumes::account::ASK_AFTER;
use agent_volumes::object_table::{ObjectOrder, ObjectTable, QuestionNumber, WatchNumber};
use agent_volumes::references;
use agent_volumes::watched::{ObjectNews, is_always_watched};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{ObjectPolicy, ObjectWatches, Values};
use crate::cluster::calls::Caller;
use crate::pods::desired_pods::DesiredPods;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};
use crate::tasks::stops::AgentStops;

/// The objects that pods of this node use.
pub(super) struct ObjectStore<A> {
    caller: Caller<A>,
    watches: Arc<dyn ObjectWatches>,
    policy: ObjectPolicy,
    /// Trust bundles are watched: the feature gate is on.
    bundles: bool,
    tasks: Tasks,
    replies: Replies,
    to: Sender<ObjectEvent>,
    /// The owner's end, which it takes when it begins; questions wait for that.
    inbox: Lock<Option<Inbox<ObjectEvent>>>,
}

impl<A: ApiServer> ObjectStore<A> {
    pub(super) fn new(
        caller: Caller<A>,
        watches: Arc<dyn ObjectWatches>,
        policy: ObjectPolicy,
        bundles: bool,
        tasks: &Tasks,
    ) -> ObjectStore<A> {
        let (to, inbox) = tasks.mailbox();
        let (tasks, replies, inbox) = (tasks.clone(), Replies::default(), Lock::new(Some(inbox)));
        ObjectStore { caller, watches, policy, bundles, tasks, replies, to, inbox }
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
            ObjectPolicy::Fetch { ttl, .. } if !is_always_watched(object.kind) => {
                self.asked(object, ttl).await
            }
            _ => self.known(object).await,
        }
    }

    async fn known(&self, object: ObjectRef) -> Fetched {
        let (to, answer) = oneshot::channel();
        self.to.send(ObjectEvent::Question { object, to });
        answer.await.unwrap_or_else(|_| Fetched::Unknown(AgentStops.into()))
    }

    async fn asked(&self, object: ObjectRef, ttl: Duration) -> Fetched {
        let now = self.tasks.now().mono;
        if let Some(reply) = self.replies.find(&object, ttl, now) {
            return reply;
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
            self.replies.keep(object, fetched.clone(), now);
        }
        fetched
    }

    /// Starts the owner of the table, and sends it the pods that the node wants.
    pub(super) async fn follow(&self, mut desired: watch::Receiver<DesiredPods>, to: Sender<ManagerEvent>) {
        let Some(inbox) = self.inbox.lock().take() else { return };
        self.tasks.own(ObjectOwner::new(self.policy), self.shell(to), inbox);
        let mut seen: BTreeMap<PodUid, Arc<Pod>> = BTreeMap::new();
        loop {
            let now = desired.borrow_and_update().clone();
            for (uid, pod) in &now {
                if seen.get(uid).is_none_or(|before| !Arc::ptr_eq(before, pod)) {
                    let mut objects = references::of_pod(pod);
                    objects.extend(references::services(pod));
                    objects.retain(|object| self.bundles || object.kind != ObjectKind::TrustBundles);
                    self.to.send(ObjectEvent::Pod { uid: uid.clone(), objects });
                }
            }
            for uid in seen.keys().filter(|uid| !now.contains_key(*uid)) {
                self.to.send(ObjectEvent::Pod { uid: uid.clone(), objects: BTreeSet::new() });
            }
            seen = now;
            if desired.changed().await.is_err() {
                return;
            }
        }
    }

    fn shell(&self, to: Sender<ManagerEvent>) -> ObjectShell {
        ObjectShell {
            watches: self.watches.clone(),
            tasks: self.tasks.clone(),
            replies: self.replies.clone(),
            own: self.to.clone(),
            to,
            running: BTreeMap::new(),
        }
    }
}

/// Answers of calls, with their times; clones share them.
#[derive(Clone, Default)]
struct Replies(Arc<Lock<BTreeMap<ObjectRef, (Mono, Fetched)>>>);

impl Replies {
    fn find(&self, object: &ObjectRef, ttl: Duration, now: Mono) -> Option<Fetched> {
        let replies = self.0.lock();
        let (at, reply) = replies.get(object)?;
        (now.since(*at) < ttl).then(|| reply.clone())
    }

    fn keep(&self, object: ObjectRef, reply: Fetched, now: Mono) {
        self.0.lock().insert(object, (now, reply));
    }

    fn forget(&self, object: &ObjectRef) {
        self.0.lock().remove(object);
    }
}

/// News for the owner of the table.
enum ObjectEvent {
    /// The objects that a pod uses; none if the pod is gone.
    Pod { uid: PodUid, objects: BTreeSet<ObjectRef> },
    /// A watch delivered.
    News { object: ObjectRef, number: WatchNumber, news: ObjectNews },
    /// A task wants an object's contents.
    Question { object: ObjectRef, to: oneshot::Sender<Fetched> },
    /// The table's deadline has passed.
    Tick,
}

impl Coalesce for ObjectEvent {
    /// Pods' objects and watched contents are latest-wins, so there are at most as many of them as pods and watches.
    fn relation(&self, newer: &Self) -> Relation {
        let is_same = match (self, newer) {
            (ObjectEvent::Pod { uid, .. }, ObjectEvent::Pod { uid: newer, .. }) => uid == newer,
            (ObjectEvent::News { number, .. }, ObjectEvent::News { number: newer, .. }) => number == newer,
            _ => false,
        };
        if is_same { Relation::Supersedes } else { Relation::Independent }
    }
}

/// The table with the tasks that wait for contents. Answers leave within the step.
struct ObjectOwner {
    table: ObjectTable,
    waiting: BTreeMap<QuestionNumber, oneshot::Sender<Fetched>>,
}

impl ObjectOwner {
    fn new(policy: ObjectPolicy) -> ObjectOwner {
        ObjectOwner { table: ObjectTable::new(policy == ObjectPolicy::Watch), waiting: BTreeMap::new() }
    }
}

impl Machine for ObjectOwner {
    type Event = ObjectEvent;
    type Action = ObjectOrder;

    fn step(&mut self, now: Now, event: ObjectEvent, out: &mut Outbox<ObjectOrder>) {
        match event {
            ObjectEvent::Pod { uid, objects } => self.table.pod(&uid, objects),
            ObjectEvent::News { object, number, news } => self.table.heard(&object, number, news, now.mono),
            ObjectEvent::Question { object, to } => {
                let question = self.table.ask(object, now.mono);
                self.waiting.insert(question, to);
            }
            ObjectEvent::Tick => {
                for (question, _) in self.waiting.extract_if(.., |_, to| to.is_closed()) {
                    self.table.withdraw(question);
                }
                self.table.tick(now.mono);
            }
        }
        for (question, fetched) in self.table.answers() {
            // A task that waits no more drops it.
            if let Some(to) = self.waiting.remove(&question) {
                let _ = to.send(fetched);
            }
        }
        self.table.orders().into_iter().for_each(|order| out.push(order));
    }

    fn deadline(&self) -> Option<Mono> {
        self.table.deadline()
    }
}

struct ObjectShell {
    watches: Arc<dyn ObjectWatches>,
    tasks: Tasks,
    replies: Replies,
    /// The owner's mailbox, for news of watches.
    own: Sender<ObjectEvent>,
    to: Sender<ManagerEvent>,
    running: BTreeMap<ObjectRef, CancellationToken>,
}

impl Shell for ObjectShell {
    type Machine = ObjectOwner;

    fn tick(&self) -> ObjectEvent {
        ObjectEvent::Tick
    }

    fn perform(&mut self, _now: Now, order: ObjectOrder) {
        match order {
            ObjectOrder::Begin(object, number) => {
                let stop = self.tasks.stop().child_token();
                self.running.insert(object.clone(), stop.clone());
                self.listen(object, number, stop);
            }
            ObjectOrder::End(object) => {
                self.replies.forget(&object);
                if let Some(stop) = self.running.remove(&object) {
                    stop.cancel();
                }
            }
            ObjectOrder::Changed(pods) => {
                self.to.send(ManagerEvent::SourcesChanged(pods));
            }
        }
    }
}

impl ObjectShell {
    fn listen(&self, object: ObjectRef, number: WatchNumber, stop: CancellationToken) {
        let (watches, tasks, own) = (self.watches.clone(), self.tasks.clone(), self.own.clone());
        self.tasks.start(async move {
            if !is_always_watched(object.kind) {
                tokio::select! {
                    // Both may be dropped at any await.
                    () = stop.cancelled() => return,
                    () = tasks.wait_until(tasks.now().mono.after(ASK_AFTER)) => {}
                }
            }
            let mut received = watches.watch(&object);
            loop {
                let news = tokio::select! {
                    // Receiving is cancel-safe.
                    biased;
                    () = stop.cancelled() => return,
                    news = received.recv() => news,
                };
                match news {
                    None => return,
                    Some(ObjectNews::Lost(why)) => {
                        tracing::debug!(object = %object, namespace = object.namespace, why, "watch lost");
                    }
                    Some(news) => {
                        own.send(ObjectEvent::News { object: object.clone(), number, news });
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
