//! orlop-agent: the node agent. This library is the shell around agent-core: it reads the configuration, wires the
//! state owners ([`process::node`]), carries out their actions and reports its state to the service manager. The binary
//! is [`process::run::run`] with the process's own arguments. See docs/internals/agent/README.md.
#![forbid(unsafe_code)]

pub mod claims;
pub mod cluster;
pub mod devices;
pub mod images;
pub mod logging;
pub mod node;
pub mod plugin_watcher;
pub mod pods;
pub mod process;
pub mod runtime;
pub mod serving;
pub mod settings;
pub mod tasks;
pub mod testing;
pub mod update;
pub mod volumes;
