//! Jitter as data: a stream of numbers that the shell seeds once.
//!
//! In: a seed (from the operating system in production, from the scenario in simulation). Out: durations
//! spread evenly over a window, so that a thousand nodes do not call the API server at the same moment.
//! Invariant: equal seeds give equal streams; the stream is not secret, and no key is made from it.

use std::time::Duration;

/// A seeded stream (splitmix64).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entropy {
    state: u64,
}

impl Entropy {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Entropy {
        Entropy { state: seed }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Evenly from `low` to `high`, both included; `low` if the window is empty.
    pub fn within(&mut self, low: Duration, high: Duration) -> Duration {
        let span = high.saturating_sub(low).as_nanos();
        let share = u128::from(self.next_u64() >> 32);
        // 32 bits of choice are finer than any timer; the product stays far below 2^128.
        let offset = (span / u128::from(u32::MAX)) * share
            + (span % u128::from(u32::MAX)) * share / u128::from(u32::MAX);
        low.saturating_add(Duration::from_nanos(u64::try_from(offset).unwrap_or(u64::MAX)))
    }

    /// From `period` to `period` and `percent` of it more: upstream's `wait.Jitter`.
    pub fn jittered(&mut self, period: Duration, percent: u32) -> Duration {
        let more = period.saturating_mul(percent) / 100;
        self.within(period, period.saturating_add(more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_kept_and_used() {
        let (low, high) = (Duration::from_secs(7), Duration::from_secs(9));
        let mut stream = Entropy::new(1);
        let drawn: Vec<Duration> = (0..1000).map(|_| stream.within(low, high)).collect();
        assert!(drawn.iter().all(|d| (low..=high).contains(d)));
        let tenth = Duration::from_millis(200);
        assert!(drawn.iter().min().is_some_and(|d| *d < low + tenth));
        assert!(drawn.iter().max().is_some_and(|d| *d > high - tenth));
        assert_eq!(stream.within(high, low), high);
        let year = Duration::from_secs(366 * 24 * 3600);
        assert!((0..100).all(|_| stream.within(Duration::ZERO, year) <= year));
        assert!(stream.within(Duration::MAX, Duration::MAX) == Duration::MAX);
    }

    #[test]
    fn a_seed_is_a_stream() {
        let draw = |seed| {
            let mut stream = Entropy::new(seed);
            [stream.next_u64(), stream.next_u64(), stream.next_u64()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
