//! Retry times after a failure: crash-loop back-off, image back-off, requeue jitter.
//!
//! In: times of ends and restarts. Out: due times. Invariants: a delay never exceeds its maximum; it doubles
//! on every restart and starts over only [`EXPIRY`] after the restart before; no wait is longer than that; a
//! wall clock that is set back can lengthen a wait by at most the delay itself, because due times are on the
//! monotonic clock. Upstream: client-go/util/flowcontrol/backoff.go, `doBackOff` of
//! pkg/kubelet/kuberuntime/kuberuntime_manager.go.

use std::collections::BTreeMap;
use std::time::Duration;

use orlop_config::fnv::Fnv64;

use crate::backoff::Backoff;
use crate::ids::ContainerId;
use crate::time::{Mono, Now, Wall};

#[cfg(test)]
mod tests;

/// The series starts over this long after the previous restart. The maximum does not matter, nor whether
/// the container runs then or waits.
pub const EXPIRY: Duration = Duration::from_secs(600);

/// Base of the requeue after a failed sync.
pub const REQUEUE: Duration = Duration::from_secs(10);

/// Delays of restarts and of image pulls. `crashLoopBackOff.maxContainerRestartPeriod` sets another maximum for restarts.
pub const SERIES: Backoff = Backoff::doubling(Duration::from_secs(10), Duration::from_secs(300));

/// Delays of restarts with the gate ReduceDefaultCrashLoopBackOffDecay.
pub const REDUCED_SERIES: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(60));

/// Delays of restarts. `cap` is `crashLoopBackOff.maxContainerRestartPeriod`, the maximum of both series. Upstream:
/// `newCrashLoopBackOff` of pkg/kubelet/kubelet.go.
#[must_use]
pub fn series(reduced: bool, cap: Option<Duration>) -> Backoff {
    let series = if reduced { REDUCED_SERIES } else { SERIES };
    Backoff { max: cap.unwrap_or(series.max), ..series }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct BackOffEntry {
    delay: Duration,
    /// Time at which the delay was set: the time of the restart.
    updated: Wall,
    /// The current wait.
    waiting: Option<Wait>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wait {
    /// The ended instance.
    instance: ContainerId,
    /// End of the wait.
    due: Mono,
    /// Time at which the entry expires.
    expires: Mono,
}

/// The end of an instance, as the back-off sees it.
#[derive(Clone, Copy, Debug)]
pub struct Exit<'a> {
    /// The ended instance.
    pub instance: &'a ContainerId,
    /// Time of the end.
    pub finished: Wall,
    /// `None`: the instance ended by itself. Otherwise the agent killed it to replace it, and the value is
    /// the end of the instance before it, if the runtime has one. Its own life then counts as part of the
    /// wait: upstream decides about the successor from the state before the kill.
    pub killed_after: Option<Option<Wall>>,
}

/// Crash-loop back-off of one pod's containers, by key (see [`key`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackOff {
    series: Backoff,
    entries: BTreeMap<String, BackOffEntry>,
}

impl Default for BackOff {
    fn default() -> Self {
        BackOff::new(SERIES)
    }
}

impl BackOff {
    /// No container has failed yet.
    #[must_use]
    pub fn new(series: Backoff) -> Self {
        BackOff { series, entries: BTreeMap::new() }
    }

    /// Takes over the series of an earlier incarnation: `instance` was started at `restarted` with `delay`.
    /// Does nothing for a known key.
    pub fn restore(&mut self, key: &str, delay: Duration, restarted: Wall) {
        let delay = delay.clamp(self.series.next(0), self.series.max);
        self.entries.entry(key.to_owned()).or_insert(BackOffEntry {
            delay,
            updated: restarted,
            waiting: None,
        });
    }

