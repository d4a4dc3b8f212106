//! When drivers are asked again how many volumes the node may have (`nodeAllocatableUpdatePeriodSeconds`, KEP-4876).
//!
//! In: drivers that are registered, what their CSIDriver objects say, volumes that find no room, the time. Out: the
//! drivers to ask. Invariants: a driver is asked one thing at a time; one whose object names no period is never asked
//! for its count, and its object is read now and then; a caller that wants the count gets it from a question that was
//! asked after the caller's request. Upstream: pkg/volume/csi/csi_node_updater.go, which watches the objects.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::time::Mono;
use k8s_openapi::api::storage::v1::CSIDriver;

/// Reason of a pod for whose volumes the node has no room, and of its event.
pub const ATTACH_LIMIT: &str = "VolumeAttachmentLimitExceeded";
/// How often the object of a driver that named no period is read: the agent does not watch it.
const LOOK: Duration = Duration::from_secs(600);
/// After how long an object that could not be read is read again, at the latest.
const AGAIN: Duration = Duration::from_secs(60);

/// How often a driver wants to be asked for its count.
#[must_use]
pub fn period(object: Option<&CSIDriver>) -> Option<Duration> {
    let seconds = object?.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|&s| s > 0).map(Duration::from_secs)
}

#[derive(Clone, Debug, Default)]
struct Slot {
    period: Option<Duration>,
    next: Mono,
    busy: bool,
    /// Its answers to questions that are asked from now on are waited for.
    wanted: bool,
    /// It said its count when it was registered.
    counted: bool,
}

/// A driver's object is to be read; and, if that names a period, the driver asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Name of the driver.
    pub driver: String,
    /// The object alone matters: the driver was asked a moment ago.
    pub counted: bool,
}

/// The drivers of the node.
#[derive(Clone, Debug, Default)]
pub struct Limits(BTreeMap<String, Slot>);

impl Limits {
    /// The driver is registered, and said its count.
    pub fn registered(&mut self, driver: &str, now: Mono) {
        let slot = self.0.entry(driver.to_owned()).or_default();
        (slot.next, slot.counted) = (now, true);
    }

    /// The driver is not there any more.
    pub fn forgotten(&mut self, driver: &str) {
        self.0.remove(driver);
    }

    /// A caller wants the count. False if there is no such driver.
    pub fn want(&mut self, driver: &str, now: Mono) -> bool {
        let Some(slot) = self.0.get_mut(driver) else { return false };
        (slot.next, slot.wanted, slot.counted) = (now, true, false);
        true
    }

    /// What is to be asked at `now`.
    pub fn due(&mut self, now: Mono) -> Vec<Due> {
        let due = self.0.iter_mut().filter(|(_, slot)| !slot.busy && slot.next <= now);
        due.map(|(driver, slot)| {
            (slot.busy, slot.wanted) = (true, false);
            Due { driver: driver.clone(), counted: std::mem::take(&mut slot.counted) }
        })
        .collect()
    }

    /// When to look again.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.0.values().filter(|slot| !slot.busy).map(|slot| slot.next).min()
    }

    /// What the driver's object says now, if it could be read. True if the callers that want the count have it.
    pub fn answered(&mut self, driver: &str, period: Result<Option<Duration>, ()>, now: Mono) -> bool {
        let Some(slot) = self.0.get_mut(driver) else { return true };
        slot.busy = false;
        let wait = match period {
            Ok(period) => {
                slot.period = period;
                period.unwrap_or(LOOK)
            }
            Err(()) => slot.period.unwrap_or(AGAIN).min(AGAIN),
        };
        if !slot.wanted {
            slot.next = now.after(wait);
        }
        !slot.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn due(limits: &mut Limits, now: Mono) -> Vec<(String, bool)> {
        limits.due(now).into_iter().map(|due| (due.driver, due.counted)).collect()
    }

    #[test]
    fn a_driver_is_asked_as_often_as_its_object_says() {
        let (mut limits, start) = (Limits::default(), Mono(0).after(SECOND));
        assert!(due(&mut limits, start).is_empty() && limits.deadline().is_none());
        limits.registered("x", start);
        assert_eq!(due(&mut limits, start), [("x".to_owned(), true)], "its object alone is of interest");
        assert!(due(&mut limits, start.after(LOOK)).is_empty(), "one question at a time");
        assert!(limits.answered("x", Ok(Some(30 * SECOND)), start));
        let next = start.after(30 * SECOND);
        assert_eq!(limits.deadline(), Some(next));
        assert_eq!(due(&mut limits, next), [("x".to_owned(), false)]);
        // The object cannot be read: what it said holds.
        assert!(limits.answered("x", Err(()), next));
        let next = next.after(30 * SECOND);
        assert_eq!(due(&mut limits, next), [("x".to_owned(), false)]);
        assert!(limits.answered("x", Ok(None), next));
        assert_eq!(limits.deadline(), Some(next.after(LOOK)));
        limits.forgotten("x");
        assert!(limits.deadline().is_none() && limits.answered("x", Ok(None), next));
    }

    #[test]
    fn whoever_finds_no_room_has_the_driver_asked_at_once() {
        let (mut limits, now) = (Limits::default(), Mono(0).after(SECOND));
        assert!(!limits.want("x", now), "it is not there");
        limits.registered("x", now);
        limits.due(now);
        limits.answered("x", Ok(Some(3600 * SECOND)), now);
        assert!(limits.want("x", now));
        assert_eq!(due(&mut limits, now), [("x".to_owned(), false)]);
        // Another request arrives while the driver is being asked: that answer may be older than the question.
        assert!(limits.want("x", now));
        assert!(!limits.answered("x", Ok(Some(3600 * SECOND)), now));
        assert_eq!(due(&mut limits, now), [("x".to_owned(), false)]);
        assert!(limits.answered("x", Ok(Some(3600 * SECOND)), now));
        assert_eq!(limits.deadline(), Some(now.after(3600 * SECOND)));
    }

    #[test]
    fn an_object_without_a_period_or_with_none_that_can_be_is_as_if_it_had_none() {
        let object = |seconds: Option<i64>| {
            let mut object = CSIDriver::default();
            object.spec.node_allocatable_update_period_seconds = seconds;
            object
        };
        assert_eq!(period(None), None);
        for (seconds, expected) in
            [(None, None), (Some(0), None), (Some(-5), None), (Some(10), Some(10 * SECOND))]
        {
            assert_eq!(period(Some(&object(seconds))), expected, "{seconds:?}");
        }
    }
}
