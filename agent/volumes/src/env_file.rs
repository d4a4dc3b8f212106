//! Files of volumes that containers' variables come from (`fileKeyRef`, KEP-3721).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A file of a volume, variables in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EnvFile {
    /// Absolute path of the volume.
    pub root: String,
    /// Inside of it; links are followed as if the volume were the whole file system.
    pub path: String,
}

/// Files as they were read, or why they could not be.
pub type EnvFiles = BTreeMap<EnvFile, Result<Vec<u8>, String>>;