    /// Notes an end. The first call for an instance fixes its due time.
    pub fn observe_exit(&mut self, key: &str, exit: Exit<'_>, now: Now) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.waiting.as_ref().is_some_and(|known| known.instance == *exit.instance) {
            return;
        }
        let expires = now.mono.after(EXPIRY.saturating_sub(now.wall.since(entry.updated)));
        let has_waited = |before: Option<Wall>| before.is_none_or(|at| now.wall.since(at) >= entry.delay);
        let due = if exit.killed_after.is_some_and(has_waited) {
            now.mono
        } else {
            now.mono.after(entry.delay.saturating_sub(now.wall.since(exit.finished))).min(expires)
        };
        entry.waiting = Some(Wait { instance: exit.instance.clone(), due, expires });
    }

    /// `(due, delay)` if `instance` must still wait at `now`.
    #[must_use]
    pub fn wait(&self, key: &str, instance: &ContainerId, now: Mono) -> Option<(Mono, Duration)> {
        let entry = self.entries.get(key)?;
        match &entry.waiting {
            Some(known) if known.instance == *instance && now < known.due => Some((known.due, entry.delay)),
            _ => None,
        }
    }

    /// Records that the container is started again now; answers the delay that its next end will have to wait.
    pub fn restarted(&mut self, key: &str, now: Now) -> Duration {
        let series = self.series;
        let counts = |e: &&BackOffEntry| {
            let expired = e.waiting.as_ref().is_some_and(|wait| wait.expires <= now.mono);
            !expired && now.wall.since(e.updated) < EXPIRY
        };
        let delay = match self.entries.get(key).filter(counts) {
            Some(e) => series.following(e.delay),
            None => series.next(0),
        };
        self.entries.insert(key.to_owned(), BackOffEntry { delay, updated: now.wall, waiting: None });
        delay
    }

    /// The delay in force for `key`, if it was restarted before.
    #[must_use]
    pub fn delay(&self, key: &str) -> Option<Duration> {
        self.entries.get(key).map(|e| e.delay)
    }

    /// Forgets the keys for which `keep` is false (containers whose image or resources changed).
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.entries.retain(|k, _| keep(k));
    }

    /// Number of tracked containers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing is tracked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// A pull that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FailedPull {
    delay: Duration,
    at: Mono,
    why: String,
}

impl FailedPull {
    fn is_expired(&self, now: Mono) -> bool {
        now.since(self.at) > EXPIRY
    }
}

/// Image pull back-off: one doubling series for each image of a pod, on the monotonic clock. A series outlasts the success of a
/// pull; it ends twice the maximum after its last failure. Upstream: `imageManager.backOff` and `prevPullErrMsg`, client-go
/// util/flowcontrol/backoff.go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageBackOff {
    entries: BTreeMap<String, FailedPull>,
}

impl ImageBackOff {
    /// Time of the next pull of `image`, if it must wait at `now`.
    #[must_use]
    pub fn wait(&self, image: &str, now: Mono) -> Option<Mono> {
        self.entries.get(image).map(|failed| failed.at.after(failed.delay)).filter(|due| now < *due)
    }

    /// Reason and message of the last failure.
    #[must_use]
    pub fn why(&self, image: &str) -> Option<&str> {
        self.entries.get(image).map(|failed| failed.why.as_str())
    }

    /// A pull failed at `now`, with this reason and message; returns the time of the next one.
    pub fn failed(&mut self, image: &str, why: String, now: Mono) -> Mono {
        let delay = match self.entries.get(image) {
            Some(before) if !before.is_expired(now) => SERIES.following(before.delay),
            _ => SERIES.next(0),
        };
        self.entries.insert(image.to_owned(), FailedPull { delay, at: now, why });
        now.after(delay)
    }

    /// Forgets series that have ended, as upstream does after a successful pull.
    pub fn forget_expired(&mut self, now: Mono) {
        self.entries.retain(|_, failed| !failed.is_expired(now));
    }
}

/// Identifies a container for crash-loop back-off: a change of image or resources starts a new series.
#[must_use]
pub fn key(uid: &str, container: &str, image: &str, resources: &str) -> String {
    let mut hash = Fnv64::default();
    for part in [uid, container, image, resources] {
        hash.write(part.as_bytes());
        hash.write(&[0]);
    }
    format!("{container}/{:016x}", hash.finish())
}

/// `base` × (1 … 1.5), where name and number of the retry select the factor, so that a replay waits the same.
#[must_use]
pub fn jittered(base: Duration, seed: &str, attempt: u64) -> Duration {
    let mut hash = Fnv64::default();
    hash.write(seed.as_bytes());
    hash.write(&attempt.to_be_bytes());
    // FNV's low bits hardly mix the last byte; fold the halves together.
    let hash = hash.finish();
    let thousandth = (hash ^ (hash >> 32)) % 501;
    let extra = base.as_millis().saturating_mul(u128::from(thousandth)) / 1000;
    base.saturating_add(Duration::from_millis(u64::try_from(extra).unwrap_or(u64::MAX)))
}
