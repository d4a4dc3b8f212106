//! Volumes: plugins of CSI and flexVolume, disks of other machines, disks of this node, and the walks that apply groups.

pub mod csi;
pub mod flex;
pub mod local_volumes;
pub(crate) mod network_disks;
pub(crate) mod ownership;
