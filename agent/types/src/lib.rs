//! agent-types: types that every part of the agent uses.
//!
//! In: values only. Out: types with small functions of their own. Invariants: no I/O, no clock, no decision
//! that needs a volume, a pod's plan or a machine. See docs/internals/architecture.md.
//!
//! A module uses modules of its own rank and of lower ranks; modules of one rank use each other in one
//! direction (agent-tidy).
#![forbid(unsafe_code)]

// Rank 0: words: names, identifiers, times, texts.
pub mod api_time;
pub mod backoff;
pub mod certificates;
pub mod credential;
pub mod declared_features;
pub mod entropy;
pub mod event;
pub mod event_reasons;
pub mod failure;
pub mod go_quote;
pub mod ids;
pub mod kill;
pub mod lock;
pub mod machine;
pub mod node_context;
pub mod node_selector;
pub mod objects;
pub mod pem;
pub mod pod;
pub mod pressures;
pub mod quantity;
pub mod quantity_text;
pub mod restart;
pub mod signal;
pub mod spec_error;
pub mod time;
pub mod token_bucket;

// Rank 1: facts: reports of the runtime and of the API server, quantities, paths of a pod.
pub mod api;
pub mod downward_api;
pub mod pod_network;
pub mod pod_paths;
pub mod resource_claims;
pub mod resources;
pub mod runtime;

pub use pod::ContainerRef;
pub use quantity::Quantity;
