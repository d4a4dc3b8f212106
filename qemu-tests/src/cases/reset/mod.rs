//! Factory resets (docs/reference/reset.md): what stays, what goes, and a cut in between.

pub mod cut;
pub mod forget;
pub mod keep;

use anyhow::{Context, Result, ensure};
use orlop_config::slots::{ResetEnd, SlotName};
use orlop_harness::case::{CaseDefaults, Level};
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;

use crate::cases::boot::shared_vm::BOOT_LIMIT_S;
use crate::cases::update::arbiter::record;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// A file of the state that no reset keeps, and its content.
const WITNESS: &str = "/var/lib/e2e-witness";
const WORDS: &str = "a secret of somebody";
/// What a reset that keeps the identity keeps.
const IDENTITY: [&str; 2] = ["/var/lib/orlop/machine-id", "/var/lib/orlop/config/first-boot.json"];
/// A reset goes on within this, seconds: firmware, loader and kernel on a busy machine, and the discard of a virtual disk.
const RESET_LIMIT_S: u64 = 240;

/// What is compared of a node before and after.
#[derive(Debug, PartialEq, Eq)]
struct NodeTraces {
    machine_id: String,
    first_boot: String,
    /// The file system's identifier, which follows from its UUID.
    state: String,
}

/// Boots until the agent is ready.
fn boot(lab: &Lab) -> Result<Vm> {
    let vm = lab.boot(Firmware::Uefi, None)?;
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    Ok(vm)
}

/// Boots for the first time, and leaves a file that is to go.
fn with_witness(lab: &Lab) -> Result<(Vm, NodeTraces)> {
    let mut vm = boot(lab).context("first boot")?;
    vm.shell()?.must(&format!("printf %s \"{WORDS}\" > {WITNESS}; sync"))?;
    let before = traces(&mut vm)?;
    Ok((vm, before))
}

fn traces(vm: &mut Vm) -> Result<NodeTraces> {
    let shell = vm.shell()?;
    let [machine_id, first_boot] = IDENTITY.map(|path| format!("cat {path}"));
    Ok(NodeTraces {
        machine_id: shell.must(&machine_id)?,
        first_boot: shell.must(&first_boot)?,
        state: shell.must("stat -f -c %i /var")?,
    })
}

/// Orders a reset on the running node, and starts the machine again.
fn order(vm: &mut Vm, order: &str) -> Result<()> {
    vm.shell()?.must(&format!("systemctl start orlop-reset@{order}.service"))?;
    vm.reboot(120).context("the reboot that resets")
}

/// Waits for the end of a reset, and for the agent after it.
fn await_reset(vm: &Vm, order: &str) -> Result<()> {
    let entry = vm.await_phase("init.reset", RESET_LIMIT_S)?;
    ensure!(entry.ok && entry.detail.starts_with(&format!("{order}: done")), "init.reset: {}", entry.detail);
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    Ok(())
}

/// The file of the old state is not there.
fn ensure_gone(vm: &mut Vm) -> Result<()> {
    vm.shell()?.must(&format!("test ! -e {WITNESS}")).context("a file of the old state is still there")?;
    Ok(())
}

/// On the disk of a machine that is off: the reset has ended, and slot A is as it was.
fn ensure_ended(lab: &Lab, id: &str) -> Result<()> {
    let record = record(lab)?;
    let end = ResetEnd { id: id.to_owned(), refused: String::new() };
    ensure!(record.reset.is_none() && record.last_reset == Some(end), "{record:?}");
    ensure!(record.desired == SlotName::A && record.is_good(SlotName::A), "{record:?}");
    Ok(())
}
