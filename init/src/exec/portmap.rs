//! Called as `portmap`, before the CNI plugin of that name: a pod without host ports, nearly every pod, needs nothing
//! of it when its network is made, and is spared a program ten times this one's weight. Everything else is the real
//! plugin's (docs/image.md). What is decided: `plan::portmap`.

use crate::plan::portmap::previous_result;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// The plugin's name, and this one's.
pub const NAME: &str = "portmap";
const PLUGIN: &str = "/usr/lib/cni/portmap";

/// Answers, or runs the plugin.
#[must_use]
pub fn main() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_none_or(|command| command != "ADD") {
        return ended(Err(Command::new(PLUGIN).exec()));
    }
    let mut config = Vec::new();
    ended(io::stdin().read_to_end(&mut config).and_then(|_| match previous_result(&config) {
        Some(result) => super::print(result.as_bytes()).map(|()| ExitCode::SUCCESS),
        None => run(&config),
    }))
}

fn run(config: &[u8]) -> io::Result<ExitCode> {
    let mut child = Command::new(PLUGIN).stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(config)?;
    }
    Ok(if child.wait()?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn ended(outcome: io::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|e| {
        let _ = writeln!(io::stderr(), "{PLUGIN}: {e}");
        ExitCode::FAILURE
    })
}
