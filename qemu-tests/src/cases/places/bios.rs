//! A machine that starts the disk by BIOS says what to do, instead of nothing (docs/decisions/bios.md).
//!
//! Case: `places/bios`.

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::lab::Lab;
use orlop_image::format::mbr::MESSAGE;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "places/bios",
    20,
    "SeaBIOS runs the disk's boot code, which writes to the serial port that the machine needs UEFI",
    bios,
)];

/// The firmware, without a kernel behind it.
const FIRMWARE_LIMIT_S: u64 = 60;

fn bios(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let vm = lab.start_by_bios()?;
    let mut lines = 0;
    for part in MESSAGE.lines() {
        let line = vm.await_console(FIRMWARE_LIMIT_S, "the boot code's message", |l| l.contains(part))?;
        say::line(format!("  {}", line.trim()));
        lines += 1;
    }
    ensure!(lines == 2, "the message has {lines} lines");
    Ok(())
}
