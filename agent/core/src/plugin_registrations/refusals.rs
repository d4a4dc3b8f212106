//! Reasons for which a plugin is not registered, with upstream's texts.
//!
//! In: causes. Out: texts. Upstream: pkg/kubelet/pluginmanager/operationexecutor.

use std::fmt;
use std::time::Duration;

use super::sockets::Retry;

/// Reason for which a plugin is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No process listens on the socket.
    #[error("RegisterPlugin error -- dial failed at socket {socket}, err: {why}")]
    Dial {
        /// Path of the socket.
        socket: String,
        /// Error text of the system.
        why: String,
    },
    /// The plugin does not answer `GetInfo`.
    #[error(
        "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {socket}, err: {why}"
    )]
    Info {
        /// Path of the socket.
        socket: String,
        /// The error of the call.
        why: String,
    },
    /// The kubelet does not register plugins of this kind.
    #[error("RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {socket}")]
    Kind {
        /// Kind of the plugin as the plugin names it.
        kind: String,
        /// Path of the socket.
        socket: String,
    },
    /// The plugin's information about itself is not valid.
    #[error("RegisterPlugin error -- plugin validation failed with err: {0}")]
    Invalid(String),
    /// The owner of the kind refuses the plugin.
    #[error("RegisterPlugin error -- plugin registration failed with err: {0}")]
    Failed(String),
    /// The owner of the kind has taken too many plugins of this name, or of all names.
    #[error("RegisterPlugin error -- plugin registration failed with err: {why}")]
    TooOften {
        /// The owner's words.
        why: String,
        /// Wait until the owner may take one more.
        wait: Duration,
    },
    /// The plugin does not answer `NotifyRegistrationStatus`.
    #[error("RegisterPlugin error -- failed to send registration status at socket {socket}, err: {why}")]
    Untold {
        /// Path of the socket.
        socket: String,
        /// The error of the call.
        why: String,
    },
}

impl Refusal {
    /// The owner of the kind refuses the plugin.
    pub fn failed(why: impl fmt::Display) -> Refusal {
        Refusal::Failed(why.to_string())
    }

    /// When the plugin is asked again.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Refusal::TooOften { wait, .. } => Retry::After(*wait),
            Refusal::Dial { .. }
            | Refusal::Info { .. }
            | Refusal::Kind { .. }
            | Refusal::Invalid(_)
            | Refusal::Failed(_)
            | Refusal::Untold { .. } => Retry::BackOff,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_words() {
        let kind = Refusal::Kind { kind: "X".to_owned(), socket: "/s".to_owned() };
        let text = "RegisterPlugin error -- no handler registered for plugin type: X at socket /s";
        assert_eq!(kind.to_string(), text);
        let dial = Refusal::Dial { socket: "/s".to_owned(), why: "no".to_owned() };
        assert_eq!(dial.to_string(), "RegisterPlugin error -- dial failed at socket /s, err: no");
        let often = Refusal::TooOften { why: "no".to_owned(), wait: Duration::from_secs(1) };
        assert_eq!(often.to_string(), Refusal::failed("no").to_string());
    }
}
