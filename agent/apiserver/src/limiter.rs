//! The node's own limit of requests: a token bucket (upstream: client-go's flowcontrol).
//!
//! In: a rate, a burst, the time. Out: how long to wait, or that it would be too long.
//! Invariant: over any time `t` no more than `burst + rate × t` are let through; one that gives up costs nothing.

use std::time::Duration;

use agent_types::lock::Lock;
use tokio::time::Instant;

/// Tokens that come back with time.
#[derive(Debug)]
pub(crate) struct Limiter {
    per_second: f64,
    burst: f64,
    bucket: Lock<Option<(f64, Instant)>>,
}

impl Limiter {
    /// Upstream's meaning: 0 was defaulted by the configuration, below 0 means no limit.
    pub(crate) fn new(per_second: i32, burst: i32) -> Option<Limiter> {
        (per_second > 0).then(|| Limiter {
            per_second: f64::from(per_second),
            burst: f64::from(burst.max(1)),
            bucket: Lock::new(None),
        })
    }

    /// Takes a token, possibly of the future: the time to wait for it. `Err` is the wait that would be longer
    /// than `at_most`; nothing was taken.
    pub(crate) fn reserve(&self, now: Instant, at_most: Duration) -> Result<Duration, Duration> {
        let mut bucket = self.bucket.lock();
        let (tokens, then) = bucket.unwrap_or((self.burst, now));
        let back = now.saturating_duration_since(then).as_secs_f64() * self.per_second;
        let tokens = (tokens + back).min(self.burst) - 1.0;
        let wait = Duration::try_from_secs_f64(-tokens / self.per_second).unwrap_or_default();
        if wait > at_most {
            return Err(wait);
        }
        *bucket = Some((tokens, now));
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_rate() {
        let (limiter, now) = (Limiter::new(50, 100).unwrap(), Instant::now());
        let most = Duration::from_secs(10);
        for _ in 0..100 {
            assert_eq!(limiter.reserve(now, most), Ok(Duration::ZERO));
        }
        assert_eq!(limiter.reserve(now, most), Ok(Duration::from_millis(20)));
        assert_eq!(limiter.reserve(now, most), Ok(Duration::from_millis(40)));
        assert_eq!(limiter.reserve(now, Duration::from_millis(1)), Err(Duration::from_millis(60)));
        let later = now + Duration::from_millis(60);
        assert_eq!(limiter.reserve(later, Duration::ZERO), Ok(Duration::ZERO), "who gave up cost nothing");
        assert!(Limiter::new(-1, 10).is_none());
    }
}
