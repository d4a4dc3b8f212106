//! agent-core's types to CRI messages and back, field by field and pure.
//!
//! Out go configurations ([`sandbox`], [`container`], both on [`linux`]); in come observations ([`observed`]).
//! Every field of a message that goes out is spelled out, so that what is left at its default is visible here and
//! a field added to the contract does not compile until somebody has decided about it.

pub mod container;
pub mod linux;
pub mod observed;
pub mod sandbox;
mod signal;

#[cfg(test)]
mod tests;
