//! Approves the nodes' requests for serving certificates, as a cluster's administrator does: upstream approves client
//! certificates by itself, serving certificates never.
//!
//! ```text
//! watch of CertificateSigningRequests ─► decide (pure) ─► approval
//! ```
//! Invariant: only a node's request in its own name for `kubernetes.io/kubelet-serving` is approved.

use futures_util::StreamExt;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Reaction to a node's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Approve serving certificates.
    Approve,
    /// Deny serving certificates.
    Deny,
    /// Leave everything as it is.
    Ignore,
}

/// A running approver; ends when dropped.
pub struct Approver {
    policy: watch::Sender<Policy>,
    task: JoinHandle<()>,
}

impl Approver {
    /// Starts one on a runtime.
    #[must_use]
    pub fn start(handle: &tokio::runtime::Handle, client: Client) -> Approver {
        let (policy, follow) = watch::channel(Policy::Approve);
        Approver { policy, task: handle.spawn(serve(Api::all(client), follow)) }
    }

    /// Looks at pending requests at once: after an outage of the API server the watch waits for half a minute.
    pub fn look_again(&self) {
        self.policy.send_modify(|_| {});
    }

    /// Changes the policy; requests that wait are looked at again.
    pub fn set(&self, policy: Policy) {
        self.policy.send_replace(policy);
    }
}

impl Drop for Approver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(requests: Api<CertificateSigningRequest>, mut policy: watch::Receiver<Policy>) {
    loop {
        let now = *policy.borrow_and_update();
        let mut changes =
            watcher(requests.clone(), watcher::Config::default()).default_backoff().applied_objects().boxed();
        loop {
            tokio::select! {
                change = changes.next() => match change {
                    Some(Ok(request)) => act(&requests, &request, now).await,
                    Some(Err(_)) => {}
                    None => break,
                },
                changed = policy.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
            }
        }
    }
}

async fn act(requests: &Api<CertificateSigningRequest>, request: &CertificateSigningRequest, policy: Policy) {
    let (Some(condition), Some(name)) = (decide(request, policy), request.metadata.name.as_deref()) else {
        return;
    };
    let message = "decided by the test cluster's administrator";
    let conditions = json!([{"type": condition, "status": "True", "reason": "Orlop", "message": message}]);
    let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
    // If it fails the request shows up again with the next watch.
    let _ = requests.patch_subresource("approval", name, &PatchParams::default(), &patch).await;
}

/// The condition to set, if any. Pure.
fn decide(request: &CertificateSigningRequest, policy: Policy) -> Option<&'static str> {
    let spec = &request.spec;
    let is_decided =
        request.status.as_ref().and_then(|s| s.conditions.as_ref()).is_some_and(|c| !c.is_empty());
    let is_of_node = spec.username.as_deref().is_some_and(|u| u.starts_with("system:node:"))
        && spec.groups.as_ref().is_some_and(|g| g.iter().any(|g| g == "system:nodes"));
    if is_decided || !is_of_node || spec.signer_name != "kubernetes.io/kubelet-serving" {
        return None;
    }
    match policy {
        Policy::Approve => Some("Approved"),
        Policy::Deny => Some("Denied"),
        Policy::Ignore => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(user: &str, signer: &str) -> CertificateSigningRequest {
        serde_json::from_value(
            json!({"metadata": {"name": "csr-1"}, "spec": {"request": "", "signerName": signer,
            "username": user, "groups": ["system:nodes"], "usages": []}}),
        )
        .unwrap()
    }

    #[test]
    fn only_serving_certificates_of_nodes_are_decided() {
        let serving = "kubernetes.io/kubelet-serving";
        let mine = request("system:node:a", serving);
        assert_eq!(decide(&mine, Policy::Approve), Some("Approved"));
        assert_eq!(decide(&mine, Policy::Deny), Some("Denied"));
        assert_eq!(decide(&mine, Policy::Ignore), None);
        assert_eq!(decide(&request("someone", serving), Policy::Approve), None);
        let client = request("system:node:a", "kubernetes.io/kube-apiserver-client-kubelet");
        assert_eq!(decide(&client, Policy::Approve), None);
        let mut done = mine;
        done.status =
            serde_json::from_value(json!({"conditions": [{"type": "Denied", "status": "True"}]})).unwrap();
        assert_eq!(decide(&done, Policy::Approve), None);
    }
}
