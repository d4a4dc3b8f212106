//! A staged version is tried by the node itself, and stays or goes back.
//!
//! Cases: `update/trial`, `update/returns-unready`, `update/returns-silent`. The version is the built image under another root hash. What
//! breaks it is done to it in its trial, through the debug shell.

use std::fs;

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_config::slots::{SlotName, SlotState};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::await_event;
use orlop_harness::say;
use orlop_harness::vm::lab::Lab;
use orlop_harness::vm::machine::Vm;
use orlop_init::plan::esp_names::EntryState;
use serde_json::json;

use super::arbiter::{directory, open, record};
use super::cluster_trial::{ClusterTrial, VM};
use super::published::{Server, VERSION, publish_bootable};
use super::staging::{boot_with, take};
use crate::cases::boot::shared_vm::BOOT_LIMIT_S;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    ALONE.case(
        "update/trial",
        420,
        "a node stages a release of a web server, boots it on trial by itself, commits it, and boots it from then on",
        trial,
    ),
    ALONE.case(
        "update/returns-unready",
        780,
        "a version whose containerd is gone goes back within its deadline; condition and event of the Node name the check",
        returns_unready,
    ),
    ALONE.case(
        "update/returns-silent",
        660,
        "a version whose agent says nothing any more is taken back by the guard and refused by the slot before",
        returns_silent,
    ),
];

/// The node sees what was staged, leaves in order, and its firmware starts again.
pub(super) const RESTART_LIMIT_S: u64 = 240;
/// The longest trial here, with the guard's patience, and an orderly reboot behind it.
pub(super) const RETURN_LIMIT_S: u64 = 420;
/// What init says when it has armed the hardware watchdog, and systemd's time for it, seconds.
const ARMED: &str = "the hardware watchdog i6300ESB timer resets this trial after 180 s without a beat";
const RUNTIME_S: &str = "60";

/// Waits for the boot of a slot.
pub(super) fn await_slot(vm: &Vm, slot: &str) -> Result<()> {
    let booted = vm.await_phase("init.slot", BOOT_LIMIT_S)?;
    ensure!(booted.ok && booted.detail.contains(slot), "init.slot says {:?}", booted.detail);
    vm.await_phase("agent.ready", BOOT_LIMIT_S).map(drop)
}

/// Waits for a line of the agent about an update.
pub(super) fn await_said(vm: &Vm, reason: &str, limit_s: u64) -> Result<String> {
    let begins = format!("update: {reason}: ");
    vm.await_console(limit_s, &begins, |line| line.contains(&begins))
}

/// Boots a standalone node, has it stage the release, and follows it into its trial.
fn into_trial(lab: &mut Lab, update: &str) -> Result<Vm> {
    let published = publish_bootable(lab.dir())?;
    let server = Server::start(lab.dir(), &published.dir)?;
    lab.reach_host();
    let mut vm = boot_with(lab, &server, &published, update)?;
    vm.expect_restart()?;
    take(&mut vm)?;
    vm.restarted(RESTART_LIMIT_S).context("the node does not try what it has staged")?;
    await_slot(&vm, "slot B is on trial, boot 1 of 3")?;
    Ok(vm)
}

fn trial(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    lab.give_watchdog();
    let mut vm = into_trial(&mut lab, ", policy: automatic, trial: {deadline: 5m, soak: 10s}")?;
    // init has armed the watchdog before systemd's start, and systemd has taken it with its own time.
    vm.await_console(30, ARMED, |line| line.contains(ARMED))?;
    let class = "cd /sys/class/watchdog/watchdog0 && cat state timeout";
    let watchdog = vm.shell()?.must(class)?;
    ensure!(watchdog.split_whitespace().eq(["active", RUNTIME_S]), "the watchdog is {watchdog:?}");
    let said = await_said(&vm, "UpdateCommitted", 300)?;
    say::line(format!("  {said}"));
    // The guard has ended, and the node boots the version from now on.
    vm.shell()?.must("systemctl show -P ActiveState orlop-trial.service | grep -x inactive")?;
    vm.reboot(120)?;
    await_slot(&vm, "slot B, boot record")?;
    vm.shell()?.must("test ! -e /run/orlop/slot.json").context("the next boot is on trial again")?;
    vm.power_off(120)?;
    // Only a trial has it from init: of three boots, one said so.
    let console = fs::read_to_string(cx.artefacts.join("serial.log")).context("read the console's log")?;
    ensure!(console.matches(ARMED).count() == 1, "init has armed the watchdog in another boot, too");
    let record = record(&lab)?;
    ensure!((record.desired, record.trial.is_none()) == (SlotName::B, true), "{record:?}");
    ensure!((record.b.state, record.b.version.as_str()) == (SlotState::Good, VERSION), "{record:?}");
    ensure!(record.a.state == SlotState::Good && !record.a.version.is_empty(), "{record:?}");
    ensure!((record.unready, record.boot_open) == (0, false), "{record:?}");
    let (disk, start) = open(&lab, "esp")?;
    let names = directory(&disk, start)?;
    let state = |slot| names.entry(slot).map(|entry| entry.state);
    let (a, b) = (state(SlotName::A), state(SlotName::B));
    ensure!((a, b) == (Some(EntryState::Behind), Some(EntryState::Good)), "on the ESP: {a:?}, {b:?}");
    Ok(())
}

fn returns_silent(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let mut vm = into_trial(&mut lab, ", policy: automatic, trial: {deadline: 3m, soak: 1m}")?;
    vm.expect_restart()?;
    vm.shell()?.must("systemctl mask --runtime --now kubelet.service")?;
    vm.restarted(RETURN_LIMIT_S).context("the guard does not go back")?;
    await_slot(&vm, "slot A")?;
    let said = await_said(&vm, "UpdateRefused", RETURN_LIMIT_S)?;
    ensure!(said.contains(VERSION) && said.contains("agent"), "the agent says {said:?}");
    vm.power_off(120)?;
    let record = record(&lab)?;
    ensure!((record.desired, record.b.state) == (SlotName::A, SlotState::Refused), "{record:?}");
    ensure!(record.b.reason.contains("agent"), "{record:?}");
    Ok(())
}

fn returns_unready(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut tried = ClusterTrial::begin(cx, &json!({"deadline": "3m", "soak": "1m"}))?;
    let vm = tried.vm()?;
    await_slot(vm, "slot B is on trial, boot 1 of 3")?;
    vm.expect_restart()?;
    vm.shell()?.must("systemctl mask --runtime --now containerd.service")?;
    vm.restarted(RETURN_LIMIT_S).context("the version does not go back")?;
    await_slot(vm, "slot A")?;
    let problem = vm.await_message("the failed update", RETURN_LIMIT_S, |message| match message {
        HostMessage::Problem { source, message } if source == "update" => Some(message),
        _ => None,
    })?;
    ensure!(problem.contains(VERSION) && problem.contains("runtime"), "the host hears {problem:?}");
    let back = await_event(&tried.cluster, "UpdateRolledBack", VM, 120)?;
    let refused = await_event(&tried.cluster, "UpdateRefused", VM, RETURN_LIMIT_S)?;
    for event in [back, refused] {
        let message = event.message.unwrap_or_default();
        ensure!(message.contains(VERSION) && message.contains("runtime"), "an event says {message:?}");
    }
    let shown = tried.await_failed("runtime", 60)?;
    say::line(format!("  UpdateFailed: {shown}"));
    tried.await_as_before(240)?;
    tried.cluster.ensure_nothing_forbidden()
}
