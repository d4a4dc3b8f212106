//! A node in a cluster: join, identity, pods, statuses, outages.

pub mod admission;
pub mod certificates;
pub mod clock;
pub mod cloud;
pub mod control_plane;
pub mod images;
pub mod network;
pub mod node;
pub mod outage;
pub mod plugins;
pub mod pods;
pub mod refused;
pub mod resize;
pub mod runtime_class;
pub mod services;
pub mod status;
pub mod users;
pub mod vm;
