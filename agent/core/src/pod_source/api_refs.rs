//! References of static pods to API objects: not allowed, because static pods run without the API (gate
//! PreventStaticPodAPIReferences).
//!
//! In: a pod. Out: the first kind of object that it refers to. Upstream: `HasAPIObjectReference` of
//! pkg/api/pod/util.go.

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVarSource, Pod, PodSpec, Volume, VolumeProjection,
};

/// The plural resource name of an API object that `pod` refers to.
#[must_use]
pub fn api_reference(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    if spec.service_account_name.as_deref().is_some_and(|n| !n.is_empty()) {
        return Some("serviceaccounts");
    }
    if spec.image_pull_secrets.as_ref().is_some_and(|l| !l.is_empty()) {
        return Some("secrets");
    }
    if let Some(found) = containers(spec).find_map(container_reference) {
        return Some(found);
    }
    let of_container = |c: &Container| c.resources.as_ref().is_some_and(|of| some(of.claims.as_ref()));
    if some(spec.resource_claims.as_ref()) || containers(spec).any(of_container) {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(volume_reference)
}

fn some<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

fn container_reference(container: &Container) -> Option<&'static str> {
    let from = |source: &EnvFromSource| match source {
        EnvFromSource { secret_ref: Some(_), .. } => Some("secrets"),
        EnvFromSource { config_map_ref: Some(_), .. } => Some("configmaps"),
        _ => None,
    };
    let value = |source: &EnvVarSource| match source {
        EnvVarSource { secret_key_ref: Some(_), .. } => Some("secrets"),
        EnvVarSource { config_map_key_ref: Some(_), .. } => Some("configmaps"),
        _ => None,
    };
    let env_from = container.env_from.iter().flatten().find_map(from);
    env_from.or_else(|| container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()).find_map(value))
}

fn volume_reference(volume: &Volume) -> Option<&'static str> {
    let table: [(bool, &'static str); 14] = [
        (volume.secret.is_some(), "secrets"),
        (volume.config_map.is_some(), "configmaps"),
        (volume.persistent_volume_claim.is_some(), "persistentvolumeclaims"),
        (volume.ephemeral.is_some(), "persistentvolumeclaims"),
        (volume.csi.is_some(), "csidrivers"),
        (volume.glusterfs.is_some(), "endpoints"),
        (volume.azure_file.is_some(), "secrets"),
        (volume.cephfs.as_ref().is_some_and(|v| v.secret_ref.is_some()), "secrets"),
        (volume.cinder.as_ref().is_some_and(|v| v.secret_ref.is_some()), "secrets"),
        (volume.flex_volume.as_ref().is_some_and(|v| v.secret_ref.is_some()), "secrets"),
        (volume.rbd.as_ref().is_some_and(|v| v.secret_ref.is_some()), "secrets"),
        (volume.scale_io.is_some(), "secrets"),
        (volume.iscsi.as_ref().is_some_and(|v| v.secret_ref.is_some()), "secrets"),
        (volume.storageos.as_ref().is_some_and(|v| v.secret_ref.is_some()), "secrets"),
    ];
    let direct = table.into_iter().find(|(used, _)| *used).map(|(_, name)| name);
    direct.or_else(|| volume.projected.as_ref()?.sources.iter().flatten().find_map(projection_reference))
}

fn projection_reference(source: &VolumeProjection) -> Option<&'static str> {
    let table = [
        (source.secret.is_some(), "secrets"),
        (source.config_map.is_some(), "configmaps"),
        (source.service_account_token.is_some(), "serviceaccounts"),
        (source.cluster_trust_bundle.is_some(), "clustertrustbundles"),
        (source.pod_certificate.is_some(), "podcertificates"),
    ];
    table.into_iter().find(|(used, _)| *used).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reference(spec: Value) -> Option<&'static str> {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        api_reference(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn table() {
        let env = |source: Value| json!({"containers": [{"name": "c", "env": [{"name": "A", "valueFrom": source}]}]});
        let env_from =
            |source: Value| json!({"initContainers": [{"name": "c", "envFrom": [source]}], "containers": []});
        let volume = |source: Value| json!({"containers": [], "volumes": [source]});
        let projected = |source: Value| volume(json!({"name": "v", "projected": {"sources": [source]}}));
        let cases = [
            (json!({"containers": [{"name": "c"}]}), None),
            (volume(json!({"name": "v", "hostPath": {"path": "/x"}})), None),
            (volume(json!({"name": "v", "emptyDir": {}})), None),
            (json!({"containers": [], "serviceAccountName": "x"}), Some("serviceaccounts")),
            (json!({"containers": [], "imagePullSecrets": [{"name": "x"}]}), Some("secrets")),
            (json!({"containers": [], "resourceClaims": [{"name": "x"}]}), Some("resourceclaims")),
            (env(json!({"secretKeyRef": {"key": "k"}})), Some("secrets")),
            (env(json!({"configMapKeyRef": {"key": "k"}})), Some("configmaps")),
            (env(json!({"fieldRef": {"fieldPath": "metadata.name"}})), None),
            (env_from(json!({"secretRef": {"name": "x"}})), Some("secrets")),
            (env_from(json!({"configMapRef": {"name": "x"}})), Some("configmaps")),
            (volume(json!({"name": "v", "secret": {}})), Some("secrets")),
            (volume(json!({"name": "v", "configMap": {}})), Some("configmaps")),
            (volume(json!({"name": "v", "csi": {"driver": "d"}})), Some("csidrivers")),
            (volume(json!({"name": "v", "ephemeral": {}})), Some("persistentvolumeclaims")),
            (
                volume(json!({"name": "v", "persistentVolumeClaim": {"claimName": "x"}})),
                Some("persistentvolumeclaims"),
            ),
            (projected(json!({"serviceAccountToken": {"path": "x"}})), Some("serviceaccounts")),
            (projected(json!({"downwardAPI": {}})), None),
        ];
        for (spec, expected) in cases {
            assert_eq!(reference(spec.clone()), expected, "{spec}");
        }
    }
}
