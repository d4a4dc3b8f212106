//! What a person in front of a machine reads, on its serial port and on its screen.

pub mod banner;
pub mod faults;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use orlop_harness::say;
use orlop_harness::vm::lab::Lab;
use orlop_harness::vm::machine::Vm;

/// How long a person waits for a word about a fault, seconds.
pub(crate) const TOLD_LIMIT_S: u64 = 60;

/// Waits until one line of the serial port, and the screen, have all the words. A long line goes on in the screen's next row.
///
/// # Errors
/// At the deadline: what is on the screen.
pub(crate) fn await_told(vm: &mut Vm, lab_dir: &std::path::Path, words: &[&str]) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(TOLD_LIMIT_S);
    let what = format!("a line with {words:?} on the serial port");
    let line = vm.await_console(TOLD_LIMIT_S, &what, |line| words.iter().all(|word| line.contains(word)))?;
    say::line(format!("  {line}"));
    let mut shown = Vec::new();
    while Instant::now() < until {
        // The kernel may write between two looks.
        if let Ok(screen) = vm.screen(lab_dir) {
            let text = screen.text();
            if words.iter().all(|word| text.contains(word)) {
                return Ok(());
            }
            shown = screen.lines();
        }
        vm.shell()?.must("sleep 1").context("wait for the screen")?;
    }
    bail!("{words:?} are not on the screen:\n{}", shown.join("\n"))
}

/// A fresh disk whose VMs have a screen.
///
/// # Errors
/// If the image was not built.
pub(crate) fn lab_with_screen(cx: &orlop_harness::case::CaseContext<'_>) -> Result<Lab> {
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    lab.give_screen();
    Ok(lab)
}
