//! A Kubernetes control plane for tests, and nodes joined to it.
//!
//! ```text
//! host:      harness, kubectl ──► proxy (loopback port) ─┐
//! plane ns:  bridge cluster0 172.30.0.1 ◄────────────────┴─► etcd, apiserver, controller-manager, scheduler
//! node ns:       └─ node0 172.30.0.(10+n), pods 10.88.(10+n).0/24, containerd, agent
//! VM:            └─ TAP device
//! ```
//! In: upstream's programs ([`programs`]), the native node. Out: [`plane::Cluster`]. Invariants: every secret is
//! made for the run and is in the run's directory; everything runs in namespaces that end with their supervisor.
//! See docs/internals/testing.md, "The control plane".

pub mod addons;
pub mod approver;
pub mod asking;
pub mod attach;
pub mod audit;
pub mod bootstrap;
pub mod build;
pub mod churn;
pub mod client;
pub mod crowd;
pub mod csi_block;
pub mod csi_driver;
pub mod csi_here;
mod csi_mounts;
pub mod debs;
pub mod dhcp;
pub mod dns;
pub mod fixture;
pub mod flags;
pub mod flex;
pub mod flood;
pub mod host_debs;
pub mod hosted_plane;
pub mod hostile;
pub mod identities;
pub mod iscsi;
pub mod iscsi_target;
pub mod join;
pub mod kubeconfig;
pub mod load;
pub mod metadata;
pub mod metrics_server;
pub mod names;
pub mod nfs_server;
pub mod node_api;
pub mod ntp;
pub mod pki;
pub mod plane;
mod plane_images;
pub mod play;
pub mod programs;
pub mod proxy;
pub mod ready;
pub mod requests;
pub mod second_disk;
pub mod selinux;
pub mod strangers;
pub mod swaps;
pub mod terminal;
pub mod truth;
pub mod vm_node;
pub mod wires;
