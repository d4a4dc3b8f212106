//! A token bucket: a burst of tokens, and then one token in each interval.
//!
//! In: the time. Out: the wait for the next token. Invariant: in any time `t` at most `burst + t / interval` tokens are taken. The owner
//! decides what it does without a token: it refuses (image pulls, similar events, lines for the consoles), or it takes a future token and waits
//! (calls of the API server).
//!
//! Why no crate: `governor` and its like read a clock themselves.

use std::time::Duration;

use crate::time::Mono;

/// Tokens that come back with time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Time for one token to come back.
    interval: Duration,
    /// Tokens of a full bucket.
    burst: u32,
    /// The time at which the bucket is (or was) full again; each token moves it by one interval.
    full_at: Mono,
}

impl TokenBucket {
    /// A full bucket. A burst of 0 never has a token; an interval of zero always has one.
    #[must_use]
    pub fn new(interval: Duration, burst: u32) -> TokenBucket {
        TokenBucket { interval, burst, full_at: Mono(0) }
    }

    /// A full bucket that gets `per_second` tokens a second; `None`: no bound.
    #[must_use]
    pub fn per_second(per_second: i32, burst: u32) -> Option<TokenBucket> {
        let per_second = u32::try_from(per_second).ok().filter(|n| *n > 0)?;
        Some(TokenBucket::new(Duration::from_secs(1) / per_second, burst))
    }

    /// The time until there is a token; zero if there is one now.
    #[must_use]
    pub fn wait(&self, now: Mono) -> Duration {
        let after_one = self.full_at.max(now).after(self.interval);
        after_one.since(now).saturating_sub(self.interval.saturating_mul(self.burst))
    }

    /// True if the bucket has all tokens, as a new one has.
    #[must_use]
    pub fn is_full(&self, now: Mono) -> bool {
        self.full_at <= now
    }

    /// Takes a token, if necessary a future one.
    pub fn take(&mut self, now: Mono) {
        self.take_many(now, 1);
    }

    /// Takes so many tokens, also those of the future.
    pub fn take_many(&mut self, now: Mono, tokens: u32) {
        self.full_at = self.full_at.max(now).after(self.interval.saturating_mul(tokens));
    }

    /// Takes the next token if it comes within `at_most`. Returns the wait for it.
    ///
    /// # Errors
    /// The wait, which is longer than `at_most`. No token is taken.
    pub fn reserve(&mut self, now: Mono, at_most: Duration) -> Result<Duration, Duration> {
        let wait = self.wait(now);
        if wait > at_most {
            return Err(wait);
        }
        self.take(now);
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    /// Number of tokens that can be taken at this time.
    fn taken(bucket: &mut TokenBucket, ms: u64) -> usize {
        (0..50).filter(|_| bucket.reserve(at(ms), Duration::ZERO).is_ok()).count()
    }

    #[test]
    fn a_bucket_lets_its_burst_through_and_then_one_in_an_interval() {
        let mut bucket = TokenBucket::new(Duration::from_secs(300), 25);
        assert_eq!(taken(&mut bucket, 1_000_000), 25);
        assert_eq!(bucket.wait(at(1_000_000)), Duration::from_secs(300));
        assert_eq!((taken(&mut bucket, 1_299_999), taken(&mut bucket, 1_300_000)), (0, 1));
        assert_eq!(taken(&mut bucket, 1_301_000), 0);
        assert_eq!(taken(&mut bucket, 100_000_000), 25, "the bucket holds the burst and no more");
        assert!(!bucket.is_full(at(107_499_999)) && bucket.is_full(at(107_500_000)));
    }

    #[test]
    fn half_an_interval_is_not_lost() {
        let mut bucket = TokenBucket::new(Duration::from_secs(2), 3);
        assert_eq!(taken(&mut bucket, 100_000), 3);
        assert_eq!(bucket.wait(at(100_000)), Duration::from_secs(2));
        assert_eq!(taken(&mut bucket, 101_000), 0);
        assert_eq!(taken(&mut bucket, 103_000), 1);
        assert_eq!(taken(&mut bucket, 104_000), 1);
        assert_eq!(taken(&mut bucket, 1_000_000), 3);
        // A clock that stands still gives nothing.
        assert_eq!(taken(&mut bucket, 1_000_000), 0);
    }

    #[test]
    fn a_token_of_the_future_is_taken_within_the_time_that_the_asker_has() {
        let mut bucket = TokenBucket::per_second(50, 2).unwrap();
        let ms = Duration::from_millis;
        assert_eq!((bucket.reserve(at(5), ms(0)), bucket.reserve(at(5), ms(0))), (Ok(ms(0)), Ok(ms(0))));
        assert_eq!((bucket.reserve(at(5), ms(40)), bucket.reserve(at(5), ms(40))), (Ok(ms(20)), Ok(ms(40))));
        assert_eq!(bucket.reserve(at(5), ms(40)), Err(ms(60)));
        assert_eq!(bucket.reserve(at(65), ms(0)), Ok(ms(0)), "a refusal takes no token");
    }

    #[test]
    fn many_tokens_are_as_many_single_ones() {
        let mut bucket = TokenBucket::new(Duration::from_secs(1), 4);
        bucket.take_many(at(5), 3);
        assert_eq!(taken(&mut bucket, 5), 1);
        bucket.take_many(at(5), 3);
        assert_eq!(bucket.wait(at(5)), Duration::from_secs(4));
        bucket.take_many(at(5), 0);
        assert_eq!(bucket.wait(at(5)), Duration::from_secs(4));
    }

    #[test]
    fn no_rate_is_no_bound_and_no_burst_is_no_token() {
        assert_eq!((TokenBucket::per_second(0, 5), TokenBucket::per_second(-1, 5)), (None, None));
        assert_eq!(taken(&mut TokenBucket::new(Duration::from_secs(1), 0), 1), 0);
        assert_eq!(taken(&mut TokenBucket::new(Duration::ZERO, 1), 1), 50);
    }
}
