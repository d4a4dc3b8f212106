//! Boots of the image: ledger, state partition, refusals, sources of configuration, reproducible builds.

pub mod believes;
pub mod boots;
pub mod hardening;
pub mod image;
pub mod refused;
