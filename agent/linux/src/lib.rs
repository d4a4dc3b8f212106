//! agent-linux: the kernel as the agent needs it, each concern a thin driver behind plain functions or a
//! small trait. Decisions live in agent-core; what is here reads, writes and waits, and names the operation
//! and the object when that fails. See docs/internals/agent/README.md.
//!
//! Unsafe code lives in [`heap`], [`activation`] and [`timex`] alone.
#![deny(unsafe_code)]

pub mod activation;
pub mod boot_ledger;
mod cgroup_dir;
pub mod cgroup_stats;
pub mod cgroups;
pub mod clock;
pub mod container_log;
mod containerd_state;
pub mod cri_log;
pub mod directory_hints;
pub mod disk_use;
pub mod eviction_signals;
pub mod exec_input;
pub mod files;
pub mod hardware_watchdog;
pub mod heap;
pub mod host_channel;
#[cfg(test)]
mod kernel_cgroup;
pub mod kernel_defaults;
pub mod kernel_files;
pub mod kernel_log;
pub mod log_follow;
pub mod log_rotation;
pub mod logind;
pub mod loop_device;
pub mod lossy_stderr;
pub mod machine;
pub mod machine_topology;
pub mod network;
pub mod network_changes;
pub mod node_info;
pub mod node_logs;
pub mod notify;
pub mod path_watch;
pub mod pinned_socket;
pub mod pressure;
pub mod process;
pub mod project_quota;
pub mod pstore;
pub mod remove_tree;
pub mod scsi;
pub mod selinux;
pub mod service_manager;
mod shim_sockets;
pub mod shims;
pub mod systemd_units;
pub mod task_files;
pub mod timex;
pub mod volumes;
