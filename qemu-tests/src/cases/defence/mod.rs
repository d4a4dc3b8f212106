//! Defence of the node: memory, disks, processes, cgroups, logs and images under pressure.

pub mod apparmor;
pub mod blocking;
pub mod cgroups;
pub mod disk;
pub mod eviction;
pub mod images;
pub mod logs;
pub mod memory;
pub mod no_space;
