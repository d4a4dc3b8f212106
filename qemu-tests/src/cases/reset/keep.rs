//! A reset that keeps the identity: the node comes back as the same one, without the rest of its state, and once.

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::vm::lab::Lab;

use super::{ALONE, await_reset, boot, ensure_ended, ensure_gone, order, traces, with_witness};

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "reset/keep",
    260,
    "a reset that keeps the identity: machine id and accepted configuration stay, a new file system, and no second reset",
    keep,
)];

fn keep(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let (mut vm, before) = with_witness(&lab)?;
    order(&mut vm, "keep:e2e-1")?;
    await_reset(&vm, "keep:e2e-1")?;
    ensure_gone(&mut vm)?;
    let after = traces(&mut vm)?;
    ensure!((&after.machine_id, &after.first_boot) == (&before.machine_id, &before.first_boot), "{after:?}");
    ensure!(after.state != before.state, "the state partition is the old one: {after:?}");
    // The same order again is none.
    let again = vm
        .shell()?
        .run("systemctl start orlop-reset@keep:e2e-1.service", std::time::Duration::from_secs(60))?;
    ensure!(again.status != 0, "an order that has ended is taken again: {}", again.text);
    vm.power_off(120)?;
    ensure_ended(&lab, "e2e-1")?;
    let mut vm = boot(&lab).context("the boot after the reset")?;
    ensure!(traces(&mut vm)? == after, "the node was reset twice");
    vm.power_off(120)
}
