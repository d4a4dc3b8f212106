//! The boot record, the arbiter and the slots.

pub mod arbiter;
mod published;
pub mod staging;
