//! The node management API (docs/node-api.md): a node that is asked without its shell.

pub mod status;
