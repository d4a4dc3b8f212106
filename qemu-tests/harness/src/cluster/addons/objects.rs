//! Objects of the add-ons: created through kubectl, waited for through the API.
//!
//! In: a cluster, objects. Out: objects that the cluster has accepted, pods that are Ready.

use std::fs;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use serde_json::Value;

use crate::cluster::plane::Cluster;

/// Creates the objects; `name` is that of their file in the cluster's directory.
///
/// # Errors
/// If an object is refused.
pub(super) fn create(cluster: &Cluster, name: &str, objects: &Value) -> Result<()> {
    let file = cluster.dir().join(format!("{name}.json"));
    fs::write(&file, objects.to_string()).with_context(|| format!("write {}", file.display()))?;
    cluster.kubectl(&["apply", "--filename", &file.display().to_string()]).map(drop)
}

/// Waits until the DaemonSet has a Ready pod on each of `nodes` nodes, and wants no other.
///
/// # Errors
/// At the deadline, with the present state.
pub(super) fn await_daemon_set(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    nodes: i32,
    limit_s: u64,
) -> Result<()> {
    let client = cluster.client();
    let about = format!("{name} on {nodes} nodes");
    client.wait::<DaemonSet, _>(&client.of(namespace), limit_s, &about, |all| {
        let status = all.get(name)?.status.as_ref()?;
        (status.desired_number_scheduled == nodes && status.number_ready == nodes).then_some(())
    })
}

/// Waits until the Deployment has `replicas` available pods.
///
/// # Errors
/// At the deadline, with the present state.
pub(super) fn await_deployment(
    cluster: &Cluster,
    (namespace, name): (&str, &str),
    replicas: i32,
    limit_s: u64,
) -> Result<()> {
    let client = cluster.client();
    client.wait::<Deployment, _>(&client.of(namespace), limit_s, &format!("{name} to be available"), |all| {
        let status = all.get(name)?.status.as_ref()?;
        (status.available_replicas == Some(replicas)).then_some(())
    })
}

/// The API's type has every field of the object: none is misspelt.
#[cfg(test)]
pub(super) fn ensure_typed<K: serde::Serialize + serde::de::DeserializeOwned>(object: &Value) {
    let read: K = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), *object);
}
