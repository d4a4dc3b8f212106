//! orlop-node-api: the node management API, a process of its own. It answers when the agent, containerd, the network or /var is dead.
//!
//! ```text
//! systemd (sockets) ─► doors ─► server ─┬─► collect ─► Facts ─► answers ─► objects
//!                     guard ──┘        ├─► config_service ─► configuration, config_change ─► record, orlop-change.service
//!                                      ├─► logs ─► journalctl (journal), /var/log/orlop; pod_logs ─► /var/log/pods
//!                                      └─► operations ─► systemctl, records on the state partition
//! ```
//! In: connections, files below the root directory, `systemctl`, `journalctl`. Out: gRPC of `orlop_proto::node_api`, a record of each
//! call in the log. Decisions are pure: `kinds`, `answers`, `configuration`, `config_change`, `journal`, `guard`, `refusal` and
//! [`operations::life`] know no socket, file or clock; `collect`, `logs`, `doors`, `config_record`, `config_service`, `calls`, `server`
//! and the keeper of operations drive them. Invariants: nothing on the node changes but by an operation, which has a record, and in the
//! record of changes of its own document, whose driver is another process; what a client causes is bounded ([`guard`], [`collect`],
//! `logs`); a source that does not answer costs its own kinds and no others; without clients and open operations the process ends.
//! [`serial_port`] is a program of its own: it brings the machine's host from a virtio-serial port to one of the doors.
//! Specification: docs/reference/node-api.md.
#![forbid(unsafe_code)]

mod agent_socket;
pub mod answers;
pub mod areas;
mod blocking;
mod calls;
mod capture;
pub mod changes;
mod cluster;
pub mod collect;
pub mod config_change;
mod config_record;
mod config_service;
pub mod configuration;
mod connection;
mod doors;
pub mod facts;
mod gate;
pub mod guard;
pub mod journal;
pub mod kinds;
mod logs;
mod machine;
mod network_door;
pub mod operations;
mod pod_log_lines;
mod pod_logs;
mod processes;
mod program;
pub mod refusal;
pub mod serial_port;
pub mod server;
mod services;
mod shares;
pub mod tls;
mod watching;

pub use collect::Sources;
pub use server::{ServeError, Settings, serve};
