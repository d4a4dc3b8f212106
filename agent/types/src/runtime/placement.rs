//! The processors, NUMA nodes and devices of a pod's containers, as the managers assigned them.
//!
//! In: assignments of the CPU, memory and device managers. Out: the CRI fields `cpuset_cpus` and `cpuset_mems`, what a container needs
//! to use its devices, calls to plugins before its creation. Invariant: texts are in the
//! kernel's list form (`0-2,5`); an empty text leaves the container where the runtime puts it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::runtime::config::{Device, Mount};

/// Where the containers of one pod run; empty on a node without static managers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Processors of containers that have some for themselves, by container name.
    pub cpus: BTreeMap<String, Arc<str>>,
    /// Processors of all other containers; `None`: all of the machine.
    pub shared_cpus: Option<Arc<str>>,
    /// NUMA nodes of containers that have memory of their own, by container name.
    pub mems: BTreeMap<String, Arc<str>>,
    /// Devices of containers that ask for some, by container name.
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
    /// Environment variables; one of the pod's own with the same name counts more.
    pub envs: BTreeMap<String, String>,
    /// Mounts, before the pod's own.
    pub mounts: Vec<Mount>,
    /// Device nodes, before the pod's own.
    pub devices: Vec<Device>,
    /// Annotations; one of the agent's own with the same key counts more.
    pub annotations: BTreeMap<String, String>,
    /// Names of CDI devices.
    pub cdi_devices: Vec<String>,
    /// Calls before the container is created, or the reason why it cannot be created now.
    pub pre_start: Result<Vec<PreStartCall>, String>,
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
