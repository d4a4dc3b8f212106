//! Which objects a pod gets values from: volumes and environment.
//!
//! In: a pod. Out: [`ObjectRef`]s. Invariant (SECRET-SCOPE): nothing else is ever read for the pod, and all of it lies in
//! the pod's own namespace. Upstream: pkg/kubelet/util/manager getSecretNames, getConfigMapNames.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{ObjectKind, ObjectRef};
use crate::types::{ContainerRef, pod};

/// All objects of a pod.
#[must_use]
pub fn of_pod(p: &Pod) -> BTreeSet<ObjectRef> {
    let mut found = BTreeSet::new();
    let mut add = |kind: ObjectKind, name: &str| {
        if !name.is_empty() {
            let (namespace, name) = (pod::namespace(p).to_owned(), name.to_owned());
            found.insert(ObjectRef { kind, namespace, name });
        }
    };
    for volume in pod::spec(p).volumes.iter().flatten() {
        if let Some(source) = &volume.config_map {
            add(ObjectKind::ConfigMap, &source.name);
        }
        if let Some(source) = &volume.secret {
            add(ObjectKind::Secret, source.secret_name.as_deref().unwrap_or(""));
        }
        for part in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            if let Some(source) = &part.config_map {
                add(ObjectKind::ConfigMap, &source.name);
            }
            if let Some(source) = &part.secret {
                add(ObjectKind::Secret, &source.name);
            }
        }
    }
    found.extend(pull_secrets(p));
    for container in pod::init_containers(p).iter().chain(pod::containers(p)) {
        found.extend(of_container(p, container));
    }
    for ephemeral in pod::ephemeral_containers(p) {
        let common = ContainerRef::Ephemeral(&ephemeral.name).find(p);
        found.extend(common.iter().flat_map(|c| of_container(p, c)));
    }
    found
}

/// The Secrets for pulling the pod's images.
#[must_use]
pub fn pull_secrets(p: &Pod) -> BTreeSet<ObjectRef> {
    let names = pod::spec(p).image_pull_secrets.iter().flatten().map(|s| &s.name).filter(|n| !n.is_empty());
    let namespace = pod::namespace(p);
    names
        .map(|name| ObjectRef {
            kind: ObjectKind::Secret,
            namespace: namespace.to_owned(),
            name: name.clone(),
        })
        .collect()
}

/// The objects of one container's environment.
#[must_use]
pub fn of_container(p: &Pod, container: &Container) -> BTreeSet<ObjectRef> {
    let mut found = BTreeSet::new();
    let mut add = |kind: ObjectKind, name: &str| {
        if !name.is_empty() {
            let (namespace, name) = (pod::namespace(p).to_owned(), name.to_owned());
            found.insert(ObjectRef { kind, namespace, name });
        }
    };
    for from in container.env_from.iter().flatten() {
        if let Some(source) = &from.config_map_ref {
            add(ObjectKind::ConfigMap, &source.name);
        }
        if let Some(source) = &from.secret_ref {
            add(ObjectKind::Secret, &source.name);
        }
    }
    for from in container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()) {
        if let Some(source) = &from.config_map_key_ref {
            add(ObjectKind::ConfigMap, &source.name);
        }
        if let Some(source) = &from.secret_key_ref {
            add(ObjectKind::Secret, &source.name);
        }
    }
    found
}
