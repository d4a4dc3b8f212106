//! The process of the agent: arguments, the composition root, the watchdog of the service manager.
//!
//! In: command line and configuration. Out: a node that runs ([`node`]) until the process is asked to end ([`run`]). This folder
//! uses every other folder, and no other folder uses this one.

mod begin;
pub mod cli;
pub mod cluster_settings;
mod environment;
pub mod heap_trim;
pub mod incarnation;
pub mod node;
pub mod node_api;
mod node_plan;
mod node_updates;
mod pods;
pub mod program_name;
pub mod provision;
mod resource_managers;
pub mod run;
pub mod serial_port;
mod services;
pub mod update;
pub mod watchdog;
mod wiring;
