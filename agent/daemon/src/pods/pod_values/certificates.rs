//! Certificates of pods: each request has a new key, and a watch reports the state of the requests.
//!
//! ```text
//! desired pods ─► PodCertificates ─► key, request ─► API server ─► signer ─► watch ─► PodCertificates ─► volumes
//! ```
//! In: the pods that the node wants, the API server. Out: [`Certified`]s. The decisions are [`PodCertificates`]'.
//! Invariants: keys are in memory only, and only those of current requests; one key is made at a time, because an RSA
//! key takes seconds of a processor; there is no watch while no pod needs a certificate. Upstream:
//! pkg/kubelet/podcertificate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_apiserver::certificates::PodKey;
use agent_core::pod_manager::ManagerEvent;
use agent_types::api::{ApiCall, ApiReply, ApiServer, ObjectName};
use agent_types::api_time;
use agent_types::event::{ContainerList, EventFact, EventKind};
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::time::{Now, Wall};
use agent_volumes::pod_certificate::{
    Asker, CertificateAction, CertificateEvent, CertificateSource, Certified, PodCertificates,
    RequestedCertificate,
};
use agent_volumes::references::parts_of_pod;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::{ObjectWatches, ask};
use crate::cluster::calls::Caller;
use crate::node::node_events::NodeEvents;
use crate::pods::desired_pods::DesiredPods;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::mailbox::{Coalesce, Relation, Sender};
use crate::tasks::stops::AgentStops;

/// Certificates that volumes may contain.
type IssuedCertificates = Arc<Lock<BTreeMap<CertificateSource, Result<Certified, String>>>>;
/// Keys by their request.
type Keys = BTreeMap<(CertificateSource, String), Arc<[u8]>>;

/// The certificates of this node's pods.
pub(super) struct CertificateStore<A> {
    maker: Maker<A>,
    watches: Arc<dyn ObjectWatches>,
    /// `None`: the feature gate is off.
    seed: Option<u64>,
    held: IssuedCertificates,
}

impl<A: ApiServer> CertificateStore<A> {
    pub(super) fn new(
        caller: Caller<A>,
        tasks: Tasks,
        watches: Arc<dyn ObjectWatches>,
        node_name: Arc<str>,
        seed: Option<u64>,
    ) -> CertificateStore<A> {
        let maker =
            Maker { caller, tasks, node_name, made: Arc::default(), one: Arc::new(Semaphore::new(1)) };
        CertificateStore { maker, watches, seed, held: IssuedCertificates::default() }
    }

    fn shell(
        &self,
        own: Sender<CertificateEvent>,
        listeners: (Sender<ManagerEvent>, NodeEvents),
    ) -> CertificateShell<A> {
        CertificateShell {
            maker: self.maker.clone(),
            watches: self.watches.clone(),
            held: self.held.clone(),
            keys: Keys::new(),
            changed: BTreeSet::new(),
            own,
            watching: None,
            listeners,
        }
    }

    /// The certificate of a volume's source.
    pub(super) fn certificate(&self, of: &CertificateSource) -> Result<Certified, String> {
        let none = || Err(format!("no credentials yet for {of}"));
        self.held.lock().get(of).cloned().unwrap_or_else(none)
    }

    /// Requests certificates for the pods that need them, for as long as the node runs.
    pub(super) async fn follow(
        &self,
        mut desired: watch::Receiver<DesiredPods>,
        manager: Sender<ManagerEvent>,
        node_events: NodeEvents,
    ) {
        let Some(seed) = self.seed else { return };
        let tasks = &self.maker.tasks;
        let (own, inbox) = tasks.mailbox();
        tasks.own(PodCertificates::new(seed), self.shell(own.clone(), (manager, node_events)), inbox);
        let mut told = DesiredPods::new();
        loop {
            let asking = |(_, pod): &(&PodUid, &Arc<Pod>)| asks(pod);
            let now = desired.borrow_and_update().clone();
            let now: DesiredPods =
                now.iter().filter(asking).map(|(uid, pod)| (uid.clone(), pod.clone())).collect();
            let same = now.len() == told.len()
                && now.iter().zip(&told).all(|((a, p), (b, q))| a == b && Arc::ptr_eq(p, q));
            if !same {
                own.send(CertificateEvent::Pods(now.clone()));
                told = now;
            }
            if desired.changed().await.is_err() {
                return;
            }
        }
    }
}

