//! Reports of health of one stream, until they are passed on.
//!
//! In: reports as they come, the time. Out: devices with the newest report of each, and when the next report is read. Invariants: the
//! owner of claims gets reports at most once in [`REPORT_GAP`], and none of them is older; what is read has a bounded rate, and so has
//! what waits. Upstream passes on each report.

use std::collections::BTreeMap;

use agent_core::resource_claims::api::ReportedHealth;
use agent_types::time::Mono;

use super::limits::{REPORT_GAP, REPORTED_MAX};
use crate::tasks::read_rate::ReadRate;

/// Reports that wait.
pub(super) struct GatheredReports {
    /// By pool and device.
    waiting: Option<BTreeMap<(String, String), ReportedHealth>>,
    /// They are passed on at this time.
    due_at: Mono,
    reads: ReadRate,
}

impl GatheredReports {
    /// No report yet.
    pub(super) fn new() -> GatheredReports {
        GatheredReports { waiting: None, due_at: Mono(0), reads: ReadRate::new() }
    }

    /// A report was read. What it says of a device takes the place of what an earlier one said.
    pub(super) fn read(&mut self, devices: Vec<ReportedHealth>, now: Mono) {
        let bytes = |of: &ReportedHealth| of.pool.len() + of.device.len() + of.message.len();
        self.reads.count(devices.len(), devices.iter().map(bytes).sum(), now);
        let waiting = self.waiting.get_or_insert_default();
        waiting.extend(devices.into_iter().map(|of| ((of.pool.clone(), of.device.clone()), of)));
    }

    /// When the next report may be read.
    pub(super) fn read_at(&self, now: Mono) -> Mono {
        let at = self.reads.next(now);
        let is_full = self.waiting.as_ref().is_some_and(|waiting| waiting.len() >= REPORTED_MAX);
        if is_full { at.max(self.due_at) } else { at }
    }

    /// When reports may be passed on; `None`: none waits.
    pub(super) fn due_at(&self) -> Option<Mono> {
        self.waiting.is_some().then_some(self.due_at)
    }

    /// The reports that wait, if they may be passed on now.
    pub(super) fn take_due(&mut self, now: Mono) -> Option<Vec<ReportedHealth>> {
        if now < self.due_at {
            return None;
        }
        let waiting = self.waiting.take()?;
        self.due_at = now.after(REPORT_GAP);
        Some(waiting.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use agent_core::resource_claims::api::DeviceHealth;

    use super::*;

    fn report(device: &str, message: &str) -> ReportedHealth {
        ReportedHealth {
            pool: "p".to_owned(),
            device: device.to_owned(),
            health: DeviceHealth::Unhealthy,
            timeout: None,
            message: message.to_owned(),
        }
    }

    #[test]
    fn the_newest_report_of_each_device_is_passed_on_in_time() {
        let (mut reports, now) = (GatheredReports::new(), Mono(1_000_000_000));
        assert_eq!((reports.due_at(), reports.take_due(now)), (None, None));
        reports.read(vec![report("a", "first")], now);
        assert_eq!(reports.take_due(now), Some(vec![report("a", "first")]));
        for number in 0..1000 {
            assert_eq!(reports.read_at(now), now, "the reports before are no reason to wait");
            let device = if number % 2 == 0 { "a" } else { "b" };
            reports.read(vec![report(device, &number.to_string())], now);
            assert_eq!(reports.take_due(now), None);
        }
        let next = now.after(REPORT_GAP);
        assert_eq!(reports.due_at(), Some(next));
        assert_eq!(reports.take_due(next), Some(vec![report("a", "998"), report("b", "999")]));
        assert_eq!(reports.due_at(), None);
    }

    #[test]
    fn what_waits_and_what_is_read_is_bounded() {
        let (mut reports, now) = (GatheredReports::new(), Mono(1_000_000_000));
        reports.read(vec![report("x", "")], now);
        reports.take_due(now);
        let many = (0..REPORTED_MAX).map(|number| report(&number.to_string(), "")).collect();
        reports.read(many, now);
        assert_eq!(reports.read_at(now), now.after(REPORT_GAP), "until the others are passed on");
        assert_eq!(reports.take_due(now.after(REPORT_GAP)).map(|all| all.len()), Some(REPORTED_MAX));
        let (mut now, mut count) = (now.after(REPORT_GAP), 0);
        let end = now.after(std::time::Duration::from_secs(10));
        while now < end {
            reports.read(vec![report("x", &"m".repeat(64_000))], now);
            count += 1;
            now = reports.read_at(now);
        }
        // The burst, and 64 each second.
        assert!((690..=715).contains(&count), "{count}");
    }
}
