//! The node itself: cgroups, eviction, shutdown, rotation of logs, settings, and reports about the node.

pub mod cluster_problems;
pub mod container_manager;
pub mod eviction;
pub mod host_channel;
pub mod log_rotation;
pub mod node_events;
pub mod node_settings;
pub mod shutdown;
pub mod system_oom;
