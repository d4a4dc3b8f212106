//! The changes to a container's spec by which the container uses its devices.
//!
//! In: the `Allocate` responses of a container's resources. Out: one set of changes. Invariant: if several responses have one key, the
//! response of the first resource by name counts. Upstream: pod_devices.go (`deviceRunContainerOptions`).

use std::collections::{BTreeMap, BTreeSet};

/// Changes to a container's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Environment variables, by name. A variable of the pod's own spec takes precedence.
    pub envs: BTreeMap<String, String>,
    /// Bind mounts: private, not relabelled.
    pub mounts: Vec<DeviceMount>,
    /// Device nodes.
    pub devices: Vec<DeviceNode>,
    /// Annotations of the container, by key.
    pub annotations: BTreeMap<String, String>,
    /// Names of CDI devices.
    pub cdi_devices: Vec<String>,
}

/// A file or directory of the host in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMount {
    /// Path in the container.
    pub container_path: String,
    /// Path on the host.
    pub host_path: String,
    /// True for a read-only mount.
    pub read_only: bool,
}

/// A device node of the host in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// Path in the container.
    pub container_path: String,
    /// Path on the host.
    pub host_path: String,
    /// Any of `m`, `r` and `w`.
    pub permissions: String,
}

/// The changes of all responses, in the order of the responses.
pub(super) fn merged<'r>(responses: impl IntoIterator<Item = &'r RunOptions>) -> RunOptions {
    let mut all = RunOptions::default();
    let mut device_paths = BTreeSet::new();
    let mut mount_paths = BTreeSet::new();
    let mut cdi_names = BTreeSet::new();
    for of in responses {
        for (name, value) in &of.envs {
            all.envs.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for (key, value) in &of.annotations {
            all.annotations.entry(key.clone()).or_insert_with(|| value.clone());
        }
        let devices = of.devices.iter().filter(|device| device_paths.insert(device.container_path.as_str()));
        all.devices.extend(devices.cloned());
        let mounts = of.mounts.iter().filter(|mount| mount_paths.insert(mount.container_path.as_str()));
        all.mounts.extend(mounts.cloned());
        let cdi_devices = of.cdi_devices.iter().filter(|name| cdi_names.insert(name.as_str()));
        all.cdi_devices.extend(cdi_devices.cloned());
    }
    all
}
