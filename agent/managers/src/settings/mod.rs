//! The managers' settings in KubeletConfiguration.
//!
//! ```text
//! KubeletConfiguration ──new──► ManagerSettings ──managers (machine, reservation, states)──► Managers
//! ```
//! In: a validated configuration; later the machine, the node's reservation, states of an earlier agent. Out: settings; the managers; or
//! the reason why the agent must not start, with upstream's text. Upstream: cmd/kubelet/app/server.go (`getReservedCPUs`), the
//! constructors of the managers.

pub mod start;

use std::collections::BTreeMap;
use std::time::Duration;

use orlop_config::kubelet::enums::{
    CpuManagerPolicy, MemoryManagerPolicy, TopologyManagerPolicy, TopologyManagerScope,
};
use orlop_config::kubelet::manager_options::{TopologyOptionError, TopologyOptions};
use orlop_config::kubelet::nested::MemoryReservation;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};
use orlop_config::quantity::{NANOS, parse_nanos};

use crate::cpu_set::{CpuSet, NotACpuList};
use crate::cpus::options::{CpuOptions, OptionError, OptionGates};
use crate::hints::policy::Policy;
use crate::memory::start::Reserved;
use crate::placement::Scope;

/// Settings of all managers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerSettings {
    /// `cpuManagerPolicy: static` with its options; `None`: the policy none.
    pub cpus: Option<CpuOptions>,
    /// `cpuManagerReconcilePeriod`.
    pub reconcile_period: Duration,
    /// `memoryManagerPolicy: Static` with `reservedMemory`; `None`: the policy None.
    pub memory: Option<Reserved>,
    /// `topologyManagerPolicy` other than none; `None`: the policy none.
    pub topology: Option<TopologySettings>,
    /// `reservedSystemCPUs`.
    pub reserved_system_cpus: Option<CpuSet>,
    /// The text of `reservedSystemCPUs`.
    reserved_text: String,
}

/// Settings of the topology manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologySettings {
    /// `topologyManagerPolicy`.
    pub policy: Policy,
    /// `topologyManagerScope`.
    pub scope: Scope,
    /// `topologyManagerPolicyOptions`.
    pub options: TopologyOptions,
}

/// A mistake in the settings that does not depend on the machine; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// `reservedSystemCPUs` is not a list of processors.
    #[error("unable to parse reserved-cpus list: {0}")]
    ReservedCpus(#[from] NotACpuList),
    /// An option of the topology policy.
    #[error(transparent)]
    TopologyOption(#[from] TopologyOptionError),
    /// Options without a policy: `name:value`, separated by spaces.
    #[error("new none policy error: None policy: received unsupported options=map[{0}]")]
    OptionsOfNone(String),
    /// An option of the CPU policy.
    #[error("new static policy error: {0}")]
    CpuOption(#[from] OptionError),
    /// `align-by-socket` together with `single-numa-node`: sockets may have several nodes.
    #[error(
        "new static policy error: Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option"
    )]
    SocketsOnOneNode,
    /// A NUMA node has a negative number.
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this machine"
    )]
    NegativeNode(i32),
    /// An amount of `reservedMemory` is not a number of bytes.
    #[error("could not covert a variable of type Quantity to int64")]
    NotBytes,
}

impl ManagerSettings {
    /// Reads the settings. Settings of a policy that is off are not read, as upstream.
    ///
    /// # Errors
    /// The first mistake, in the order in which upstream constructs the managers.
    pub fn new(
        kubelet: &KubeletConfiguration,
        gates: &FeatureGates,
    ) -> Result<ManagerSettings, SettingsError> {
        let reserved_text = kubelet.reserved_system_cpus.clone();
        let reserved: CpuSet = reserved_text.parse()?;
        let topology = TopologySettings::of(kubelet)?;
        let cpus = cpu_options(kubelet, gates)?;
        let one_node = topology.is_some_and(|topology| topology.policy == Policy::SingleNumaNode);
        if one_node && cpus.is_some_and(|options| options.align_by_socket) {
            return Err(SettingsError::SocketsOnOneNode);
        }
        let memory = match kubelet.memory_manager_policy {
            MemoryManagerPolicy::None => None,
            MemoryManagerPolicy::Static => Some(reserved_memory(&kubelet.reserved_memory)?),
        };
        Ok(ManagerSettings {
            cpus,
            reconcile_period: kubelet.cpu_manager_reconcile_period.to_std(),
            memory,
            topology,
            reserved_system_cpus: Some(reserved).filter(|reserved| !reserved.is_empty()),
            reserved_text,
        })
    }

    /// True if the settings depend on the machine; otherwise the agent need not read its topology.
    #[must_use]
    pub fn need_machine(&self) -> bool {
        self.cpus.is_some()
            || self.memory.is_some()
            || self.topology.is_some()
            || self.reserved_system_cpus.is_some()
    }
}

impl TopologySettings {
    fn of(kubelet: &KubeletConfiguration) -> Result<Option<TopologySettings>, TopologyOptionError> {
        let policy = match kubelet.topology_manager_policy {
            TopologyManagerPolicy::None => return Ok(None),
            TopologyManagerPolicy::BestEffort => Policy::BestEffort,
            TopologyManagerPolicy::Restricted => Policy::Restricted,
            TopologyManagerPolicy::SingleNumaNode => Policy::SingleNumaNode,
        };
        let scope = match kubelet.topology_manager_scope {
            TopologyManagerScope::Container => Scope::Container,
            TopologyManagerScope::Pod => Scope::Pod,
        };
        let options = TopologyOptions::parse(&kubelet.topology_manager_policy_options)?;
        Ok(Some(TopologySettings { policy, scope, options }))
    }
}

fn cpu_options(
    kubelet: &KubeletConfiguration,
    gates: &FeatureGates,
) -> Result<Option<CpuOptions>, SettingsError> {
    let given = &kubelet.cpu_manager_policy_options;
    match kubelet.cpu_manager_policy {
        CpuManagerPolicy::None if given.is_empty() => Ok(None),
        CpuManagerPolicy::None => {
            let given: Vec<String> = given.iter().map(|(name, value)| format!("{name}:{value}")).collect();
            Err(SettingsError::OptionsOfNone(given.join(" ")))
        }
        CpuManagerPolicy::Static => Ok(Some(CpuOptions::parse(given, OptionGates::of(gates))?)),
    }
}

fn reserved_memory(given: &[MemoryReservation]) -> Result<Reserved, SettingsError> {
    let mut reserved = Reserved::new();
    for entry in given {
        let node =
            u32::try_from(entry.numa_node).map_err(|_| SettingsError::NegativeNode(entry.numa_node))?;
        let limits: &mut BTreeMap<_, _> = reserved.entry(node).or_default();
        for (resource, amount) in &entry.limits {
            limits.insert(resource.clone(), bytes(amount.as_str()).ok_or(SettingsError::NotBytes)?);
        }
    }
    Ok(reserved)
}

/// An amount that is a whole number of bytes.
fn bytes(amount: &str) -> Option<u64> {
    let nanos = parse_nanos(amount).ok().filter(|nanos| nanos % NANOS == 0)?;
    u64::try_from(nanos / NANOS).ok()
}

#[cfg(test)]
mod tests;
