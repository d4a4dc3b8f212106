//! Pods on a node: static pods, restarts, probes, hooks, kills of agent and runtime.

pub mod churn;
pub mod crash;
pub mod cri_contract;
pub mod cri_golden;
pub mod delays;
pub mod hooks;
pub mod hostile_pods;
pub mod log_links;
pub mod nri;
pub mod probes;
pub mod runtime_control;
pub mod shared_shims;
pub mod static_pod_url;
pub mod static_pods;
