//! The CPU, memory and topology managers at the start of the agent.
//!
//! In: the configuration, the machine's topology, state files of an earlier agent or of an upstream kubelet. Out: the managers, or the
//! reason why the agent must not start, in upstream's words. Invariants: a state file that does not fit ends the start, because
//! the processors of running containers would be given twice otherwise; the first agent of a boot keeps the parts of it that fit,
//! because no container runs then (upstream ends in this case, too, and waits for an operator); an empty state file counts as none,
//! always: a power cut leaves it, upstream refuses it, and this image has no shell in which an operator could delete it; every policy
//! has its state file from the start, as upstream, so that its readers need no pod first and an upstream kubelet may follow.
//! Upstream: cmd/kubelet/app/server.go, pkg/kubelet/cm/cpumanager/state, memorymanager/state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agent_core::resource_managers::{
    CPU_STATE, CPU_STATIC, MEMORY_STATE, MEMORY_STATIC, ManagerRecords, ResourceManagers,
};
use agent_linux::files::{self, Durability, FilesError};
use agent_linux::machine_topology::{self, Roots};
use agent_managers::checkpoint::{self, CheckpointError};
use agent_managers::cpus::state::CpuState;
use agent_managers::memory::state::MemoryState;
use agent_managers::placement::Managers;
use agent_managers::settings::ManagerSettings;
use agent_managers::settings::start::{ManagerStates, NodeReservation};
use agent_types::failure::Class;
use agent_types::resources::node_allocatable::HUGEPAGES_PREFIX;
use agent_types::resources::requests::{CPU, MEMORY};
use anyhow::{Context, anyhow};

use crate::node::node_settings::NodeFacts;
use crate::settings::Settings;

const CPU_NONE: &str = "none";
const MEMORY_NONE: &str = "None";
const FILE_MODE: u32 = 0o600;
/// Five hundred pods of ten containers with a thousand processors each are less.
const BYTES_MAX: u64 = 64 << 20;

/// The managers of this node.
///
/// # Errors
/// A setting or a state file that does not fit the machine; a file that cannot be read.
pub(super) fn start(
    settings: &Settings,
    facts: &NodeFacts,
    first_of_boot: bool,
) -> anyhow::Result<ResourceManagers> {
    let managers = ManagerSettings::new(&settings.kubelet, &settings.gates)?;
    let root_dir = Path::new(&settings.options.root_dir);
    let states = states(root_dir, &managers, first_of_boot)?;
    if !managers.need_machine() {
        return Ok(ResourceManagers::default());
    }
    let machine = machine_topology::read(&Roots::default()).context("read the machine's topology")?;
    let kept = reservation(facts)?;
    let mut built = if first_of_boot {
        managers.managers_after_boot(&machine, &kept, states)?
    } else {
        managers.managers(&machine, &kept, states)?
    };
    expect_alignments(&mut built);
    tracing::info!(
        cpus = managers.cpus.is_some(),
        memory = managers.memory.is_some(),
        topology = managers.topology.is_some(),
        nodes = machine.nodes.len(),
        processors = machine.cpus.cpus().len(),
        "static resource managers"
    );
    let started = ResourceManagers::from(built);
    write_first(root_dir, &started.records());
    Ok(started)
}

/// Writes the states with which the static policies start, if the files have other contents. A failure is only reported: the first
/// placement of a pod writes the whole state again.
fn write_first(root_dir: &Path, records: &ManagerRecords) {
    for (name, state) in [(CPU_STATE, &records.cpus), (MEMORY_STATE, &records.memory)] {
        let Some(state) = state else { continue };
        let path = root_dir.join(name);
        let is_there =
            files::read_capped(&path, BYTES_MAX).is_ok_and(|bytes| bytes.as_slice() == state.as_bytes());
        if is_there {
            continue;
        }
        let written: Result<(), FilesError> =
            files::write_atomic(&path, state.as_bytes(), FILE_MODE, Durability::Synced);
        if let Err(error) = written {
            tracing::warn!(
                path = %path.display(), %error,
                "the state file is not written: the first pod with resources of its own writes it"
            );
        }
    }
}

