//! Actions of other clients of the API server: bind, delete, replace, sign, taint.
//!
//! In: the API and names. Out: the changed objects, as controllers and the scheduler leave them. Each is one request of
//! [`Requester::Admin`], so the same rules hold.

use agent_types::time::Wall;
use serde_json::{Value, json};

use super::graceful::DeleteOptions;
use super::resource::{Key, Resource, put, text};
use super::status::Status;
use super::strategy::timestamp;
use super::{FakeApi, Requester, Verb};

impl FakeApi {
    /// A user or controller creates a pod.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn create_pod(&mut self, now: Wall, pod: &Value) -> Result<Key, Status> {
        let key = Key::new(Resource::Pods, text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        let made = self.serve(now, &Requester::Admin, &key, &Verb::Create(pod.clone()))?;
        Ok(Key::new(Resource::Pods, &key.namespace, text(&made, "/metadata/name")))
    }

    /// The scheduler binds a pod: `spec.nodeName` and the condition `PodScheduled`; the generation stays.
    ///
    /// # Errors
    /// 404; 409 if it is bound or being deleted.
    pub fn bind(&mut self, now: Wall, key: &Key, node: &str) -> Result<(), Status> {
        let old = self.existing(key)?;
        if !text(&old, "/spec/nodeName").is_empty() {
            return Err(Status::conflict(key, "pod is already assigned to a node"));
        }
        if !text(&old, "/metadata/deletionTimestamp").is_empty() {
            return Err(Status::conflict(key, "pod is being deleted, cannot be assigned to a host"));
        }
        let mut bound = Value::clone(&old);
        put(&mut bound, "spec", "nodeName", Some(json!(node)));
        let scheduled = json!({ "conditions": [{
            "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": timestamp(now),
        }] });
        let bound = super::merge::apply(&bound, &json!({ "status": scheduled }))
            .map_err(|e| Status::internal(&e.to_string()))?;
        self.store(key.clone(), bound);
        Ok(())
    }

    /// A user or controller deletes an object, with its own grace if `grace_s` is `None`.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn remove_object(&mut self, now: Wall, key: &Key, grace_s: Option<i64>) -> Result<(), Status> {
        let options = DeleteOptions { grace_s, ..DeleteOptions::default() };
        self.serve(now, &Requester::Admin, key, &Verb::Delete(options)).map(|_| ())
    }

    /// A controller removes the finalizers of an object. An object whose deletion waited only for this is gone.
    ///
    /// # Errors
    /// 404.
    pub fn release(&mut self, now: Wall, key: &Key) -> Result<(), Status> {
        let patch = json!({ "metadata": { "finalizers": null } });
        self.serve(now, &Requester::Admin, key, &Verb::Patch(patch)).map(|_| ())
    }

    /// The signer answers a certificate signing request; `Err` denies it with a reason.
    ///
    /// # Errors
    /// 404.
    pub fn answer_csr(&mut self, now: Wall, name: &str, answer: Result<&[u8], &str>) -> Result<(), Status> {
        let key = Key::new(Resource::Csrs, "", name);
        let condition = |kind: &str, reason: &str| {
            let at = timestamp(now);
            json!([{ "type": kind, "status": "True", "reason": reason, "message": "", "lastUpdateTime": at, "lastTransitionTime": at }])
        };
        let status = match answer {
            Ok(certificate) => {
                let bytes = k8s_openapi::ByteString(certificate.to_vec());
                json!({ "conditions": condition("Approved", "AutoApproved"), "certificate": bytes })
            }
            Err(reason) => json!({ "conditions": condition("Denied", reason) }),
        };
        self.serve(now, &Requester::Admin, &key, &Verb::PatchStatus(json!({ "status": status }))).map(|_| ())
    }
}
