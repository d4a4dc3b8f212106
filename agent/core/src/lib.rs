//! agent-core: every decision of the node agent, pure.
//!
//! What comes in: events and the time. What goes out: actions, as values. Nothing here does I/O, reads a
//! clock, spawns or sleeps, so the same code runs in production and in the simulated world (agent-sim).
//! See docs/architecture.md for the flow and docs/agent.md for the machines.
#![forbid(unsafe_code)]

pub mod admission;
pub mod allocation;
pub mod api;
pub mod certs;
pub mod checkers;
pub mod container_spec;
pub mod csi;
pub mod declared_features;
pub mod drivers;
pub mod entropy;
pub mod events;
pub mod eviction;
pub mod images;
pub mod lease;
pub mod lifecycle_hooks;
pub mod logs;
pub mod machine;
pub mod metrics;
pub mod mirror_pods;
pub mod node_logs;
pub mod node_shutdown;
pub mod node_status;
pub mod pleg;
pub mod pod_actions;
pub mod pod_manager;
pub mod pod_network;
pub mod pod_resources;
pub mod pod_source;
pub mod pod_worker;
pub mod probe;
pub mod resources;
pub mod restart;
pub mod runtime;
pub mod server_policy;
pub mod stats;
pub mod status;
pub mod status_manager;
pub mod streaming;
pub mod time;
pub mod types;
pub mod volume;
