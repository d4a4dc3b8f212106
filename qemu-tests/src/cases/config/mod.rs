//! Changes of the configuration of a running node (docs/reference/configuration.md, "Changing a running node").

pub mod confirm_contact;
pub mod confirm_gateway;
mod managed;
