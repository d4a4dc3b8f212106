//! Observations of memory, disks and processes, by eviction signal.

use std::collections::BTreeMap;

use orlop_config::kubelet::eviction::Signal;

use crate::time::Wall;

/// File systems of the runtime that differ from the node's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Images are on another file system than the kubelet's root directory.
    pub dedicated_images: bool,
    /// Writable layers are on another file system than images.
    pub split_containers: bool,
}

/// An observation of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Time of the observation.
    pub at: Wall,
    /// Available amount.
    pub available: i64,
    /// Total amount.
    pub capacity: i64,
}

/// Observations by signal.
pub type Observations = BTreeMap<Signal, Observation>;
