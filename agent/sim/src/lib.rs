//! agent-sim: the simulated world. One thread, virtual time, a seed; the same seed gives the same trace.
//!
//! The node's machines run here against [`fake_runtime`] with faults, crashes and reboots injected
//! ([`faults`]), while checkers watch every step ([`checks`]). A failure prints its seed; the seed is the
//! replay. See docs/internals/testing.md, level L2.
#![forbid(unsafe_code)]

mod api_calls;
pub mod api_checks;
pub mod api_side;
pub mod api_watch;
mod apply;
mod calls;
mod cgroups;
pub mod checks;
mod claims;
pub mod cluster;
mod csi;
pub mod defects;
mod devices;
pub mod driver;
pub mod fake_api;
pub mod fake_runtime;
pub mod faults;
mod in_place;
pub mod node;
mod ownership;
mod placing;
pub mod pressing;
mod probing;
pub mod queue;
mod resizing;
pub mod revised;
pub mod rng;
pub mod scenario;
pub mod staging;
mod stopping;
pub mod trace;
pub mod updating;
pub mod users;
mod volumes;
pub mod world;
