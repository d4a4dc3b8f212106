//! orlop-agent: the node agent. This library is the shell around agent-core: it reads the configuration,
//! wires the state owners ([`node`]), carries out their actions and tells the service manager how it goes.
//! The binary is [`run::run`] with the process's own arguments. See docs/agent.md.
#![forbid(unsafe_code)]

pub mod actor;
pub mod board;
pub mod cli;
pub mod cluster;
pub mod cluster_settings;
pub mod container_manager;
pub mod credential_plugins;
pub mod cri;
pub mod csi;
pub mod eviction;
pub mod execute;
pub mod facts;
pub mod flex;
pub mod garbage_collection;
pub mod handlers;
pub mod host;
pub mod image_uses;
pub mod incarnation;
mod keyed_locks;
pub mod local_volumes;
pub mod log_rotation;
pub mod logging;
pub mod lost_shims;
pub mod mailbox;
pub mod manager;
pub mod memory;
pub mod metrics;
mod network_disks;
pub mod node;
pub mod observer;
pub mod outlets;
pub mod pleg;
pub mod pod_dirs;
pub mod pod_network;
pub mod pod_output;
pub mod pod_resources;
pub mod pools;
pub mod pull_records;
pub mod run;
pub mod runtime_state;
pub mod serving;
pub mod shutdown;
pub mod source;
pub mod sources;
pub mod status;
pub mod system_oom;
pub mod testing;
pub mod url_source;
pub mod watchdog;
pub mod worker;
