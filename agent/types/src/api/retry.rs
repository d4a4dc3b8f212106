//! Retry times of failed calls to the API server.
//!
//! In: the class of a failure. Out: the time of the next try. Invariants: no failed call is repeated at once;
//! a server that returns is noticed within seconds; a refused call is repeated ever more rarely; a delay that
//! the server requests is kept.

use std::time::Duration;

use crate::failure::Class;
use crate::restart;
use crate::time::Mono;

/// Longest wait for a server that does not answer.
pub const UNREACHABLE_MAX: Duration = Duration::from_secs(5);
/// Longest wait after a refusal.
pub const REFUSED_MAX: Duration = Duration::from_secs(300);

/// Consecutive failures of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    failures: u32,
    not_before: Mono,
}

impl Retry {
    /// Notes a failure; `seed` spreads the waits of different objects.
    pub fn failed(&mut self, now: Mono, class: Class, seed: &str) {
        self.failures = self.failures.saturating_add(1);
        let doubled = |first_ms: u64, max: Duration| {
            let factor = 1u64.checked_shl(self.failures.saturating_sub(1).min(20)).unwrap_or(u64::MAX);
            Duration::from_millis(first_ms.saturating_mul(factor)).min(max)
        };
        let wait = match class {
            Class::Unavailable | Class::Interrupted | Class::DeadlineExceeded => {
                doubled(500, UNREACHABLE_MAX)
            }
            Class::Retryable { after_ms } => {
                Duration::from_millis(after_ms).min(REFUSED_MAX).max(doubled(500, UNREACHABLE_MAX))
            }
            Class::Conflict | Class::AlreadyExists => doubled(100, Duration::from_secs(10)),
            Class::NotFound => doubled(1_000, Duration::from_secs(10)),
            Class::Invalid => doubled(5_000, REFUSED_MAX),
        };
        self.not_before = now.after(restart::jittered(wait, seed, u64::from(self.failures)));
    }

    /// The series is over.
    pub fn succeeded(&mut self) {
        *self = Retry::default();
    }

    /// Whatever was refused has changed: it may be tried now, and a further failure counts on.
    pub fn release(&mut self) {
        self.not_before = Mono(0);
    }

    /// Delays the next try until this time at least.
    pub fn hold(&mut self, until: Mono) {
        self.not_before = self.not_before.max(until);
    }

    /// Until when to wait, if not over at `now`.
    #[must_use]
    pub fn held(&self, now: Mono) -> Option<Mono> {
        (now < self.not_before).then_some(self.not_before)
    }

    /// How many failures in a row.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
