//! How long to wait before the next attempt (upstream: the reflector's back-off).
//!
//! In: failures, successes, a random fraction. Out: a wait. Invariant: between 0.8 s and 60 s; a stream that stood
//! for two minutes starts over.

use std::time::Duration;

use agent_types::backoff::Backoff;
use tokio::time::Instant;

const WAITS: Backoff = Backoff::doubling(Duration::from_millis(800), Duration::from_secs(30));
const RESET_AFTER: Duration = Duration::from_secs(120);

/// The failures of one watch in a row.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    /// The wait after a failure at `now`: doubling, and up to as much again by `fraction` in 0..1.
    pub(super) fn failed(&mut self, now: Instant, fraction: f64) -> Duration {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) > RESET_AFTER) {
            self.count = 0;
        }
        let base = WAITS.next(self.count);
        self.count = self.count.saturating_add(1);
        self.last = Some(now);
        base.mul_f64(1.0 + fraction.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_a_limit_and_starts_over() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let waits: Vec<u64> =
            (0..8).map(|_| u64::try_from(failures.failed(start, 0.0).as_millis()).unwrap()).collect();
        assert_eq!(waits, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(failures.failed(start, 0.5), Duration::from_secs(45));
        assert_eq!(failures.failed(start + RESET_AFTER * 2, 0.0), WAITS.first);
    }
}
