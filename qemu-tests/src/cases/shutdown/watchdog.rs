//! PID 1 hangs and does not feed the hardware watchdog any more: the watchdog resets the machine in time, and the next
//! boot reports the reason.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::fixture::await_started_anew;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::say;

use super::interrupted::{delete, ensure_last_end, unclean};
use super::{
    Fixture, HERE, OFF_LIMIT_S, Periods, VM, await_boot, await_lock, await_settled, boot_id,
    ensure_no_unclean_shutdown, fixture, pod, receipt, run_pods,
};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "shutdown/watchdog",
    150,
    "PID 1 hangs: the hardware watchdog starts the machine again in its time, and the next boot says that it did",
    watchdog,
)];

/// Timeout that the image sets for PID 1, seconds: PID 1 feeds the watchdog twice in that time.
const PERIOD_S: u32 = 60;
/// A reset is seen later on a busy machine, seconds.
const LATE_S: u32 = 15;
/// PID 1 is alone in its cgroup; all other processes go on.
const FREEZE: &str = "echo 1 > /sys/fs/cgroup/init.scope/cgroup.freeze";

fn await_told(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    client.wait::<Node, _>(&client.all(), 30, "the condition to name the watchdog", |all| {
        let conditions = all.get(VM)?.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().any(|c| c.reason.as_deref() == Some("WatchdogReset")).then_some(())
    })
}

fn watchdog(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx, Periods::Short)?;
    run_pods(cluster, vec![pod("witness", None, 0, 2)])?;
    let before = boot_id(cluster)?;
    let shell = vm.vm()?.shell()?;
    let class = "cd /sys/class/watchdog/watchdog0 && cat identity state timeout bootstatus";
    let said = shell
        .must(&format!("timeout 30 sh -c 'until [ -e /dev/watchdog0 ]; do sleep 0.5; done' && {class}"))?;
    let fed: Vec<&str> = said.lines().map(str::trim).collect();
    let period = PERIOD_S.to_string();
    ensure!(fed == ["i6300ESB timer", "active", &period, "0"], "nobody feeds it, or not so: {fed:?}");
    let frozen = Instant::now();
    vm.vm()?.restarts(FREEZE, u64::from(PERIOD_S + LATE_S))?;
    let took = frozen.elapsed().as_secs_f64();
    say::line(format!("  the watchdog started the machine again {took:.1} s after its PID 1 was frozen"));
    // PID 1 fed the watchdog half its timeout ago at most.
    ensure!(took >= f64::from(PERIOD_S / 2 - 2), "was it the watchdog? {took:.1} s");

    await_boot(cluster, vm, &before)?;
    let said = unclean(cluster, &before)?;
    ensure!(said.contains("without a shutdown") && said.contains("a hardware watchdog"), "{said}");
    await_told(cluster)?;
    await_started_anew(cluster, "witness", 120)?;

    // Reported once: the boot after this one was not caused by the watchdog.
    await_lock(vm)?;
    let before = boot_id(cluster)?;
    vm.vm()?.reboot(OFF_LIMIT_S)?;
    await_boot(cluster, vm, &before)?;
    receipt(vm, &before, "reboot")?;
    ensure_no_unclean_shutdown(cluster, &before)?;
    let said =
        ensure_last_end(cluster, "False", "ShutdownInOrder").context("the boot after the watchdog's")?;
    ensure!(!said.contains("watchdog"), "{said}");
    delete(cluster, &["witness"])?;
    await_settled(cluster)?;
    cluster.ensure_nothing_forbidden()
}
