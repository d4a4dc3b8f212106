//! The managers' state files (`cpu_manager_state`, `memory_manager_state`, `kubelet_internal_checkpoint`), byte for byte as upstream's.
//!
//! In: a state, or the bytes of a file. Out: the bytes, or the state. Invariant: an upstream kubelet v1.36 reads the files of this
//! agent, and this agent reads its files, so either may follow the other on one disk. The checksum is FNV-1a over the text that Go's
//! spew prints for the value, with checksum 0 and sorted keys. Upstream: pkg/kubelet/checkpointmanager/checksum,
//! cpumanager/state/checkpoint.go, memorymanager/state/checkpoint.go, devicemanager/checkpoint.

pub mod cpus;
pub mod devices;
pub mod memory;

/// Reason for which a file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The file is not JSON of this form.
    #[error("{0}")]
    NotJson(String),
    /// The checksum does not match.
    #[error("checkpoint is corrupted")]
    Corrupted,
    /// The file belongs to another policy.
    #[error("{prefix}configured policy \"{configured}\" differs from state checkpoint policy \"{found}\"")]
    OtherPolicy {
        /// `[memorymanager] ` for memory.
        prefix: &'static str,
        /// The configured policy.
        configured: String,
        /// The policy of the file.
        found: String,
    },
    /// The shared set is not a list of processors.
    #[error("could not parse default cpu set \"{0}\": {1}")]
    BadShared(String, String),
    /// A container's set is not a list of processors.
    #[error("could not parse cpuset \"{cpus}\" for container \"{container}\" in pod \"{pod}\": {error}")]
    BadOwn {
        /// UID.
        pod: String,
        /// Name.
        container: String,
        /// Text.
        cpus: String,
        /// The mistake.
        error: String,
    },
}

/// A map as spew prints it: `map[a:1 b:2]`.
fn spew_map(items: impl IntoIterator<Item = (String, String)>) -> String {
    let items: Vec<String> = items.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
    format!("map[{}]", items.join(" "))
}

/// A list as spew prints it: `[1 2]`.
fn spew_list(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<String> = items.into_iter().collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests;
