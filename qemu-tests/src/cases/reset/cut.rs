//! Power cuts while a reset erases, and behind it: the next boot repeats it, and the identity is not lost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::say;
use orlop_harness::vm::lab::Lab;

use super::{ALONE, RESET_LIMIT_S, ensure_ended, ensure_gone, order, traces, with_witness};

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "reset/cut",
    320,
    "the power is cut while the state partition is erased, and before what is kept is back: the reset is repeated, and loses nothing",
    cut,
)];

/// The last line of the reset.
const DONE: &str = "factory reset keep:e2e-3: done";

fn cut(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let (mut vm, before) = with_witness(&lab)?;
    order(&mut vm, "keep:e2e-3")?;
    let limit = Duration::from_secs(RESET_LIMIT_S);
    // The console keeps the lines of earlier boots.
    let mut from = 0;
    for (line, when) in [("factory reset: erasing", "while it erases"), (": its disk", "behind the erasing")]
    {
        let is_line = |said: &str| said.contains(line) || said.contains(DONE);
        let (_, said) = vm.console.wait(from, limit, when, |said| is_line(said).then(|| said.to_owned()))?;
        // It may be faster than this machine: then nothing is left to be cut.
        if said.contains(DONE) {
            break;
        }
        vm.reset().context(when)?;
        let is_done = vm.console.since(from).iter().any(|said| said.contains(DONE));
        from = vm.console.len();
        say::line(format!("  cut {when}: {}", said.trim()));
        // It had ended before the cut: the next boot has nothing to repeat.
        if is_done {
            break;
        }
    }
    vm.await_phase("agent.ready", RESET_LIMIT_S * 2).context("after the cuts")?;
    ensure_gone(&mut vm)?;
    let after = traces(&mut vm)?;
    ensure!((&after.machine_id, &after.first_boot) == (&before.machine_id, &before.first_boot), "{after:?}");
    ensure!(after.state != before.state, "the state partition is the old one: {after:?}");
    vm.power_off(120)?;
    ensure_ended(&lab, "e2e-3")
}
