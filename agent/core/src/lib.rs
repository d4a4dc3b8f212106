//! agent-core: every decision of the node agent, pure.
//!
//! In: events and the time. Out: actions, as values. Nothing here does I/O, reads a clock, spawns or
//! sleeps, so the same code runs in production and in the simulated world (agent-sim). See
//! docs/internals/architecture.md for the flow and docs/internals/agent/README.md for the machines.
//!
//! # Ranks
//!
//! A folder uses folders of its own rank and of lower ranks, never one of a higher rank; folders of one rank use each other in one
//! direction. agent-tidy reads the ranks from the comments below and checks each path of the crate against them. Ranks 0 and 1
//! (words and facts) are agent-types, rank 2 (parts) is agent-volumes and agent-kubelet-api.
#![forbid(unsafe_code)]

// Rank 2: parts that need facts alone.
pub mod images;

// Rank 3: decisions about a pod.
pub mod admission;
pub mod allocation;
pub mod container_spec;
pub mod lifecycle_hooks;
pub mod pod_actions;
pub mod pod_source;
pub mod pod_specs;
pub mod probe;
pub mod resource_managers;
pub mod status;

// Rank 4: machines: owners of state that react to events.
pub mod certs;
pub mod clock;
pub mod console;
pub mod container_manager;
pub mod csi_drivers;
pub mod events;
pub mod eviction;
pub mod lease;
pub mod mirror_pods;
pub mod node_shutdown;
pub mod node_status;
pub mod node_update;
pub mod pleg;
pub mod plugin_registrations;
pub mod pod_manager;
pub mod pod_worker;
pub mod resource_claims;
pub mod shim_groups;
pub mod status_manager;

// Rank 5: the checkers of the simulator.
pub mod checkers;
