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
