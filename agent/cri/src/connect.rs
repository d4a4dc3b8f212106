//! The connection to the runtime: endpoint, connection, back-off. Upstream: cri-client/pkg/remote_runtime.go.
//!
//! In: `unix:///path`. Out: a channel that connects at its first use, and again after the connection broke.
//! Invariant: after a failed attempt the next attempt waits for the back-off (100 ms doubling to 3 s); calls
//! in between fail at once with the reason, so no caller waits for a runtime that is down. A socket that does
//! not exist yet does not count as a failed attempt: the back-off stays at 100 ms.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_types::backoff::Backoff;
use agent_types::lock::Lock;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::error::CriError;

/// Time between attempts that fail.
pub(crate) const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(3));
/// An attempt gets at least this long.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);

/// No connection: the request was not sent.
#[derive(Clone, Debug, thiserror::Error)]
#[error("connect to {}: {reason}", path.display())]
pub(crate) struct ConnectFailed {
    path: PathBuf,
    reason: String,
}

/// The socket's path in an endpoint: `unix:///run/x.sock`, `unix:/run/x.sock` or the bare absolute path.
///
/// # Errors
/// [`CriError::Endpoint`] for everything else.
pub fn socket_path(endpoint: &str) -> Result<PathBuf, CriError> {
    let rest =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    if rest.starts_with('/') && rest.len() > 1 {
        Ok(PathBuf::from(rest))
    } else {
        Err(CriError::Endpoint { endpoint: endpoint.to_owned() })
    }
}

/// A channel to the socket; connects at first use. Needs a tokio runtime around it.
pub(crate) fn channel(path: &Path) -> Channel {
    let connector = Arc::new(Connector { path: path.to_owned(), failures: Lock::default() });
    // The authority is not used on a unix socket, but gRPC servers refuse an odd one.
    Endpoint::from_static("http://localhost")
        .connect_with_connector_lazy(tower::service_fn(move |_| Arc::clone(&connector).connect()))
}

struct Connector {
    path: PathBuf,
    // Held for a moment only, never across an await.
    failures: Lock<Failures<ConnectFailed>>,
}

impl Connector {
    async fn connect(self: Arc<Self>) -> Result<TokioIo<UnixStream>, ConnectFailed> {
        let lock = || self.failures.lock();
        if let Some(failure) = lock().too_early(Instant::now()) {
            return Err(failure);
        }
        let result = match tokio::time::timeout(ATTEMPT_MAX, UnixStream::connect(&self.path)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err((error.kind() == ErrorKind::NotFound, error.to_string())),
            Err(_) => Err((false, format!("no connection within {} s", ATTEMPT_MAX.as_secs()))),
        };
        match result {
            Ok(stream) => {
                lock().succeeded();
                Ok(TokioIo::new(stream))
            }
            Err((absent, reason)) => {
                let failure = ConnectFailed { path: self.path.clone(), reason };
                let mut failures = lock();
                if absent {
                    failures.succeeded();
                }
                failures.failed(Instant::now(), failure.clone());
                Err(failure)
            }
        }
    }
}

/// The failed attempts in a row: when the next one may be made.
#[derive(Debug)]
pub(crate) struct Failures<E> {
    count: u32,
    last: Option<(Instant, E)>,
}

impl<E> Default for Failures<E> {
    fn default() -> Self {
        Failures { count: 0, last: None }
    }
}

impl<E: Clone> Failures<E> {
    /// The failure that is still being backed off from.
    pub(crate) fn too_early(&self, now: Instant) -> Option<E> {
        let (failed, error) = self.last.as_ref()?;
        (now < *failed + self.delay()).then(|| error.clone())
    }

    /// An attempt worked.
    pub(crate) fn succeeded(&mut self) {
        *self = Failures::default();
    }

    /// An attempt failed.
    pub(crate) fn failed(&mut self, now: Instant, error: E) {
        self.count = self.count.saturating_add(1);
        self.last = Some((now, error));
    }

    /// Time from the last failure to the next attempt.
    pub(crate) fn delay(&self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            n => BACKOFF.next(n - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for good in ["unix:///run/containerd/containerd.sock", "unix:/run/containerd/containerd.sock"] {
            assert_eq!(socket_path(good).unwrap(), Path::new("/run/containerd/containerd.sock"));
        }
        assert_eq!(socket_path("/run/x").unwrap(), Path::new("/run/x"));
        for bad in ["", "/", "run/x", "unix://", "unix://run/x", "tcp://1.2.3.4:5", "npipe:////./pipe/x"] {
            let message = socket_path(bad).unwrap_err().to_string();
            assert!(message.contains("unix:///"), "{message}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_is_not_there_yet_is_looked_for_at_the_first_pace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("late.sock");
        let connector = Arc::new(Connector { path: path.clone(), failures: Lock::default() });
        for _ in 0..5 {
            assert!(Arc::clone(&connector).connect().await.is_err());
            tokio::time::advance(BACKOFF.first).await;
        }
        let _listener = tokio::net::UnixListener::bind(&path).unwrap();
        assert!(Arc::clone(&connector).connect().await.is_ok());
    }

    #[test]
    fn backoff_doubles_to_three_seconds_and_resets() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        assert_eq!(failures.too_early(start), None);
        let mut delays = Vec::new();
        for _ in 0..8 {
            failures.failed(start, "down");
            delays.push(u64::try_from(failures.delay().as_millis()).unwrap());
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3000, 3000, 3000]);
        assert_eq!(failures.too_early(start + Duration::from_millis(2999)), Some("down"));
        assert_eq!(failures.too_early(start + Duration::from_millis(3000)), None);
        failures.succeeded();
        assert_eq!(failures.delay(), Duration::ZERO);
    }
}
