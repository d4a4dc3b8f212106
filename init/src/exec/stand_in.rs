//! This binary in the place of another program: it answers what it knows, and the program does the rest.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

/// Becomes the program: returns only if it cannot be executed.
pub(super) fn become_program<S: AsRef<OsStr>>(program: &str, args: &[S]) -> io::Result<ExitCode> {
    Err(Command::new(program).args(args).exec())
}

/// What the caller writes to standard input, to its end.
pub(super) fn question() -> io::Result<Vec<u8>> {
    let mut question = Vec::new();
    io::stdin().read_to_end(&mut question)?;
    Ok(question)
}

/// Has the program answer a question that was read from its caller already.
pub(super) fn pass_on(program: &str, args: &[&str], question: &[u8]) -> io::Result<ExitCode> {
    let mut child = Command::new(program).args(args).stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(question)?;
    }
    Ok(if child.wait()?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The exit code; the error is printed under the program's name.
pub(super) fn ended(program: &str, outcome: io::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|e| {
        let _ = writeln!(io::stderr(), "{program}: {e}");
        ExitCode::FAILURE
    })
}
