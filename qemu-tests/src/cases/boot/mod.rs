//! Boots of the image: ledger, state partition, refusals, sources of configuration, reproducible builds.

pub mod addon_paths;
pub mod attached_disks;
pub(crate) mod bash_pod;
pub mod containerd;
pub mod hardening;
pub mod image;
pub mod network;
pub mod refused;
pub mod shared_vm;
