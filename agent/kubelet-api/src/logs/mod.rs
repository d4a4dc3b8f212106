//! logs: which part of which log a client asked for, and what of a log file's bytes it gets. Contract 14.3.
//!
//! ```text
//! query ─► LogOptions    pod status ─► choose() ─► container id ─► file (shell)
//! file from its end ─► TailScan ─► where to begin;  bytes from there ─► Selector ─► what is sent
//! ```
//! In: queries, statuses, bytes as they are read, cut anywhere. Out: options, container ids, bytes to send. Invariants:
//! memory is bounded whatever a container prints; a record that is no record is left out and counted; not one byte more
//! than `limitBytes` is sent. Upstream: cri-client/pkg/logs, pkg/kubelet/kubelet_pods.go.

mod choose;
pub mod links;
mod options;
mod records;
pub mod retention;
pub mod rotation;
mod select;
mod tail;

#[cfg(test)]
mod tests;

pub use choose::{NoLog, choose};
pub use options::{LogOptions, OptionsError};
pub use records::{Output, Record, Records};
pub use select::Selector;
pub use tail::TailScan;
