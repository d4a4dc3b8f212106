//! How long to wait before the next attempt (upstream: the reflector's back-off).
//!
//! In: failures, successes, a random fraction. Out: a wait. Invariant: between 0.8 s and 60 s; a stream that stood
//! for two minutes starts over.

use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(800);
const MAX: Duration = Duration::from_secs(30);
const RESET_AFTER: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    last: Option<Instant>,
}

impl Backoff {
    /// The wait after a failure at `now`: doubling, and up to as much again by `fraction` in 0..1.
    pub(super) fn failed(&mut self, now: Instant, fraction: f64) -> Duration {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) > RESET_AFTER) {
            self.failures = 0;
        }
        let base = FIRST.saturating_mul(1 << self.failures.min(10)).min(MAX);
        self.failures = self.failures.saturating_add(1);
        self.last = Some(now);
        base.mul_f64(1.0 + fraction.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_a_limit_and_starts_over() {
        let (mut backoff, start) = (Backoff::default(), Instant::now());
        let waits: Vec<u64> =
            (0..8).map(|_| u64::try_from(backoff.failed(start, 0.0).as_millis()).unwrap()).collect();
        assert_eq!(waits, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(backoff.failed(start, 0.5), Duration::from_secs(45));
        assert_eq!(backoff.failed(start + RESET_AFTER * 2, 0.0), FIRST);
    }
}
