//! Objects that a pod gets values from: by volumes and by its environment.
//!
//! In: a pod. Out: [`ObjectRef`]s. Invariant (SECRET-SCOPE): no other object is ever read for the pod, and
//! all of them are in the pod's own namespace, or in none. Upstream: pkg/kubelet/secret,
//! pkg/kubelet/configmap (`getSecretNames`, `getConfigMapNames`).

use std::collections::BTreeSet;

use agent_types::objects::{ObjectKind, ObjectRef};
use agent_types::{ContainerRef, pod};
use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeProjection};

/// A name that a pod gives; the API lets it be empty, and then it refers to nothing.
type NamedObject<'a> = (ObjectKind, &'a str);

fn objects<'a>(p: &Pod, named: impl IntoIterator<Item = NamedObject<'a>>) -> BTreeSet<ObjectRef> {
    let named = named.into_iter().filter(|(_, name)| !name.is_empty());
    named.map(|(kind, name)| ObjectRef::of(p, kind, name)).collect()
}

/// All objects of a pod.
#[must_use]
pub fn of_pod(p: &Pod) -> BTreeSet<ObjectRef> {
    let mut found = objects(p, pod::spec(p).volumes.iter().flatten().flat_map(of_volume));
    found.extend(pull_secrets(p));
    found.extend(runtime_class(p));
    found.extend(trust_bundles(p));
    for container in pod::init_containers(p).iter().chain(pod::containers(p)) {
        found.extend(of_container(p, container));
    }
    for ephemeral in pod::ephemeral_containers(p) {
        let common = ContainerRef::Ephemeral(&ephemeral.name).find(p);
        found.extend(common.iter().flat_map(|c| of_container(p, c)));
    }
    found
}

/// What a projected volume is made from; nothing, if it is none.
pub fn parts(volume: &Volume) -> impl Iterator<Item = &VolumeProjection> {
    volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten())
}

/// What all projected volumes of a pod are made from.
pub fn parts_of_pod(p: &Pod) -> impl Iterator<Item = &VolumeProjection> {
    pod::spec(p).volumes.iter().flatten().flat_map(parts)
}

fn of_volume(volume: &Volume) -> Vec<NamedObject<'_>> {
    let config_map = volume.config_map.iter().map(|s| (ObjectKind::ConfigMap, s.name.as_str()));
    let secret = volume.secret.iter().map(|s| (ObjectKind::Secret, s.secret_name.as_deref().unwrap_or("")));
    let projected = parts(volume).flat_map(|part| {
        let config_map = part.config_map.iter().map(|s| (ObjectKind::ConfigMap, s.name.as_str()));
        config_map.chain(part.secret.iter().map(|s| (ObjectKind::Secret, s.name.as_str())))
    });
    let csi = volume.csi.iter().filter_map(|c| c.node_publish_secret_ref.as_ref());
    let csi = csi.map(|s| (ObjectKind::Secret, s.name.as_str()));
    config_map.chain(secret).chain(projected).chain(csi).collect()
}

/// The Services that the pod's containers get variables for: the cluster's own first, then those of the pod's
/// namespace.
#[must_use]
pub fn services(p: &Pod) -> BTreeSet<ObjectRef> {
    let own = (pod::spec(p).enable_service_links != Some(false))
        .then(|| ObjectRef::of(p, ObjectKind::Services, ""));
    let cluster = ObjectRef {
        kind: ObjectKind::Services,
        namespace: "default".to_owned(),
        name: "kubernetes".to_owned(),
    };
    own.into_iter().chain([cluster]).collect()
}

/// The class that says which runtime the pod is run by; `None`: the node's own choice.
#[must_use]
pub fn runtime_class(p: &Pod) -> Option<ObjectRef> {
    let name = pod::spec(p).runtime_class_name.as_deref().filter(|name| !name.is_empty())?;
    Some(ObjectRef { kind: ObjectKind::RuntimeClass, namespace: String::new(), name: name.to_owned() })
}

/// All ClusterTrustBundles, if a volume of the pod has any.
#[must_use]
pub fn trust_bundles(p: &Pod) -> Option<ObjectRef> {
    parts_of_pod(p).any(|part| part.cluster_trust_bundle.is_some()).then(ObjectRef::trust_bundles)
}

/// The Secrets for pulling the pod's images.
#[must_use]
pub fn pull_secrets(p: &Pod) -> BTreeSet<ObjectRef> {
    let names = pod::spec(p).image_pull_secrets.iter().flatten();
    objects(p, names.map(|s| (ObjectKind::Secret, s.name.as_str())))
}

/// The objects of one container's environment.
#[must_use]
pub fn of_container(p: &Pod, container: &Container) -> BTreeSet<ObjectRef> {
    let whole = container.env_from.iter().flatten().flat_map(|from| {
        let config_map = from.config_map_ref.iter().map(|s| (ObjectKind::ConfigMap, s.name.as_str()));
        config_map.chain(from.secret_ref.iter().map(|s| (ObjectKind::Secret, s.name.as_str())))
    });
    let keys = container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()).flat_map(|from| {
        let config_map = from.config_map_key_ref.iter().map(|s| (ObjectKind::ConfigMap, s.name.as_str()));
        config_map.chain(from.secret_key_ref.iter().map(|s| (ObjectKind::Secret, s.name.as_str())))
    });
    objects(p, whole.chain(keys))
}
