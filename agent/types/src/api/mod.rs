//! The API server as core sees it: calls as values, answers as values, watches as events.
//!
//! In: nothing. Out: [`ApiCall`], [`ApiReply`], [`ApiError`], [`WatchEvent`] and the driver trait [`ApiServer`].
//! Machines emit calls under an [`EffectId`](crate::machine::EffectId) and get exactly one answer each; the shell
//! sends them (agent-apiserver), the simulator applies them to a fake. Invariant: every call is bounded by the
//! driver's time limit; [`Class::DeadlineExceeded`] means that it may or may not have been applied.

pub mod retry;

use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use serde_json::Value;

use crate::failure::Class;

/// Names a namespaced object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Namespace of the object.
    pub namespace: Arc<str>,
    /// Name of the object.
    pub name: Arc<str>,
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiCall {
    /// GET a node. Answer: [`ApiReply::Node`].
    GetNode {
        /// Name of the Node.
        name: Arc<str>,
    },
    /// POST a node. Answer: [`ApiReply::Node`].
    CreateNode(Box<Node>),
    /// Strategic merge PATCH of a node's spec and metadata. Answer: [`ApiReply::Node`].
    PatchNode {
        /// Name of the Node.
        name: Arc<str>,
        /// Strategic merge patch; its `metadata.uid` and `metadata.resourceVersion` guard it.
        patch: Value,
    },
    /// Strategic merge PATCH of a node's `status` subresource (which takes metadata along, as upstream's does).
    /// Answer: [`ApiReply::Node`].
    PatchNodeStatus {
        /// Name of the Node.
        name: Arc<str>,
        /// Strategic merge patch of the status.
        patch: Value,
    },
    /// GET a lease in `kube-node-lease`. Answer: [`ApiReply::Lease`].
    GetLease {
        /// Its name: the node's.
        name: Arc<str>,
    },
    /// POST a lease. Answer: [`ApiReply::Lease`].
    CreateLease(Box<Lease>),
    /// PUT a lease (conflicts on `resourceVersion`). Answer: [`ApiReply::Lease`].
    ReplaceLease(Box<Lease>),
    /// LIST the one pod of this name that is bound to this node. Answer: [`ApiReply::Pod`], or `NotFound`.
    /// This is not a GET: for a pod that is gone the node authorizer answers 403, because the pod has no relation
    /// to the node.
    FindPod {
        /// Pod to find.
        pod: ObjectName,
        /// `spec.nodeName`: this node.
        node: Arc<str>,
    },
    /// POST a pod (mirror pods). Answer: [`ApiReply::Pod`].
    CreatePod(Box<Pod>),
    /// Strategic merge PATCH of a pod's `status` subresource; `metadata.uid` in the patch guards it.
    /// Answer: [`ApiReply::Pod`].
    PatchPodStatus {
        /// Pod to patch.
        pod: ObjectName,
        /// Patch of the status.
        patch: Value,
    },
    /// DELETE a pod with preconditions. Answer: [`ApiReply::Done`].
    DeletePod {
        /// Pod to delete.
        pod: ObjectName,
        /// `preconditions.uid`.
        uid: String,
        /// `preconditions.resourceVersion`: the pod must not have changed since it was read.
        resource_version: Option<String>,
        /// `gracePeriodSeconds`.
        grace_s: u32,
    },
    /// POST to a pod's `eviction` subresource: the pod is deleted with its own grace period, unless a PodDisruptionBudget forbids it
    /// (429). Answer: [`ApiReply::Done`].
    EvictPod {
        /// Pod to evict.
        pod: ObjectName,
        /// `deleteOptions.preconditions.uid`.
        uid: String,
    },
    /// POST an event. Answer: [`ApiReply::Event`].
    CreateEvent(Box<Event>),
    /// Strategic merge PATCH of an event (its count). Answer: [`ApiReply::Event`].
    PatchEvent {
        /// Event to patch.
        event: ObjectName,
        /// Patch of the event.
        patch: Value,
    },
    /// POST a certificate signing request. Answer: [`ApiReply::Csr`].
    CreateCsr(Box<CertificateSigningRequest>),
    /// GET a certificate signing request. Answer: [`ApiReply::Csr`].
    GetCsr {
        /// Name of the request.
        name: String,
    },
    /// GET a ConfigMap. Answer: [`ApiReply::ConfigMap`].
    GetConfigMap(ObjectName),
    /// POST a ConfigMap. Answer: [`ApiReply::ConfigMap`].
    CreateConfigMap(Box<ConfigMap>),
    /// PUT a ConfigMap (conflicts on `resourceVersion`). Answer: [`ApiReply::ConfigMap`].
    ReplaceConfigMap(Box<ConfigMap>),
    /// GET a Secret. Answer: [`ApiReply::Secret`].
    GetSecret(ObjectName),
    /// GET a service account. Answer: [`ApiReply::ServiceAccount`].
    GetServiceAccount(ObjectName),
    /// GET a PersistentVolumeClaim. Answer: [`ApiReply::Claim`].
    GetClaim(ObjectName),
    /// GET a PersistentVolume. Answer: [`ApiReply::Volume`].
    GetVolume {
        /// Name of the volume.
        name: String,
    },
    /// GET a CSIDriver. Answer: [`ApiReply::CsiDriver`].
    GetCsiDriver {
        /// Name of the driver.
        name: String,
    },
    /// GET a VolumeAttachment; a node may read its own. Answer: [`ApiReply::Attachment`].
    GetAttachment {
        /// Name of the attachment.
        name: String,
    },
    /// PATCH the status of a PersistentVolumeClaim (strategic merge). Answer: [`ApiReply::Claim`].
    PatchClaimStatus {
        /// Claim to patch.
        claim: ObjectName,
        /// Patch of the claim's status.
        patch: Value,
    },
    /// GET a CSINode. Answer: [`ApiReply::CsiNode`].
    GetCsiNode {
        /// Its name: the node's.
        name: String,
    },
    /// POST a CSINode. Answer: [`ApiReply::CsiNode`].
    CreateCsiNode(Box<CSINode>),
    /// PUT a CSINode (conflicts on `resourceVersion`). Answer: [`ApiReply::CsiNode`].
    ReplaceCsiNode(Box<CSINode>),
    /// DELETE a CSINode. Answer: [`ApiReply::Done`].
    DeleteCsiNode {
        /// Its name: the node's.
        name: String,
        /// `preconditions.uid`.
        uid: String,
    },
    /// GET a ResourceClaim. Answer: [`ApiReply::ResourceClaim`].
    GetResourceClaim(ObjectName),
    /// DELETE the ResourceSlices of a node, of one driver or of all drivers. Answer: [`ApiReply::Done`].
    DeleteResourceSlices {
        /// `spec.nodeName`: this node.
        node: Arc<str>,
        /// `spec.driver`.
        driver: Option<String>,
    },
    /// POST to a service account's `token` subresource. Answer: [`ApiReply::Token`].
    CreateToken {
        /// Service account of the token.
        account: ObjectName,
        /// Audience, lifetime and bound pod.
        request: Box<TokenRequest>,
    },
    /// POST a PodCertificateRequest. Answer: [`ApiReply::PodCertificate`].
    CreatePodCertificate(Box<PodCertificateRequest>),
    /// POST a token review. Answer: [`ApiReply::TokenReview`].
    ReviewToken(Box<TokenReview>),
    /// POST a subject access review. Answer: [`ApiReply::AccessReview`].
    ReviewAccess(Box<SubjectAccessReview>),
}

