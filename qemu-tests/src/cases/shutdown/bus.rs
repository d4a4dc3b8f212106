//! The system bus goes away: it comes back and logind with it, or the machine is told to stop without it.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;

use super::{
    BEYOND_S, Fixture, OFF_LIMIT_S, PERIODS_S, VM, await_boot, await_lock, boot_id,
    ensure_no_unclean_shutdown, fixture, kept, pod, receipt, run_pods, terminated,
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
pub(super) fn run_three(cluster: &Cluster) -> Result<()> {
    let class = Some("system-node-critical");
    run_pods(cluster, vec![pod("quick", None, 0, 30), pod("slow", None, 5, 30), pod("vital", class, 1, 30)])
}

/// The last boot, `before`, ended them in order for a stop of this kind, told and wrote it; takes them away.
pub(super) fn ensure_three_ended(cluster: &Cluster, vm: &mut VmNode, before: &str, kind: &str) -> Result<()> {
    let ended = |name| terminated(cluster, name);
    let (quick, slow, vital) = (ended("quick")?, ended("slow")?, ended("vital")?);
    ensure!(quick < slow && slow <= vital, "not in order: {quick}, {slow}, {vital}");
    let (pods, took) = receipt(vm, before, kind)?;
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
    let Fixture { cluster, vm, .. } = fixture(cx)?;
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
    ensure_three_ended(cluster, vm, &before, "reboot")
}

/// journald is no witness of a boot's last moments: the agent's lines go to a file beside its receipt, from its next start on.
const LOG: &str = "/var/lib/kubelet/last-lines";
const TO_LOG: &str = "mkdir -p /run/systemd/system/orlop-agent.service.d && \
                      printf '[Service]\\nStandardError=append:/var/lib/kubelet/last-lines\\n' > \
                      /run/systemd/system/orlop-agent.service.d/90-log.conf && \
                      systemctl daemon-reload && systemctl restart orlop-agent.service";

pub(super) fn away(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx)?;
    vm.vm()?.shell()?.must(TO_LOG)?;
    await_lock(vm)?;
    run_three(cluster)?;
    let before = boot_id(cluster)?;
    let shell = vm.vm()?.shell()?;
    // It cannot be started again, by nobody who knocks.
    shell.must("systemctl mask --runtime dbus-broker.service && systemctl stop dbus-broker.service")?;
    let deaf = "! busctl status >/dev/null 2>&1 && ! systemctl is-active -q systemd-logind.service";
    shell.must(&format!("timeout 30 bash -c 'until {deaf}; do sleep 0.5; done'"))?;
    let asked = Instant::now();
    vm.vm()?.restarts("systemctl reboot", OFF_LIMIT_S)?;
    say::line(format!("  {VM} started again after {:.1} s without a bus", asked.elapsed().as_secs_f64()));
    await_boot(cluster, vm, &before)?;
    // Nobody but the agent, in its own stop, can have ended them in order.
    let log = vm.vm()?.shell()?.must(&format!("tail -n 40 {LOG} && rm {LOG}"))?;
    ensure!(log.contains("nobody waited for the pods"), "the agent did not end them in its stop:\n{log}");
    ensure_three_ended(cluster, vm, &before, "reboot").with_context(|| format!("its last lines:\n{log}"))
}
