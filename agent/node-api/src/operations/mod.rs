//! Operations: what changes the node. Each is a record on the state partition, and goes on without its client.
//!
//! ```text
//! gRPC (service) ─► keeper: one task ─┬─► life (pure): what is next ─► store (disk), systemctl (reboot, poweroff, restart), the agent's receipt
//!      ▲                              ├─► updates ─► orlop-update: stage a version, order its trial, both slots
//!      │                              └─► watch: all records ─► Get, Watch, `get operations`
//!      └─ a lost client asks again by the identifier
//! ```
//! In: requests, records of earlier servers, what systemd and the agent's receipt say. Out: calls of systemctl, records. Invariants: those
//! of `life`; one operation at a time; the process does not end while one is open. Specification: docs/reference/node-api.md, "Operations".

pub(crate) mod handle;
pub(crate) mod keeper;
pub mod life;
pub(crate) mod notices;
pub mod record;
pub mod request;
mod service;
mod store;
mod systemd;
mod updates;
