//! Resources: the pods' requests, and the kernel's values for them.
//!
//! In: pods. Out: QoS classes, OOM scores, sums of requests and limits, the values of cgroups. Upstream:
//! pkg/apis/core/v1/helper/qos, component-helpers/resource. See docs/internals/agent/cgroups.md.

pub mod amounts;
pub mod cgroups;
pub mod cpu;
pub mod exclusive_cpus;
pub mod machine;
pub mod node_allocatable;
pub mod observation;
pub mod oom_score;
pub mod qos;
pub mod requests;
pub mod user_ranges;

pub use qos::{QosClass, qos_class};
