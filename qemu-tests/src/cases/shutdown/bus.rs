//! The system bus goes away: it comes back and logind with it.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;

use super::{
    BEYOND_S, Fixture, OFF_LIMIT_S, PERIODS_S, await_boot, await_lock, boot_id, ensure_no_unclean_shutdown,
    fixture, kept, pod, receipt, run_pods, terminated,
};
use crate::case::CaseContext;
use crate::cluster::fixture::await_pod_gone;
use crate::cluster::plane::Cluster;
use crate::cluster::vm_node::VmNode;
use crate::say;

/// How often the agent has taken its lock in this boot.
const TAKEN: &str =
    "journalctl -b -u orlop-agent.service -o cat --no-pager | grep -c \"shutdown waits for this\"";
/// The bus restarts, its launcher is killed, the broker itself is killed.
const LOSSES: [(&str, &str); 3] = [
    ("systemctl restart dbus-broker", "systemctl restart dbus-broker.service"),
    ("kill -9 of its launcher", "kill -9 $(systemctl show -P MainPID dbus-broker.service)"),
    (
        "kill -9 of the broker",
        "main=$(systemctl show -P MainPID dbus-broker.service); \
         for pid in $(cat /sys/fs/cgroup/system.slice/dbus-broker.service/cgroup.procs); do \
         [ $pid = $main ] || kill -9 $pid; done",
    ),
];
/// How long the lock may be away after each, seconds, under TCG on a busy machine.
const BACK_WITHIN_S: u64 = 30;
const NAMES: [&str; 3] = ["quick", "slow", "vital"];

/// They end in this order, a few seconds apart.
fn run_three(cluster: &Cluster) -> Result<()> {
    let class = Some("system-node-critical");
    run_pods(cluster, vec![pod("quick", None, 0, 30), pod("slow", None, 5, 30), pod("vital", class, 1, 30)])
}

/// The last boot, `before`, ended them in order, told and wrote it; takes them away.
fn ensure_three_ended(cluster: &Cluster, vm: &mut VmNode, before: &str) -> Result<()> {
    let ended = |name| terminated(cluster, name);
    let (quick, slow, vital) = (ended("quick")?, ended("slow")?, ended("vital")?);
    ensure!(quick < slow && slow <= vital, "not in order: {quick}, {slow}, {vital}");
    let (pods, took) = receipt(vm, before, "reboot")?;
    ensure!(took <= PERIODS_S.0 + BEYOND_S, "the pods' part took {took} s");
    let mut pods: Vec<_> = pods.iter().map(|p| (p.name.as_str(), p.ended, p.told)).collect();
    pods.sort_unstable();
    ensure!(pods == NAMES.map(|name| (name, true, true)), "{pods:?}");
    ensure_no_unclean_shutdown(cluster, before)?;
    for name in NAMES {
        cluster.kubectl(&["delete", "pod", name, "--wait=false"])?;
    }
    NAMES.into_iter().try_for_each(|name| await_pod_gone(cluster, name, 60))?;
    kept::await_settled(cluster)?;
    cluster.ensure_nothing_forbidden()
}

pub(super) fn restart(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm } = fixture(cx)?;
    await_lock(vm)?;
    run_three(cluster)?;
    for (what, command) in LOSSES {
        let shell = vm.vm()?.shell()?;
        let taken: u32 = shell.must(TAKEN)?.trim().parse().context("how often the lock was taken")?;
        let lost = Instant::now();
        shell.must(command)?;
        let again = format!("until [ $({TAKEN}) -gt {taken} ]; do sleep 0.5; done");
        let back = shell.must(&format!("timeout {BACK_WITHIN_S} bash -c '{again}'"));
        back.with_context(|| format!("the lock is not taken again after {what}"))?;
        await_lock(vm)?;
        say::line(format!("  the lock is back {:.1} s after {what}", lost.elapsed().as_secs_f64()));
    }
    // Nobody was ended for it.
    let client = cluster.client();
    for name in NAMES {
        let pod = client.get::<Pod>(&client.of("default"), name)?.context("the pod is gone")?;
        ensure!(crate::cluster::ready::pod(&pod), "{name}: {:?}", pod.status);
    }
    let before = boot_id(cluster)?;
    vm.vm()?.reboot(OFF_LIMIT_S)?;
    await_boot(cluster, vm, &before)?;
    ensure_three_ended(cluster, vm, &before)
}