fn asks(p: &Pod) -> bool {
    parts_of_pod(p).any(|part| part.pod_certificate.is_some())
}

/// Makes keys and their requests.
struct Maker<A> {
    caller: Caller<A>,
    tasks: Tasks,
    node_name: Arc<str>,
    /// Keys whose requests have not been reported to the machine yet.
    made: Arc<Lock<Keys>>,
    one: Arc<Semaphore>,
}

impl<A> Clone for Maker<A> {
    fn clone(&self) -> Self {
        Maker {
            caller: self.caller.clone(),
            tasks: self.tasks.clone(),
            node_name: self.node_name.clone(),
            made: self.made.clone(),
            one: self.one.clone(),
        }
    }
}

impl<A: ApiServer> Maker<A> {
    /// Asks for a certificate: the request's name and when it was made.
    async fn make(
        &self,
        place: &CertificateSource,
        wanted: &RequestedCertificate,
    ) -> Result<(String, Wall), String> {
        let other = || "an answer to another question".to_owned();
        let account =
            ObjectName { namespace: place.pod.namespace.clone(), name: wanted.account.as_str().into() };
        let account = ask(&self.caller, &self.tasks, ApiCall::GetServiceAccount(account))
            .await
            .map_err(|why| format!("while fetching service account: {why}"))?;
        let ApiReply::ServiceAccount(account) = account else { return Err(other()) };
        let node = ask(&self.caller, &self.tasks, ApiCall::GetNode { name: self.node_name.clone() })
            .await
            .map_err(|why| format!("while getting node object: {why}"))?;
        let ApiReply::Node(node) = node else { return Err(other()) };
        let made = {
            // The semaphore is never closed.
            let _one = self.one.acquire().await;
            let kind = wanted.key_type.clone();
            let made = self.tasks.blocking(move || PodKey::generate(&kind)).await;
            made.ok_or(AgentStops)?.map_err(|e| format!("while generating keypair: {e}"))?
        };
        let asker = Asker {
            node: self.node_name.to_string(),
            node_uid: node.metadata.uid.unwrap_or_default(),
            account_uid: account.metadata.uid.unwrap_or_default(),
        };
        let request = Box::new(wanted.request(place, asker, made.request));
        let answer = ask(&self.caller, &self.tasks, ApiCall::CreatePodCertificate(request))
            .await
            .map_err(|why| format!("while creating on API: {why}"))?;
        let ApiReply::PodCertificate(request) = answer else { return Err(other()) };
        let name = request.metadata.name.unwrap_or_default();
        let at = request.metadata.creation_timestamp.as_ref().map(api_time::wall);
        let key: Arc<[u8]> = made.key_pem.as_bytes().into();
        self.made.lock().insert((place.clone(), name.clone()), key);
        Ok((name, at.unwrap_or(self.tasks.now().wall)))
    }
}

struct CertificateShell<A> {
    maker: Maker<A>,
    watches: Arc<dyn ObjectWatches>,
    held: IssuedCertificates,
    keys: Keys,
    /// Pods to notify when their certificates are available.
    changed: BTreeSet<PodUid>,
    own: Sender<CertificateEvent>,
    watching: Option<CancellationToken>,
    listeners: (Sender<ManagerEvent>, NodeEvents),
}

impl<A: ApiServer> CertificateShell<A> {
    fn watch(&self, stop: CancellationToken) {
        let (opening, own) = (self.watches.pod_certificates(), self.own.clone());
        let pass = async move {
            let Ok(mut events) = opening.await else { return };
            while let Some(event) = events.recv().await {
                own.send(CertificateEvent::Watched(event));
            }
        };
        self.maker.tasks.start(async move {
            tokio::select! {
                // The watch can be dropped at any await: its events are not needed any more.
                biased;
                () = stop.cancelled() => {}
                () = pass => {}
            }
        });
    }
}

impl<A: ApiServer> Shell for CertificateShell<A> {
    type Machine = PodCertificates;

    fn tick(&self) -> CertificateEvent {
        CertificateEvent::Tick
    }

    fn before(&mut self, _now: Now, event: &CertificateEvent) {
        if let CertificateEvent::Asked(place, Ok((name, _))) = event {
            let named = (place.clone(), name.clone());
            if let Some(key) = self.maker.made.lock().remove(&named) {
                self.keys.insert(named, key);
            }
        }
    }

