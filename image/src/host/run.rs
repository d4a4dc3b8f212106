//! Runs a program to its end, with its output in a log file, and says what went wrong with the log's last lines.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Last lines of a log that are shown on failure.
const TAIL: usize = 25;

/// Runs `command` with both outputs appended to `log`.
///
/// # Errors
/// It cannot be started, or ends with another status than 0; the message has the log's last lines.
pub fn logged(command: &mut Command, what: &str, log: &Path) -> Result<()> {
    let open = || File::options().create(true).append(true).open(log);
    let out = open().with_context(|| format!("opening the log {}", log.display()))?;
    let err = out.try_clone()?;
    let status = command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .status()
        .with_context(|| format!("{what}: starting {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{what}: {status}\n{}\nThe whole log: {}", tail(log), log.display());
    }
    Ok(())
}

/// Runs `command` and returns its standard output.
///
/// # Errors
/// It cannot be started or fails; the message has its standard error.
pub fn output(command: &mut Command, what: &str) -> Result<Vec<u8>> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{what}: starting {}", command.get_program().display()))?;
    if !out.status.success() {
        bail!("{what}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(out.stdout)
}

/// Passes `input` through a filter program.
///
/// # Errors
/// It cannot be started or fails.
pub fn filter(command: &mut Command, what: &str, input: &[u8]) -> Result<Vec<u8>> {
    use std::io::{Read, Write};
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{what}: starting {}", command.get_program().display()))?;
    let mut stdin = child.stdin.take().context("stdin is piped")?;
    let mut stdout = child.stdout.take().context("stdout is piped")?;
    // Writing and reading at once: either pipe may fill up.
    let result = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut out = Vec::new();
            stdout.read_to_end(&mut out).map(|_| out)
        });
        let written = stdin.write_all(input);
        drop(stdin);
        written?;
        reader.join().map_err(|_| std::io::Error::other("the reader ended early"))?
    });
    let status = child.wait()?;
    if !status.success() {
        bail!("{what}: {status}");
    }
    Ok(result?)
}

/// The last lines of a log file.
#[must_use]
pub fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

/// Says what a step does and how long it took.
pub struct Progress {
    began: Instant,
}

impl Progress {
    /// Announces a step.
    #[must_use]
    pub fn begin(what: &str) -> Progress {
        use std::io::Write;
        print!("  {what:<58}");
        // A person watches; a pipe that is gone is noticed by the next print.
        let _ = std::io::stdout().flush();
        Progress { began: Instant::now() }
    }

    /// Ends its line.
    pub fn done(self, note: &str) {
        println!("{:>6.1} s  {note}", self.began.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_show_the_log() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo before; echo why >&2; exit 3"]);
        let error = logged(&mut command, "a step", &log).expect_err("fails").to_string();
        assert!(error.contains("a step") && error.contains("why") && error.contains('3'), "{error}");
    }

    #[test]
    fn filters_pass_more_than_a_pipe_holds() {
        let big = vec![7u8; 1 << 20];
        assert_eq!(filter(&mut Command::new("cat"), "cat", &big).expect("cat works"), big);
    }
}
