//! NodeConfig v1alpha1: types, sources and their precedence, provenance, and what is derived from it.
//!
//! In: texts of sources in rising precedence. Out: the effective configuration, where every key came from, what
//! was refused, and the files and settings that follow. Contract: docs/configuration.md.

mod scalar;
mod secret;
mod types;

pub use scalar::Scalar;
pub use secret::{MASK, Secret};
pub use types::{
    API_VERSION, Console, Interface, Join, KIND, Kernel, KubeletPatch, Manifest, Mirrors, Network, Node,
    NodeConfig, Registries, StaticPod, Time,
};
