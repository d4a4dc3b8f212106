//! Sources of pods' values: Secrets, ConfigMaps, service account tokens, claims, certificates.
//!
//! ```text
//! desired pods ─► WatchedObjects ─► one watch for each object ─► known values ─► set-ups of volumes, environments
//!                                            └─ changed ─► manager ─► the pods' workers
//! ```
//! In: the pods that the node wants, the API server. Out: [`Sources`]. Invariants: the node requests only objects that
//! its own pods refer to; values are in memory only. Upstream: pkg/kubelet/{configmap,secret,token}.

mod certificates;
mod claims;
mod objects;
mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_worker::runtime_class;
use agent_types::api::{ApiCall, ApiReply, ApiServer, ObjectName};
use agent_types::objects::{Fetched, ObjectData, ObjectRef};
use agent_types::time::Wall;
use agent_volumes::bound::Bound;
use agent_volumes::claim::{ClaimError, ClaimRef};
use agent_volumes::csi::source::SecretRef;
use agent_volumes::pod_certificate::{CertificateSource, Certified};
use agent_volumes::token::TokenRef;
use agent_volumes::watched::ObjectNews;
use futures_util::future::BoxFuture;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use orlop_config::kubelet::KubeletConfiguration;
use orlop_config::kubelet::enums::ChangeDetectionStrategy;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use certificates::CertificateStore;
use claims::ClaimStore;
use objects::ObjectStore;
use tokens::TokenStore;

use crate::cluster::calls::Caller;
use crate::cluster::watches::Opening;
use crate::cluster::{ApiDrivers, ClusterPlan};
use crate::node::NodeHandles;
use crate::node::node_events::NodeEvents;
use crate::pods::desired_pods::DesiredPods;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;
use crate::tasks::stops::AgentStops;
use crate::volumes::csi::Csi;

/// The API server's node authorizer learns of a pod a moment after the node does. Until then its refusals contain these
/// words.
const NOT_YET: &str = "no relationship found";
/// Pauses before each repeated request in that case; after the last one the refusal counts like any other.
const SOON_MS: [u64; 5] = [50, 100, 200, 400, 800];

/// The pause before the next request, if the refusal may be one that ends by itself.
#[must_use]
pub fn soon(why: &str, times: usize) -> Option<Duration> {
    SOON_MS.get(times).copied().map(Duration::from_millis).filter(|_| why.contains(NOT_YET))
}

/// Calls the API server, again while its node authorizer does not know the pod yet.
async fn ask<A: ApiServer>(caller: &Caller<A>, tasks: &Tasks, call: ApiCall) -> Result<ApiReply, String> {
    let client = caller.client().await.ok_or(AgentStops)?;
    let mut times = 0;
    loop {
        match client.call(&call).await {
            Ok(reply) => return Ok(reply),
            Err(e) => match soon(&e.message, times) {
                Some(wait) => tasks.wait_until(tasks.now().mono.after(wait)).await,
                None => return Err(e.message),
            },
        }
        times += 1;
    }
}

/// Default lifetime of a cache entry (upstream's), if the Node has no annotation for it.
const CACHE_TTL: Duration = Duration::from_secs(60);

/// A token, and the time of its renewal.
#[derive(Clone)]
pub struct HeldToken {
    /// The token.
    pub text: String,
    /// When to renew it.
    pub renew: Wall,
    /// When it ends.
    pub ends: Wall,
}

/// The parts of a service account that credential provider plugins may get.
#[derive(Clone, Debug)]
pub struct FoundAccount {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
}

/// A Secret that a PersistentVolume or a CSI volume refers to. Pods never see it.
#[derive(Clone, Default)]
pub struct FoundSecret {
    /// `type`.
    pub kind: String,
    /// `data`.
    pub data: BTreeMap<String, Vec<u8>>,
}

/// A claim, and the PersistentVolume that it is bound to.
pub type Claimed = (PersistentVolumeClaim, PersistentVolume);

