//! Calls as HTTP requests.
//!
//! In: [`ApiCall`]. Out: method, path, query, body; and which limiter it counts against.
//! Invariants: every variant has exactly one shape; names are escaped, so that no object's name becomes another
//! path.

use agent_types::api::ApiCall;
use hyper::Request;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::Resource;
use kube::core::Request as Builder;
use kube::core::params::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use serde::Serialize;
use serde_json::Value;

/// Where leases of nodes live.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Which of the node's limits a call counts against (upstream has a client for each).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Node status and lease: never held back.
    Heartbeat,
    /// Events.
    Events,
    /// Reviews of callers of the node: strangers cause them, so they have a connection of their own. The node's guard
    /// bounds their number and their rate.
    Reviews,
    /// The rest.
    General,
}

pub(crate) fn lane(call: &ApiCall) -> Lane {
    match call {
        ApiCall::GetNode { .. }
        | ApiCall::PatchNodeStatus { .. }
        | ApiCall::GetLease { .. }
        | ApiCall::CreateLease(_)
        | ApiCall::ReplaceLease(_) => Lane::Heartbeat,
        ApiCall::CreateEvent(_) | ApiCall::PatchEvent { .. } => Lane::Events,
        ApiCall::ReviewToken(_) | ApiCall::ReviewAccess(_) => Lane::Reviews,
        _ => Lane::General,
    }
}

