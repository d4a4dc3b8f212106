//! Processors, memory and devices that containers have for themselves.

use std::time::{Duration, Instant};

use anyhow::Result;
use orlop_harness::case::CaseContext;
use orlop_harness::cluster::fixture::{Joined, await_ready, await_serving};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use serde_json::{Value, json};

use crate::cases::join::vm::tools::PROGRAMS;

pub mod claims;
pub mod devices;
pub mod devices_vm;
pub mod killed_steps;
pub mod numa;
pub mod processors;

/// Cases with this group share one cluster with one node.
const GROUP: Option<&str> = Some("resources-cluster");
/// Name of its node.
const NODE: &str = "first";

/// The group's cluster.
fn cluster<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Joined> {
    cx.shared_or(|run, artefacts| Joined::start(run, artefacts, Settings::default(), &[NODE]))
}

/// Looks once a second until `look` has a value: no object of the API server shows the change. At the deadline its last error is the
/// reason.
fn look_until<T>(
    cluster: &Cluster,
    limit_s: u64,
    what: &str,
    mut look: impl FnMut() -> Result<T>,
) -> Result<T> {
    let client = cluster.client();
    let mut again = client.block_on(async { tokio::time::interval(Duration::from_secs(1)) });
    let deadline = Instant::now() + Duration::from_secs(limit_s);
    loop {
        client.block_on(again.tick());
        match look() {
            Ok(found) => return Ok(found),
            Err(why) if Instant::now() >= deadline => {
                return Err(why.context(format!("waited {limit_s} s for {what}")));
            }
            Err(_) => {}
        }
    }
}

/// A pod for a VM that stays, as root, with busybox as its `/bin` and these resources.
fn vm_pod(name: &str, resources: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "volumes": [{"name": "bin", "hostPath": {"path": PROGRAMS}}],
        "containers": [{
            "name": "c", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"],
            "securityContext": {"runAsUser": 0}, "resources": resources,
            "volumeMounts": [{"name": "bin", "mountPath": "/bin"}],
        }],
    }})
}

/// Adds a volume to a pod of one container, mounted at `path`.
fn mount(pod: &mut Value, volume: Value, path: &str) {
    let mount = json!({"name": volume["name"], "mountPath": path});
    for (list, more) in [("/spec/volumes", volume), ("/spec/containers/0/volumeMounts", mount)] {
        if let Some(Value::Array(list)) = pod.pointer_mut(list) {
            list.push(more);
        }
    }
}

/// Waits until the VM is a node that answers.
fn await_up(vm: &mut VmNode, cluster: &Cluster, name: &str) -> Result<()> {
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    await_ready(cluster, name, READY_LIMIT_S)?;
    await_serving(cluster, name, READY_LIMIT_S)
}
