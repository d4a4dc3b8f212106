//! Limits of the agent's memory and time for plugins of DRA drivers. A plugin is a pod, and the agent keeps data that it sends.
//!
//! The size of a message is limited in agent-plugins.

use std::time::Duration;

use agent_types::token_bucket::TokenBucket;

/// Most registered plugins. A node has a handful of drivers, each of them with two plugins during an update.
pub(super) const PLUGINS_MAX: usize = 64;
/// Most plugins of one driver.
pub(super) const PLUGINS_OF_DRIVER_MAX: usize = 8;
/// Most devices in one report of health. A driver of a large node has some hundred.
pub(super) const REPORTED_MAX: usize = 4096;
/// Reports that come within this time are passed on as one, so that a plugin that reports without end takes little of the processors.
pub(super) const REPORT_GAP: Duration = Duration::from_millis(100);
/// Time between two writes of the health: reports without end must not wear out the disk.
pub(super) const WRITE_GAP: Duration = Duration::from_secs(1);
/// Wait between two streams of health reports. Upstream: pkg/kubelet/cm/dra/plugin.
pub(super) const STREAM_AGAIN: Duration = Duration::from_secs(5);
/// Largest file that is read: the claims of 500 pods have a few hundred bytes each.
pub(super) const FILE_BYTES_MAX: u64 = 64 << 20;
/// Time for one more log line about repeated events of one plugin.
const LINE_INTERVAL: Duration = Duration::from_secs(60);
/// Log lines that come at once: the usual start and end of a plugin.
const LINES_BURST: u32 = 8;

/// Limits the lines that one plugin causes in the log.
pub(super) fn lines() -> TokenBucket {
    TokenBucket::new(LINE_INTERVAL, LINES_BURST)
}
