//! A node in a cluster: join, identity, pods, statuses, outages.

pub mod api_server_down;
pub mod bridge_renumbered;
pub mod certificates;
pub mod control_plane;
pub mod credential_provider;
pub mod debug;
pub mod external_cloud;
pub mod image_pulls;
pub mod kubeconfig;
pub mod node;
pub mod preemption;
pub mod refused;
pub mod resize;
pub mod restart_all;
pub mod runtime_class;
pub mod services;
pub mod status;
pub mod user_namespaces;
pub mod vm;
pub mod wrong_clock;
