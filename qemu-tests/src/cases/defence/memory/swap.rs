//! A machine with swap, of which some pods may use a share (KEP-2400).

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::case::CaseContext;
use orlop_harness::cluster::fixture::{await_pod_gone, await_pod_ready};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::VmNode;
use orlop_harness::say;
use serde_json::{Value, json};

use super::{Fixture, VM, await_killed, fixture, scripted};
use crate::cases::join::vm::tools::PROGRAMS;

/// Size of the swap file, MiB.
const SWAP: i64 = 512;
/// Memory request and limit of a pod of this case, MiB.
const REQUEST: i64 = 32;
const LIMIT: i64 = 40;
/// Memory that the container fills.
const HELD: i64 = 50;

/// Holds anonymous memory: data in a pipe buffer of a reader that never reads. Not zeros, which need no swap.
fn hoarder(name: &str, mebi: i64, resources: &Value) -> Value {
    let script =
        format!("touch /hold/ready; (yes | dd bs={mebi}M count=1 iflag=fullblock | sleep 100000) & wait");
    scripted(name, &script, resources)
}

fn memory(request: i64, limit: i64) -> Value {
    json!({"requests": {"memory": format!("{request}Mi")}, "limits": {"memory": format!("{limit}Mi")}})
}

/// Restarts the agent, whose Node then shows the machine's swap.
fn restart(cluster: &Cluster, vm: &mut VmNode, capacity: Option<i64>) -> Result<i64> {
    vm.vm()?.shell()?.must("systemctl restart kubelet")?;
    let client = cluster.client();
    client.wait::<Node, _>(&client.all(), 90, &format!("the Node's swap to be {capacity:?}"), |all| {
        let status = all.get(VM)?.status.as_ref()?;
        let shown = status.node_info.as_ref()?.swap.as_ref().and_then(|swap| swap.capacity);
        let memory = status.capacity.as_ref()?.get("memory")?.0.strip_suffix("Ki")?.parse::<i64>().ok()?;
        (shown == capacity).then_some(memory << 10)
    })
}

/// `memory.swap.max` or another file of a pod's only container.
fn read(vm: &mut VmNode, pod: &Pod, file: &str) -> Result<i64> {
    let status = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten()).next();
    let id = status
        .and_then(|c| c.container_id.clone())
        .context("the container's id")?
        .replace("containerd://", "");
    // crun's own group in the scope has the request; the scope has the memory limit.
    let group = format!("/sys/fs/cgroup/kubepods.slice/*/*/cri-containerd-{id}.scope/container");
    let text = vm.vm()?.shell()?.must(&format!("cat {group}/{file}"))?;
    text.trim().parse().with_context(|| format!("{file}: {text:?}"))
}

pub(super) fn limited(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { vm, cluster } = fixture(cx)?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    let bin = PROGRAMS;
    vm.vm()?.shell()?.must(&format!(
        "cd {bin} && ./fallocate -l {} swap && chmod 600 swap && ./mkswap swap && ./swapon swap",
        SWAP << 20
    ))?;
    let capacity = (SWAP << 20) - 4096;
    let machine = restart(cluster, vm, Some(capacity))?;

    let full = json!({"cpu": "500m", "memory": format!("{LIMIT}Mi")});
    client.create::<Pod>(&pods, hoarder("swaps", HELD, &memory(REQUEST, LIMIT)))?;
    client.create::<Pod>(&pods, hoarder("may-not", HELD, &json!({"requests": full, "limits": full})))?;
    client.create::<Pod>(&pods, hoarder("asks-nothing", 1, &json!({})))?;
    let swaps = await_pod_ready(cluster, "swaps", 120)?;
    let share = read(vm, &swaps, "memory.swap.max")?;
    let golden = i64::try_from(i128::from(REQUEST << 20) * i128::from(capacity) / i128::from(machine))?;
    // The kernel counts in pages.
    ensure!(share == golden / 4096 * 4096, "a share of {share} bytes, and should be {golden}");
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let swapped = read(vm, &swaps, "memory.swap.current")?;
        if swapped >= (HELD - LIMIT) << 20 {
            say::line(format!("  {} of {} MiB swapped, a share of {} MiB", swapped >> 20, HELD, share >> 20));
            break;
        }
        ensure!(Instant::now() < end, "only {swapped} bytes are swapped");
        vm.vm()?.shell()?.must("sleep 0.5")?;
    }
    let ended = await_killed(cluster, "may-not")?;
    ensure!(ended.reason.as_deref() == Some("OOMKilled"), "who is Guaranteed has no swap: {ended:?}");
    let nothing = await_pod_ready(cluster, "asks-nothing", 60)?;
    ensure!(read(vm, &nothing, "memory.swap.max")? == 0, "who asks for nothing has no share");

    let patch = json!({"spec": {"containers": [{"name": "c", "resources": memory(REQUEST + 4, LIMIT + 4)}]}});
    cluster.kubectl(&["patch", "pod", "swaps", "--subresource", "resize", "--patch", &patch.to_string()])?;
    let why = client.wait::<Pod, _>(&pods, 60, "the resize to be refused", |all| {
        let status = all.get("swaps")?.status.as_ref()?;
        let mut conditions = status.conditions.iter().flatten();
        let pending = conditions.find(|c| c.type_ == "PodResizePending")?;
        Some((pending.reason.clone().unwrap_or_default(), pending.message.clone().unwrap_or_default()))
    })?;
    ensure!(
        why == ("Infeasible".into(), "In-place resize of containers with swap is not supported.".into()),
        "{why:?}"
    );
    let scraped =
        cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{VM}/proxy/metrics/resource")])?;
    let used =
        scraped.lines().find(|l| l.starts_with("container_swap_usage_bytes{") && l.contains("pod=\"swaps\""));
    ensure!(used.is_some_and(|line| !line.contains("} 0 ")), "metrics do not tell it: {used:?}");
    let restarts: i32 = client
        .get::<Pod>(&pods, "swaps")?
        .and_then(|pod| pod.status)
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten())
        .map(|c| c.restart_count)
        .sum();
    ensure!(restarts == 0, "it was killed although it may swap");
    for name in ["swaps", "may-not", "asks-nothing"] {
        client.delete::<Pod>(&pods, name, Some(1))?;
        await_pod_gone(cluster, name, 60)?;
    }
    vm.vm()?.shell()?.must(&format!("cd {bin} && ./swapoff swap && rm swap"))?;
    restart(cluster, vm, None)?;
    Ok(())
}
