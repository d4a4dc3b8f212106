//! Options of the static CPU policy (`cpuManagerPolicyOptions`).
//!
//! orlop-config reads them, because init refuses a configuration with a mistake in them.

pub use orlop_config::kubelet::manager_options::{CpuOptions, OptionError, OptionGates};
