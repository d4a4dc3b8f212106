//! Bad releases of which the node comes back by itself, on one VM: each is a version of its own, which the node has staged.
//!
//! Cases: `update/returns-network`, `update/returns-networkd`, `update/returns-degraded`, `update/returns-kubelet`, `update/returns-dead`,
//! `update/returns-panic`, `update/returns-hang`. They share the VM and run in this order; each can also run alone. What breaks a version
//! is done to it in its trial through the debug shell, or to its UKI before it is signed.

use anyhow::{Context, Result};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};

use super::bad_version::{BreakAt, ReturnsNode, await_home, await_trial, returns};
use super::spoilt::{hang_in_init, no_initrd};
use super::trial::await_slot;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("returns") };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "update/returns-network",
        780,
        "a version without a driver of its network card goes back within its deadline, and is refused by that name",
        network,
    ),
    HERE.case(
        "update/returns-networkd",
        660,
        "a version whose networkd does not start goes back within its deadline, and is refused by that name",
        networkd,
    ),
    HERE.case(
        "update/returns-degraded",
        660,
        "a version that cannot use the state partition goes back within its deadline, and is refused by that name",
        degraded,
    ),
    HERE.case(
        "update/returns-kubelet",
        660,
        "a version whose agent refuses its settings, and starts again and again, is taken back by the guard",
        kubelet,
    ),
    HERE.case(
        "update/returns-dead",
        360,
        "a version that panics before init is left after one try; the record says that it has ended before init",
        dead,
    ),
    HERE.case(
        "update/returns-panic",
        360,
        "a version whose kernel panics in its trial is left at once; the record says that it was cut off",
        panics,
    ),
    HERE.case(
        "update/returns-hang",
        600,
        "a version whose init hangs before systemd's start is ended by the hardware watchdog; the record says that it was cut off",
        hangs,
    ),
];

/// The watchdog's time in a trial, the firmware, and a busy machine, seconds.
const HANG_LIMIT_S: u64 = 180 + 120;

fn node<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut ReturnsNode> {
    cx.shared_or(|run, artefacts| {
        ReturnsNode::start(run, artefacts, |lab| {
            lab.give_watchdog();
            // With a second one init loads modules ahead, and meets the pipe of `returns-hang` before it judges the slot.
            lab.give_processors(1);
            Ok(String::new())
        })
    })
}

fn network(cx: &mut CaseContext<'_>) -> Result<()> {
    let driver = "/sys/bus/virtio/drivers/virtio_net";
    let unbind = format!("(for device in {driver}/virtio*; do echo ${{device##*/}} > {driver}/unbind; done)");
    returns(node(cx)?, BreakAt::Network, &unbind, &["link", "address", "gateway"])
}

fn networkd(cx: &mut CaseContext<'_>) -> Result<()> {
    // On a fast machine it has brought the card up already: the second command takes it down (IFF_UP).
    let mask = "systemctl mask --runtime --now systemd-networkd.service && \
         (for card in /sys/class/net/e*; do [ ! -e $card/flags ] || echo 0x1002 > $card/flags; done)";
    returns(node(cx)?, BreakAt::Start, mask, &["link", "address", "gateway"])
}

fn degraded(cx: &mut CaseContext<'_>) -> Result<()> {
    // As init leaves it where it cannot mount the partition.
    let mark = "echo 'the state partition is refused' > /run/orlop/degraded";
    returns(node(cx)?, BreakAt::Network, mark, &["state-partition"])
}

fn kubelet(cx: &mut CaseContext<'_>) -> Result<()> {
    // An agent that runs already keeps what it has read.
    let settings =
        "echo 'kind: Nonsense' > /run/orlop/kubelet.yaml && systemctl restart --no-block kubelet.service";
    returns(node(cx)?, BreakAt::Start, settings, &["agent"])
}

fn dead(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let mut vm = node.vm()?;
    node.boot_trial(&mut vm, no_initrd)?;
    // The version says nothing: the first words are those of slot A.
    await_home(&vm, "the trial of slot B is over: it ended before init's first instruction")?;
    node.keep(vm);
    Ok(())
}

fn panics(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let mut vm = node.vm()?;
    node.boot_trial(&mut vm, |_| Ok(()))?;
    await_slot(&vm, "slot B is on trial, boot 1 of 3")?;
    vm.expect_restart()?;
    vm.shell()?.tell("echo c > /proc/sysrq-trigger")?;
    vm.restarted(120).context("the kernel does not restart the machine after a panic")?;
    await_home(&vm, "the trial of slot B is over: it was cut off before its verdict")?;
    node.keep(vm);
    Ok(())
}

fn hangs(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = node(cx)?;
    let mut vm = node.vm()?;
    node.boot_trial(&mut vm, hang_in_init)?;
    await_trial(&vm)?;
    vm.expect_restart()?;
    vm.restarted(HANG_LIMIT_S).context("the watchdog does not end an init that hangs")?;
    await_home(&vm, "the trial of slot B is over: it was cut off before its verdict")?;
    node.keep(vm);
    Ok(())
}
