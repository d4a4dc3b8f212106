//! A bound on the lines that the agent writes to the consoles: a serial port is slow, and the kernel keeps few lines.
//!
//! In: the time. Out: whether one more line may be written now. Invariant: after `burst` lines, at most one line in `period`.

use std::time::Duration;

use agent_types::time::Mono;

/// Tokens that come back with time.
#[derive(Clone, Debug)]
pub struct LineLimit {
    burst: u32,
    period: Duration,
    tokens: u32,
    /// When the tokens were counted last.
    counted: Mono,
}

impl LineLimit {
    /// `burst` lines at once, then one in each `period`.
    #[must_use]
    pub fn new(burst: u32, period: Duration) -> LineLimit {
        LineLimit { burst, period, tokens: burst, counted: Mono(0) }
    }

    /// True if one line may be written; it counts as written then.
    pub fn take(&mut self, now: Mono) -> bool {
        self.refill(now);
        let allowed = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        allowed
    }

    /// When the next line may be written.
    #[must_use]
    pub fn next(&self, now: Mono) -> Mono {
        if self.tokens > 0 { now } else { self.counted.after(self.period) }
    }

    fn refill(&mut self, now: Mono) {
        let period = self.period.as_nanos().max(1);
        let came = now.since(self.counted).as_nanos() / period;
        let missing = u128::from(self.burst - self.tokens);
        if came >= missing {
            (self.tokens, self.counted) = (self.burst, now);
        } else {
            let came = u32::try_from(came).unwrap_or(0);
            self.tokens += came;
            self.counted = self.counted.after(self.period.saturating_mul(came));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_in_each_period() {
        let mut limit = LineLimit::new(3, Duration::from_secs(2));
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        let passed = |limit: &mut LineLimit, now| (0..10).filter(|_| limit.take(now)).count();
        assert_eq!(passed(&mut limit, at(100)), 3);
        assert_eq!(limit.next(at(100)), at(102));
        assert_eq!(passed(&mut limit, at(101)), 0);
        assert_eq!(passed(&mut limit, at(103)), 1);
        // Half a period was left over.
        assert_eq!(passed(&mut limit, at(104)), 1);
        assert_eq!(passed(&mut limit, at(1000)), 3);
        // A clock that stands still gives nothing.
        assert_eq!(passed(&mut limit, at(1000)), 0);
    }
}
