//! A shortage of process ids.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::case::CaseContext;
use orlop_harness::cluster::fixture::{await_event, await_pod_gone, await_pod_ready, event};
use orlop_harness::cluster::ready;
use orlop_harness::say;
use serde_json::json;

use super::{Fixture, PIDS_PERCENT, VM, fixture, scripted};

/// Tasks of a pod that does nothing wrong.
const CALM: &str = "trap 'exit 0' TERM; touch /hold/ready; while :; do sleep 1000 & wait $!; done";

pub(super) fn pressure(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { vm, cluster } = fixture(cx)?;
    // An agent sends 25 events about its node at once, then one in five minutes: a new agent has sent none.
    vm.vm()?.shell()?.must("systemctl restart kubelet")?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    client.create::<Pod>(&pods, scripted("calm", CALM, &json!({})))?;
    await_pod_ready(cluster, "calm", 120)?;
    let shell = vm.vm()?.shell()?;
    let tasks: u64 = {
        let text = shell.must("read a b c of rest < /proc/loadavg; echo ${of#*/}")?;
        text.trim().parse().with_context(|| format!("tasks of the machine: {text:?}"))?
    };
    let before = shell.must("cat /proc/sys/kernel/pid_max")?;
    // The kernel does not use ids below 300 a second time.
    let most = 2 * tasks + 700;
    let many = most * (100 - PIDS_PERCENT) / 100 - tasks + 40;
    let bomb =
        format!("i=0; while [ $i -lt {many} ]; do sleep 1000 & i=$((i+1)); done; touch /hold/ready; wait");
    client.create::<Pod>(&pods, scripted("bomb", &bomb, &json!({})))?;
    await_pod_ready(cluster, "bomb", 120)?;
    // Not earlier: systemd limits a group to 15 % of it.
    vm.vm()?.shell()?.must(&format!("echo {most} > /proc/sys/kernel/pid_max"))?;
    let gone = client.wait::<Pod, _>(&pods, 120, "bomb to have failed", |all| {
        let status = all.get("bomb")?.status.clone()?;
        (status.phase.as_deref() == Some("Failed")).then_some(status)
    })?;
    let message = gone.message.unwrap_or_default();
    say::line(format!("  {many} tasks beside {tasks} of at most {most}: {message}"));
    ensure!(gone.reason.as_deref() == Some("Evicted"), "{:?}: {message}", gone.reason);
    ensure!(message.starts_with("The node was low on resource: pids. Threshold quantity: "), "{message}");
    await_event(cluster, "NodeHasInsufficientPID", VM, 30)?;
    await_event(cluster, "NodeHasSufficientPID", VM, 60)?;
    vm.vm()?.shell()?.must(&format!("echo {} > /proc/sys/kernel/pid_max", before.trim()))?;
    let calm = client.get::<Pod>(&pods, "calm")?.context("pod calm")?;
    ensure!(ready::pod(&calm), "calm had to suffer for it");
    let node = client.get::<Node>(&client.all(), VM)?.context("the Node")?;
    ensure!(ready::node(&node), "not Ready: {node:?}");
    ensure!(event(cluster, "NodeNotReady")?.is_none(), "the node lost Ready");
    for name in ["calm", "bomb"] {
        client.delete::<Pod>(&pods, name, Some(1))?;
        await_pod_gone(cluster, name, 60)?;
    }
    Ok(())
}
