//! orlop-config: KubeletConfiguration v1beta1 and NodeConfig v1alpha1 (types, defaults, validation, merge,
//! provenance), changes of a running node's document, the formats of the boot ledger, the boot record and the host
//! channel, and what init and the agent read alike: texts of /proc, the firmware's trust, chains of errors, FNV-1a,
//! CRC-32. Pure: text in, values out.
#![forbid(unsafe_code)]

pub mod admin_key;
pub mod base64;
pub mod boot_trust;
pub mod change;
pub mod crc32;
pub mod credential_provider;
pub mod duration;
pub mod error_chain;
pub mod field;
pub mod fnv;
pub mod formats;
pub mod join;
pub mod kubelet;
pub mod ledger;
pub mod merge;
pub mod node;
pub mod path;
pub mod platform;
pub mod problem;
pub mod procfs;
pub mod quantity;
pub mod release;
#[cfg(feature = "schema")]
pub mod schema;
pub mod slots;
pub mod yaml;
pub mod yaml_emit;

#[cfg(test)]
mod testing;

pub use duration::Duration;
pub use problem::{ConfigError, Problem};
pub use quantity::Quantity;
