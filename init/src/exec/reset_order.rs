//! `orlop-init reset`: writes the order of a factory reset into the boot record (orlop-reset@.service). The next boot carries it
//! out.
//!
//! In: the order in the environment, `keep:ID` or `forget:ID`. Out: the record; the machine is not rebooted. It needs neither /var
//! nor the agent nor the network.

use super::console::{Console, Level};
use super::devices::scan;
use super::error::InitError;
use super::slot::Arbiter;
use super::steps::read;
use crate::plan::cmdline;
use crate::plan::disk::{Choice, choose};
use orlop_config::error_chain::chain;
use orlop_config::slots::ResetOrder;
use std::process::ExitCode;

/// The unit's instance.
const VARIABLE: &str = "ORLOP_RESET";

/// Runs the subcommand.
#[must_use]
pub fn main() -> ExitCode {
    let mut console = Console::open("orlop-reset");
    let text = std::env::var(VARIABLE).unwrap_or_default();
    match order(&text) {
        Ok(line) => {
            console.say(Level::Error, &line);
            ExitCode::SUCCESS
        }
        Err(e) => {
            console.say(Level::Error, &format!("no factory reset: {}", chain(&e)));
            ExitCode::FAILURE
        }
    }
}

fn order(text: &str) -> Result<String, InitError> {
    let refused = |why: &str| InitError::Refused(why.to_owned());
    let order = ResetOrder::parse(text);
    let order = order.ok_or_else(|| refused(&format!("{text:?} is not keep:ID or forget:ID")))?;
    let args = cmdline::parse(&read("/proc/cmdline")?)?;
    let disks = scan();
    let slot = match choose(&args.roothash, &disks, None) {
        Choice::Use(slot) => slot,
        Choice::Wait { why } | Choice::Refuse { why } => return Err(InitError::Refused(why)),
        Choice::AddPartitions { .. } => {
            return Err(refused("the kernel does not show the root's partitions"));
        }
    };
    let disk = &disks[slot.disk];
    let state = disk.state().ok_or_else(|| refused("this node has no state partition"))?;
    let partition = state.partuuid.to_string();
    let mut arbiter =
        Arbiter::find(disk, &slot, None).ok_or_else(|| refused("this disk has no boot record"))?;
    let line = format!("the next boot carries out the factory reset {order}");
    let failures = arbiter.change(|record| record.order_reset(order, &partition))?;
    Ok(failures.iter().fold(line, |line, failure| format!("{line}; {failure}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_order_is_refused_before_anything_is_looked_at() {
        for text in ["", "keep", "all:1", "forget:a b"] {
            let why = order(text).expect_err("no order").to_string();
            assert_eq!(why, format!("{text:?} is not keep:ID or forget:ID"));
        }
    }
}
