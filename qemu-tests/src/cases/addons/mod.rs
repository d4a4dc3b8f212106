//! Clusters with the add-ons that every cluster has.

mod asking;
pub mod cni_replaced;
pub mod dual_stack;
pub mod flannel;
pub mod kube_router;
pub mod metrics_server;
pub mod multus;
mod pod_network;
pub mod services;
pub mod services_vm;
