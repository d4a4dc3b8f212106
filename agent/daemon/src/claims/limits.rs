//! How much of the agent's memory and time plugins of DRA drivers can take. A plugin is a pod, and what it sends is kept.
//!
//! The size of a message is limited in agent-plugins.

use std::time::Duration;

use agent_types::lock::Lock;
use agent_types::time::Mono;

/// Registered plugins. A node has a handful of drivers, each of them with two plugins during an update.
pub(super) const PLUGINS_MAX: usize = 64;
/// Plugins of one driver.
pub(super) const PLUGINS_OF_DRIVER_MAX: usize = 8;
/// Devices in one report of health. A driver of a large node has some hundred.
pub(super) const REPORTED_MAX: usize = 4096;
/// The next report is read after this time, so that a plugin that reports without end takes little of the processors.
pub(super) const REPORT_GAP: Duration = Duration::from_millis(100);
/// The health of devices is written at most as often: reports without end must not wear the disk out.
pub(super) const WRITE_GAP: Duration = Duration::from_secs(1);
/// Wait between two streams of health reports. Upstream: pkg/kubelet/cm/dra/plugin.
pub(super) const STREAM_AGAIN: Duration = Duration::from_secs(5);
/// Files that are read: the claims of 500 pods have a few hundred bytes each.
pub(super) const FILE_BYTES_MAX: u64 = 64 << 20;
/// A plugin's repeated news have one line of the log in this time.
const LINE_GAP: Duration = Duration::from_secs(60);
/// Lines that come without a gap: the usual start and end of a plugin.
const LINES_MAX: u32 = 8;

/// Limits the lines that one plugin causes in the log.
#[derive(Debug, Default)]
pub(super) struct LogLimit(Lock<(Mono, u32)>);

impl LogLimit {
    /// Whether a line may be written now.
    pub(super) fn allows(&self, now: Mono) -> bool {
        let mut state = self.0.lock();
        let (since, lines) = &mut *state;
        if now.since(*since) >= LINE_GAP {
            (*since, *lines) = (now, 0);
        }
        *lines = lines.saturating_add(1);
        *lines <= LINES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_has_some_lines_a_minute() {
        let limit = LogLimit::default();
        let lines = |at| (0..100).filter(|_| limit.allows(Mono(0).after(Duration::from_secs(at)))).count();
        assert_eq!([lines(0), lines(59), lines(60)], [8, 0, 8]);
    }
}
