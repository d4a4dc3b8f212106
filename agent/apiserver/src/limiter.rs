//! The node's own limit of requests: a token bucket (upstream: client-go's flowcontrol).
//!
//! In: a rate, a burst, the time. Out: how long to wait, or that it would be too long. Invariant: a request that gives up costs
//! nothing. The arithmetic is that of [`TokenBucket`].

use std::time::Duration;

use agent_types::lock::Lock;
use agent_types::time::Mono;
use agent_types::token_bucket::TokenBucket;
use tokio::time::Instant;

/// Tokens that come back with time.
#[derive(Debug)]
pub(crate) struct Limiter(Lock<Bucket>);

#[derive(Debug)]
struct Bucket {
    tokens: TokenBucket,
    /// The first request: the bucket counts the time from here.
    first: Option<Instant>,
}

impl Limiter {
    /// Upstream's meaning: 0 was defaulted by the configuration, below 0 means no limit.
    pub(crate) fn new(per_second: i32, burst: i32) -> Option<Limiter> {
        let tokens = TokenBucket::per_second(per_second, u32::try_from(burst).unwrap_or(0).max(1))?;
        Some(Limiter(Lock::new(Bucket { tokens, first: None })))
    }

    /// Takes a token, possibly of the future: the time to wait for it. `Err` is the wait that would be longer
    /// than `at_most`; nothing was taken.
    pub(crate) fn reserve(&self, now: Instant, at_most: Duration) -> Result<Duration, Duration> {
        let mut bucket = self.0.lock();
        let first = *bucket.first.get_or_insert(now);
        let now = Mono(0).after(now.saturating_duration_since(first));
        bucket.tokens.reserve(now, at_most)
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
