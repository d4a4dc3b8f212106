//! Why a plugin is not registered, in upstream's words.
//!
//! In: causes. Out: texts; the plugin is told some of them. Upstream: pkg/kubelet/pluginmanager/operationexecutor.

use std::fmt;

/// Why a plugin is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No process listens on the socket.
    #[error("RegisterPlugin error -- dial failed at socket {socket}, err: {why}")]
    Dial {
        /// Path of the socket.
        socket: String,
        /// The system's words.
        why: String,
    },
    /// The plugin does not say what it is.
    #[error(
        "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {socket}, err: {why}"
    )]
    Info {
        /// Path of the socket.
        socket: String,
        /// The error of the call.
        why: String,
    },
    /// Nobody registers plugins of this kind.
    #[error("RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {socket}")]
    Kind {
        /// Kind of the plugin, in its own words.
        kind: String,
        /// Path of the socket.
        socket: String,
    },
    /// The plugin's information about itself is not valid.
    #[error("RegisterPlugin error -- plugin validation failed with err: {0}")]
    Invalid(String),
    /// The owner of the kind does not take the plugin.
    #[error("RegisterPlugin error -- plugin registration failed with err: {0}")]
    Failed(String),
    /// The plugin does not hear of its registration.
    #[error("RegisterPlugin error -- failed to send registration status at socket {socket}, err: {why}")]
    Untold {
        /// Path of the socket.
        socket: String,
        /// The error of the call.
        why: String,
    },
}

impl Refusal {
    /// The owner of the kind does not take the plugin.
    pub fn failed(why: impl fmt::Display) -> Refusal {
        Refusal::Failed(why.to_string())
    }

    /// Whether the plugin is told: upstream gives up a plugin that does not answer.
    #[must_use]
    pub fn is_told(&self) -> bool {
        matches!(self, Refusal::Kind { .. } | Refusal::Invalid(_) | Refusal::Failed(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_words() {
        let kind = Refusal::Kind { kind: "X".to_owned(), socket: "/s".to_owned() };
        let text = "RegisterPlugin error -- no handler registered for plugin type: X at socket /s";
        assert_eq!((kind.to_string().as_str(), kind.is_told()), (text, true));
        let dial = Refusal::Dial { socket: "/s".to_owned(), why: "no".to_owned() };
        assert!(!dial.is_told());
        assert_eq!(dial.to_string(), "RegisterPlugin error -- dial failed at socket /s, err: no");
    }
}
