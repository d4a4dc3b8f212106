//! Boots of the image: ledger, state partition, refusals, sources of configuration, reproducible builds.

pub mod attached_disks;
pub mod hardening;
pub mod image;
pub mod refused;
pub mod shared_vm;
