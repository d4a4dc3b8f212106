//! Where the image runs: disks and buses of machines, the installer.

pub mod bios;
pub mod buses;
pub mod install;
