//! The boot record, the arbiter and the slots.

pub mod arbiter;
mod bad_version;
mod cluster_trial;
pub mod every_cut;
pub mod examined;
pub mod fleet;
mod fleet_watch;
pub mod oci;
pub(crate) mod published;
pub mod returns;
pub mod returns_pods;
mod spoilt;
pub mod staging;
pub mod trial;
