//! What the node, its pods and its containers use, and how that is told. Contract 14.6.
//!
//! ```text
//! cgroup files ─► cgroup (what they say) ─► Snapshot ─┐
//! pods and statuses ─► Shown ─────────────────────────┴─► resource ─► text
//! ```
//! In: texts of files, who runs what. Out: texts. Pure: reading is agent-linux's. Invariants: nothing is told of a
//! container that does not run; an amount that could not be read is left out, never zero.

pub mod cgroup;
pub mod exposition;
pub mod resource;

#[cfg(test)]
mod tests;

use crate::time::Wall;

/// What one cgroup, or the machine, uses; `None` is what could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since the beginning, microseconds.
    pub cpu_usec: Option<u64>,
    /// Memory that is not given back without harm: what is used without inactive file pages, bytes.
    pub working_set_bytes: Option<u64>,
    /// Swap in use, bytes.
    pub swap_bytes: Option<u64>,
    /// How much swap it may use, bytes; `None` also for any amount.
    pub swap_limit_bytes: Option<u64>,
}

/// A pod's cgroup and those in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// [`cgroup::pod_of`] its name.
    pub pod: String,
    /// All of it.
    pub usage: Usage,
    /// Containers, the sandbox's own among them, by CRI id.
    pub containers: Vec<(String, Usage)>,
}

/// The machine at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The machine.
    pub node: Usage,
    /// Pods that have a cgroup.
    pub pods: Vec<PodUsage>,
}

/// A pod that the node shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// Containers that run.
    pub containers: Vec<ShownContainer>,
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownContainer {
    /// Its name in the pod.
    pub name: String,
    /// CRI id.
    pub id: String,
    /// `state.running.startedAt`.
    pub started: Option<Wall>,
}
