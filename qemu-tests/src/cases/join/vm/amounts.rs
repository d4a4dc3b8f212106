//! A pod's own resources (`spec.resources`), in a VM: its cgroup and its containers', and their changes while it runs.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::cluster::fixture::{await_pod_gone, await_pod_ready, uid};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::VmNode;
use serde_json::{Value, json};

use crate::cases::join::vm::VM;

const NAME: &str = "whole";

fn amounts(cpu: (&str, &str), memory: (&str, &str)) -> Value {
    json!({"requests": {"cpu": cpu.0, "memory": memory.0}, "limits": {"cpu": cpu.1, "memory": memory.1}})
}

/// A pod with resources of its own, one of whose containers has none, is resized up and down.
pub(super) fn ensure_changed(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    let container = |name: &str, resources: Value| json!({"name": name, "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never", "resources": resources});
    let first = amounts(("100m", "200m"), ("32Mi", "64Mi"));
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": {
        "nodeName": VM, "terminationGracePeriodSeconds": 2, "resources": first,
        "containers": [container("own", amounts(("50m", "100m"), ("16Mi", "32Mi"))), container("none", json!({}))]}}))?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    client.block_on(pods.create(&kube::api::PostParams::default(), &pod))?;
    let ready = await_pod_ready(cluster, NAME, 120)?;
    let uid = uid(&ready)?.replace('-', "_");
    let slice =
        format!("/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice");
    let id = |name: &str| -> Result<String> {
        let mut statuses = ready.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
        let id = statuses.find(|c| c.name == name).and_then(|c| c.container_id.clone());
        Ok(id.with_context(|| format!("the id of {name}"))?.replace("containerd://", ""))
    };
    let (own, none) = (id("own")?, id("none")?);
    for (resources, memory, milli) in [
        (first, 64, 200),
        (amounts(("200m", "400m"), ("48Mi", "128Mi")), 128, 400),
        (amounts(("70m", "150m"), ("24Mi", "48Mi")), 48, 150),
    ] {
        let patch = json!({"spec": {"resources": resources}}).to_string();
        cluster.kubectl(&["patch", "pod", NAME, "--subresource", "resize", "--patch", &patch])?;
        let shown = client.wait::<Pod, _>(&pods, 90, &format!("{NAME} to have {resources}"), |all| {
            let status = all.get(NAME)?.status.clone()?;
            let mut conditions = status.conditions.iter().flatten();
            let settled =
                conditions.all(|c| c.type_ != "PodResizeInProgress" && c.type_ != "PodResizePending");
            let shown = json!(status.resources) == resources
                && json!(status.allocated_resources) == resources["requests"];
            (settled && shown).then_some(status)
        })?;
        let restarts: i32 = shown.container_statuses.iter().flatten().map(|c| c.restart_count).sum();
        ensure!(restarts == 0, "containers were restarted: {shown:?}");
        let mut read = |dir: &str| -> Result<String> {
            let text = vm.vm()?.shell()?.must(&format!("cat {dir}/memory.max {dir}/cpu.max"))?;
            Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let golden = format!("{} {} 100000", memory << 20, milli * 100);
        let is = read(&slice)?;
        ensure!(is == golden, "the pod's cgroup has {is}, and should have {golden}");
        let is = read(&format!("{slice}/cri-containerd-{none}.scope"))?;
        ensure!(is == golden, "the container without limits has {is}, and should have {golden}");
        let is = read(&format!("{slice}/cri-containerd-{own}.scope"))?;
        let golden = format!("{} 10000 100000", 32 << 20);
        ensure!(is == golden, "the container with limits has {is}, and should have {golden}");
    }
    client.delete::<Pod>(&pods, NAME, None)?;
    await_pod_gone(cluster, NAME, 60)
}
