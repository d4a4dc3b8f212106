//! Pods on a node: static pods, restarts, probes, hooks, kills of agent and runtime.

pub mod churn;
pub mod crash;
pub mod cri_contract;
pub mod cri_golden;
pub mod hooks;
pub mod hostile;
pub mod logs;
pub mod nri;
pub mod probes;
pub mod runtime_control;
pub mod static_pods;
pub mod time;
pub mod url;
