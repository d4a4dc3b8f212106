//! The node's calls, as requests to the fake and back.
//!
//! In: [`ApiCall`]. Out: [`ApiResult`] with the reply that the call's documentation promises.

use agent_types::api::{ApiCall, ApiReply, ApiResult, ObjectName};
use agent_types::time::Wall;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::graceful::DeleteOptions;
use super::resource::{Key, Resource, Selector, text};
use super::status::Status;
use super::{FakeApi, Requester, Verb};

/// Where node leases live.
pub(super) const LEASES: &str = "kube-node-lease";

fn of(resource: Resource, name: &ObjectName) -> Key {
    Key::new(resource, &name.namespace, &name.name)
}

fn create<T: Serialize>(resource: Resource, object: &T) -> Result<(Key, Verb), Status> {
    let object = serde_json::to_value(object).map_err(|e| Status::bad_request(&e.to_string()))?;
    let key = Key::new(resource, text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
    Ok((key, Verb::Create(object)))
}

fn replace<T: Serialize>(resource: Resource, object: &T) -> Result<(Key, Verb), Status> {
    Ok(match create(resource, object)? {
        (key, Verb::Create(object)) => (key, Verb::Replace(object)),
        other => other,
    })
}

fn typed<T: DeserializeOwned>(object: &Value) -> Result<Box<T>, Status> {
    T::deserialize(object).map(Box::new).map_err(|e| Status::internal(&e.to_string()))
}

impl FakeApi {
    /// Serves one call of a node (or of the admin).
    ///
    /// # Errors
    /// The server's refusal, classified as the driver does.
    pub fn call(&mut self, now: Wall, who: &Requester, call: &ApiCall) -> ApiResult {
        if let Some(reply) = self.reviews.of_call(call) {
            return Ok(reply);
        }
        self.try_call(now, who, call).map_err(|status| status.for_call(call))
    }

    fn try_call(&mut self, now: Wall, who: &Requester, call: &ApiCall) -> Result<ApiReply, Status> {
        if let ApiCall::FindPod { pod, node } = call {
            return self.find(who, pod, node);
        }
        if let ApiCall::CreateToken { account, request } = call {
            return self.token(now, who, account, request);
        }
        let (key, verb) = request(call)?;
        let object = self.serve(now, who, &key, &verb)?;
        if matches!(verb, Verb::Delete(_)) {
            return Ok(ApiReply::Done);
        }
        Ok(match key.resource {
            Resource::Pods => ApiReply::Pod(typed(&object)?),
            Resource::Nodes => ApiReply::Node(typed(&object)?),
            Resource::Events => ApiReply::Event(typed(&object)?),
            Resource::Leases => ApiReply::Lease(typed(&object)?),
            Resource::Csrs => ApiReply::Csr(typed(&object)?),
            Resource::ConfigMaps => ApiReply::ConfigMap(typed(&object)?),
            Resource::Secrets => ApiReply::Secret(typed(&object)?),
            // Agents watch runtime classes; no call reads one.
            Resource::RuntimeClasses => return Err(Status::not_found(&key)),
        })
    }
}

impl FakeApi {
    fn find(&self, who: &Requester, pod: &ObjectName, node: &str) -> Result<ApiReply, Status> {
        let selector = Selector {
            namespace: Some(pod.namespace.to_string()),
            name: Some(pod.name.to_string()),
            ..Selector::node(node)
        };
        self.may_watch(who, Resource::Pods, &selector)?;
        let found = self.list(Resource::Pods, &selector).0;
        let pod = found.first().ok_or_else(|| Status::not_found(&of(Resource::Pods, pod)))?;
        Ok(ApiReply::Pod(typed(pod)?))
    }

    /// A token for a pod of the node that asks, valid from `now` for the requested time.
    fn token(
        &self,
        now: Wall,
        who: &Requester,
        account: &ObjectName,
        request: &TokenRequest,
    ) -> Result<ApiReply, Status> {
        let spec = request.spec.clone().unwrap_or_default();
        let bound = spec.bound_object_ref.unwrap_or_default();
        let key = Key::new(Resource::Pods, &account.namespace, bound.name.as_deref().unwrap_or_default());
        let pod = self.object(&key).ok_or_else(|| Status::not_found(&key))?;
        let is = |path: &str, expected: &str| text(pod, path) == expected;
        let of_node = match who {
            Requester::Node(node) => {
                is("/spec/nodeName", node) && is("/spec/serviceAccountName", &account.name)
            }
            Requester::Admin => true,
            Requester::Bootstrapper => false,
        };
        if !of_node {
            return Err(Status::forbidden(&key, "no pod of this node runs as the service account"));
        }
        if !is("/metadata/uid", bound.uid.as_deref().unwrap_or_default()) {
            return Err(Status::not_found(&key));
        }
        let seconds = spec.expiration_seconds.unwrap_or(3600);
        let ends = Wall(now.0.saturating_add(seconds.saturating_mul(1_000_000_000)));
        let mut granted = request.clone();
        granted.status = Some(TokenRequestStatus {
            token: Some(format!("token-of-{}-{}", account.name, now.0)),
            expiration_timestamp: Timestamp::from_nanosecond(i128::from(ends.0)).ok().map(Time),
        });
        Ok(ApiReply::Token(Box::new(granted)))
    }
}

/// The object of a call, and the verb.
fn request(call: &ApiCall) -> Result<(Key, Verb), Status> {
    Ok(match call {
        ApiCall::GetNode { name } => (Key::new(Resource::Nodes, "", name), Verb::Get),
        ApiCall::CreateNode(node) => create(Resource::Nodes, node)?,
        ApiCall::PatchNode { name, patch } => {
            (Key::new(Resource::Nodes, "", name), Verb::Patch(patch.clone()))
        }
        ApiCall::PatchNodeStatus { name, patch } => {
            (Key::new(Resource::Nodes, "", name), Verb::PatchStatus(patch.clone()))
        }
        ApiCall::GetLease { name } => (Key::new(Resource::Leases, LEASES, name), Verb::Get),
        ApiCall::CreateLease(lease) => create(Resource::Leases, lease)?,
        ApiCall::ReplaceLease(lease) => replace(Resource::Leases, lease)?,
        ApiCall::CreatePod(pod) => create(Resource::Pods, pod)?,
        ApiCall::PatchPodStatus { pod, patch } => (of(Resource::Pods, pod), Verb::PatchStatus(patch.clone())),
        ApiCall::DeletePod { pod, uid, resource_version, grace_s } => {
            let (grace_s, uid) = (Some(i64::from(*grace_s)), Some(uid.clone()));
            let options = DeleteOptions { grace_s, uid, resource_version: resource_version.clone() };
            (of(Resource::Pods, pod), Verb::Delete(options))
        }
        // No budgets are kept here: an eviction is a deletion with the pod's own grace period.
        ApiCall::EvictPod { pod, uid } => {
            let options = DeleteOptions { grace_s: None, uid: Some(uid.clone()), resource_version: None };
            (of(Resource::Pods, pod), Verb::Delete(options))
        }
        ApiCall::CreateEvent(event) => create(Resource::Events, event)?,
        ApiCall::PatchEvent { event, patch } => (of(Resource::Events, event), Verb::Patch(patch.clone())),
        ApiCall::CreateCsr(csr) => create(Resource::Csrs, csr)?,
        ApiCall::GetCsr { name } => (Key::new(Resource::Csrs, "", name), Verb::Get),
        ApiCall::GetConfigMap(object) => (of(Resource::ConfigMaps, object), Verb::Get),
        ApiCall::CreateConfigMap(map) => create(Resource::ConfigMaps, map)?,
        ApiCall::ReplaceConfigMap(map) => replace(Resource::ConfigMaps, map)?,
        ApiCall::GetSecret(object) => (of(Resource::Secrets, object), Verb::Get),
        ApiCall::GetServiceAccount(_)
        | ApiCall::GetClaim(_)
        | ApiCall::GetVolume { .. }
        | ApiCall::GetCsiDriver { .. }
        | ApiCall::GetAttachment { .. }
        | ApiCall::PatchClaimStatus { .. }
        | ApiCall::GetCsiNode { .. }
        | ApiCall::CreateCsiNode(_)
        | ApiCall::ReplaceCsiNode(_)
        | ApiCall::DeleteCsiNode { .. }
        | ApiCall::GetResourceClaim(_)
        | ApiCall::DeleteResourceSlices { .. }
        | ApiCall::CreatePodCertificate(_) => {
            return Err(Status::bad_request("no objects of this kind are kept here"));
        }
        ApiCall::FindPod { .. }
        | ApiCall::ReviewToken(_)
        | ApiCall::ReviewAccess(_)
        | ApiCall::CreateToken { .. } => {
            return Err(Status::bad_request("not about one object"));
        }
    })
}