/// Sources of pods' values.
pub trait Sources: Send + Sync + 'static {
    /// The present contents of an object.
    fn fetch(&self, object: ObjectRef) -> BoxFuture<'_, Fetched>;

    /// A valid token.
    fn token(&self, token: TokenRef) -> BoxFuture<'_, Result<HeldToken, String>>;

    /// The certificate that was issued for a source of a volume.
    ///
    /// # Errors
    /// The reason why there is no certificate yet, or why there will be none.
    fn certificate(&self, of: &CertificateSource) -> Result<Certified, String>;

    /// The present service account `name` in `namespace`.
    fn account(&self, namespace: String, name: String) -> BoxFuture<'_, Result<FoundAccount, String>>;

    /// The present binding of a claim.
    fn claim(&self, claim: ClaimRef) -> BoxFuture<'_, Result<Bound, ClaimError>>;

    /// The CSIDriver object; `None` if there is none.
    fn csi_driver(&self, name: String) -> BoxFuture<'_, Result<Option<CSIDriver>, String>>;

    /// The VolumeAttachment `name`.
    fn attachment(&self, name: String) -> BoxFuture<'_, Result<VolumeAttachment, String>>;

    /// A claim and its PersistentVolume, as they are now.
    fn claimed(&self, claim: ObjectName) -> BoxFuture<'_, Result<Claimed, String>>;

    /// Patches a claim's status; returns the claim.
    fn patch_claim(
        &self,
        claim: ObjectName,
        patch: Value,
    ) -> BoxFuture<'_, Result<PersistentVolumeClaim, String>>;

    /// The present Secret that a PersistentVolume or a CSI volume refers to.
    fn secret(&self, secret: SecretRef) -> BoxFuture<'_, Result<FoundSecret, String>>;

    /// The node's CSI drivers.
    fn csi(&self) -> Csi;

    /// Age after which objects must be fetched again, if there are no watches; `None` with watches.
    fn reread_after(&self) -> Option<Duration>;

    /// Follows the pods that the node wants.
    fn follow(
        self: Arc<Self>,
        desired: watch::Receiver<DesiredPods>,
        to: Sender<ManagerEvent>,
        node_events: NodeEvents,
    ) -> BoxFuture<'static, ()>;
}

/// Watches on single objects.
pub trait ObjectWatches: Send + Sync + 'static {
    /// Updates of an object, beginning with its present state. Dropping the receiver ends the watch.
    fn watch(&self, object: &ObjectRef) -> mpsc::Receiver<ObjectNews>;

    /// The watch on certificate requests of this node's pods.
    fn pod_certificates(&self) -> Opening<PodCertificateRequest>;
}

/// How the node notices changes of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectPolicy {
    /// Watches.
    Watch,
    /// Repeated requests: at most one per `ttl` for an object, at each synchronisation of volumes.
    Fetch {
        /// Lifetime of an answer.
        ttl: Duration,
        /// Period of the synchronisation of volumes.
        every: Duration,
    },
}

impl ObjectPolicy {
    /// From `configMapAndSecretChangeDetectionStrategy` and `syncFrequency`.
    #[must_use]
    pub fn new(kubelet: &KubeletConfiguration) -> ObjectPolicy {
        let every = kubelet.sync_frequency.to_std();
        match kubelet.config_map_and_secret_change_detection_strategy {
            ChangeDetectionStrategy::Watch => ObjectPolicy::Watch,
            ChangeDetectionStrategy::Cache => ObjectPolicy::Fetch { ttl: CACHE_TTL, every },
            ChangeDetectionStrategy::Get => ObjectPolicy::Fetch { ttl: Duration::ZERO, every },
        }
    }
}

/// An object that holds values.
pub trait Values: Send + Sync + 'static {
    /// Its contents, and whether they are immutable.
    fn news(&self) -> ObjectNews;
}

impl Values for ConfigMap {
    fn news(&self) -> ObjectNews {
        let text = self.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
        let binary = self.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
        let data = ObjectData { data: text.collect(), binary: binary.collect(), ..ObjectData::default() };
        ObjectNews::Found { data, immutable: self.immutable == Some(true) }
    }
}

impl Values for Secret {
    fn news(&self) -> ObjectNews {
        let data = self.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect();
        let uid = self.metadata.uid.clone().unwrap_or_default();
        let data = ObjectData { data, uid, ..ObjectData::default() };
        ObjectNews::Found { data, immutable: self.immutable == Some(true) }
    }
}

impl Values for RuntimeClass {
    fn news(&self) -> ObjectNews {
        let handler = (runtime_class::HANDLER.to_owned(), self.handler.clone().into_bytes());
        ObjectNews::Found {
            data: ObjectData { data: [handler].into(), ..ObjectData::default() },
            immutable: false,
        }
    }
}

/// The sources of a node: those of its cluster, or none.
#[must_use]
pub fn of_cluster<A: ApiServer>(
    cluster: Option<&(ClusterPlan, ApiDrivers<A>)>,
    csi: Csi,
    tasks: &Tasks,
) -> Arc<dyn Sources> {
    let Some((plan, api)) = cluster else {
        return Arc::new(NoSources { csi });
    };
    let caller = Caller::new(tasks.clone(), api.client.clone());
    Arc::new(ClusterSources {
        objects: ObjectStore::new(
            caller.clone(),
            api.objects.clone(),
            plan.objects,
            plan.trust_bundles,
            tasks,
        ),
        certificates: CertificateStore::new(
            caller.clone(),
            tasks.clone(),
            api.objects.clone(),
            plan.lease.node_name.clone(),
            plan.pod_certificates,
        ),
        claims: ClaimStore::new(caller.clone(), tasks.clone(), plan.lease.node_name.clone()),
        csi,
        tokens: TokenStore::new(caller, tasks.clone()),
    })
}

/// Follows the desired pods for as long as the node runs.
pub fn start(sources: Arc<dyn Sources>, desired: watch::Receiver<DesiredPods>, node: &NodeHandles) {
    node.tasks.start(sources.follow(desired, node.manager.clone(), node.node_events.clone()));
}

