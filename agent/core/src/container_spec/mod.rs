//! container_spec: translates a pod to the runtime's configuration of its sandbox and containers.
//!
//! In: a defaulted, validated pod ([`crate::pod_source`]), the attempt, and the node
//! ([`agent_types::node_context::NodeContext`]). Out: sandbox and container configurations, the directories
//! and files to make first ([`pod_dirs`], [`container_files`]), or a [`agent_types::spec_error::SpecError`]
//! with the waiting reason that the API shows. Invariants: pure and deterministic; [`unsupported()`] lists
//! every field that the node does not carry out, none is dropped silently. Upstream: pkg/kubelet/kuberuntime,
//! pkg/kubelet/kubelet_pods.go.

pub mod apparmor;
pub mod cgroup;
pub mod container;
pub mod devices;
pub mod dirs;
pub mod dns;
pub mod env;
pub mod env_files;
pub mod env_objects;
pub mod expansion;
pub mod hash;
pub mod hosts;
pub mod inputs;
pub mod linux;
mod mounted;
pub mod mounts;
pub mod sandbox;
pub mod security;
pub mod services;
pub mod sub_path;
pub mod unsupported;

pub use cgroup::{cgroup_parent, kubepods};
pub use container::{container_config, sub_paths};
pub use dirs::{container_files, pod_dirs};
pub use hash::container_hash;
pub use sandbox::sandbox_config;
pub use unsupported::{Unsupported, unsupported};
