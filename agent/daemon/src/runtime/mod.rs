//! The container runtime: its clients, the inspection of pods, PLEG, shims that the runtime lost, inputs of commands
//! that it waits for.

pub mod cri_clients;
pub(crate) mod exec_inputs;
pub mod inspect;
pub mod lost_shims;
pub mod pleg;
pub mod runtime_state;
pub mod shim_groups;