impl ApiCall {
    /// True if the call changes nothing: a caller that does not know whether it arrived may repeat it.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            ApiCall::GetNode { .. }
                | ApiCall::GetLease { .. }
                | ApiCall::FindPod { .. }
                | ApiCall::GetCsr { .. }
                | ApiCall::GetConfigMap(_)
                | ApiCall::GetSecret(_)
                | ApiCall::GetServiceAccount(_)
                | ApiCall::GetClaim(_)
                | ApiCall::GetVolume { .. }
                | ApiCall::GetCsiDriver { .. }
                | ApiCall::GetAttachment { .. }
                | ApiCall::GetCsiNode { .. }
                | ApiCall::GetResourceClaim(_)
                | ApiCall::ReviewToken(_)
                | ApiCall::ReviewAccess(_)
        )
    }

    /// Verb and object, for messages: `patch pod status default/web`.
    #[must_use]
    pub fn describe(&self) -> String {
        let named = |o: &ObjectName| format!("{}/{}", o.namespace, o.name);
        let meta = |m: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
            let name = m.name.as_deref().or(m.generate_name.as_deref()).unwrap_or("");
            match m.namespace.as_deref() {
                Some(namespace) => format!("{namespace}/{name}"),
                None => name.to_owned(),
            }
        };
        match self {
            ApiCall::GetNode { name } => format!("get node {name}"),
            ApiCall::CreateNode(node) => format!("create node {}", meta(&node.metadata)),
            ApiCall::PatchNode { name, .. } => format!("patch node {name}"),
            ApiCall::PatchNodeStatus { name, .. } => format!("patch node status {name}"),
            ApiCall::GetLease { name } => format!("get lease {name}"),
            ApiCall::CreateLease(lease) => format!("create lease {}", meta(&lease.metadata)),
            ApiCall::ReplaceLease(lease) => format!("replace lease {}", meta(&lease.metadata)),
            ApiCall::FindPod { pod, .. } => format!("find pod {}", named(pod)),
            ApiCall::CreatePod(pod) => format!("create pod {}", meta(&pod.metadata)),
            ApiCall::PatchPodStatus { pod, .. } => format!("patch pod status {}", named(pod)),
            ApiCall::DeletePod { pod, .. } => format!("delete pod {}", named(pod)),
            ApiCall::EvictPod { pod, .. } => format!("evict pod {}", named(pod)),
            ApiCall::CreateEvent(event) => format!("create event {}", meta(&event.metadata)),
            ApiCall::PatchEvent { event, .. } => format!("patch event {}", named(event)),
            ApiCall::CreateCsr(csr) => format!("create certificate signing request {}", meta(&csr.metadata)),
            ApiCall::GetCsr { name } => format!("get certificate signing request {name}"),
            ApiCall::GetConfigMap(object) => format!("get configmap {}", named(object)),
            ApiCall::CreateConfigMap(map) => format!("create configmap {}", meta(&map.metadata)),
            ApiCall::ReplaceConfigMap(map) => format!("replace configmap {}", meta(&map.metadata)),
            ApiCall::GetSecret(object) => format!("get secret {}", named(object)),
            ApiCall::GetServiceAccount(object) => format!("get serviceaccount {}", named(object)),
            ApiCall::GetClaim(object) => format!("get persistentvolumeclaim {}", named(object)),
            ApiCall::GetVolume { name } => format!("get persistentvolume {name}"),
            ApiCall::GetCsiDriver { name } => format!("get csidriver {name}"),
            ApiCall::GetAttachment { name } => format!("get volumeattachment {name}"),
            ApiCall::PatchClaimStatus { claim, .. } => {
                format!("patch persistentvolumeclaim status {}", named(claim))
            }
            ApiCall::GetCsiNode { name } => format!("get csinode {name}"),
            ApiCall::CreateCsiNode(object) => format!("create csinode {}", meta(&object.metadata)),
            ApiCall::ReplaceCsiNode(object) => format!("replace csinode {}", meta(&object.metadata)),
            ApiCall::DeleteCsiNode { name, .. } => format!("delete csinode {name}"),
            ApiCall::GetResourceClaim(object) => format!("get resourceclaim {}", named(object)),
            ApiCall::DeleteResourceSlices { node, driver } => match driver {
                Some(driver) => format!("delete resourceslices of driver {driver} on node {node}"),
                None => format!("delete resourceslices on node {node}"),
            },
            ApiCall::CreateToken { account, .. } => {
                format!("create token of service account {}", named(account))
            }
            ApiCall::CreatePodCertificate(request) => {
                format!("create podcertificaterequest {}", meta(&request.metadata))
            }
            // The text omits the token and its owner, because both may be secret.
            ApiCall::ReviewToken(_) => "review a token".to_owned(),
            ApiCall::ReviewAccess(_) => "review an access".to_owned(),
        }
    }
}

