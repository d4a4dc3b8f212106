//! The container runtime: its events, the inspection of pods, PLEG, shims that the runtime lost.

pub mod events;
pub mod inspect;
pub mod lost_shims;
pub mod pleg;
pub mod runtime_state;