/// The request for `call`; the sentence says what about the call is no request.
pub(crate) fn build(call: &ApiCall) -> Result<Request<Vec<u8>>, String> {
    match call {
        ApiCall::GetNode { name } => get::<Node>(None, name),
        ApiCall::CreateNode(node) => create(None, node.as_ref()),
        ApiCall::PatchNode { name, patch } => resource::<Node>(None)
            .patch(&segment(name)?, &PatchParams::default(), &Patch::Strategic(patch))
            .map_err(|e| e.to_string()),
        ApiCall::PatchNodeStatus { name, patch } => patch_status::<Node>(None, name, patch),
        ApiCall::GetLease { name } => get::<Lease>(Some(LEASE_NAMESPACE), name),
        ApiCall::CreateLease(lease) => create(Some(namespace(lease.as_ref())?), lease.as_ref()),
        ApiCall::ReplaceLease(lease) => {
            let name = lease.metadata.name.as_deref().unwrap_or_default();
            resource::<Lease>(Some(namespace(lease.as_ref())?))
                .replace(&segment(name)?, &PostParams::default(), json(lease)?)
                .map_err(|e| e.to_string())
        }
        ApiCall::FindPod { pod, node } => {
            let fields = format!("metadata.name={},spec.nodeName={}", segment(&pod.name)?, segment(node)?);
            resource::<Pod>(Some(&segment(&pod.namespace)?))
                .list(&ListParams::default().fields(&fields))
                .map_err(|e| e.to_string())
        }
        ApiCall::CreatePod(pod) => create(Some(namespace(pod.as_ref())?), pod.as_ref()),
        ApiCall::PatchPodStatus { pod, patch } => patch_status::<Pod>(Some(&pod.namespace), &pod.name, patch),
        ApiCall::DeletePod { pod, uid, resource_version, grace_s } => {
            let resource_version = resource_version.clone();
            let preconditions = Preconditions { uid: Some(uid.clone()), resource_version };
            let params = DeleteParams {
                grace_period_seconds: Some(*grace_s),
                preconditions: Some(preconditions),
                ..DeleteParams::default()
            };
            resource::<Pod>(Some(&segment(&pod.namespace)?))
                .delete(&segment(&pod.name)?, &params)
                .map_err(|e| e.to_string())
        }
        ApiCall::EvictPod { pod, uid } => {
            // Its own grace period, and no other pod of this name.
            let preconditions = meta::Preconditions { uid: Some(uid.clone()), resource_version: None };
            let options =
                meta::DeleteOptions { preconditions: Some(preconditions), ..meta::DeleteOptions::default() };
            let mut eviction = Eviction { delete_options: Some(options), ..Eviction::default() };
            eviction.metadata.name = Some(pod.name.to_string());
            eviction.metadata.namespace = Some(pod.namespace.to_string());
            resource::<Pod>(Some(&segment(&pod.namespace)?))
                .create_subresource(
                    "eviction",
                    &segment(&pod.name)?,
                    &PostParams::default(),
                    json(&eviction)?,
                )
                .map_err(|e| e.to_string())
        }
        ApiCall::CreateEvent(event) => create(Some(namespace(event.as_ref())?), event.as_ref()),
        ApiCall::PatchEvent { event, patch } => resource::<Event>(Some(&segment(&event.namespace)?))
            .patch(&segment(&event.name)?, &PatchParams::default(), &Patch::Strategic(patch))
            .map_err(|e| e.to_string()),
        ApiCall::CreateCsr(csr) => create(None, csr.as_ref()),
        ApiCall::GetCsr { name } => get::<CertificateSigningRequest>(None, name),
        ApiCall::GetConfigMap(object) => get::<ConfigMap>(Some(&object.namespace), &object.name),
        ApiCall::CreateConfigMap(map) => create(Some(namespace(map.as_ref())?), map.as_ref()),
        ApiCall::ReplaceConfigMap(map) => {
            let name = map.metadata.name.as_deref().unwrap_or_default();
            resource::<ConfigMap>(Some(namespace(map.as_ref())?))
                .replace(&segment(name)?, &PostParams::default(), json(map)?)
                .map_err(|e| e.to_string())
        }
        ApiCall::GetSecret(object) => get::<Secret>(Some(&object.namespace), &object.name),
        ApiCall::GetServiceAccount(object) => get::<ServiceAccount>(Some(&object.namespace), &object.name),
        ApiCall::GetClaim(object) => get::<PersistentVolumeClaim>(Some(&object.namespace), &object.name),
        ApiCall::GetVolume { name } => get::<PersistentVolume>(None, name),
        ApiCall::GetCsiDriver { name } => get::<CSIDriver>(None, name),
        ApiCall::GetAttachment { name } => get::<VolumeAttachment>(None, name),
        ApiCall::PatchClaimStatus { claim, patch } => {
            patch_status::<PersistentVolumeClaim>(Some(&claim.namespace), &claim.name, patch)
        }
        ApiCall::GetCsiNode { name } => get::<CSINode>(None, name),
        ApiCall::CreateCsiNode(object) => create(None, object.as_ref()),
        ApiCall::ReplaceCsiNode(object) => {
            let name = object.metadata.name.as_deref().unwrap_or_default();
            resource::<CSINode>(None)
                .replace(&segment(name)?, &PostParams::default(), json(object)?)
                .map_err(|e| e.to_string())
        }
        ApiCall::DeleteCsiNode { name, uid } => {
            let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            resource::<CSINode>(None).delete(&segment(name)?, &params).map_err(|e| e.to_string())
        }
        ApiCall::GetResourceClaim(object) => get::<ResourceClaim>(Some(&object.namespace), &object.name),
        ApiCall::DeleteResourceSlices { node, driver } => {
            let node = format!("spec.nodeName={}", segment(node)?);
            let fields = match driver {
                Some(driver) => format!("spec.driver={},{node}", segment(driver)?),
                None => node,
            };
            resource::<ResourceSlice>(None)
                .delete_collection(&DeleteParams::default(), &ListParams::default().fields(&fields))
                .map_err(|e| e.to_string())
        }
        ApiCall::CreateToken { account, request } => {
            resource::<ServiceAccount>(Some(&segment(&account.namespace)?))
                .create_subresource("token", &segment(&account.name)?, &PostParams::default(), json(request)?)
                .map_err(|e| e.to_string())
        }
        ApiCall::CreatePodCertificate(request) => {
            create(Some(namespace(request.as_ref())?), request.as_ref())
        }
        ApiCall::ReviewToken(review) => create(None, review.as_ref()),
        ApiCall::ReviewAccess(review) => create(None, review.as_ref()),
    }
}

fn resource<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Builder {
    Builder::new(K::url_path(&(), namespace))
}

fn namespace<K: Resource>(object: &K) -> Result<&str, String> {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    segment(namespace).map_err(|_| format!("metadata.namespace: {namespace:?} is no namespace"))?;
    Ok(namespace)
}

/// A name as one segment of a path. Names the API accepts need no escape; anything else never leaves the node.
pub(crate) fn segment(name: &str) -> Result<String, String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~:".contains(&b);
    if name.is_empty() || name == "." || name == ".." || !name.bytes().all(plain) {
        return Err(format!("{name:?} is no name of an object"));
    }
    Ok(name.to_owned())
}

fn get<K: Resource<DynamicType = ()>>(
    namespace: Option<&str>,
    name: &str,
) -> Result<Request<Vec<u8>>, String> {
    let namespace = namespace.map(segment).transpose()?;
    resource::<K>(namespace.as_deref()).get(&segment(name)?, &GetParams::default()).map_err(|e| e.to_string())
}

fn create<K>(namespace: Option<&str>, object: &K) -> Result<Request<Vec<u8>>, String>
where
    K: Resource<DynamicType = ()> + Serialize,
{
    resource::<K>(namespace).create(&PostParams::default(), json(object)?).map_err(|e| e.to_string())
}