/// Amounts that the node keeps from pods.
fn reservation(facts: &NodeFacts) -> anyhow::Result<NodeReservation> {
    let kept = facts.kept_from_pods()?;
    let milli = kept.get(CPU).map_or(0, |amount| u64::try_from(amount.milli_value()).unwrap_or(0));
    let is_memory = |name: &str| name == MEMORY || name.starts_with(HUGEPAGES_PREFIX);
    let memory: BTreeMap<String, u64> = kept
        .iter()
        .filter(|(name, _)| is_memory(name))
        .map(|(name, amount)| (name.clone(), u64::try_from(amount.value()).unwrap_or(0)))
        .collect();
    Ok(NodeReservation { cpu_milli: milli, memory })
}

/// Series that upstream shows with zero from the start.
fn expect_alignments(managers: &mut Managers) {
    use agent_managers::counts::Alignment::{ContainerNumaNode, PhysicalCpu, PodNumaNode, UncoreCache};
    if managers.cpus.is_some() {
        managers.counts.expect([PhysicalCpu, UncoreCache]);
    }
    if managers.topology.is_some() {
        managers.counts.expect([ContainerNumaNode, PodNumaNode]);
    }
}

/// Reads both files; writes those of policies without state that are not there.
fn states(root_dir: &Path, managers: &ManagerSettings, first_of_boot: bool) -> anyhow::Result<ManagerStates> {
    let cpus = StateFile { path: root_dir.join(CPU_STATE), manager: "CPU manager", policy: CPU_NONE };
    let cpus = StateFile { policy: if managers.cpus.is_some() { CPU_STATIC } else { CPU_NONE }, ..cpus };
    let memory =
        StateFile { path: root_dir.join(MEMORY_STATE), manager: "memory manager", policy: MEMORY_NONE };
    let memory =
        StateFile { policy: if managers.memory.is_some() { MEMORY_STATIC } else { MEMORY_NONE }, ..memory };
    let states = ManagerStates {
        cpus: cpus.read_or_drop(checkpoint::cpus::read, first_of_boot)?,
        memory: memory.read_or_drop(checkpoint::memory::read, first_of_boot)?,
    };
    if managers.cpus.is_none() && states.cpus.is_none() {
        cpus.write(&checkpoint::cpus::write(CPU_NONE, &CpuState::default()));
    }
    if managers.memory.is_none() && states.memory.is_none() {
        memory.write(&checkpoint::memory::write(MEMORY_NONE, &MemoryState::default()));
    }
    Ok(states)
}

/// A state file.
struct StateFile {
    path: PathBuf,
    /// The manager, as upstream's message names it.
    manager: &'static str,
    /// The policy, as the file spells it.
    policy: &'static str,
}

