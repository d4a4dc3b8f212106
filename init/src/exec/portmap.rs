//! Called as `portmap`, before the CNI plugin of that name: a pod without host ports, nearly every pod, needs nothing
//! of it when its network is made, and is spared a program ten times this one's weight. Everything else is the real
//! plugin's (docs/image.md). What is decided: `plan::portmap`.

use super::stand_in;
use crate::plan::portmap::previous_result;
use std::io;
use std::process::ExitCode;

/// The plugin's name, and this one's.
pub const NAME: &str = "portmap";
const PLUGIN: &str = "/usr/lib/cni/portmap";

/// Answers, or runs the plugin.
#[must_use]
pub fn main() -> ExitCode {
    let adds = std::env::var_os("CNI_COMMAND").is_some_and(|command| command == "ADD");
    stand_in::ended(PLUGIN, if adds { add() } else { stand_in::become_program::<&str>(PLUGIN, &[]) })
}

fn add() -> io::Result<ExitCode> {
    let config = stand_in::question()?;
    match previous_result(&config) {
        Some(result) => super::print(result.as_bytes()).map(|()| ExitCode::SUCCESS),
        None => stand_in::pass_on(PLUGIN, &[], &config),
    }
}
