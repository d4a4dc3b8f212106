//! The records of allocations on disk, in the upstream kubelet's format.
//!
//! In: allocations, bytes. Out: bytes, allocations. Invariant: an incomplete record is rejected, because its
//! checksum covers its contents. Upstream: pkg/kubelet/allocation/state, pkg/kubelet/checkpointmanager.

use std::collections::BTreeMap;

use agent_types::ids::PodUid;
use orlop_config::fnv::fnv32;
use serde::{Deserialize, Serialize};

use super::{Allocations, PodAllocation};

/// File name of the record of allocations, in the root directory.
pub const ALLOCATED: &str = "allocated_pods_state";
/// File name of the record of containers' actual resources.
pub const ACTUATED: &str = "actuated_pods_state";
/// A record of five hundred pods of ten containers is two million bytes.
pub const BYTES_MAX: u64 = 64 << 20;

/// Why a file is no record.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Not the JSON of one.
    #[error("not a checkpoint of allocations")]
    Shape(#[source] serde_json::Error),
    /// The contents differ from the written ones.
    #[error("the checkpoint is corrupt: its checksum is {written}, that of its data {computed}")]
    Checksum {
        /// As in the file.
        written: u64,
        /// As it should be.
        computed: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    data: String,
    checksum: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Data {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, PodAllocation>,
}

/// The file's contents.
#[must_use]
pub fn encode(allocations: &Allocations) -> Vec<u8> {
    let entries = allocations.iter().map(|(uid, a)| (uid.as_str().to_owned(), a.clone())).collect();
    // Strings and maps of strings only: neither can fail.
    let data = serde_json::to_string(&Data { entries }).unwrap_or_default();
    let checksum = checksum(&data);
    serde_json::to_vec(&Checkpoint { data, checksum }).unwrap_or_default()
}

/// Parses the file.
///
/// # Errors
/// It is malformed or incomplete.
pub fn decode(bytes: &[u8]) -> Result<Allocations, CheckpointError> {
    let found: Checkpoint = serde_json::from_slice(bytes).map_err(CheckpointError::Shape)?;
    let computed = checksum(&found.data);
    if computed != found.checksum {
        return Err(CheckpointError::Checksum { written: found.checksum, computed });
    }
    let data: Data = serde_json::from_str(&found.data).map_err(CheckpointError::Shape)?;
    Ok(data.entries.into_iter().map(|(uid, a)| (PodUid::from(uid.as_str()), a)).collect())
}

/// Of the text as upstream's hasher prints a string: its type before it.
fn checksum(data: &str) -> u64 {
    fnv32(format!("(string){data}").as_bytes()).into()
}
