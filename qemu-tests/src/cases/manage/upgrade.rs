//! Another version by the management API: staged, tried and committed on a node, and the version before again, ordered while the agent is
//! dead. The version is the built image under another root hash.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_config::slots::{SlotName, SlotState};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::say;
use orlop_harness::vm::lab::Lab;
use orlop_harness::vm::machine::Vm;
use orlop_harness::vm::shell::Output;

use crate::cases::boot::shared_vm::BOOT_LIMIT_S;
use crate::cases::update::arbiter::record;
use crate::cases::update::published::{Server, VERSION, publish_bootable};
use crate::cases::update::staging::{STAGE_LIMIT, boot};

use super::status::PROGRAM;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "manage/upgrade",
    900,
    "orlopctl stages a version, tries it and waits for its commit; rollback, with a dead agent, tries the version before; refusals by name",
    upgrade,
)];

/// Identifiers of the operations that a reboot parts.
const UPGRADE: &str = "01936f2e-0102-7fff-bfff-fffffffffff1";
const ROLLBACK: &str = "01936f2e-0102-7fff-bfff-fffffffffff2";
/// An answer under TCG, with the start of the server and of the updater.
const ANSWER: Duration = Duration::from_secs(90);
/// From the request to the machine's reset: an order in the boot record, and pods that end.
const RESTART_LIMIT_S: u64 = 300;
/// A verdict: the node is as good as before for a minute, on a slow machine; seconds.
const VERDICT_S: u64 = 600;

fn upgrade(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = built::ctl(&cx.run)?;
    let disk = SecondDisk::make(&cx.artefacts, &[(program.as_path(), PROGRAM)], &[])?;
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let published = publish_bootable(lab.dir())?;
    let server = Server::start(lab.dir(), &published.dir)?;
    lab.reach_host();
    lab.attach(&[disk.file()]);
    let mut vm = boot(&lab, &server, &published)?;
    disk.unpack(vm.shell()?)?;
    refused(&mut vm, "rollback", "NO_OTHER_VERSION")?;

    let staged = ask(&mut vm, &format!("upgrade --stage --version {VERSION}"), STAGE_LIMIT)?;
    ensure!(staged.status == 0 && staged.text.contains("nothing boots it"), "{}", staged.text);
    refused(&mut vm, "rollback", "NO_OTHER_VERSION")?;
    // What is staged is not fetched again.
    let before = server.given();
    tries(&mut vm, &format!("upgrade --now --version {VERSION} --id {UPGRADE}"), "slot B is on trial")?;
    ensure!(server.given() == before, "a version that is in the slot was fetched again");
    refused(&mut vm, "rollback", "OPERATION_RUNNING")?;
    committed(&mut vm, UPGRADE)?;

    // The agent is dead, and nothing holds the reboot back.
    vm.shell()?.must("systemctl mask --runtime --now kubelet.service")?;
    tries(&mut vm, &format!("rollback --id {ROLLBACK}"), "slot A is on trial")?;
    committed(&mut vm, ROLLBACK)?;
    let all = ask(&mut vm, "get operations", ANSWER)?;
    ensure!(all.text.contains("rollback") && all.text.contains("upgrade"), "{}", all.text);
    vm.power_off(120)?;
    let record = record(&lab)?;
    ensure!((record.desired, record.trial.is_none()) == (SlotName::A, true), "{record:?}");
    ensure!((record.a.state, record.b.state) == (SlotState::Good, SlotState::Good), "{record:?}");
    ensure!(record.b.version == VERSION, "{record:?}");
    Ok(())
}

fn ask(vm: &mut Vm, words: &str, limit: Duration) -> Result<Output> {
    let longest = limit.as_secs().saturating_sub(10);
    vm.shell()?.run(&format!("timeout {longest} {PROGRAM} --timeout 60 {words}"), limit)
}

fn refused(vm: &mut Vm, words: &str, reason: &str) -> Result<()> {
    let output = ask(vm, words, ANSWER)?;
    let is_refused = output.status == 1 && output.text.contains(reason);
    ensure!(
        is_refused,
        "`orlopctl {words}` ended with {}, not with {reason}: {}",
        output.status,
        output.text
    );
    Ok(())
}

/// Begins an operation whose client is killed, and follows the node into the trial.
fn tries(vm: &mut Vm, words: &str, slot: &str) -> Result<()> {
    vm.restarts(&format!("timeout -s KILL 60 {PROGRAM} --timeout 50 {words}"), RESTART_LIMIT_S)
        .with_context(|| format!("`orlopctl {words}` reboots nothing"))?;
    let booted = vm.await_phase("init.slot", BOOT_LIMIT_S)?;
    ensure!(booted.ok && booted.detail.contains(slot), "init.slot says {:?}", booted.detail);
    vm.await_phase("agent.ready", BOOT_LIMIT_S).map(drop)
}

/// Waits for the verdict, which ends the operation.
fn committed(vm: &mut Vm, id: &str) -> Result<()> {
    let limit = Duration::from_secs(VERDICT_S + 60);
    let ended = ask(vm, &format!("wait {id} --for {VERDICT_S}"), limit)?;
    for line in ended.text.lines() {
        say::line(format!("  {line}"));
    }
    ensure!(ended.status == 0, "exit {}: {}", ended.status, ended.text);
    for words in ["phase      finished", "is committed"] {
        ensure!(ended.text.contains(words), "{words:?} is not in: {}", ended.text);
    }
    Ok(())
}
