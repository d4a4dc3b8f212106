//! What the node relies on in an API server, as checks that run against any: the fake, and a real kube-apiserver.
//! A fake that does not pass simulates a fiction.
//!
//! In: a client with a node's identity, one with an administrator's, the node's name. Out: the names of the checks
//! that held, or the first [`Violation`]. Invariants: uses only HTTP; the node's objects are removed before and after.

use std::sync::Arc;
use std::time::Duration;

use agent_types::api::{ApiCall, ApiError, ApiReply, ApiResult, ApiServer, ObjectName, WatchEvent};
use agent_types::certificates::CertTemplate;
use agent_types::failure::Class;
use hyper::Request;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use crate::ApiClient;
use crate::certificates::KeyAndCsr;

/// A watch delivers within this.
const DELIVERY: Duration = Duration::from_secs(30);
const LEASES: &str = "kube-node-lease";

/// A broken promise.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// A call failed that must not.
    #[error("{check}: {source}")]
    Call {
        /// Which check.
        check: &'static str,
        /// The failure.
        #[source]
        source: ApiError,
    },
    /// An answer is not what it must be.
    #[error("{check}: {what}")]
    Answer {
        /// Which check.
        check: &'static str,
        /// Expected and found.
        what: String,
    },
}

pub(super) type Checked = Result<(), Violation>;

/// Who may less than a node.
pub struct Strangers {
    /// Credentials that the server must not know: an expired certificate, another authority's, a token without an
    /// owner.
    pub unknown: Vec<ApiClient>,
    /// No credentials.
    pub anonymous: ApiClient,
    /// A bootstrap token's.
    pub bootstrap: ApiClient,
}

/// Runs every check. `node` has the certificate of `system:node:<name>` in `system:nodes`.
///
/// # Errors
/// The first [`Violation`]; what the suite made until then is still there.
pub async fn contract_suite(
    node: &ApiClient,
    admin: &ApiClient,
    strangers: &Strangers,
    name: &str,
) -> Result<Vec<&'static str>, Violation> {
    let mut suite = Suite { node, admin, name: name.into(), check: "", done: Vec::new() };
    suite.clean().await?;
    let uid = suite.registration().await?;
    suite.node_status_and_watch().await?;
    suite.cordon().await?;
    suite.lease(&uid).await?;
    suite.pods().await?;
    suite.mirror_pod(&uid).await?;
    suite.events().await?;
    suite.requests_for_certificates().await?;
    suite.strangers(strangers).await?;
    suite.what_is_not_the_nodes().await?;
    suite.what_changed_meanwhile().await?;
    suite.node_deleted().await?;
    suite.clean().await?;
    Ok(suite.done)
}

pub(super) struct Suite<'a> {
    pub(super) node: &'a ApiClient,
    pub(super) admin: &'a ApiClient,
    pub(super) name: Arc<str>,
    pub(super) check: &'static str,
    done: Vec<&'static str>,
}

pub(super) fn typed<T: DeserializeOwned>(value: Value) -> Box<T> {
    serde_json::from_value(value).expect("an object of the suite")
}

