//! NodeConfig v1alpha1: types, sources and their precedence, provenance, and what is derived from it.
//!
//! In: texts of sources in rising precedence. Out: the effective configuration, where every key came from, what
//! was refused, and the files and settings that follow. See docs/reference/configuration.md.

mod carried;
mod change_effect;
mod changes;
mod cluster_files;
mod credential_provider;
pub mod derive;
mod effective;
mod explain;
pub mod key_notes;
mod links;
mod network;
mod node_file;
mod overlay;
mod pem;
mod provenance;
mod running;
mod scalar;
mod secret;
mod static_pod;
mod types;
mod update;
mod validate;

#[cfg(test)]
mod tests;

pub use carried::{asks_to_install, carried};
pub use change_effect::ChangeEffect;
pub use changes::{KeyChange, changes};
pub use credential_provider::CredentialProvider;
pub use effective::{Effective, Source, load};
pub use explain::ExplainedKey;
pub use network::{
    Bond, BondMode, Bridge, HashPolicy, Interface, LacpRate, Network, PodNetwork, Route, Vlan,
};
pub use node_file::{NodeFile, PlacedFile, place_of};
pub use provenance::{APPLIANCE, DEFAULT, Provenance};
pub use running::{CheckedCandidate, NODE_SOURCE, RUNNING_DIR, RunningSources};
pub use scalar::Scalar;
pub use secret::{MASK, Secret};
pub use static_pod::StaticPod;
pub use types::{
    API_VERSION, Api, ApiAdmin, ApiVsock, CloudProvider, Console, Install, Join, KIND, Kernel, KubeletPatch,
    Mirrors, Node, NodeConfig, PODS_PER_SHIM_MAX, Platform, Proxy, Registries, Runtime, Time, Trust,
};
pub use update::{
    DrainTimeout, RebootCoordination, RebootWindow, Update, UpdateDrain, UpdateDrives, UpdatePolicy,
    UpdateTrial, WindowDay,
};
pub(crate) use validate::validate_join;
