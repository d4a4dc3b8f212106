//! Inputs of the process from the service manager: environment variables, signals.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The service manager's environment variables, read once.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `NOTIFY_SOCKET`.
    pub notify_socket: Option<String>,
    /// `WATCHDOG_USEC`.
    pub watchdog_usec: Option<String>,
    /// `WATCHDOG_PID`.
    pub watchdog_pid: Option<String>,
    /// `LISTEN_PID`.
    pub listen_pid: Option<String>,
    /// `LISTEN_FDS`.
    pub listen_fds: Option<String>,
    /// `JOURNAL_STREAM` is set: stderr goes to the journal.
    pub under_journald: bool,
    /// `DISABLE_HTTP2` is set: use HTTP/1.1 for the API server.
    pub disable_http2: bool,
}

impl Environment {
    /// Reads it.
    #[must_use]
    pub fn of_process() -> Environment {
        let get = |name| std::env::var(name).ok();
        Environment {
            notify_socket: get("NOTIFY_SOCKET"),
            watchdog_usec: get("WATCHDOG_USEC"),
            watchdog_pid: get("WATCHDOG_PID"),
            listen_pid: get("LISTEN_PID"),
            listen_fds: get("LISTEN_FDS"),
            under_journald: std::env::var_os("JOURNAL_STREAM").is_some(),
            disable_http2: std::env::var_os("DISABLE_HTTP2").is_some_and(|value| !value.is_empty()),
        }
    }
}

/// SIGTERM and SIGINT.
pub(super) struct Stop {
    term: Signal,
    int: Signal,
}

impl Stop {
    pub(super) fn listen() -> anyhow::Result<Stop> {
        let on = |kind| signal(kind).context("listen for signals");
        Ok(Stop { term: on(SignalKind::terminate())?, int: on(SignalKind::interrupt())? })
    }

    pub(super) async fn asked(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}
