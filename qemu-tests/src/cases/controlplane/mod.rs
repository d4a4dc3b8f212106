//! A node that carries a control plane: etcd, API server, controllers and scheduler as static pods of one NodeConfig.
//!
//! The cases share one VM, and build on one another in the order of `list`; each can also run alone.

pub mod power_cuts;
pub mod single;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use orlop_harness::case::{CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::hosted_plane::{HostedPlane, NODE, READY_LIMIT_S};
use orlop_harness::cluster::ready;
use serde_json::json;

/// Defaults of all cases that use the shared VM.
pub(crate) const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("hosted-plane") };

/// A pod that the scheduler places before the power fails.
const POD: &str = "hello";

/// The group's VM, Ready.
fn plane<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut HostedPlane> {
    cx.shared_or(HostedPlane::start)
}

/// The node's static pods are Ready, as the API shows them.
fn await_static_pods(plane: &HostedPlane) -> Result<()> {
    let client = plane.client();
    let names = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
        .map(|name| format!("{name}-{NODE}"));
    client.wait::<Pod, _>(&client.of("kube-system"), READY_LIMIT_S, "the static pods to be Ready", |all| {
        names.iter().all(|name| all.get(name).is_some_and(ready::pod)).then_some(())
    })
}

/// A pod of the API runs: scheduled, with an address of the node's range, from the image that the root has.
fn await_pod(plane: &HostedPlane, name: &str) -> Result<Pod> {
    let client = plane.client();
    // Without its account the API server admits no pod.
    let accounts = client.of::<ServiceAccount>("default");
    client.wait(&accounts, READY_LIMIT_S, "service account default", |all| {
        all.contains_key("default").then_some(())
    })?;
    let pods = client.of::<Pod>("default");
    if client.get(&pods, name)?.is_none() {
        client.create(
            &pods,
            json!({"metadata": {"name": name}, "spec": {
                "terminationGracePeriodSeconds": 2,
                "containers": [{"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never"}],
            }}),
        )?;
    }
    client.wait(&pods, READY_LIMIT_S, &format!("pod {name} to be Ready"), |all| {
        all.get(name).filter(|pod| ready::pod(pod)).cloned()
    })
}
