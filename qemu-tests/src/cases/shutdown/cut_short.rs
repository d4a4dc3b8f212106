//! Shutdowns that are cut short: by a kernel panic, and by power cuts in each phase.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::fixture::await_started_anew;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::VmNode;

use super::five::{self, StopDurations};
use super::interrupted::{await_terminated, ensure_last_end, unclean};
use super::{Fixture, HERE, OFF_LIMIT_S, Periods, VM, await_boot, await_settled, boot_id, fixture};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "shutdown/cut-short",
    400,
    "a kernel that dies while the first pods end, power cut while those of the second and the third priority end, \
     while the API server is to be told, and when all is written (halt): the next boot mends it and says why",
    cut_short,
)];

/// Cuts the power and boots; returns the id of the boot that was cut.
fn cut(cluster: &Cluster, vm: &mut VmNode) -> Result<String> {
    let boot = boot_id(cluster)?;
    vm.cut_power();
    vm.boot(None)?;
    await_boot(cluster, vm, &boot)?;
    Ok(boot)
}

/// The node's event says that `boot` ended in the middle of its shutdown.
fn ensure_told_unclean(cluster: &Cluster, boot: &str) -> Result<()> {
    let said = unclean(cluster, boot)?;
    ensure!(said.contains("in the middle of its shutdown"), "{said}");
    ensure_last_end(cluster, "True", "ShutdownCutShort").map(drop)
}

/// The pod's containers are being stopped: this pod's, not those of one that had its name in a case before.
fn await_killing(cluster: &Cluster, name: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    let pod = client.get::<Pod>(&client.of("default"), name)?.with_context(|| format!("{name} is gone"))?;
    let is = |e: &Event| e.reason.as_deref() == Some("Killing") && e.involved_object.uid == pod.metadata.uid;
    client.wait::<Event, _>(&client.of("default"), limit_s, &format!("{name} to be killed"), |all| {
        all.values().any(is).then_some(())
    })
}

/// A kernel that dies starts the machine again after a second.
const STARTS_ANEW: &str = "sysctl -qw kernel.panic=1 || echo 1 > /proc/sys/kernel/panic";
const DIES: &str = "echo c > /proc/sysrq-trigger";

/// Has the kernel die; returns the id of the boot that ended so.
fn panic(cluster: &Cluster, vm: &mut VmNode) -> Result<String> {
    let boot = boot_id(cluster)?;
    vm.vm()?.restarts(DIES, OFF_LIMIT_S)?;
    await_boot(cluster, vm, &boot)?;
    Ok(boot)
}

/// The event names the panic in the middle of the shutdown, and the kernel's log is kept.
fn ensure_told_panic(cluster: &Cluster, vm: &mut VmNode, boot: &str) -> Result<()> {
    let said = unclean(cluster, boot)?;
    let words = "its kernel died (Kernel panic - not syncing: sysrq triggered crash)";
    ensure!(said.contains(words) && said.contains("in the middle of its shutdown"), "{said}");
    ensure_last_end(cluster, "True", "KernelPanic")?;
    // The log is the node's to show, and the firmware has its place back.
    let logs = cluster.client().raw(&format!("/api/v1/nodes/{VM}/proxy/logs/pstore/{boot}/"))?;
    ensure!(logs.contains("dmesg-"), "{logs}");
    vm.vm()?.shell()?.must("test -z \"$(ls /sys/fs/pstore)\"").map(drop)
}

/// One cut for each phase, with the same pods each time.
fn cut_short(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx, Periods::ByPriority)?;
    panic_in_the_first_group(cluster, vm)?;
    cut_in_a_later_group(cluster, vm, "middle")?;
    cut_in_a_later_group(cluster, vm, "critical")?;
    cut_while_telling(cluster, vm)?;
    cut_when_written(cluster, vm)?;
    cluster.ensure_nothing_forbidden()
}

/// Pods whose end had begun end, the other pods go on.
fn panic_in_the_first_group(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    five::run(cluster, five::SOON)?;
    let shell = vm.vm()?.shell()?;
    // Before the reboot: on a busy machine the first group's time can pass while a command runs.
    shell.must(STARTS_ANEW)?;
    shell.tell("systemctl reboot")?;
    await_terminated(cluster, "one", 60)?;
    let boot = panic(cluster, vm)?;
    ensure_told_panic(cluster, vm, &boot)?;
    await_all_terminated(cluster, &five::FIRST)?;
    for name in ["middle", "critical"] {
        await_started_anew(cluster, name, 120)?;
    }
    five::clear(cluster)?;
    await_settled(cluster)
}

/// Cuts the power after the end of the first group's pods and during the end of this pod.
fn cut_in_a_later_group(cluster: &Cluster, vm: &mut VmNode, name: &str) -> Result<()> {
    let takes = |pod| if pod == name { 600 } else { 1 };
    five::run(cluster, StopDurations { middle: takes("middle"), critical: takes("critical") })?;
    vm.vm()?.shell()?.tell("systemctl reboot")?;
    await_terminated(cluster, "one", 60)?;
    // Its group begins when the pods of the earlier groups are released, volumes included.
    await_killing(cluster, name, 90)?;
    let boot = cut(cluster, vm)?;
    ensure_told_unclean(cluster, &boot)?;
    await_all_terminated(cluster, &five::FIRST)?;
    await_terminated(cluster, "middle", 60)?;
    if name == "critical" {
        await_terminated(cluster, name, 60)?;
    } else {
        await_started_anew(cluster, "critical", 120)?;
    }
    five::clear(cluster)?;
    await_settled(cluster)
}

/// All pods have ended, and the agent waits for the API server, which is down.
fn cut_while_telling(cluster: &mut Cluster, vm: &mut VmNode) -> Result<()> {
    five::run(cluster, five::SOON)?;
    let boot = boot_id(cluster)?;
    cluster.kill_apiserver()?;
    let shell = vm.vm()?.shell()?;
    shell.tell("systemctl reboot")?;
    let ended = "until ! ctr -n k8s.io tasks ls | grep -q RUNNING; do sleep 0.2; done; \
                 grep -v endTime /var/lib/kubelet/graceful_node_shutdown_state";
    let begun = shell.run(ended, Duration::from_secs(90))?;
    ensure!(begun.status == 0 && begun.text.contains(&boot), "no shutdown is under way: {begun:?}");
    vm.cut_power();
    cluster.restart_apiserver()?;
    vm.boot(None)?;
    await_boot(cluster, vm, &boot)?;
    ensure_told_unclean(cluster, &boot)?;
    await_all_terminated(cluster, &five::NAMES)?;
    five::clear(cluster)?;
    await_settled(cluster)
}

/// The receipt is complete, and units stop: that was an ordered end.
fn cut_when_written(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    five::run(cluster, five::SOON)?;
    let shell = vm.vm()?.shell()?;
    shell.tell("systemctl halt")?;
    await_terminated(cluster, "critical", 90)?;
    // The shell is stopped about then, too: no answer is one.
    let written = "until grep -q endTime /var/lib/kubelet/graceful_node_shutdown_state; do :; done";
    let _ = vm.vm()?.shell()?.run(written, Duration::from_secs(1));
    let boot = cut(cluster, vm)?;
    ensure_last_end(cluster, "False", "ShutdownInOrder")?;
    five::ensure_ended(cluster, vm, &boot, "halt")
}

fn await_all_terminated(cluster: &Cluster, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| await_terminated(cluster, name, 60))
}
