//! The updater as a service: one request at a time over a socket, until nobody asks any more.
//!
//! ```text
//! /run/orlop/update.sock ─► connection ─► UpdateRequest ─► server ─► plan (pure) ─► job: survey, stage
//!          ▲                                                │                        │
//!          └──────────────── UpdateReport, line by line ◄───┴──── watch ◄────────────┘
//! ```
//! Invariants: a request that runs is not ended by its asker, but one of a server by a drive; a source that has lied or was away is
//! left for 10 min; the process ends when it has nothing to do. Who asks is trusted with asking only: what is taken is signed, and what is
//! tried was staged or was good. A trial is judged as any other one (`slots`).

pub mod bytes;
pub mod client;
mod job;
pub mod plan;
pub mod protocol;
mod server;
mod slots;

pub use job::{UpdaterPaths, running_version};
pub use server::serve;
