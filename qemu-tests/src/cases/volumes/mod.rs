//! Volumes of every plugin, on the native node and in booted VMs.

pub mod certificates;
pub mod claims;
pub mod csi;
pub mod csi_block;
pub mod csi_claims;
pub mod csi_limits;
pub mod csi_migrated;
pub mod csi_power;
pub mod disks;
pub mod env_files;
pub mod files;
pub mod flex;
pub mod hostile;
pub mod image_volumes;
pub mod iscsi;
pub mod network_disks;
pub mod nfs;
pub mod quota;
pub mod read_only;
pub mod selinux;
pub mod steps;
pub mod sub_paths;
pub mod vm;
