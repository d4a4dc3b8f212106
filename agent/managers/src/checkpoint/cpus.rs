//! `cpu_manager_state`, version 2.
//!
//! In: policy and state, or bytes. Out: bytes, or the state. Invariants: those of [`super`].

use std::collections::BTreeMap;

use orlop_config::fnv::fnv32;
use serde::{Deserialize, Serialize};

use super::{CheckpointError, spew_map};
use crate::cpu_set::CpuSet;
use crate::cpus::state::CpuState;

#[derive(Deserialize, Serialize)]
struct File {
    #[serde(rename = "policyName", default)]
    policy: String,
    #[serde(rename = "defaultCpuSet", default)]
    shared: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    checksum: u64,
}

impl File {
    fn checksum(&self) -> u32 {
        let pods = self.entries.iter().map(|(uid, containers)| {
            (uid.clone(), spew_map(containers.iter().map(|(name, cpus)| (name.clone(), cpus.clone()))))
        });
        let printed = format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]map[string]string){} Checksum:(checksum.Checksum)0}}",
            self.policy,
            self.shared,
            spew_map(pods)
        );
        fnv32(printed.as_bytes())
    }
}

/// The file's bytes.
#[must_use]
pub fn write(policy: &str, state: &CpuState) -> String {
    let text = |containers: &BTreeMap<String, CpuSet>| {
        containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
    };
    let mut file = File {
        policy: policy.to_owned(),
        shared: state.shared.to_string(),
        entries: state.assignments.iter().map(|(uid, containers)| (uid.clone(), text(containers))).collect(),
        checksum: 0,
    };
    file.checksum = file.checksum().into();
    serde_json::to_string(&file).unwrap_or_default()
}

/// The state of a file that `policy` may use. A checksum of 0 is accepted, as upstream accepts it.
///
/// # Errors
/// The file cannot be used. The agent then ends, as upstream: the administrator drains the node and removes the file.
pub fn read(policy: &str, bytes: &str) -> Result<CpuState, CheckpointError> {
    let file: File =
        serde_json::from_str(bytes).map_err(|error| CheckpointError::NotJson(error.to_string()))?;
    if file.checksum != 0 && file.checksum != u64::from(file.checksum()) {
        return Err(CheckpointError::Corrupted);
    }
    if file.policy != policy {
        let (configured, found) = (policy.to_owned(), file.policy);
        return Err(CheckpointError::OtherPolicy { prefix: "", configured, found });
    }
    let shared: CpuSet = file.shared.parse().map_err(|error: crate::cpu_set::NotACpuList| {
        CheckpointError::BadShared(file.shared.clone(), error.to_string())
    })?;
    let mut state = CpuState { shared, assignments: BTreeMap::new() };
    for (pod, containers) in file.entries {
        for (container, cpus) in containers {
            let own: CpuSet =
                cpus.parse().map_err(|error: crate::cpu_set::NotACpuList| CheckpointError::BadOwn {
                    pod: pod.clone(),
                    container: container.clone(),
                    cpus: cpus.clone(),
                    error: error.to_string(),
                })?;
            state.assignments.entry(pod.clone()).or_default().insert(container, own);
        }
    }
    Ok(state)
}
