//! Second half of the contract suite: refused requests of nodes and of strangers with their errors, and
//! conflicts with concurrent changes.
//!
//! In and out as in the suite. The facts were observed with kube-apiserver 1.36.

use std::sync::Arc;

use agent_types::api::{ApiCall, ApiReply, ApiServer, ObjectName, WatchEvent};
use agent_types::failure::Class;
use serde_json::json;

use super::contract_suite::{Checked, Strangers, Suite, Violation, typed};

impl Suite<'_> {
    pub(super) async fn strangers(&mut self, strangers: &Strangers) -> Checked {
        let get = ApiCall::GetNode { name: Arc::clone(&self.name) };
        self.check("credentials that are not known are 401, and the connection stands");
        for client in &strangers.unknown {
            for call in [&get, &self.csr()?] {
                let refusal = client.call(call).await;
                let code = refusal.as_ref().err().and_then(|e| e.code);
                self.holds(code == Some(401), || format!("{client:?}: {refusal:?}"))?;
            }
        }
        self.check("nobody is somebody, who may nothing");
        self.failed(strangers.anonymous.call(&get).await, Class::Invalid)?;
        self.failed(strangers.anonymous.call(&self.csr()?).await, Class::Invalid)?;
        self.check("a bootstrap token asks for a certificate and looks at its request, and that is all");
        let asked = strangers.bootstrap.call(&self.csr()?).await;
        let name = match &asked {
            Ok(ApiReply::Csr(csr)) => csr.metadata.name.clone().unwrap_or_default(),
            _ => return self.holds(false, || format!("{asked:?}")),
        };
        let looked = strangers.bootstrap.call(&ApiCall::GetCsr { name: name.clone() }).await;
        self.holds(matches!(looked, Ok(ApiReply::Csr(_))), || format!("{looked:?}"))?;
        let node = typed(json!({ "metadata": { "name": &*self.name } }));
        self.failed(strangers.bootstrap.call(&ApiCall::CreateNode(node)).await, Class::Invalid)?;
        let pod = ObjectName { namespace: "default".into(), name: "any".into() };
        self.failed(strangers.bootstrap.call(&self.find(&pod)).await, Class::Invalid)?;
        let path = format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}");
        self.as_admin("DELETE", &path, &json!(null)).await.map(|_| ())
    }

    pub(super) async fn what_is_not_the_nodes(&mut self) -> Checked {
        self.check("another node's object, status and lease are forbidden");
        let other: Arc<str> = format!("not-{}", self.name).into();
        self.fails(ApiCall::GetNode { name: Arc::clone(&other) }, Class::Invalid).await?;
        let patch = json!({ "status": { "phase": "Running" } });
        let status = ApiCall::PatchNodeStatus { name: Arc::clone(&other), patch };
        // It is not there either; the authoriser is asked first.
        self.fails_with(status, &[403, 404]).await?;
        self.fails(ApiCall::GetLease { name: Arc::clone(&other) }, Class::Invalid).await?;
        self.check("labels that restrict nodes and taints are not the node's to set");
        let patch = |patch| ApiCall::PatchNodeStatus { name: Arc::clone(&self.name), patch };
        let label = json!({ "metadata": { "labels": { "node-restriction.kubernetes.io/suite": "x" } } });
        self.fails(patch(label), Class::Invalid).await?;
        self.check("a pod of another node is neither shown to the node nor the node's to change");
        let name: Arc<str> = format!("suite-other-{}", self.name).into();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": &*name, "namespace": "default" },
            "spec": { "nodeName": &*other, "automountServiceAccountToken": false,
                      "containers": [{ "name": "c", "image": "none" }] },
        });
        self.as_admin("POST", "/api/v1/namespaces/default/pods", &pod).await?;
        let which = ObjectName { namespace: "default".into(), name };
        self.fails(self.find(&which), Class::NotFound).await?;
        self.fails(ApiCall::FindPod { pod: which.clone(), node: Arc::clone(&other) }, Class::Invalid).await?;
        let patch = json!({ "status": { "phase": "Failed" } });
        self.fails(ApiCall::PatchPodStatus { pod: which.clone(), patch }, Class::Invalid).await?;
        // The precondition comes first, the permission second.
        let delete = |uid: &str| ApiCall::DeletePod {
            pod: which.clone(),
            uid: uid.to_owned(),
            resource_version: None,
            grace_s: 0,
        };
        self.fails(delete("00000000-0000-0000-0000-00000000ffff"), Class::Conflict).await?;
        let uid = self.admin_uid(&which, &other).await?;
        self.fails(delete(&uid), Class::Invalid).await
    }

    pub(super) async fn what_changed_meanwhile(&mut self) -> Checked {
        self.check("a status from a version that is over is a conflict");
        let name: Arc<str> = format!("suite-stale-{}", self.name).into();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": &*name, "namespace": "default" },
            "spec": { "nodeName": &*self.name, "automountServiceAccountToken": false,
                      "containers": [{ "name": "c", "image": "none" }] },
        });
        self.as_admin("POST", "/api/v1/namespaces/default/pods", &pod).await?;
        let which = ObjectName { namespace: "default".into(), name };
        let found = self.ok(self.find(&which)).await?;
        let version = self.reply_pod(found)?.metadata.resource_version.unwrap_or_default();
        let status = |phase: &str| ApiCall::PatchPodStatus {
            pod: which.clone(),
            patch: json!({ "metadata": { "resourceVersion": version }, "status": { "phase": phase } }),
        };
        self.ok(status("Running")).await?;
        self.fails(status("Failed"), Class::Conflict).await?;
        self.check("a status of what is gone is NotFound");
        let path = format!("/api/v1/namespaces/default/pods/{}", which.name);
        self.as_admin("DELETE", &path, &json!({ "gracePeriodSeconds": 0 })).await?;
        self.fails(status("Failed"), Class::NotFound).await?;
        self.check("an event that is gone is NotFound, one that is there AlreadyExists");
        let event = ObjectName { namespace: "default".into(), name: "suite-no-event".into() };
        self.fails(ApiCall::PatchEvent { event, patch: json!({ "count": 2 }) }, Class::NotFound).await?;
        let again = json!({
            "metadata": { "name": format!("suite-event-{}", self.name), "namespace": "default" }, "count": 1,
            "type": "Normal", "reason": "Suite", "message": "again", "source": { "component": "kubelet" },
            "involvedObject": { "kind": "Node", "name": &*self.name, "uid": &*self.name },
        });
        self.fails(ApiCall::CreateEvent(typed(again)), Class::AlreadyExists).await
    }

    pub(super) async fn node_deleted(&mut self) -> Checked {
        let name = Arc::clone(&self.name);
        self.check("a Node made anew is not taken for the old one");
        let patch = json!({ "metadata": { "uid": "00000000-0000-0000-0000-00000000ffff" },
            "status": { "phase": "Running" } });
        self.fails_with(ApiCall::PatchNodeStatus { name: Arc::clone(&name), patch }, &[409, 422]).await?;
        self.check("a node sees itself deleted");
        let (mut events, driver) = self.node.watch_node(&name);
        let driver = tokio::spawn(driver);
        self.until(&mut events, |e| matches!(e, WatchEvent::Listed(l) if l.len() == 1)).await?;
        self.as_admin("DELETE", &format!("/api/v1/nodes/{name}"), &json!(null)).await?;
        self.until(&mut events, |e| matches!(e, WatchEvent::Deleted(_))).await?;
        driver.abort();
        Ok(())
    }

    /// The UID of a pod that the node may not read.
    async fn admin_uid(&self, pod: &ObjectName, node: &Arc<str>) -> Result<String, Violation> {
        let find = ApiCall::FindPod { pod: pod.clone(), node: Arc::clone(node) };
        match self.admin.call(&find).await {
            Ok(ApiReply::Pod(pod)) => Ok(pod.metadata.uid.unwrap_or_default()),
            other => Err(Violation::Answer { check: self.check, what: format!("{other:?}") }),
        }
    }

    async fn fails_with(&self, call: ApiCall, codes: &[u16]) -> Checked {
        let outcome = self.node.call(&call).await;
        let code = outcome.as_ref().err().and_then(|e| e.code);
        self.holds(code.is_some_and(|c| codes.contains(&c)), || {
            format!("expected one of {codes:?}, got {outcome:?}")
        })
    }
}
