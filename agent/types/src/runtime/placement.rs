//! The processors, NUMA nodes and devices of a pod's containers, as the managers assigned them.
//!
//! In: assignments of the CPU, memory and device managers. Out: the CRI fields `cpuset_cpus` and `cpuset_mems`, the configuration
//! for a container's devices, calls to plugins before its creation. Invariant: texts are in the kernel's list form (`0-2,5`); an
//! empty text sets no restriction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::runtime::config::{Device, Mount};

/// Processors, memory and devices of the containers of one pod; empty on a node without static managers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Exclusive processors of containers, by container name.
    pub cpus: BTreeMap<String, Arc<str>>,
    /// Processors of all other containers; `None`: all processors of the machine.
    pub shared_cpus: Option<Arc<str>>,
    /// NUMA nodes of containers with memory on certain nodes, by container name.
    pub mems: BTreeMap<String, Arc<str>>,
    /// Devices of containers, by container name.
    pub devices: BTreeMap<String, ContainerDevices>,
}

/// A call of `PreStartContainer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreStartCall {
    /// Number of the plugin's registration.
    pub connection: u64,
    /// Resource of the plugin.
    pub resource: String,
    /// Devices of the container.
    pub ids: BTreeSet<String>,
}

/// Devices of one container, with the changes to its configuration by which it uses them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDevices {
    /// Environment variables; a variable of the pod's own spec with the same name takes precedence.
    pub envs: BTreeMap<String, String>,
    /// Mounts, before the pod's own.
    pub mounts: Vec<Mount>,
    /// Device nodes, before the pod's own.
    pub devices: Vec<Device>,
    /// Annotations; an annotation of the agent with the same key takes precedence.
    pub annotations: BTreeMap<String, String>,
    /// Names of CDI devices.
    pub cdi_devices: Vec<String>,
    /// Calls before the container is created, or the reason why it cannot be created now.
    pub pre_start: Result<Vec<PreStartCall>, String>,
    /// The container lacks devices that it asks for: they are allocated after the calls and before it is created.
    pub lacks_some: bool,
    /// By resource and id: true if the device is healthy.
    pub health: BTreeMap<String, BTreeMap<String, bool>>,
}

impl Placement {
    /// The container's processors; empty: not restricted.
    #[must_use]
    pub fn cpus_of(&self, container: &str) -> &str {
        self.cpus.get(container).or(self.shared_cpus.as_ref()).map_or("", |cpus| &**cpus)
    }

    /// The NUMA nodes of the container's memory; empty: not restricted.
    #[must_use]
    pub fn mems_of(&self, container: &str) -> &str {
        self.mems.get(container).map_or("", |mems| &**mems)
    }
}
