//! Exponential back-off: how long to wait after a failure, given how many failures came before.
//!
//! In: the number of earlier failures in a row, and a stream of numbers if the waits must be spread. Out: a wait.
//! Invariants: no wait is shorter than the first one or longer than the maximum; the same number gives the same wait. The owner of a series
//! counts its failures and keeps the time. Crates for this (backon, backoff) sleep or read a random source themselves; here the spread has
//! to come from the machine's [`Entropy`], so that a replay waits the same.

use std::time::Duration;

use crate::entropy::Entropy;

/// A series of waits: `first`, then each `factor` times the one before, up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure, unless `max` is shorter.
    pub first: Duration,
    /// Longest wait.
    pub max: Duration,
    /// Factor between a wait and the one before.
    pub factor: u32,
}

impl Backoff {
    /// Operations on volumes and registrations of plugins. Upstream: pkg/util/goroutinemap/exponentialbackoff.
    pub const OPERATION: Backoff = Backoff::doubling(Duration::from_millis(500), Duration::from_secs(122));

    /// The node's own objects: the Node before it is registered, the lease. Upstream: `registerWithAPIServer`, component-helpers lease
    /// controller.
    pub const NODE_OBJECT: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(7));

    /// From `first` to `max`, each wait twice the one before.
    #[must_use]
    pub const fn doubling(first: Duration, max: Duration) -> Backoff {
        Backoff { first, max, factor: 2 }
    }

    /// The wait after a failure that follows `failures` earlier ones.
    #[must_use]
    pub fn next(&self, failures: u32) -> Duration {
        // No series needs more than a factor of 2^32: 1 ms times that factor is 49 days.
        self.first.saturating_mul(self.factor.saturating_pow(failures)).min(self.max)
    }

    /// The same and up to `percent` of it more.
    pub fn jittered(&self, failures: u32, percent: u32, entropy: &mut Entropy) -> Duration {
        entropy.jittered(self.next(failures), percent)
    }

    /// The wait that follows `wait`: for a series that remembers its last wait in place of a count.
    #[must_use]
    pub fn following(&self, wait: Duration) -> Duration {
        wait.saturating_mul(self.factor).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(series: Backoff, failures: impl IntoIterator<Item = u32>) -> Vec<u128> {
        failures.into_iter().map(|n| series.next(n).as_millis()).collect()
    }

    #[test]
    fn the_series_of_upstream() {
        let operation = [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000];
        assert_eq!(millis(Backoff::OPERATION, 0..10), operation);
        let node = [100, 200, 400, 800, 1600, 3200, 6400, 7000, 7000];
        assert_eq!(millis(Backoff::NODE_OBJECT, 0..9), node);
    }

    #[test]
    fn no_count_is_too_large_and_a_maximum_holds_for_the_first_wait() {
        let series = Backoff { first: Duration::from_millis(10), max: Duration::from_secs(1), factor: 3 };
        assert_eq!(millis(series, [0, 1, 2, 3, 4, 5]), [10, 30, 90, 270, 810, 1000]);
        assert_eq!(millis(series, [16, 31, 32, 33, u32::MAX]), [1000; 5]);
        let short = Backoff::doubling(Duration::from_secs(10), Duration::from_secs(4));
        assert_eq!(millis(short, [0, 1, u32::MAX]), [4000; 3]);
        let never = Backoff::doubling(Duration::from_secs(1), Duration::MAX);
        assert!(never.next(u32::MAX) > Duration::from_secs(u64::from(u32::MAX) - 1));
    }

    #[test]
    fn a_series_goes_the_same_way_by_its_last_wait() {
        let series = Backoff::OPERATION;
        let mut wait = series.next(0);
        for failures in 1..12 {
            wait = series.following(wait);
            assert_eq!(wait, series.next(failures));
        }
        assert_eq!(series.following(Duration::MAX), series.max);
    }

    #[test]
    fn jitter_only_adds() {
        let mut entropy = Entropy::new(3);
        for failures in 0..40 {
            let base = Backoff::NODE_OBJECT.next(failures);
            let wait = Backoff::NODE_OBJECT.jittered(failures, 10, &mut entropy);
            assert!(wait >= base && wait <= base + base / 10);
        }
    }
}
