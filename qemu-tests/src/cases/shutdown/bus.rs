//! Loss of the system bus: the bus restarts and logind with it, or the machine stops without a bus.
//!
//! Cases: `shutdown/bus-restart`, `shutdown/bus-away`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::say;

use super::{Fixture, HERE, OFF_LIMIT_S, Periods, VM, await_boot, await_lock, boot_id, five, fixture};

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "shutdown/bus-restart",
        115,
        "the bus is restarted, and killed twice: logind and the lock are back within a bound, and systemctl reboot ends \
         pods of three priorities that need 1, 20 and 600 s in order",
        restart,
    ),
    HERE.case(
        "shutdown/bus-away",
        100,
        "systemctl reboot without bus and logind: the same pods end in order while the agent's unit stops, told and \
         written",
        away,
    ),
];

/// Counts how often the agent has taken its lock in this boot.
const TAKEN: &str =
    "journalctl -b -u kubelet.service -o cat --no-pager | grep -c \"shutdown waits for this\"";
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

fn restart(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx, Periods::ByPriority)?;
    await_lock(vm)?;
    five::run(cluster, five::SOON)?;
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
    // No pod was ended.
    five::ensure_ready(cluster)?;
    let before = boot_id(cluster)?;
    vm.vm()?.reboot(OFF_LIMIT_S)?;
    await_boot(cluster, vm, &before)?;
    five::ensure_ended(cluster, vm, &before, "reboot")
}

/// journald loses a boot's last moments: from its next start on, the agent writes its log to a file next to its
/// receipt.
const LOG: &str = "/var/lib/kubelet/last-lines";
const TO_LOG: &str = "mkdir -p /run/systemd/system/kubelet.service.d && \
                      printf '[Service]\\nStandardError=append:/var/lib/kubelet/last-lines\\n' > \
                      /run/systemd/system/kubelet.service.d/90-log.conf && \
                      systemctl daemon-reload && systemctl restart kubelet.service";

fn away(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx, Periods::ByPriority)?;
    vm.vm()?.shell()?.must(TO_LOG)?;
    await_lock(vm)?;
    five::run(cluster, five::SOON)?;
    let before = boot_id(cluster)?;
    let shell = vm.vm()?.shell()?;
    // A masked unit cannot be started again by its socket.
    shell.must("systemctl mask --runtime dbus-broker.service && systemctl stop dbus-broker.service")?;
    let deaf = "! busctl status >/dev/null 2>&1 && ! systemctl is-active -q systemd-logind.service";
    shell.must(&format!("timeout 30 bash -c 'until {deaf}; do sleep 0.5; done'"))?;
    let asked = Instant::now();
    vm.vm()?.restarts("systemctl reboot", OFF_LIMIT_S)?;
    say::line(format!("  {VM} started again after {:.1} s without a bus", asked.elapsed().as_secs_f64()));
    await_boot(cluster, vm, &before)?;
    // Only the agent, in its own stop, can have ended the pods in order.
    let shell = vm.vm()?.shell()?;
    let ended = shell.run(&format!("grep -q 'nobody waited for the pods' {LOG}"), Duration::from_secs(30))?;
    let log = shell.must(&format!("tail -n 40 {LOG} && rm {LOG}"))?;
    ensure!(ended.status == 0, "the agent did not end them in its stop:\n{log}");
    five::ensure_ended(cluster, vm, &before, "reboot").with_context(|| format!("its last lines:\n{log}"))
}