fn patch_status<K: Resource<DynamicType = ()>>(
    namespace: Option<&str>,
    name: &str,
    patch: &Value,
) -> Result<Request<Vec<u8>>, String> {
    let namespace = namespace.map(segment).transpose()?;
    resource::<K>(namespace.as_deref())
        .patch_subresource("status", &segment(name)?, &PatchParams::default(), &Patch::Strategic(patch))
        .map_err(|e| e.to_string())
}

fn json(object: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(object).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use agent_types::api::ObjectName;
    use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
    use serde_json::json;

    use super::*;

    fn shape(call: &ApiCall) -> String {
        let request = build(call).unwrap();
        let kind = request.headers().get("content-type").map_or("", |v| v.to_str().unwrap());
        let uri = request.uri().to_string();
        format!(
            "{} {} {kind} {}",
            request.method(),
            uri.trim_end_matches(['?', '&']),
            String::from_utf8_lossy(request.body())
        )
    }

    #[test]
    fn calls_have_upstreams_shapes() {
        let pod = ObjectName { namespace: "ns".into(), name: "web".into() };
        let lease: Lease =
            serde_json::from_value(json!({"metadata": {"name": "n", "namespace": LEASE_NAMESPACE}})).unwrap();
        let patch = json!({"status": {}});
        let strategic = "application/strategic-merge-patch+json {\"status\":{}}";
        let deletion = "DELETE /api/v1/namespaces/ns/pods/web application/json \
                        {\"gracePeriodSeconds\":0,\"preconditions\":{\"uid\":\"u\"}}";
        let table = [
            (ApiCall::GetNode { name: "n".into() }, "GET /api/v1/nodes/n  ".to_owned()),
            (
                ApiCall::PatchNodeStatus { name: "n".into(), patch: patch.clone() },
                format!("PATCH /api/v1/nodes/n/status {strategic}"),
            ),
            (
                ApiCall::GetLease { name: "n".into() },
                "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n  ".to_owned(),
            ),
            (
                ApiCall::FindPod { pod: pod.clone(), node: "n".into() },
                "GET /api/v1/namespaces/ns/pods?&fieldSelector=metadata.name%3Dweb%2Cspec.nodeName%3Dn  "
                    .to_owned(),
            ),
            (
                ApiCall::PatchPodStatus { pod: pod.clone(), patch },
                format!("PATCH /api/v1/namespaces/ns/pods/web/status {strategic}"),
            ),
            (
                ApiCall::DeletePod { pod, uid: "u".into(), resource_version: None, grace_s: 0 },
                deletion.to_owned(),
            ),
            (
                ApiCall::GetCsr { name: "csr-x".into() },
                "GET /apis/certificates.k8s.io/v1/certificatesigningrequests/csr-x  ".to_owned(),
            ),
        ];
        for (call, expected) in table {
            assert_eq!(shape(&call), expected);
        }
        let user = agent_kubelet_api::server_policy::User::of_certificate("u", &[]);
        let access = agent_kubelet_api::server_policy::access_review(&user, "get", "n", "proxy");
        let name = || ObjectName { namespace: "ns".into(), name: "x".into() };
        assert_eq!(shape(&ApiCall::GetSecret(name())), "GET /api/v1/namespaces/ns/secrets/x  ");
        let account = shape(&ApiCall::GetServiceAccount(name()));
        assert_eq!(account, "GET /api/v1/namespaces/ns/serviceaccounts/x  ");
        assert_eq!(shape(&ApiCall::GetClaim(name())), "GET /api/v1/namespaces/ns/persistentvolumeclaims/x  ");
        assert_eq!(shape(&ApiCall::GetVolume { name: "x".into() }), "GET /api/v1/persistentvolumes/x  ");
        let attachment = ApiCall::GetAttachment { name: "x".into() };
        assert_eq!(shape(&attachment), "GET /apis/storage.k8s.io/v1/volumeattachments/x  ");
        let patch = ApiCall::PatchClaimStatus { claim: name(), patch: json!({"status": {}}) };
        let shown = shape(&patch);
        assert!(shown.starts_with("PATCH /api/v1/namespaces/ns/persistentvolumeclaims/x/status "), "{shown}");
        let csi_node = Box::new(CSINode {
            metadata: serde_json::from_value(json!({"name": "x"})).unwrap(),
            ..CSINode::default()
        });
        let body = "{\"apiVersion\":\"storage.k8s.io/v1\",\"kind\":\"CSINode\",\"metadata\":{\"name\":\"x\"},\"spec\":{\"drivers\":[]}}";
        let path = "/apis/storage.k8s.io/v1/csinodes";
        assert_eq!(shape(&ApiCall::GetCsiNode { name: "x".into() }), format!("GET {path}/x  "));
        assert_eq!(
            shape(&ApiCall::CreateCsiNode(csi_node.clone())),
            format!("POST {path} application/json {body}")
        );
        assert_eq!(
            shape(&ApiCall::ReplaceCsiNode(csi_node)),
            format!("PUT {path}/x application/json {body}")
        );
        assert_eq!(
            shape(&ApiCall::DeleteCsiNode { name: "x".into(), uid: "u".into() }),
            format!("DELETE {path}/x application/json {{\"preconditions\":{{\"uid\":\"u\"}}}}")
        );
        let claim = shape(&ApiCall::GetResourceClaim(name()));
        assert_eq!(claim, "GET /apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/x  ");
        let slices = |driver: Option<&str>| {
            let driver = driver.map(str::to_owned);
            shape(&ApiCall::DeleteResourceSlices { node: "n".into(), driver })
        };
        let path = "DELETE /apis/resource.k8s.io/v1/resourceslices?&fieldSelector=";
        assert!(slices(None).starts_with(&format!("{path}spec.nodeName%3Dn ")), "{}", slices(None));
        let of_driver = slices(Some("d.example"));
        let expected = format!("{path}spec.driver%3Dd.example%2Cspec.nodeName%3Dn ");
        assert!(of_driver.starts_with(&expected), "{of_driver}");
        assert_eq!(shape(&ApiCall::GetConfigMap(name())), "GET /api/v1/namespaces/ns/configmaps/x  ");
        let patch = json!({"spec": {"unschedulable": true}});
        assert_eq!(
            shape(&ApiCall::PatchNode { name: "n".into(), patch }),
            "PATCH /api/v1/nodes/n application/strategic-merge-patch+json {\"spec\":{\"unschedulable\":true}}"
        );
        let evicted = shape(&ApiCall::EvictPod { pod: name(), uid: "u".into() });
        assert!(
            evicted.starts_with("POST /api/v1/namespaces/ns/pods/x/eviction application/json {"),
            "{evicted}"
        );
        assert!(evicted.contains(r#""preconditions":{"uid":"u"}"#), "{evicted}");
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some("ns".to_owned());
        map.metadata.name = Some("x".to_owned());
        let written = shape(&ApiCall::ReplaceConfigMap(Box::new(map.clone())));
        assert!(
            written.starts_with("PUT /api/v1/namespaces/ns/configmaps/x application/json {"),
            "{written}"
        );
        let made = shape(&ApiCall::CreateConfigMap(Box::new(map)));
        assert!(made.starts_with("POST /api/v1/namespaces/ns/configmaps application/json {"), "{made}");
        let mut asked = PodCertificateRequest::default();
        asked.metadata.namespace = Some("ns".to_owned());
        for (call, begins) in [
            (
                ApiCall::CreateToken { account: name(), request: Box::default() },
                "POST /api/v1/namespaces/ns/serviceaccounts/x/token application/json {",
            ),
            (
                ApiCall::CreatePodCertificate(Box::new(asked)),
                "POST /apis/certificates.k8s.io/v1beta1/namespaces/ns/podcertificaterequests application/json {",
            ),
            (
                ApiCall::ReviewToken(Box::new(agent_kubelet_api::server_policy::token_review("t"))),
                "POST /apis/authentication.k8s.io/v1/tokenreviews application/json {",
            ),
            (
                ApiCall::ReviewAccess(Box::new(access)),
                "POST /apis/authorization.k8s.io/v1/subjectaccessreviews application/json {",
            ),
        ] {
            assert!(shape(&call).starts_with(begins), "{}", shape(&call));
        }
        assert!(
            shape(&ApiCall::ReplaceLease(Box::new(lease)))
                .starts_with("PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n ")
        );
    }

    #[test]
    fn a_name_cannot_become_a_path() {
        for name in ["", ".", "..", "a/b", "a?b", "a%2fb", "a b", "ä", "a#b", "a\nb"] {
            assert!(build(&ApiCall::GetNode { name: name.into() }).is_err(), "{name:?}");
            let pod = ObjectName { namespace: name.into(), name: "p".into() };
            assert!(build(&ApiCall::FindPod { pod, node: "n".into() }).is_err(), "{name:?}");
            let mut pod = Pod::default();
            pod.metadata.namespace = Some(name.to_owned());
            assert!(build(&ApiCall::CreatePod(Box::new(pod))).is_err(), "{name:?}");
        }
    }
}
