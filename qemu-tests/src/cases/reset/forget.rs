//! A reset that keeps nothing: the next boot is a first boot.

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::vm::lab::Lab;

use super::{ALONE, await_reset, ensure_ended, ensure_gone, order, traces, with_witness};

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "reset/forget",
    220,
    "a reset that keeps nothing: another machine id, another file system, and the old file is gone",
    forget,
)];

fn forget(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let (mut vm, before) = with_witness(&lab)?;
    order(&mut vm, "forget:e2e-2")?;
    await_reset(&vm, "forget:e2e-2")?;
    ensure_gone(&mut vm)?;
    let after = traces(&mut vm)?;
    ensure!(
        after.machine_id != before.machine_id && after.state != before.state,
        "{after:?}, before {before:?}"
    );
    vm.power_off(120)?;
    ensure_ended(&lab, "e2e-2")
}
