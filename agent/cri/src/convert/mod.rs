//! Conversion between agent-core's types and CRI messages, field by field and pure.
//!
//! Outgoing: configurations ([`sandbox`], [`container`], both with [`linux`]). Incoming: observations
//! ([`observed`]). The code lists every field of an outgoing message. So it shows the fields that keep their
//! default, and a field that is new in the CRI does not compile until the code decides about it.

pub mod container;
pub mod linux;
pub mod observed;
pub mod sandbox;
mod signal;

#[cfg(test)]
mod tests;