impl Suite<'_> {
    pub(super) fn check(&mut self, name: &'static str) {
        self.check = name;
        self.done.push(name);
    }

    pub(super) fn holds(&self, condition: bool, what: impl FnOnce() -> String) -> Checked {
        if condition { Ok(()) } else { Err(Violation::Answer { check: self.check, what: what() }) }
    }

    pub(super) async fn ok(&self, call: ApiCall) -> Result<ApiReply, Violation> {
        self.node.call(&call).await.map_err(|source| Violation::Call { check: self.check, source })
    }

    pub(super) async fn fails(&self, call: ApiCall, class: Class) -> Checked {
        self.failed(self.node.call(&call).await, class)
    }

    pub(super) fn failed(&self, outcome: ApiResult, class: Class) -> Checked {
        match outcome {
            Ok(answer) => self.holds(false, || format!("expected {class:?}, got {answer:?}")),
            Err(error) => self.holds(error.class == class, || format!("expected {class:?}, got {error:?}")),
        }
    }

    /// Anything, as the administrator; the answer's code.
    pub(super) async fn as_admin(&self, method: &str, path: &str, body: &Value) -> Result<u16, Violation> {
        let failed = |what: String| Violation::Answer { check: self.check, what };
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(bytes)
            .map_err(|e| failed(e.to_string()))?;
        let response = self.admin.exchange(request).await.map_err(|e| failed(e.to_string()))?;
        let code = response.status();
        let body = crate::client::read_start(response.into_body(), 4096).await;
        let expected = code.is_success() || code == 404 || code == 409;
        self.holds(expected, || format!("{method} {path}: {code} {}", String::from_utf8_lossy(&body)))?;
        Ok(code.as_u16())
    }

    async fn clean(&self) -> Checked {
        let now = json!({ "gracePeriodSeconds": 0 });
        for pod in ["suite-pod", "suite-mirror", "suite-other", "suite-stale"] {
            self.as_admin("DELETE", &format!("/api/v1/namespaces/default/pods/{pod}-{}", self.name), &now)
                .await?;
        }
        let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{LEASES}/leases/{}", self.name);
        self.as_admin("DELETE", &lease, &Value::Null).await?;
        self.as_admin(
            "DELETE",
            &format!("/api/v1/namespaces/default/events/suite-event-{}", self.name),
            &Value::Null,
        )
        .await?;
        self.as_admin("DELETE", &format!("/api/v1/nodes/{}", self.name), &Value::Null).await.map(|_| ())
    }

    fn reply_node(&self, reply: ApiReply) -> Result<Box<Node>, Violation> {
        match reply {
            ApiReply::Node(node) => Ok(node),
            other => Err(Violation::Answer { check: self.check, what: format!("{other:?}") }),
        }
    }

    pub(super) fn reply_pod(&self, reply: ApiReply) -> Result<Box<Pod>, Violation> {
        match reply {
            ApiReply::Pod(pod) => Ok(pod),
            other => Err(Violation::Answer { check: self.check, what: format!("{other:?}") }),
        }
    }

    pub(super) fn find(&self, pod: &ObjectName) -> ApiCall {
        ApiCall::FindPod { pod: pod.clone(), node: Arc::clone(&self.name) }
    }

    async fn registration(&mut self) -> Result<String, Violation> {
        let name = Arc::clone(&self.name);
        self.check("an unknown node is NotFound, for GET and for its status");
        self.fails(ApiCall::GetNode { name: Arc::clone(&name) }, Class::NotFound).await?;
        let patch = json!({ "status": { "phase": "Running" } });
        self.fails(ApiCall::PatchNodeStatus { name: Arc::clone(&name), patch }, Class::NotFound).await?;
        self.check("a node registers itself");
        let node: Box<Node> = typed(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": &*name, "labels": { "kubernetes.io/hostname": &*name } },
            "status": { "capacity": { "pods": "110" } },
        }));
        let made = self.ok(ApiCall::CreateNode(node.clone())).await?;
        let made = self.reply_node(made)?;
        let uid = made.metadata.uid.clone().unwrap_or_default();
        self.holds(!uid.is_empty() && made.metadata.resource_version.is_some(), || format!("{made:?}"))?;
        self.check("a name that is taken is AlreadyExists");
        self.fails(ApiCall::CreateNode(node), Class::AlreadyExists).await?;
        self.check("another node may not be registered");
        let other = typed(json!({ "metadata": { "name": format!("not-{name}") } }));
        self.fails(ApiCall::CreateNode(other), Class::Invalid).await?;
        Ok(uid)
    }

    async fn node_status_and_watch(&mut self) -> Checked {
        let name = Arc::clone(&self.name);
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "reason": "Suite", "message": status });
        let patch =
            |name: &Arc<str>, patch: Value| ApiCall::PatchNodeStatus { name: Arc::clone(name), patch };
        self.check("conditions of a node merge by type, metadata is taken along");
        let first = json!({
            "metadata": { "annotations": { "suite": "yes" } },
            "status": { "conditions": [condition("Ready", "False"), condition("DiskPressure", "False")] },
        });
        self.ok(patch(&name, first)).await?;
        let second = json!({ "status": { "conditions": [condition("Ready", "True")] } });
        let node = self.ok(patch(&name, second)).await?;
        let node = self.reply_node(node)?;
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        let said: Vec<String> =
            conditions.into_iter().flatten().map(|c| format!("{}={}", c.type_, c.status)).collect();
        let both = said.contains(&"Ready=True".to_owned()) && said.contains(&"DiskPressure=False".to_owned());
        self.holds(both, || format!("{said:?}"))?;
        let annotated = node.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("suite"));
        self.holds(annotated, || format!("{:?}", node.metadata))?;
        self.check("a node watches itself: everything first, then changes");
        let (mut events, driver) = self.node.watch_node(&name);
        let driver = tokio::spawn(driver);
        self.until(&mut events, |e| matches!(e, WatchEvent::Listed(l) if l.len() == 1)).await?;
        let third = json!({ "status": { "conditions": [condition("Ready", "False")] } });
        self.ok(patch(&name, third)).await?;
        let is_new = |e: &WatchEvent<Node>| match e {
            WatchEvent::Applied(n) => n
                .status
                .iter()
                .flat_map(|s| s.conditions.iter().flatten())
                .any(|c| c.type_ == "Ready" && c.status == "False"),
            _ => false,
        };
        self.until(&mut events, is_new).await?;
        driver.abort();
        Ok(())
    }

    async fn cordon(&mut self) -> Checked {
        let name = Arc::clone(&self.name);
        let patch = |metadata: Value, unschedulable: Value| ApiCall::PatchNode {
            name: Arc::clone(&name),
            patch: json!({ "metadata": metadata, "spec": { "unschedulable": unschedulable } }),
        };
        self.check("a node cordons itself with a mark of its own, unless the Node has changed meanwhile");
        let marked = json!({ "annotations": { "suite-cordon": "u-1" } });
        let node = self.ok(patch(marked, json!(true))).await?;
        let node = self.reply_node(node)?;
        let is_cordoned = |node: &Node| node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        self.holds(is_cordoned(&node), || format!("{:?}", node.spec))?;
        let stale = json!({ "resourceVersion": "1", "annotations": { "suite-cordon": null } });
        self.fails(patch(stale, Value::Null), Class::Conflict).await?;
        self.check("it takes both back");
        let unmarked = json!({ "annotations": { "suite-cordon": null } });
        let node = self.ok(patch(unmarked, Value::Null)).await?;
        let node = self.reply_node(node)?;
        let is_marked = node.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("suite-cordon"));
        self.holds(!is_cordoned(&node) && !is_marked, || format!("{:?} {:?}", node.spec, node.metadata))
    }

    pub(super) async fn until<T: std::fmt::Debug>(
        &self,
        events: &mut Receiver<WatchEvent<T>>,
        wanted: impl Fn(&WatchEvent<T>) -> bool,
    ) -> Checked {
        let mut seen = Vec::new();
        let search = async {
            while let Some(event) = events.recv().await {
                if wanted(&event) {
                    return true;
                }
                seen.push(format!("{event:?}"));
            }
            false
        };
        let found = timeout(DELIVERY, search).await.unwrap_or(false);
        self.holds(found, || format!("the watch did not deliver it, but: {seen:?}"))
    }

    async fn lease(&mut self, uid: &str) -> Checked {
        self.check("a lease is made, replaced, and conflicts on its version");
        let lease = json!({
            "metadata": { "name": &*self.name, "namespace": LEASES, "ownerReferences": [
                { "apiVersion": "v1", "kind": "Node", "name": &*self.name, "uid": uid }] },
            "spec": { "holderIdentity": &*self.name, "leaseDurationSeconds": 40,
                      "renewTime": "2026-01-01T00:00:00.000000Z" },
        });
        self.fails(ApiCall::GetLease { name: Arc::clone(&self.name) }, Class::NotFound).await?;
        let ApiReply::Lease(made) = self.ok(ApiCall::CreateLease(typed(lease))).await? else {
            return self.holds(false, || "no lease".to_owned());
        };
        let mut renewed = made.clone();
        if let Some(spec) = renewed.spec.as_mut() {
            spec.lease_duration_seconds = Some(41);
        }
        let ApiReply::Lease(now) = self.ok(ApiCall::ReplaceLease(renewed)).await? else {
            return self.holds(false, || "no lease".to_owned());
        };
        self.holds(now.metadata.resource_version != made.metadata.resource_version, || format!("{now:?}"))?;
        let mut stale = made;
        if let Some(spec) = stale.spec.as_mut() {
            spec.lease_duration_seconds = Some(42);
        }
        self.fails(ApiCall::ReplaceLease(stale), Class::Conflict).await
    }

    async fn pods(&mut self) -> Checked {
        self.check("a pod bound to the node is delivered");
        let (mut events, driver) = self.node.watch_pods(&self.name);
        let driver = tokio::spawn(driver);
        self.until(&mut events, |e| matches!(e, WatchEvent::Listed(l) if l.is_empty())).await?;
        let account = json!({ "metadata": { "name": "default" } });
        self.as_admin("POST", "/api/v1/namespaces/default/serviceaccounts", &account).await?;
        let name: Arc<str> = format!("suite-pod-{}", self.name).into();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": &*name, "namespace": "default" },
            "spec": { "nodeName": &*self.name, "automountServiceAccountToken": false,
                      "terminationGracePeriodSeconds": 30,
                      "containers": [{ "name": "c", "image": "none" }] },
        });
        self.as_admin("POST", "/api/v1/namespaces/default/pods", &pod).await?;
        self.until(
            &mut events,
            |e| matches!(e, WatchEvent::Applied(p) if p.metadata.name.as_deref() == Some(&*name)),
        )
        .await?;
        self.check("a pod's status is patched under its UID");
        let which = ObjectName { namespace: "default".into(), name: Arc::clone(&name) };
        let found = self.ok(self.find(&which)).await?;
        let uid = self.reply_pod(found)?.metadata.uid.unwrap_or_default();
        let status = |uid: &str| ApiCall::PatchPodStatus {
            pod: which.clone(),
            patch: json!({ "metadata": { "uid": uid }, "status": { "phase": "Running", "conditions": [
                { "type": "Ready", "status": "True" }] } }),
        };
        let patched = self.ok(status(&uid)).await?;
        let phase = self.reply_pod(patched)?.status.and_then(|s| s.phase);
        self.holds(phase.as_deref() == Some("Running"), || format!("{phase:?}"))?;
        // "field is immutable", 422, as kube-apiserver 1.36 says it; a conflict only together with a stale version.
        self.fails(status("00000000-0000-0000-0000-00000000ffff"), Class::Invalid).await?;
        self.check("a deleted pod stays until the node lets go of it, which wants the right UID");
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        self.as_admin("DELETE", &path, &json!({ "gracePeriodSeconds": 30 })).await?;
        let going = |e: &WatchEvent<Pod>| {
            matches!(e, WatchEvent::Applied(p) if p.metadata.deletion_timestamp.is_some()
                && p.metadata.deletion_grace_period_seconds == Some(30))
        };
        self.until(&mut events, going).await?;
        let delete = |uid: &str| ApiCall::DeletePod {
            pod: which.clone(),
            uid: uid.to_owned(),
            resource_version: None,
            grace_s: 0,
        };
        self.fails(delete("00000000-0000-0000-0000-00000000ffff"), Class::Conflict).await?;
        let (pod, version) = (which.clone(), Some("1".to_owned()));
        let outdated = ApiCall::DeletePod { pod, uid: uid.clone(), resource_version: version, grace_s: 0 };
        self.fails(outdated, Class::Conflict).await?;
        self.ok(delete(&uid)).await?;
        self.until(
            &mut events,
            |e| matches!(e, WatchEvent::Deleted(p) if p.metadata.uid.as_deref() == Some(&uid)),
        )
        .await?;
        self.fails(self.find(&which), Class::NotFound).await?;
        self.fails(delete(&uid), Class::NotFound).await?;
        driver.abort();
        Ok(())
    }

    async fn mirror_pod(&mut self, uid: &str) -> Checked {
        self.check("a mirror pod is made and deleted by its node; any other pod is not");
        let name: Arc<str> = format!("suite-mirror-{}", self.name).into();
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": &*self.name, "uid": uid, "controller": true });
        let pod = json!({
            "metadata": { "name": &*name, "namespace": "default", "ownerReferences": [owner], "annotations": {
                "kubernetes.io/config.mirror": "0123", "kubernetes.io/config.source": "file" } },
            "spec": { "nodeName": &*self.name, "containers": [{ "name": "c", "image": "none" }] },
        });
        let mut plain = pod.clone();
        plain["metadata"]["annotations"] = json!({});
        self.fails(ApiCall::CreatePod(typed(plain)), Class::Invalid).await?;
        let made = self.ok(ApiCall::CreatePod(typed(pod.clone()))).await?;
        let made = self.reply_pod(made)?.metadata.uid.unwrap_or_default();
        self.fails(ApiCall::CreatePod(typed(pod)), Class::AlreadyExists).await?;
        let which = ObjectName { namespace: "default".into(), name };
        self.ok(ApiCall::DeletePod { pod: which, uid: made, resource_version: None, grace_s: 0 })
            .await
            .map(|_| ())
    }

    async fn events(&mut self) -> Checked {
        self.check("an event is made and its count patched");
        let name = format!("suite-event-{}", self.name);
        let event = json!({
            "metadata": { "name": name, "namespace": "default" }, "count": 1, "type": "Normal", "reason": "Suite",
            "message": "made by the contract suite", "reportingComponent": "kubelet",
            "source": { "component": "kubelet", "host": &*self.name },
            "involvedObject": { "kind": "Node", "name": &*self.name, "uid": &*self.name },
        });
        self.ok(ApiCall::CreateEvent(typed(event))).await?;
        let event = ObjectName { namespace: "default".into(), name: name.into() };
        let reply = self.ok(ApiCall::PatchEvent { event, patch: json!({ "count": 2 }) }).await?;
        self.holds(matches!(&reply, ApiReply::Event(e) if e.count == Some(2)), || format!("{reply:?}"))
    }

    /// A request for the node's certificate.
    pub(super) fn csr(&self) -> Result<ApiCall, Violation> {
        let names = CertTemplate {
            common_name: format!("system:node:{}", self.name),
            organization: "system:nodes".to_owned(),
            dns_names: Vec::new(),
            ips: Vec::new(),
        };
        let made = KeyAndCsr::generate(&names)
            .map_err(|e| Violation::Answer { check: self.check, what: e.to_string() })?;
        let pem = k8s_openapi::ByteString(made.csr_pem.into_bytes());
        let csr = json!({
            "metadata": { "generateName": "csr-" },
            "spec": { "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "request": pem,
                      "usages": ["digital signature", "client auth"] },
        });
        Ok(ApiCall::CreateCsr(typed(csr)))
    }

    async fn requests_for_certificates(&mut self) -> Checked {
        self.check("a node asks for its certificate");
        let ApiReply::Csr(made) = self.ok(self.csr()?).await? else {
            return self.holds(false, || "no request".to_owned());
        };
        let name = made.metadata.name.unwrap_or_default();
        self.holds(name.starts_with("csr-") && name.len() > 4, || name.clone())?;
        self.ok(ApiCall::GetCsr { name: name.clone() }).await?;
        let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}");
        self.as_admin("DELETE", &path, &Value::Null).await?;
        self.fails(ApiCall::GetCsr { name }, Class::NotFound).await
    }
}