/// The answer of the API server to a successful call.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiReply {
    /// Current state of the Node.
    Node(Box<Node>),
    /// Current state of the Lease.
    Lease(Box<Lease>),
    /// Current state of the Pod.
    Pod(Box<Pod>),
    /// Current state of the Event.
    Event(Box<Event>),
    /// Current state of the request, with its certificate once it is signed.
    Csr(Box<CertificateSigningRequest>),
    /// Current state of the ConfigMap.
    ConfigMap(Box<ConfigMap>),
    /// Current state of the Secret.
    Secret(Box<Secret>),
    /// Current state of the ServiceAccount.
    ServiceAccount(Box<ServiceAccount>),
    /// Current state of the PersistentVolumeClaim.
    Claim(Box<PersistentVolumeClaim>),
    /// Current state of the PersistentVolume.
    Volume(Box<PersistentVolume>),
    /// Current state of the CSIDriver.
    CsiDriver(Box<CSIDriver>),
    /// Current state of the VolumeAttachment.
    Attachment(Box<VolumeAttachment>),
    /// Current state of the CSINode.
    CsiNode(Box<CSINode>),
    /// Current state of the ResourceClaim.
    ResourceClaim(Box<ResourceClaim>),
    /// The request with its token.
    Token(Box<TokenRequest>),
    /// Current state of the PodCertificateRequest.
    PodCertificate(Box<PodCertificateRequest>),
    /// The review with its answer.
    TokenReview(Box<TokenReview>),
    /// The review with its answer.
    AccessReview(Box<SubjectAccessReview>),
    /// Success without an object.
    Done,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message}")]
