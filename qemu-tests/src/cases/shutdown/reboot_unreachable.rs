//! A reboot while the API server does not answer: the next boot reports the ends of the pods.

use std::time::Instant;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::fixture::{await_event, await_pod_gone};
use orlop_harness::cluster::vm_node::READY_LIMIT_S;
use orlop_harness::say;

use super::{
    BEYOND_S, Fixture, HERE, OFF_LIMIT_S, PERIODS_S, Periods, ReceiptFile, await_boot, await_settled,
    boot_id, ensure_no_unclean_shutdown, ensure_terminated, fixture, pod, receipt, run_pods,
};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "shutdown/reboot-unreachable",
    90,
    "systemctl reboot without an API server: within the budget; what was not told, and what was to be deleted, is \
     told and deleted by the next boot",
    reboot_unreachable,
)];

fn reboot_unreachable(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx, Periods::Short)?;
    run_pods(cluster, vec![pod("untold", None, 1, 5), pod("unwanted", None, 600, 600)])?;
    let before = boot_id(cluster)?;
    // Only the node can say that this one is gone.
    cluster.kubectl(&["delete", "pod", "unwanted", "--wait=false"])?;
    await_event(cluster, "Killing", "unwanted", 60)?;
    cluster.kill_apiserver()?;
    let asked = Instant::now();
    vm.vm()?.reboot(OFF_LIMIT_S)?;
    let gone = asked.elapsed().as_secs_f64();
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    let ReceiptFile { pods, took, .. } = receipt(vm, &before, "reboot")?;
    let untold = pods.iter().any(|pod| pod.name == "untold" && pod.ended && !pod.told);
    ensure!(untold, "{pods:?}");
    ensure!(pods.iter().any(|pod| pod.name == "unwanted" && pod.ended), "{pods:?}");
    ensure!(took <= PERIODS_S.0 + BEYOND_S, "the pods' part took {took} s");
    say::line(format!("  pods done after {took} s, the machine started again after {gone:.1} s"));
    cluster.restart_apiserver()?;
    await_boot(cluster, vm, &before)?;
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, "the end of the pod that was not told", |all| {
        ensure_terminated(all.get("untold")?).ok()
    })?;
    ensure_no_unclean_shutdown(cluster, &before)?;
    await_pod_gone(cluster, "unwanted", 60)?;
    cluster.kubectl(&["delete", "pod", "untold", "--wait=false"])?;
    await_pod_gone(cluster, "untold", 60)?;
    await_settled(cluster)
}
