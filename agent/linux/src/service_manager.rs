//! systemd, asked without the bus: is the machine going down, and how?
//!
//! In: PID 1's own socket. Out: the kind of stop that is under way. Invariants: nothing is started, stopped or changed here;
//! where PID 1 is not systemd, or does not answer, no stop is known of. `org.freedesktop.systemd1(5)`: `SystemState` is
//! `stopping` from when `shutdown.target` is queued.

use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;
use zbus::{Connection, OwnedObjectPath, connection};

/// PID 1's own socket: it answers when there is no bus.
pub const SOCKET: &str = "/run/systemd/private";
/// How long PID 1 may take to answer. It is busy stopping units.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Why PID 1 could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ServiceManagerError {
    /// There is no such socket: another init, or a container.
    #[error("connect to systemd at {path}")]
    Connect {
        /// Where.
        path: String,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// A call.
    #[error("ask systemd for {operation}")]
    Call {
        /// What was asked.
        operation: &'static str,
        /// The answer.
        #[source]
        source: zbus::Error,
    },
}

#[zbus::proxy(
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1",
    interface = "org.freedesktop.systemd1.Manager"
)]
trait Manager {
    fn list_jobs(&self) -> zbus::Result<Vec<Job>>;

    #[zbus(property(emits_changed_signal = "false"))]
    fn system_state(&self) -> zbus::Result<String>;
}

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
    let failed = |source| ServiceManagerError::Connect { path: socket.display().to_string(), source };
    let stream = UnixStream::connect(socket).await.and_then(UnixStream::into_std).map_err(failed)?;
    let failed = |source| ServiceManagerError::Call { operation: "a connection", source };
    let builder = connection::Builder::unix_stream(stream).p2p().method_timeout(limit);
    let built = tokio::time::timeout(limit, builder.build()).await;
    let built = built.unwrap_or_else(|late| Err(std::io::Error::from(late).into()));
    over(&built.map_err(failed)?).await
}

async fn over(connection: &Connection) -> Result<Option<String>, ServiceManagerError> {
    let failed = |operation| move |source| ServiceManagerError::Call { operation, source };
    let manager = ManagerProxy::new(connection).await.map_err(failed("its manager"))?;
    if manager.system_state().await.map_err(failed("SystemState"))? != "stopping" {
        return Ok(None);
    }
    Ok(Some(kind(&manager.list_jobs().await.map_err(failed("ListJobs"))?)))
}

fn kind(jobs: &[Job]) -> String {
    const KINDS: [&str; 5] = ["reboot", "poweroff", "halt", "kexec", "soft-reboot"];
    let starts = |kind: &&str| {
        jobs.iter().any(|(_, unit, what, ..)| what == "start" && unit.strip_suffix(".target") == Some(*kind))
    };
    KINDS.into_iter().find(starts).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A systemd in a state, with jobs.
    struct Fake(&'static str, &'static [(&'static str, &'static str)]);

    #[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
    impl Fake {
        async fn list_jobs(&self) -> Vec<Job> {
            let path = |kind: &str| OwnedObjectPath::try_from(format!("/org/freedesktop/systemd1/{kind}/1"));
            let job = |&(unit, what): &(&str, &str)| {
                let state = "waiting".to_owned();
                (7, unit.to_owned(), what.to_owned(), state, path("job").unwrap(), path("unit").unwrap())
            };
            self.1.iter().map(job).collect()
        }

        #[zbus(property(emits_changed_signal = "false"))]
        async fn system_state(&self) -> String {
            self.0.to_owned()
        }
    }

    async fn asked(
        state: &'static str,
        jobs: &'static [(&'static str, &'static str)],
    ) -> Result<Option<String>, ServiceManagerError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("private");
        let listener = UnixListener::bind(&path).unwrap();
        let serve = async {
            let (stream, _) = tokio::task::spawn_blocking(move || listener.accept()).await.unwrap().unwrap();
            let builder = connection::Builder::unix_stream(stream).server(zbus::Guid::generate()).p2p();
            builder.serve_at("/org/freedesktop/systemd1", Fake(state, jobs)).build().await.unwrap()
        };
        let (_server, answer) = tokio::join!(serve, going_down(&path));
        answer
    }

    #[tokio::test]
    async fn a_machine_that_goes_down_and_one_that_does_not() {
        let jobs = &[("reboot.target", "start"), ("orlop-agent.service", "stop")];
        assert_eq!(asked("running", jobs).await.unwrap(), None);
        assert_eq!(asked("degraded", &[]).await.unwrap(), None);
        assert_eq!(asked("stopping", jobs).await.unwrap().as_deref(), Some("reboot"));
        let soft = &[("shutdown.target", "start"), ("soft-reboot.target", "start")];
        assert_eq!(asked("stopping", soft).await.unwrap().as_deref(), Some("soft-reboot"));
        // Somebody's own target, and a job that is no start.
        let other = &[("mine.target", "start"), ("poweroff.target", "stop"), ("reboot.service", "start")];
        assert_eq!(asked("stopping", other).await.unwrap().as_deref(), Some(""));
    }

    #[tokio::test]
    async fn no_systemd_and_one_that_says_nothing() {
        let gone = going_down(Path::new("/nonexistent/private")).await.unwrap_err();
        assert!(gone.to_string().contains("/nonexistent/private"), "{gone}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("private");
        let _silent = UnixListener::bind(&path).unwrap();
        let refused = asked_within(&path, Duration::from_millis(50)).await;
        assert!(matches!(refused, Err(ServiceManagerError::Call { .. })), "{refused:?}");
    }
}