impl StateFile {
    /// `None`: there is no file, or an empty one.
    fn read<T>(&self, parse: fn(&str, &str) -> Result<T, CheckpointError>) -> anyhow::Result<Option<T>> {
        let bytes = match files::read_capped(&self.path, BYTES_MAX) {
            // No agent and no kubelet writes an empty state.
            Ok(bytes) if bytes.is_empty() => {
                tracing::warn!(
                    path = %self.path.display(),
                    "the state file is empty, as a power cut leaves it: the {} starts without a state", self.manager
                );
                return Ok(None);
            }
            Ok(bytes) => bytes,
            Err(error) if error.class() == Class::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let text = String::from_utf8_lossy(&bytes);
        let state = parse(self.policy, &text).map_err(|error| {
            anyhow!(
                "could not restore state from checkpoint: {error}, please drain this node and delete the {} checkpoint file \
                 {:?} before restarting Kubelet",
                self.manager,
                self.path
            )
        })?;
        Ok(Some(state))
    }

    /// The same; after a boot of the machine a file of another policy, or a damaged one, counts as none: no container runs that may
    /// have its processors.
    fn read_or_drop<T>(
        &self,
        parse: fn(&str, &str) -> Result<T, CheckpointError>,
        first_of_boot: bool,
    ) -> anyhow::Result<Option<T>> {
        match self.read(parse) {
            Err(error) if first_of_boot => {
                tracing::warn!(%error, "the state of an earlier boot is dropped: its pods get new parts");
                Ok(None)
            }
            read => read,
        }
    }

    /// The agent does not need the file of a policy without state, so a failure is only reported. The contents are synced before
    /// the file gets its name, because an upstream kubelet that follows refuses an empty file.
    fn write(&self, text: &str) {
        let written: Result<(), FilesError> =
            files::write_atomic(&self.path, text.as_bytes(), FILE_MODE, Durability::Contents);
        if let Err(error) = written {
            tracing::warn!(
                path = %self.path.display(), %error,
                "the state file is not written: an upstream kubelet that follows on this disk begins without it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};

    use super::*;

    fn file(dir: &tempfile::TempDir, policy: &'static str) -> StateFile {
        StateFile { path: dir.path().join(CPU_STATE), manager: "CPU manager", policy }
    }

    #[test]
    fn a_policy_without_state_has_upstreams_file_and_another_policy_refuses_it() {
        let dir = tempfile::tempdir().unwrap();
        let none = file(&dir, CPU_NONE);
        assert!(none.read(checkpoint::cpus::read).unwrap().is_none(), "no file");
        none.write(&checkpoint::cpus::write(CPU_NONE, &CpuState::default()));
        let text = std::fs::read_to_string(&none.path).unwrap();
        assert_eq!(text, r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
        assert!(none.read(checkpoint::cpus::read).unwrap().is_some());
        let error = file(&dir, CPU_STATIC).read(checkpoint::cpus::read).unwrap_err();
        let text = error.to_string();
        let start = "could not restore state from checkpoint: configured policy \"static\" differs from state checkpoint \
                     policy \"none\", please drain this node and delete the CPU manager checkpoint file ";
        assert!(text.starts_with(start) && text.ends_with(" before restarting Kubelet"), "{text}");
    }

    #[test]
    fn static_policies_have_their_files_before_the_first_pod() {
        let dir = tempfile::tempdir().unwrap();
        let memory = checkpoint::memory::write(MEMORY_STATIC, &MemoryState::default());
        let records = ManagerRecords { cpus: None, memory: Some(memory.clone()) };
        write_first(dir.path(), &records);
        assert_eq!(std::fs::read_to_string(dir.path().join(MEMORY_STATE)).unwrap(), memory);
        assert!(!dir.path().join(CPU_STATE).exists(), "a policy without state");
        // What an earlier boot left, and what no longer fits, is replaced.
        let none = checkpoint::memory::write(MEMORY_NONE, &MemoryState::default());
        std::fs::write(dir.path().join(MEMORY_STATE), none).unwrap();
        write_first(dir.path(), &records);
        assert_eq!(std::fs::read_to_string(dir.path().join(MEMORY_STATE)).unwrap(), memory);
    }

    #[test]
    fn after_a_boot_a_file_that_does_not_fit_is_none() {
        let dir = tempfile::tempdir().unwrap();
        for damaged in ["{", r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#] {
            std::fs::write(dir.path().join(CPU_STATE), damaged).unwrap();
            let file = file(&dir, CPU_STATIC);
            assert!(file.read_or_drop(checkpoint::cpus::read, true).unwrap().is_none());
            assert!(file.read_or_drop(checkpoint::cpus::read, false).is_err());
        }
    }

    #[test]
    fn an_empty_file_counts_as_none_in_every_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CPU_STATE);
        for policy in [CPU_NONE, CPU_STATIC] {
            let file = file(&dir, policy);
            for first_of_boot in [true, false] {
                std::fs::write(&path, "").unwrap();
                assert!(file.read_or_drop(checkpoint::cpus::read, first_of_boot).unwrap().is_none());
            }
        }
        let none = file(&dir, CPU_NONE);
        none.write(&checkpoint::cpus::write(CPU_NONE, &CpuState::default()));
        assert!(none.read_or_drop(checkpoint::cpus::read, false).unwrap().is_some(), "written again");
    }

    #[test]
    fn the_agent_starts_with_empty_files_and_writes_them_again() {
        let dir = tempfile::tempdir().unwrap();
        let policies =
            ManagerSettings::new(&KubeletConfiguration::default(), &FeatureGates::default()).unwrap();
        let start = || states(dir.path(), &policies, false).unwrap();
        start();
        let names = [CPU_STATE, MEMORY_STATE];
        let whole = names.map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap());
        for name in names {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let read = start();
        assert!(read.cpus.is_none() && read.memory.is_none());
        assert_eq!(names.map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap()), whole);
    }

    #[test]
    fn a_damaged_file_ends_the_start() {
        let dir = tempfile::tempdir().unwrap();
        for damaged in
            [" ", "{", "\u{0}\u{1}", r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":1}"#]
        {
            std::fs::write(dir.path().join(CPU_STATE), damaged).unwrap();
            assert!(file(&dir, CPU_STATIC).read(checkpoint::cpus::read).is_err(), "{damaged:?}");
        }
    }
}
