//! `orlop-init resolv`: the name servers that DHCP gave, for /etc/resolv.conf, when the configuration names none.
//!
//! Run by systemd whenever networkd's state changes. A file that init wrote from the configuration is kept.

use crate::plan::resolv;
use crate::plan::step::Step;
use std::fs;
use std::io::Write;
use std::process::ExitCode;

/// What /etc/resolv.conf points to.
const TARGET: &str = "/run/orlop/resolv.conf";
/// networkd's view of the whole network.
const STATE: &str = "/run/systemd/netif/state";

/// Runs the subcommand.
#[must_use]
pub fn main() -> ExitCode {
    let state = fs::read_to_string(STATE).unwrap_or_default();
    let current = fs::read_to_string(TARGET).unwrap_or_default();
    let Some(text) = resolv::update(&current, &state) else { return ExitCode::SUCCESS };
    let step = Step::WriteFile { path: TARGET.into(), mode: 0o644, content: text.into_bytes() };
    match super::steps::apply(&step) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "orlop-init: cannot {}: {e}", step.describe());
            ExitCode::FAILURE
        }
    }
}
