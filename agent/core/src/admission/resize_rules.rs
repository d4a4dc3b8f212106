//! Settings of the node that forbid in-place resizes.

/// What of the node's configuration forbids resizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// `cpuManagerPolicy: static`, whose exclusive processors cannot change (gate
    /// InPlacePodVerticalScalingExclusiveCPUs is off).
    pub static_cpus: bool,
    /// Pods' own requests cannot change: gate InPlacePodLevelResourcesVerticalScaling is off.
    pub fixed_pod_level: bool,
    /// Containers may swap (`memorySwap.swapBehavior: LimitedSwap`), and their share is not computed again.
    pub limited_swap: bool,
    /// `memoryManagerPolicy: Static`, and the gate InPlacePodVerticalScalingExclusiveMemory is off.
    pub static_memory: bool,
}