pub struct ApiError {
    /// [`ApiCall::describe`].
    pub call: String,
    /// Class of the failure. 404 is `NotFound`; 409 `AlreadyExists` or `Conflict` by its reason; 400, 403, 405, 410,
    /// 413, 415 and 422 are `Invalid`; 429 and 503 with `Retry-After` are `Retryable`; 401, other 5xx and no
    /// connection are `Unavailable`; no answer in time is `DeadlineExceeded`.
    pub class: Class,
    /// HTTP status, if there was an answer.
    pub code: Option<u16>,
    /// `Status.reason`, for example `Forbidden`; empty without an answer.
    pub reason: String,
    /// The server's message, or the connection's error and its remedy.
    pub message: String,
}

impl ApiError {
    /// An error of `call` on the node itself, without a status and a reason of the server.
    #[must_use]
    pub fn without_status(call: &ApiCall, class: Class, message: impl Into<String>) -> ApiError {
        ApiError { call: call.describe(), class, code: None, reason: String::new(), message: message.into() }
    }
}

/// Answer to one call.
pub type ApiResult = Result<ApiReply, ApiError>;

/// An event of a watch. A consumer needs no resource versions: the driver lists, watches with bookmarks,
/// lists again after 410 or a lost connection, and reports it.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<T> {
    /// All present objects, at the start and after each relist. An object that the list lacks is gone.
    Listed(Vec<Arc<T>>),
    /// Created or changed.
    Applied(Arc<T>),
    /// The last state of a deleted object.
    Deleted(Arc<T>),
    /// The server cannot be reached; the objects may be stale until the next `Listed` or event.
    Lost(String),
}

/// The driver: sends calls to the API server.
pub trait ApiServer: Send + Sync + 'static {
    /// Sends `call` with the node's identity and waits for the answer, not longer than the driver's limit (10 s).
    fn call(&self, call: &ApiCall) -> impl Future<Output = ApiResult> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_name_their_object() {
        let pod = ObjectName { namespace: "ns".into(), name: "web".into() };
        let mut new = Pod::default();
        new.metadata.namespace = Some("ns".into());
        new.metadata.name = Some("m".into());
        let mut csr = CertificateSigningRequest::default();
        csr.metadata.generate_name = Some("csr-".into());
        for (call, said) in [
            (ApiCall::GetNode { name: "n".into() }, "get node n"),
            (ApiCall::PatchPodStatus { pod: pod.clone(), patch: Value::Null }, "patch pod status ns/web"),
            (
                ApiCall::DeletePod { pod, uid: "u".into(), resource_version: None, grace_s: 0 },
                "delete pod ns/web",
            ),
            (ApiCall::CreatePod(Box::new(new)), "create pod ns/m"),
            (ApiCall::CreateCsr(Box::new(csr)), "create certificate signing request csr-"),
        ] {
            assert_eq!(call.describe(), said);
        }
    }
}
