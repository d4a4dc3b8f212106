//! The protocol between the harness and a node's supervisor: one JSON object per line, requests on the
//! supervisor's standard input, events on its standard output. End of input ends the node.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The layout that a supervisor builds; the first line of its input.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "layout", rename_all = "kebab-case")]
pub enum Layout {
    /// A node: a root of its own.
    Node(NodeSpec),
    /// A cluster's network with the control plane's programs in it, on the host's root.
    Plane(PlaneSpec),
}

/// Layout of a cluster's network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlaneSpec {
    /// The bridge that nodes are plugged into.
    pub bridge: String,
    /// Its address with prefix length: the control plane's.
    pub address: String,
    /// Its address of IPv6, in a cluster with both families.
    pub ipv6_address: Option<String>,
    /// Directory of the programs' logs.
    pub logs: PathBuf,
    /// Short directory for their notification sockets.
    pub sockets: PathBuf,
}

/// Layout of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeSpec {
    /// The read-only root.
    pub root: RootSource,
    /// Scratch directory of this node on a real file system; everything below is the node's.
    pub work: PathBuf,
    /// Bound on the node's /var/log: outlives the node.
    pub logs: PathBuf,
    /// Directory with the OCI blobs the node's registry serves.
    pub registry: PathBuf,
    /// The agent's binary on the host.
    pub agent: PathBuf,
    /// Host name.
    pub hostname: String,
    /// True if the harness plugs in a cable; else the node gets a bridge of its own.
    pub wired: bool,
}

/// Source of a node's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootSource {
    /// The image's slot A.
    Erofs(PathBuf),
    /// An unpacked tree.
    Dir(PathBuf),
}

/// Harness to supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Start a program; the answer is `Started`. Its output is appended to `<name>.log` in the layout's log directory
    /// (a node's /var/log).
    Start {
        /// Unique among the running programs.
        name: String,
        /// Program and arguments.
        argv: Vec<String>,
        /// Added to a clean environment; `NOTIFY_SOCKET` is set by the supervisor.
        env: BTreeMap<String, String>,
    },
    /// Send a signal to a started program.
    Signal {
        /// Name of the program.
        name: String,
        /// Signal number.
        signal: i32,
    },
}

/// Supervisor to harness.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Mounts, network and registry exist.
    Ready {
        /// The supervisor's process id on the host.
        pid: i32,
    },
    /// A program runs.
    Started {
        /// Name of the program.
        name: String,
        /// Its process id inside the node.
        pid: i32,
    },
    /// A program ended.
    Exited {
        /// Name of the program.
        name: String,
        /// Exit code, or 128 + signal.
        status: i32,
    },
    /// A program notified its supervisor (`sd_notify`): the datagram's text.
    Notified {
        /// Name of the program.
        name: String,
        /// For example `READY=1`.
        text: String,
    },
    /// A request failed.
    Failed {
        /// The failure and its cause.
        message: String,
    },
}
