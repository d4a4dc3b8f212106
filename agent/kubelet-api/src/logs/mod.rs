//! logs: selects the log that a client requested, and the bytes of its file to send.
//!
//! ```text
//! query ─► LogOptions    pod status ─► choose() ─► container id ─► file (shell)
//! file from its end ─► TailScan ─► position;  bytes from there ─► Selector ─► reply
//! ```
//! In: queries, statuses, bytes of a file in pieces of any size. Out: options, container ids, bytes to send.
//! Invariants: memory is bounded for every output of a container; a malformed record is left out and
//! counted; not one byte more than `limitBytes` is sent. Upstream: `GetKubeletContainerLogs` of
//! pkg/kubelet/kubelet_pods.go, cri-client/pkg/logs.

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
