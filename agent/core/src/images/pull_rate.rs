//! The bound on image pulls a second (`registryPullQPS`, `registryBurst`): a token bucket.
//!
//! In: the time of a pull. Out: whether the pull may begin. Invariant: in any time `t` at most `burst + qps × t` pulls begin. A pull
//! without a token fails at once, as upstream's does, and the back-off of image pulls tries again.
//! Upstream: pkg/kubelet/images/helpers.go (`throttledImageService`), client-go util/flowcontrol.

use std::time::Duration;

use agent_types::time::Mono;
use agent_types::token_bucket::TokenBucket;

/// The message of a pull that had no token; upstream's.
pub const EXCEEDED: &str = "pull QPS exceeded";

/// Tokens of pulls; `None`: no bound.
#[derive(Clone, Debug)]
pub struct PullRate(Option<TokenBucket>);

impl PullRate {
    /// `qps` of 0 or less is no bound. A burst of 0 lets no pull begin, as upstream's bucket without room.
    #[must_use]
    pub fn new(qps: i32, burst: i32) -> PullRate {
        PullRate(TokenBucket::per_second(qps, u32::try_from(burst).unwrap_or(0)))
    }

    /// Takes a token for a pull that begins now. False: there is none.
    pub fn take(&mut self, now: Mono) -> bool {
        self.0.as_mut().is_none_or(|tokens| tokens.reserve(now, Duration::ZERO).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono(ms * 1_000_000)
    }

    /// How many of many pulls at this time may begin.
    fn begin(rate: &mut PullRate, ms: u64) -> usize {
        (0..50).filter(|_| rate.take(at(ms))).count()
    }

    #[test]
    fn a_burst_begins_and_then_five_a_second() {
        let mut rate = PullRate::new(5, 10);
        assert_eq!(begin(&mut rate, 0), 10);
        assert_eq!(begin(&mut rate, 199), 0);
        assert_eq!(begin(&mut rate, 200), 1);
        assert_eq!(begin(&mut rate, 1_200), 5);
        assert_eq!(begin(&mut rate, 100_000), 10, "the bucket holds the burst and no more");
    }

    #[test]
    fn no_rate_is_no_bound_and_no_burst_is_no_pull() {
        assert_eq!(begin(&mut PullRate::new(0, 10), 0), 50);
        assert_eq!(begin(&mut PullRate::new(-1, 10), 0), 50);
        assert_eq!(begin(&mut PullRate::new(5, 0), 0), 0);
    }
}