    fn perform(&mut self, _now: Now, action: CertificateAction) {
        match action {
            CertificateAction::Ask(place, wanted) => {
                let (maker, own) = (self.maker.clone(), self.own.clone());
                self.maker.tasks.start(async move {
                    let answer = maker.make(&place, &wanted).await;
                    if let Err(why) = &answer {
                        tracing::warn!(pod = %place.pod, volume = place.volume, why, "no request for a certificate");
                    }
                    own.send(CertificateEvent::Asked(place, answer));
                });
            }
            CertificateAction::Changed(uid) => {
                self.changed.insert(uid);
            }
            CertificateAction::Tell(key, reason, message) => {
                let (kind, list) = (EventKind::Warning, ContainerList::default());
                let (container, claim, resource_version) = (None, None, None);
                let fact = EventFact { kind, reason, message, container, list, claim, resource_version };
                self.listeners.1.event(&key, &fact);
            }
            CertificateAction::Watch(true) => {
                let stop = self.maker.tasks.stop().child_token();
                self.watch(stop.clone());
                self.watching = Some(stop);
            }
            CertificateAction::Watch(false) => {
                if let Some(stop) = self.watching.take() {
                    stop.cancel();
                }
            }
        }
    }

    fn after(&mut self, now: Now, machine: &PodCertificates) -> bool {
        // The machine looks once a minute at least while a certificate may age.
        self.listeners.1.pod_certificates(&machine.states(now.wall));
        let needed = machine.needed();
        self.keys.retain(|named, _| needed.contains(named));
        let credential = |place: &CertificateSource| {
            let (request, chain) = machine.held(place)?;
            let key = self.keys.get(&(place.clone(), request.to_owned()));
            let key = key.cloned().ok_or_else(|| format!("the key of request {request:?} is gone"))?;
            Ok(Certified { key, chain: chain.clone() })
        };
        *self.held.lock() = machine.places().map(|place| (place.clone(), credential(place))).collect();
        // Notify only now: the receiver reads the certificates at once, and its next attempt waits for a back-off.
        if !self.changed.is_empty() {
            self.listeners.0.send(ManagerEvent::SourcesChanged(std::mem::take(&mut self.changed)));
        }
        true
    }
}

impl Coalesce for CertificateEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (CertificateEvent::Tick, CertificateEvent::Tick)
            | (CertificateEvent::Pods(_), CertificateEvent::Pods(_)) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{Requests, Signer};
    use super::*;
    use crate::pods::status::StatusStore;
    use crate::serving::metrics::Metrics;
    use crate::testing::VirtualClock;

    #[tokio::test(start_paused = true)]
    async fn a_pod_hears_of_its_certificate_when_it_can_be_had() {
        let clock = Arc::new(VirtualClock::new());
        let tasks = Tasks::new(clock.clone(), CancellationToken::new());
        let (_, client) = watch::channel(Some(Arc::new(Signer::default())));
        let (caller, watches) = (Caller::new(tasks.clone(), client), Arc::new(Requests::default()));
        let store = CertificateStore::new(caller, tasks.clone(), watches, "n".into(), Some(1));
        let node_events = NodeEvents::new(StatusStore::default(), Metrics::new(clock), None, None, None);
        let (own, _inbox) = tasks.mailbox();
        let (to_manager, mut manager) = tasks.mailbox::<ManagerEvent>();
        let mut shell = store.shell(own, (to_manager, node_events));
        shell.perform(tasks.now(), CertificateAction::Changed("u".into()));
        let heard = tokio::time::timeout(Duration::from_secs(1), manager.recv()).await;
        assert!(heard.is_err(), "what it has now is not yet what it heard of: {heard:?}");
        shell.after(tasks.now(), &PodCertificates::new(1));
        let heard = tokio::time::timeout(Duration::from_secs(1), manager.recv()).await;
        assert!(matches!(heard, Ok(ManagerEvent::SourcesChanged(pods)) if pods == ["u".into()].into()));
        shell.after(tasks.now(), &PodCertificates::new(1));
        let heard = tokio::time::timeout(Duration::from_secs(1), manager.recv()).await;
        assert!(heard.is_err(), "it is said once: {heard:?}");
    }
}
