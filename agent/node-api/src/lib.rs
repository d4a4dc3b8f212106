//! orlop-node-api: the node management API, a process of its own. It answers when the agent, containerd, the network or /var is dead.
//!
//! ```text
//! systemd (sockets) ─► doors ─► server ─┬─► collect ─► Facts ─► answers ─► objects
//!                     guard ──┘        └─► logs ─► journalctl (journal), /var/log/orlop
//! ```
//! In: connections, files below the root directory, `systemctl`, `journalctl`. Out: gRPC of `orlop_proto::node_api`, a record of each
//! call in the log. Decisions are pure: `kinds`, `answers`, `journal`, `guard` and `refusal` know no socket, file or clock; `collect`,
//! `logs`, `doors` and `server` drive them. Invariants: nothing on the node changes; what a client causes is bounded ([`guard`],
//! [`collect`], `logs`); a source that does not answer costs its own kinds and no others; without clients the process ends.
//! Specification: docs/node-api.md.
#![forbid(unsafe_code)]

pub mod answers;
mod blocking;
pub mod collect;
mod connection;
mod doors;
pub mod facts;
pub mod guard;
pub mod journal;
pub mod kinds;
mod logs;
mod machine;
mod network_door;
mod program;
pub mod refusal;
pub mod server;
pub mod tls;

pub use collect::Sources;
pub use server::{ServeError, Settings, serve};
