//! The node management API (docs/reference/node-api.md) and the node's own metrics: a node that is asked without its shell.

pub mod bundle;
pub mod logs;
pub mod metrics;
pub mod operations;
pub mod rbac;
pub mod serial;
pub mod status;
pub mod upgrade;
pub mod web;
