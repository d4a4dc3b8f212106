//! The native node (level L4n): the image's own root in private namespaces, real containerd, crun and CNI,
//! the agent, without a VM.
//!
//! In: a root (erofs or a directory), the agent's binary. Out: [`node::NativeNode`]. Invariants: everything
//! of a node lives in one PID, mount, network and cgroup namespace whose first process is [`supervisor`];
//! when that ends the kernel ends everything else. On the host there remain only the recorded cgroups and
//! directories. See docs/internals/testing.md, level L4n.

pub mod beside;
pub mod blobs;
pub mod cgroups;
pub mod config;
pub mod configured;
pub mod connect_proxy;
pub mod cri;
pub mod held;
pub mod images;
mod lost_shim;
pub mod mounts;
pub mod node;
pub mod nri;
pub mod pod_resources;
pub mod pods;
pub mod protocol;
pub mod registry;
pub mod root;
pub mod steps;
pub mod supervised;
pub mod supervisor;
