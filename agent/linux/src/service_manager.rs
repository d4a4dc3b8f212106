//! systemd, asked without the bus: is the machine going down, and how?
//!
//! In: PID 1's own socket. Out: the kind of stop that is under way. Invariants: nothing is started, stopped or changed here;
//! where PID 1 is not systemd, or does not answer, no stop is known of. `org.freedesktop.systemd1(5)`: `SystemState` is
//! `stopping` from when `shutdown.target` is queued.

mod peer;

use std::path::Path;
use std::time::Duration;

use zbus::{OwnedObjectPath, OwnedVariant};

pub use peer::PeerError;
use peer::{Method, Peer};

/// PID 1's own socket: it answers when there is no bus.
pub const SOCKET: &str = "/run/systemd/private";
/// How long PID 1 may take to answer: while it works off the jobs that can run, a process to start for many of them, it
/// answers nobody. Less than the 30 s that the image gives a unit's stop.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Why PID 1 could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ServiceManagerError {
    /// There is no such socket, or nobody at its other end: another init, or a container.
    #[error("connect to systemd at {path}")]
    Connect {
        /// Where.
        path: String,
        /// Why not.
        #[source]
        source: PeerError,
    },
    /// A call.
    #[error("ask systemd for {operation}")]
    Call {
        /// What was asked.
        operation: &'static str,
        /// The answer.
        #[source]
        source: PeerError,
    },
    /// It did not answer in time.
    #[error("systemd did not answer at {path} within {} s", limit.as_secs())]
    Silent {
        /// Where.
        path: String,
        /// How long it was waited for.
        limit: Duration,
    },
}

const NAME: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// Id, unit, type, state, the job's path, the unit's path.
type Job = (u32, String, String, String, OwnedObjectPath, OwnedObjectPath);

/// The kind of stop that is under way, as logind would say it (`reboot`, `poweroff`, `halt`, `kexec`, `soft-reboot`; empty
/// if its target is none of these); `None` if the machine is not going down.
///
/// # Errors
/// systemd is not there, or does not answer.
pub async fn going_down(socket: &Path) -> Result<Option<String>, ServiceManagerError> {
    asked_within(socket, ANSWER_MAX).await
}

async fn asked_within(socket: &Path, limit: Duration) -> Result<Option<String>, ServiceManagerError> {
    let silent = || ServiceManagerError::Silent { path: socket.display().to_string(), limit };
    tokio::time::timeout(limit, asked(socket)).await.unwrap_or_else(|_| Err(silent()))
}

async fn asked(socket: &Path) -> Result<Option<String>, ServiceManagerError> {
    let at = |source| ServiceManagerError::Connect { path: socket.display().to_string(), source };
    let failed = |operation| move |source| ServiceManagerError::Call { operation, source };
    let mut peer = Peer::connect(socket).await.map_err(at)?;
    let get = Method {
        destination: NAME,
        path: OBJECT,
        interface: "org.freedesktop.DBus.Properties",
        member: "Get",
    };
    let state: OwnedVariant =
        peer.call(&get, &(MANAGER, "SystemState")).await.map_err(failed("SystemState"))?;
    let list = Method { destination: NAME, path: OBJECT, interface: MANAGER, member: "ListJobs" };
    let jobs: Vec<Job> = peer.call(&list, &()).await.map_err(failed("ListJobs"))?;
    // A value that is no text is no state that stands for a stop.
    Ok(is_stopping(&String::try_from(state).unwrap_or_default(), &jobs).then(|| kind(&jobs)))
}

/// Until every job of the start is done, the state is `starting`, also while the machine goes down.
fn is_stopping(state: &str, jobs: &[Job]) -> bool {
    state == "stopping" || jobs.iter().any(|(_, unit, what, ..)| unit == "shutdown.target" && what == "start")
}

fn kind(jobs: &[Job]) -> String {
    const KINDS: [&str; 5] = ["reboot", "poweroff", "halt", "kexec", "soft-reboot"];
    let starts = |kind: &&str| {
        jobs.iter().any(|(_, unit, what, ..)| what == "start" && unit.strip_suffix(".target") == Some(*kind))
    };
    KINDS.into_iter().find(starts).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
