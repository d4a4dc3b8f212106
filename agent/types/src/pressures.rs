//! The resources that the node runs short of.
//!
//! In: eviction's observations. Out: the conditions `MemoryPressure`, `DiskPressure` and `PIDPressure` as flags.

/// Which resources run out; eviction says so. All false until it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressures {
    /// `MemoryPressure`.
    pub memory: bool,
    /// `DiskPressure`.
    pub disk: bool,
    /// `PIDPressure`.
    pub pid: bool,
}
