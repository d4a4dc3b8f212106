//! Fields of a pod that this agent does not support yet. Admission rejects such a pod with the list, so that
//! no pod runs incompletely.
//!
//! In: a defaulted pod. Out: field paths with the missing feature. Invariant: every field of the v1 Pod is
//! either carried out, listed here, or without meaning on a node (scheduling, Windows): `tests/pod_fields.rs` names the reader of each
//! field. The change that carries a field out removes its entry; `docs/status.md` has the same list for people.

use std::fmt;

use agent_types::pod;
use agent_volumes::plan::is_known;
use k8s_openapi::api::core::v1::{Pod, Volume};

/// A field that is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Path of the field, with its value where only that value is the trouble.
    pub field: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)
    }
}

/// Every field of `pod` that the node does not support, in the order of the fields.
#[must_use]
pub fn unsupported(pod: &Pod) -> Vec<Unsupported> {
    let volumes = pod::spec(pod).volumes.iter().flatten().enumerate().filter(|(_, volume)| !is_known(volume));
    let field = |(index, volume)| format!("spec.volumes[{index}].{}", source_name(volume));
    volumes.map(|one| Unsupported { field: field(one) }).collect()
}

/// The name of the volume's source in the API.
fn source_name(volume: &Volume) -> String {
    match serde_json::to_value(volume) {
        Ok(serde_json::Value::Object(map)) => map.keys().find(|key| *key != "name").cloned(),
        _ => None,
    }
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fields(spec: Value) -> Vec<String> {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        unsupported(&serde_json::from_value(pod).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_carried_out_is_not_listed() {
        let spec = json!({
            "resources": {"requests": {"cpu": "1"}},
            "hostNetwork": true, "hostUsers": false, "activeDeadlineSeconds": 5, "nodeSelector": {"a": "b"},
            "resourceClaims": [{"name": "x", "resourceClaimName": "y"}],
            "readinessGates": [{"conditionType": "x"}], "imagePullSecrets": [{"name": "x"}],
            "serviceAccountName": "default", "serviceAccount": "default", "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority", "enableServiceLinks": true,
            "schedulerName": "default-scheduler", "tolerations": [{"key": "node.kubernetes.io/not-ready",
                "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "securityContext": {"fsGroup": 1, "sysctls": [{"name": "a", "value": "b"}]},
            "volumes": [{"name": "h", "hostPath": {"path": "/x", "type": "Socket"}}, {"name": "s", "secret": {}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "x"}}, {"name": "g", "ephemeral": {}},
                {"name": "i", "csi": {"driver": "x"}}, {"name": "o", "image": {"reference": "x"}},
                {"name": "n", "nfs": {"server": "x", "path": "/"}}, {"name": "t", "iscsi": {"targetPortal": "x", "iqn": "y", "lun": 0}},
                {"name": "f", "fc": {"wwids": ["x"]}}, {"name": "x", "flexVolume": {"driver": "x/y"}}, {"name": "u", "emptyDir": {"medium": "HugePages-2Mi"}},
                {"name": "m", "configMap": {"name": "x"}}, {"name": "d", "downwardAPI": {}},
                {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "x"}},
                    {"clusterTrustBundle": {"path": "y"}}, {"podCertificate": {"signerName": "x", "keyType": "ED25519"}}]}},
                {"name": "old", "gcePersistentDisk": {"pdName": "x"}}, {"name": "git", "gitRepo": {"repository": "x"}},
                {"name": "none", "rbd": {"monitors": ["x"], "image": "y"}},
                {"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
            "initContainers": [{"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "c", "volumeDevices": [{"name": "c", "devicePath": "/dev/x"}], "livenessProbe": {}, "readinessProbe": {}, "startupProbe": {},
                "lifecycle": {"preStop": {}, "postStart": {}, "stopSignal": "SIGUSR1"},
                "securityContext": {"procMount": "Unmasked"},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
                    {"name": "B", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "e"}}}],
                "resources": {"claims": [{"name": "x"}], "limits": {"cpu": "1", "memory": "1", "ephemeral-storage": "1", "hugepages-2Mi": "2Mi", "x.io/gpu": "1"}},
                "volumeMounts": [{"name": "h", "mountPath": "/x", "subPath": "", "recursiveReadOnly": "Enabled"}]}]});
        assert_eq!(fields(spec), Vec::<String>::new());
    }
}
