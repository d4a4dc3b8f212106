//! The power button of a VM: the pods end in order before the power is switched off, and the next boot finds
//! the receipt.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::fixture::await_event;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::VmNode;
use orlop_harness::say;

use super::interrupted::delete;
use super::{
    Fixture, GROUPS, HERE, NODE_MESSAGE, OFF_LIMIT_S, Periods, VM, await_lock, await_settled, boot_id,
    ensure_no_unclean_shutdown, ensure_order_of_units, five, fixture, pod, receipt, run_pods,
};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "shutdown/power-button",
    120,
    "pressed: the pods end in order, the API server shows it, logind's limit was raised for it, the next boot finds \
     the receipt",
    power_button,
)];

/// logind waits longer than the image has it wait, and lists the lock.
fn ensure_limit_raised(vm: &mut VmNode) -> Result<()> {
    let periods: i64 = GROUPS.iter().map(|(_, seconds)| seconds).sum();
    // The agent's own time in addition to the periods.
    let needed = periods + 5;
    let shell = vm.vm()?.shell()?;
    let limit = shell.must(
        "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager \
         InhibitDelayMaxUSec",
    )?;
    ensure!(limit.trim() == format!("t {}000000", needed), "{limit}, not {needed} s");
    let said = shell.must("cat /run/systemd/logind.conf.d/99-kubelet.conf")?;
    ensure!(said.contains(&format!("InhibitDelayMaxSec={needed}")), "{said}");
    let listed = shell.must("systemd-inhibit --list --no-pager --no-legend")?;
    // The reason does not fit the width.
    let ours =
        |line: &str| ["kubelet", "orlop-agent", "shutdown", "delay"].iter().all(|word| line.contains(word));
    ensure!(listed.lines().any(ours), "{listed}");
    Ok(())
}

/// Both metrics of the last shutdown, seconds of the epoch.
fn ensure_metrics(cluster: &Cluster, took: i64) -> Result<()> {
    let text = cluster.client().raw(&format!("/api/v1/nodes/{VM}/proxy/metrics"))?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse::<f64>().ok()).with_context(|| format!("no {name}"))
    };
    let start = value("kubelet_graceful_shutdown_start_time_seconds")?;
    let end = value("kubelet_graceful_shutdown_end_time_seconds")?;
    #[allow(clippy::cast_precision_loss)]
    let expected = took as f64;
    ensure!(start > 0.0 && (end - start - expected).abs() < 1.5, "{start} to {end}, not {took} s");
    Ok(())
}

fn power_button(cx: &mut CaseContext<'_>) -> Result<()> {
    let fixture = fixture(cx, Periods::ByPriority)?;
    let Fixture { cluster, vm, .. } = fixture;
    await_lock(vm)?;
    ensure_limit_raised(vm)?;
    let before = boot_id(cluster)?;
    five::run(cluster, five::SOON)?;
    let pressed = Instant::now();
    vm.vm()?.press_power_button()?;
    let off = vm.await_off(OFF_LIMIT_S);
    off.with_context(|| format!("pressed {:.0} s ago", pressed.elapsed().as_secs_f64()))?;
    say::line(format!("  off {:.1} s after the power button was pressed", pressed.elapsed().as_secs_f64()));

    // The API server had all of this before the power went off.
    five::ensure_in_order(cluster)?;
    let client = cluster.client();
    let node = client.get::<Node>(&client.all(), VM)?.context("the Node")?;
    let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
    let ready = conditions.iter().find(|c| c.type_ == "Ready").context("no condition Ready")?;
    let said = ready.message.as_deref().unwrap_or_default();
    ensure!(ready.status == "False" && said.contains(NODE_MESSAGE), "{ready:?}");
    await_event(cluster, "Shutdown", VM, 5)?;

    // With the periods of the next cases.
    fixture.boot(Periods::Short)?;
    let Fixture { cluster, vm, .. } = fixture;
    let written = receipt(vm, &before, "poweroff")?;
    five::ensure_written(cluster, &written)?;
    ensure_no_unclean_shutdown(cluster, &before)?;
    ensure_order_of_units(vm, "-1")?;
    ensure_metrics(cluster, written.took)?;
    // Terminated pods stay terminated, and can be deleted; new pods run.
    five::ensure_in_order(cluster)?;
    run_pods(cluster, vec![pod("afterwards", None, 0, 2)])?;
    delete(cluster, &["afterwards"])?;
    five::clear(cluster)?;
    await_settled(cluster)?;
    cluster.ensure_nothing_forbidden()
}
