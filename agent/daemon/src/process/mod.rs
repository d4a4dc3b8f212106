//! The process of the agent: arguments, logs, the composition root, the watchdog of the service manager.
//!
//! In: command line and configuration. Out: a node that runs ([`node`]) until the process is asked to end ([`run`]).

pub mod cli;
pub mod cluster_settings;
pub mod heap_trim;
pub mod incarnation;
pub mod logging;
pub mod node;
pub mod run;
pub mod watchdog;
