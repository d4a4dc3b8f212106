//! Timers of drivers that cannot be used: at the end the driver's ResourceSlices are deleted.
//!
//! ```text
//! not usable ──30 s──► DeleteSlices
//!      └── usable again: the timer is gone
//! ```
//! In: whether a driver can be used, the time. Out: drivers whose slices must be deleted. Invariants: a running timer is not started
//! again; the number of timers is bounded. Departure from upstream: a driver whose slices were
//! deleted, and that registers again without a connection, gets a new timer; upstream keeps its name for ever and never deletes again.
//! Upstream: pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go sync.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::time::Mono;

/// A driver may return within this time.
pub(super) const SLICES_KEPT: Duration = Duration::from_secs(30);
/// Timers at one time: a plugin can invent names of drivers.
const TIMERS_MAX: usize = 256;

/// The timers.
#[derive(Clone, Debug, Default)]
pub(super) struct SliceTimers {
    until: BTreeMap<String, Mono>,
}

impl SliceTimers {
    /// A plugin of the driver registered, ended, or changed its connection.
    pub(super) fn note(&mut self, driver: &str, is_usable: bool, now: Mono) {
        if is_usable {
            self.until.remove(driver);
        } else if self.until.len() < TIMERS_MAX {
            self.until.entry(driver.to_owned()).or_insert_with(|| now.after(SLICES_KEPT));
        }
    }

    /// Drivers whose time is over; a second call does not return them.
    pub(super) fn take_due(&mut self, now: Mono) -> Vec<String> {
        let due = self.until.iter().filter(|(_, until)| **until <= now);
        let due: Vec<String> = due.map(|(driver, _)| driver.clone()).collect();
        self.until.retain(|_, until| *until > now);
        due
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        self.until.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn slices_are_deleted_half_a_minute_after_the_driver_went() {
        let mut timers = SliceTimers::default();
        timers.note("d", false, Mono(0));
        timers.note("d", false, Mono(20 * SECOND));
        assert_eq!(timers.deadline(), Some(Mono(30 * SECOND)), "a running timer is not started again");
        assert!(timers.take_due(Mono(30 * SECOND - 1)).is_empty());
        assert_eq!(timers.take_due(Mono(30 * SECOND)), ["d"]);
        assert!(timers.take_due(Mono(60 * SECOND)).is_empty(), "once");
        assert_eq!(timers.deadline(), None);
    }

    #[test]
    fn a_driver_that_is_back_keeps_its_slices() {
        let mut timers = SliceTimers::default();
        timers.note("d", false, Mono(0));
        timers.note("e", false, Mono(SECOND));
        timers.note("d", true, Mono(5 * SECOND));
        assert_eq!(timers.take_due(Mono(60 * SECOND)), ["e"]);
        timers.note("d", false, Mono(70 * SECOND));
        assert_eq!(timers.deadline(), Some(Mono(100 * SECOND)));
    }
}
