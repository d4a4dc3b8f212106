//! Defence of the node: memory, disks, processes, cgroups, logs and images under pressure.

pub mod apparmor;
pub mod blocking;
pub mod cgroups;
pub mod disk_vm;
pub mod eviction;
pub mod images_restart;
pub mod log_rotation;
pub mod memory;
pub mod no_space;
