//! The node API: authentication, logs, streams, metrics, statistics, malicious clients.

pub mod access;
pub mod howto;
pub mod load;
pub mod logs;
pub mod metrics;
pub mod node_logs;
pub mod pod_resources;
pub mod stats;
pub mod strangers;
pub mod streams;
pub mod tools;
pub mod top;