struct ClusterSources<A> {
    objects: ObjectStore<A>,
    certificates: CertificateStore<A>,
    claims: ClaimStore<A>,
    csi: Csi,
    tokens: TokenStore<A>,
}

impl<A: ApiServer> Sources for ClusterSources<A> {
    fn fetch(&self, object: ObjectRef) -> BoxFuture<'_, Fetched> {
        Box::pin(self.objects.fetch(object))
    }

    fn token(&self, token: TokenRef) -> BoxFuture<'_, Result<HeldToken, String>> {
        Box::pin(self.tokens.token(token))
    }

    fn certificate(&self, of: &CertificateSource) -> Result<Certified, String> {
        self.certificates.certificate(of)
    }

    fn account(&self, namespace: String, name: String) -> BoxFuture<'_, Result<FoundAccount, String>> {
        Box::pin(self.tokens.account(namespace, name))
    }

    fn claim(&self, claim: ClaimRef) -> BoxFuture<'_, Result<Bound, ClaimError>> {
        Box::pin(self.claims.bound(claim))
    }

    fn csi_driver(&self, name: String) -> BoxFuture<'_, Result<Option<CSIDriver>, String>> {
        Box::pin(self.claims.csi_driver(name))
    }

    fn attachment(&self, name: String) -> BoxFuture<'_, Result<VolumeAttachment, String>> {
        Box::pin(self.claims.attachment(name))
    }

    fn claimed(&self, claim: ObjectName) -> BoxFuture<'_, Result<Claimed, String>> {
        Box::pin(self.claims.claimed(claim))
    }

    fn patch_claim(
        &self,
        claim: ObjectName,
        patch: Value,
    ) -> BoxFuture<'_, Result<PersistentVolumeClaim, String>> {
        Box::pin(self.claims.patch_claim(claim, patch))
    }

    fn secret(&self, secret: SecretRef) -> BoxFuture<'_, Result<FoundSecret, String>> {
        Box::pin(self.claims.secret(secret))
    }

    fn csi(&self) -> Csi {
        self.csi.clone()
    }

    fn reread_after(&self) -> Option<Duration> {
        self.objects.reread_after()
    }

    fn follow(
        self: Arc<Self>,
        desired: watch::Receiver<DesiredPods>,
        to: Sender<ManagerEvent>,
        node_events: NodeEvents,
    ) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let certificates = self.certificates.follow(desired.clone(), to.clone(), node_events);
            // Both run until the node stops.
            tokio::join!(self.objects.follow(desired, to), certificates);
        })
    }
}

/// The answer of a standalone node.
pub(crate) fn no_cluster<T: Send + 'static>() -> BoxFuture<'static, Result<T, String>> {
    Box::pin(std::future::ready(Err("the node belongs to no cluster".to_owned())))
}

/// A node without an API server; its static pods may not refer to such objects anyway.
struct NoSources {
    csi: Csi,
}

impl Sources for NoSources {
    fn fetch(&self, object: ObjectRef) -> BoxFuture<'_, Fetched> {
        let why = format!("{object} cannot be had: the node belongs to no cluster");
        Box::pin(std::future::ready(Fetched::Unknown(why)))
    }

    fn token(&self, _: TokenRef) -> BoxFuture<'_, Result<HeldToken, String>> {
        let why = "failed to fetch token: the node belongs to no cluster".to_owned();
        Box::pin(std::future::ready(Err(why)))
    }

    fn certificate(&self, _: &CertificateSource) -> Result<Certified, String> {
        Err("the node belongs to no cluster".to_owned())
    }

    fn account(&self, _: String, _: String) -> BoxFuture<'_, Result<FoundAccount, String>> {
        no_cluster()
    }

    fn claim(&self, claim: ClaimRef) -> BoxFuture<'_, Result<Bound, ClaimError>> {
        let why = claim.unprocessed("the node belongs to no cluster");
        Box::pin(std::future::ready(Err(why)))
    }

    fn csi_driver(&self, _: String) -> BoxFuture<'_, Result<Option<CSIDriver>, String>> {
        no_cluster()
    }

    fn attachment(&self, _: String) -> BoxFuture<'_, Result<VolumeAttachment, String>> {
        no_cluster()
    }

    fn claimed(&self, _: ObjectName) -> BoxFuture<'_, Result<Claimed, String>> {
        no_cluster()
    }

    fn patch_claim(&self, _: ObjectName, _: Value) -> BoxFuture<'_, Result<PersistentVolumeClaim, String>> {
        no_cluster()
    }

    fn secret(&self, _: SecretRef) -> BoxFuture<'_, Result<FoundSecret, String>> {
        no_cluster()
    }

    fn csi(&self) -> Csi {
        self.csi.clone()
    }

    fn reread_after(&self) -> Option<Duration> {
        None
    }

    fn follow(
        self: Arc<Self>,
        _: watch::Receiver<DesiredPods>,
        _: Sender<ManagerEvent>,
        _: NodeEvents,
    ) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests;
