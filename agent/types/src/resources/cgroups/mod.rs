//! The node's tree of cgroups: names and values of each cgroup.
//!
//! ```text
//! kubepods ── allocatable          pod<uid> of Guaranteed pods
//!    ├─ burstable ── weight: Σ requests      ── pod<uid>: requests, limits, pids, huge pages
//!    └─ besteffort ── weight: the least      ── pod<uid>
//! ```
//! In: pods, the machine's amounts, the configuration. Out: [`CgroupName`]s and [`CgroupValues`], as plain
//! data. Invariants: a pod has one cgroup, which depends on UID and class only; a value that is `None` stays
//! as the kernel has it. Upstream: pkg/kubelet/cm.

pub mod name;
pub mod pod;
pub mod tiers;
pub mod values;

pub use name::CgroupName;
pub use values::{CgroupValues, CpuMax, cpu_weight};

#[cfg(test)]
mod tests;
