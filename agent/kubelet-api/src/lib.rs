//! agent-kubelet-api: the pure parts of the API on port 10250 (statistics, metrics, logs, streams, access), and the traits of the
//! drivers that the agent stands on.
//!
//! In: facts. Out: documents, verdicts, plans of streams. Invariants: no I/O, no clock. See docs/internals/architecture.md.
#![forbid(unsafe_code)]

// Rank 2: parts of the API that need facts and volumes alone.
pub mod logs;
pub mod metrics;
pub mod node_logs;
pub mod node_metrics;
pub mod pod_resources;
pub mod server_policy;
pub mod stats;
pub mod streaming;

// Rank 3: the traits of the drivers.
pub mod drivers;
