//! Child processes of a run: spawned into a group of their own and recorded, streamed line by line.
//!
//! In: a command. Out: its lines and its status. Invariant: no child of a run exists unrecorded,
//! because it is spawned under the run's lock ([`crate::run::Run::spawn`]).

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::resource::{Resource, await_end};
use crate::run::Run;

/// A file descriptor that becomes readable when the process ends.
///
/// # Errors
/// If there is no such process.
pub fn pidfd(pid: i32) -> Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).context("a process id is positive")?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).context("pidfd_open")
}

/// A recorded child; killed with its group and reaped when dropped.
pub struct Guarded {
    /// The child itself.
    pub child: Child,
    resource: Resource,
    run: Arc<Run>,
}

impl Guarded {
    /// Spawns `command` into a process group of its own and records it.
    ///
    /// # Errors
    /// If it cannot be started, or the run is being interrupted.
    pub fn spawn(run: &Arc<Run>, command: &mut Command) -> Result<Guarded> {
        let (child, resource) = run.spawn(command)?;
        Ok(Guarded { child, resource, run: run.clone() })
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits for the end, at most `limit`; `None` at the deadline.
    ///
    /// # Errors
    /// If the kernel does not let us wait for our own child.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        if !await_end(self.pid(), limit) {
            return Ok(None);
        }
        Ok(Some(self.child.wait()?))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.resource.remove(self.run.id());
        let _ = self.child.wait();
    }
}

/// Runs a command to its end and hands every line of its output (both streams) to `on_line`.
///
/// # Errors
/// If it cannot be started or read.
pub fn stream(run: &Arc<Run>, command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<ExitStatus> {
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut guarded = Guarded::spawn(run, command)?;
    // The command object holds the writing end: as long as it lives, the pipe never ends.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).context("read the command's output")? > 0 {
        on_line(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    guarded.child.wait().context("wait for the command")
}

/// Runs a command to its end; the last lines of its output are in the error.
///
/// # Errors
/// If it cannot be started or fails.
pub fn must(run: &Arc<Run>, command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let mut output = Vec::new();
    let status = stream(run, command, |l| output.push(l.to_owned()))?;
    let tail = output[output.len().saturating_sub(30)..].join("\n");
    anyhow::ensure!(status.success(), "{shown}: {status}\n{tail}");
    Ok(output.join("\n"))
}
