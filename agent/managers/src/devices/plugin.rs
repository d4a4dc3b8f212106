//! Values that pass between device plugins and the device manager.
//!
//! In: nothing. Out: plain values that an adapter makes from the messages of `v1beta1.DevicePlugin`. Invariant: the agent never uses
//! the number of a connection again while it runs.

use std::collections::BTreeSet;

use super::run_options::RunOptions;

/// The health of a device that may be allocated; plugins may use any other text for an unhealthy one.
pub const HEALTHY: &str = "Healthy";

/// A registration of a plugin, numbered in the order of the registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// A device of a plugin's list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PluginDevice {
    /// Id, unique within the resource.
    pub id: String,
    /// [`HEALTHY`] or another text.
    pub health: String,
    /// NUMA nodes; empty: the plugin names no topology.
    pub nodes: BTreeSet<i64>,
}

/// `DevicePluginOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginOptions {
    /// `pre_start_required`.
    pub pre_start_required: bool,
    /// `get_preferred_allocation_available`.
    pub preferred_allocation: bool,
}

/// A plugin's answer to `Allocate` for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocateResponse {
    /// The message `ContainerAllocateResponse` as protobuf, for the checkpoint.
    pub encoded: Vec<u8>,
    /// Its content.
    pub options: RunOptions,
}
