//! Pods: their sources on the node, the tasks around core's machines, the executor of effects, and the directories of pods.

pub mod desired_pods;
pub mod execute;
pub mod manager_task;
mod placement_times;
pub mod pod_dirs;
pub mod pod_network;
pub mod pod_output;
pub mod pod_values;
pub mod probes_and_hooks;
pub mod static_pods;
pub mod status;
pub mod url_source;
pub mod worker_task;
