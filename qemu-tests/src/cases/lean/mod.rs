//! How little a node needs.

pub mod small_machine;
