//! Requests to the API server in the pod's name for its volumes: tokens of its account, its claims.
//!
//! In: a pod's volumes. Out: the volumes that need a request, the earliest time of the request, and the
//! volumes that only containers wait for. The node authorizer allows a node the objects of its pods, and
//! learns of a pod by its own watch: it refuses a request right after the pod was bound. Upstream is late
//! enough by itself (its reconciler runs every 100 ms: pkg/kubelet/volumemanager).

use std::time::Duration;

use k8s_openapi::api::core::v1::{Volume, VolumeProjection};

use super::claim;
use super::references::parts;

/// How long after a pod was heard of the API server is not asked for what belongs to it.
pub const ASK_AFTER: Duration = Duration::from_millis(50);

/// Name of the ConfigMap with the cluster's root certificates that is in every namespace.
const ROOT_CERTIFICATES: &str = "kube-root-ca.crt";

/// Setting it up asks the API server for something that is the pod's.
#[must_use]
pub fn asks(volume: &Volume) -> bool {
    let own =
        |part: &VolumeProjection| part.service_account_token.is_some() || part.pod_certificate.is_some();
    // A CSI driver may want tokens.
    volume.csi.is_some() || claim::has_one(volume) || parts(volume).any(own)
}

/// The volume has only what the API server's admission gives nearly every pod: a token, the root certificates, the name
/// of the namespace. The author of the pod has not chosen the parts that can be missing; so the sandbox is made
/// meanwhile, and only containers wait for the volume.
#[must_use]
pub fn is_account(volume: &Volume) -> bool {
    let given = |part: &VolumeProjection| {
        let certificates = part.config_map.as_ref().is_some_and(|map| map.name == ROOT_CERTIFICATES);
        part.service_account_token.is_some() || part.downward_api.is_some() || certificates
    };
    parts(volume).any(|part| part.service_account_token.is_some()) && parts(volume).all(given)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(source: Value) -> Volume {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn what_asks_the_api_server_and_what_the_sandbox_does_not_wait_for() {
        let token = json!({"serviceAccountToken": {"path": "token"}});
        let map = |name: &str| json!({"configMap": {"name": name}});
        let namespace = json!({"downwardAPI": {"items": []}});
        let projected = |parts: &[&Value]| json!({"projected": {"sources": parts}});
        let (root, other, secret) = (map("kube-root-ca.crt"), map("mine"), json!({"secret": {"name": "s"}}));
        let claim = json!({"persistentVolumeClaim": {"claimName": "c"}});
        let certificate = json!({"podCertificate": {"signerName": "a/b", "keyType": "ED25519"}});
        for (source, asks_it, account) in [
            (projected(&[&token, &root, &namespace]), true, true),
            (projected(&[&token]), true, true),
            (projected(&[&token, &other]), true, false),
            (projected(&[&token, &secret]), true, false),
            (projected(&[&certificate]), true, false),
            (projected(&[&root, &namespace]), false, false),
            (projected(&[]), false, false),
            (claim, true, false),
            (json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}), true, false),
            (json!({"csi": {"driver": "d"}}), true, false),
            (json!({"secret": {"secretName": "s"}}), false, false),
            (json!({"emptyDir": {}}), false, false),
        ] {
            let volume = volume(source);
            assert_eq!((asks(&volume), is_account(&volume)), (asks_it, account), "{volume:?}");
        }
    }
}
