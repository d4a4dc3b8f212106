//! What can go wrong, in the form that the caller gets: an error object of CNI with a code.

use std::io;
use std::path::PathBuf;

use orlop_netlink::NetlinkError;
use serde_json::{Value, json};

/// A command that was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The caller's version of CNI is not spoken here.
    #[error("cniVersion {0:?} is not spoken by this plugin: use one from 0.3.0 to 1.1.0")]
    Version(String),
    /// A field that only another program knows, and that is not installed.
    #[error(
        "{field} is not known to the image's own plugin, and no other plugin {plugin:?} is in CNI_PATH: install it in /opt/cni/bin, or leave the field out"
    )]
    Unsupported {
        /// Path of the field.
        field: String,
        /// The plugin's name.
        plugin: String,
    },
    /// The container has no such thing.
    #[error("the container's network namespace {path} does not open: {source}")]
    Namespace {
        /// `CNI_NETNS`.
        path: String,
        /// The system's words.
        source: io::Error,
    },
    /// The caller's environment is wrong.
    #[error("{variable} {why}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Standard input is no JSON of the right shape.
    #[error("the network configuration is not understood: {0}")]
    Decode(String),
    /// The configuration contradicts itself.
    #[error("the network configuration is refused: {0}")]
    Config(String),
    /// The namespace is the plugin's own.
    #[error("{0} is the node's own network namespace")]
    OwnNamespace(String),
    /// A file was not read or written.
    #[error("{action} {path}: {source}", path = path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The kernel refused a request.
    #[error("{action} {object}: {source}")]
    Kernel {
        /// What was tried.
        action: &'static str,
        /// With what.
        object: String,
        /// The kernel's words.
        source: NetlinkError,
    },
    /// The namespace could not be entered.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The kernel's words.
        source: nix::errno::Errno,
    },
    /// No address is left, or not the one that was asked for.
    #[error("{0}")]
    Addresses(String),
    /// Something in the way, or not as it was.
    #[error("{0}")]
    State(String),
    /// STATUS: ADD would fail.
    #[error("no pod can be attached: {0}")]
    Unavailable(Box<Failure>),
}

impl Failure {
    /// The code: up to 99 by the specification (1.1, section "Error"), above it this plugin's own.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Failure::Version(_) => 1,
            Failure::Unsupported { .. } => 2,
            Failure::Namespace { .. } => 3,
            Failure::Environment { .. } => 4,
            Failure::File { .. } => 5,
            Failure::Decode(_) => 6,
            Failure::Config(_) => 7,
            Failure::OwnNamespace(_) => 8,
            Failure::Unavailable(_) => 50,
            Failure::Kernel { .. } | Failure::System { .. } => 100,
            Failure::Addresses(_) => 101,
            Failure::State(_) => 102,
        }
    }

    /// The error object for a caller that speaks this version.
    #[must_use]
    pub fn object(&self, version: &str) -> Value {
        json!({"cniVersion": version, "code": self.code(), "msg": self.to_string()})
    }
}
