//! The resources that the node runs short of.
//!
//! In: eviction's observations. Out: the conditions `MemoryPressure`, `DiskPressure` and `PIDPressure` as flags.

/// Resources under pressure, from eviction. All false until eviction has observed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressures {
    /// `MemoryPressure`.
    pub memory: bool,
    /// `DiskPressure`.
    pub disk: bool,
    /// `PIDPressure`.
    pub pid: bool,
}
