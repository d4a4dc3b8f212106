//! Clusters with the add-ons that every cluster has.

mod asking;
pub mod dual_stack;
pub mod flannel;
pub mod metrics_server;
pub mod multus;
pub mod services;
pub mod services_vm;
