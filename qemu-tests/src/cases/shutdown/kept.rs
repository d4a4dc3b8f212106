//! A Deployment and a StatefulSet that run on the VM during all cases. After each end of the VM both have their replica
//! again, none of their pods is stuck, and no terminated pod needs manual cleaning.

use anyhow::Result;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use serde_json::{Value, json};

use super::pod;

const DEPLOYMENT: &str = "kept-by-deployment";
const STATEFUL_SET: &str = "kept-by-set";

/// The pod is one of theirs.
pub(super) fn is(pod: &str) -> bool {
    pod.starts_with("kept-by-")
}

fn workload(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({"metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod("", None, 0, 2)["spec"]}}})
}

/// Makes both.
pub(super) fn create(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    client.create::<Deployment>(&client.of("default"), workload(DEPLOYMENT))?;
    let mut set = workload(STATEFUL_SET);
    set["spec"]["serviceName"] = "none".into();
    client.create::<StatefulSet>(&client.of("default"), set).map(drop)
}

/// Waits until both have their replica, and no other pod of theirs exists: neither a stuck one or one in an unknown
/// state, nor a terminated one.
pub(super) fn await_settled(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let what =
        "the Deployment's and the StatefulSet's pods to be whole again, and nobody else of theirs there";
    client.wait::<Pod, _>(&client.of("default"), 180, what, |all| {
        let theirs: Vec<&Pod> = all.iter().filter(|(name, _)| is(name)).map(|(_, pod)| pod).collect();
        (theirs.len() == 2 && theirs.iter().all(|pod| ready::pod(pod))).then_some(())
    })
}
