//! Retry times of failed calls to the API server.
//!
//! In: the class of a failure. Out: the time of the next try. Invariants: no failed call is repeated at once;
//! the node notices within seconds that a server is back; a refused call is repeated less and less often; a delay
//! that the server requests is respected.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::failure::Class;
use crate::restart;
use crate::time::Mono;

/// Longest wait for a server that does not answer.
pub const UNREACHABLE_MAX: Duration = Duration::from_secs(5);
/// Longest wait after a refusal.
pub const REFUSED_MAX: Duration = Duration::from_secs(300);
const UNREACHABLE: Backoff = Backoff::doubling(Duration::from_millis(500), UNREACHABLE_MAX);
const CONFLICT: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(10));
const NOT_FOUND: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(10));
const REFUSED: Backoff = Backoff::doubling(Duration::from_secs(5), REFUSED_MAX);

/// Consecutive failures of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    failures: u32,
    not_before: Mono,
}

impl Retry {
    /// Notes a failure; `seed` spreads the waits of different objects.
    pub fn failed(&mut self, now: Mono, class: Class, seed: &str) {
        let earlier = self.failures;
        self.failures = self.failures.saturating_add(1);
        let wait = match class {
            Class::Unavailable | Class::Interrupted | Class::DeadlineExceeded => UNREACHABLE.next(earlier),
            Class::Retryable { after_ms } => {
                Duration::from_millis(after_ms).min(REFUSED_MAX).max(UNREACHABLE.next(earlier))
            }
            Class::Conflict | Class::AlreadyExists => CONFLICT.next(earlier),
            Class::NotFound => NOT_FOUND.next(earlier),
            Class::Invalid => REFUSED.next(earlier),
        };
        self.not_before = now.after(restart::jittered(wait, seed, u64::from(self.failures)));
    }

    /// Ends the series of failures.
    pub fn succeeded(&mut self) {
        *self = Retry::default();
    }

    /// The refused object has changed: the next try may come now, and a further failure continues the series.
    pub fn release(&mut self) {
        self.not_before = Mono(0);
    }

    /// Delays the next try until this time at least.
    pub fn hold(&mut self, until: Mono) {
        self.not_before = self.not_before.max(until);
    }

    /// End of the wait; `None` if it is over at `now`.
    #[must_use]
    pub fn held(&self, now: Mono) -> Option<Mono> {
        (now < self.not_before).then_some(self.not_before)
    }

    /// Number of consecutive failures.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_each_class() {
        let millis = |series: Backoff| [0, 1, 2, 3, 4, 5, 6, 7, 40].map(|n| series.next(n).as_millis());
        let table = [
            (UNREACHABLE, [500, 1000, 2000, 4000, 5000, 5000, 5000, 5000, 5000]),
            (CONFLICT, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]),
            (NOT_FOUND, [1000, 2000, 4000, 8000, 10_000, 10_000, 10_000, 10_000, 10_000]),
            (REFUSED, [5000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000, 300_000]),
        ];
        for (series, waits) in table {
            assert_eq!(millis(series), waits);
        }
    }

    #[test]
    fn waits_grow_to_their_ceiling() {
        let table = [
            (Class::Unavailable, 500, 5_000),
            (Class::Conflict, 100, 10_000),
            (Class::Invalid, 5_000, 300_000),
            (Class::Retryable { after_ms: 7_000 }, 7_000, 7_000),
            (Class::NotFound, 1_000, 10_000),
        ];
        for (class, first_ms, last_ms) in table {
            let mut retry = Retry::default();
            let mut waits = Vec::new();
            for _ in 0..40 {
                retry.failed(Mono(0), class, "seed");
                waits.push(retry.held(Mono(0)).unwrap().since(Mono(0)).as_millis());
            }
            let near = |wait: u128, base: u128| (base..=base + base / 2).contains(&wait);
            assert!(near(waits[0], first_ms) && near(waits[39], last_ms), "{class:?} {waits:?}");
            retry.succeeded();
            assert_eq!((retry.held(Mono(0)), retry.failures()), (None, 0));
        }
    }
}
