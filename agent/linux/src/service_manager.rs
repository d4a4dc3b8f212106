//! Asks systemd without the bus whether the machine is going down, and how.
//!
//! In: `systemctl list-jobs`, which uses PID 1's own socket when it runs as root. Out: the kind of the
//! pending stop. Invariants: it starts, stops and changes nothing; if PID 1 is not systemd, or does not
//! answer, no stop is pending. Why not zbus on that socket: PID 1 names itself in its messages (`sender` is
//! `org.freedesktop.systemd1`), where a bus would put a unique name, and zbus ends a connection over such a
//! header.

use std::io;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;

/// Who speaks PID 1's language.
pub const SYSTEMCTL: &str = "/usr/bin/systemctl";
/// How long PID 1 may take to answer. Less than the 30 s that the image gives a unit's stop.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Why PID 1 could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ServiceManagerError {
    /// There is no such program.
    #[error("run {program} list-jobs")]
    Run {
        /// Its path.
        program: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// It could not ask: another init, or a container.
    #[error("{program} list-jobs: {status}: {said}")]
    Failed {
        /// Its path.
        program: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said.
        said: String,
    },
    /// There was no answer in time.
    #[error("{program} list-jobs did not answer within {} s", limit.as_secs())]
    Silent {
        /// Its path.
        program: String,
        /// How long it was waited for.
        limit: Duration,
    },
}

/// The kind of stop that is under way, as logind would say it (`reboot`, `poweroff`, `halt`, `kexec`, `soft-reboot`; empty
/// if its target is none of these); `None` if the machine is not going down. `systemctl` is [`SYSTEMCTL`].
///
/// # Errors
/// systemd is not there, or does not answer.
pub async fn going_down(systemctl: &Path) -> Result<Option<String>, ServiceManagerError> {
    asked_within(systemctl, ANSWER_MAX).await
}

async fn asked_within(systemctl: &Path, limit: Duration) -> Result<Option<String>, ServiceManagerError> {
    let program = || systemctl.display().to_string();
    let mut command = Command::new(systemctl);
    command.args(["list-jobs", "--no-pager", "--no-legend", "--plain", "--full", "--no-ask-password"]);
    // Its words are compared.
    command.env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    let Ok(answer) = tokio::time::timeout(limit, command.output()).await else {
        return Err(ServiceManagerError::Silent { program: program(), limit });
    };
    let Output { status, stdout, stderr } =
        answer.map_err(|source| ServiceManagerError::Run { program: program(), source })?;
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr).trim().to_owned();
        return Err(ServiceManagerError::Failed { program: program(), status, said });
    }
    Ok(stop_of(&String::from_utf8_lossy(&stdout)))
}

/// A stop is under way while `shutdown.target` is to be reached: that is so before systemd calls its own state `stopping`, for
/// until every job of the start is done that is `starting`. Lines are a job's number, its unit, what it does, how far it is.
fn stop_of(jobs: &str) -> Option<String> {
    const KINDS: [&str; 5] = ["reboot", "poweroff", "halt", "kexec", "soft-reboot"];
    let targets = || {
        jobs.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, unit, "start", ..] = words[..] else { return None };
            unit.strip_suffix(".target")
        })
    };
    let kind = || targets().find(|target| KINDS.contains(target)).unwrap_or_default().to_owned();
    targets().any(|target| target == "shutdown").then(kind)
}

#[cfg(test)]
mod tests;
