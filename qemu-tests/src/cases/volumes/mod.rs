//! Volumes of every plugin, on the native node and in booted VMs.

pub mod certificates;
pub mod claims;
pub mod csi;
pub mod csi_block;
pub mod csi_claims;
pub mod csi_limits;
pub mod csi_migrated;
pub mod disks;
pub mod env_files;
pub mod files;
pub mod flex;
pub mod hostile;
pub mod image;
pub mod iscsi_target;
pub mod killed_steps;
pub mod network_disks;
pub mod nfs;
pub mod power_cut;
pub mod propagation;
pub mod quota;
pub mod recursive_read_only;
pub mod selinux;
pub mod shared_vm;
pub mod sub_paths;
