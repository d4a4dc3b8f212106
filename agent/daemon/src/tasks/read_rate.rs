//! Bounds the reading of a plugin's stream, so that a plugin that sends without end takes little of the processors.
//!
//! In: sizes of messages, the time. Out: the time of the next read. Invariant: beyond the burst, a stream costs 4 MB each second, where a
//! message and each of its items cost [`UNIT`] bytes in addition to their own bytes.

use std::time::Duration;

use agent_types::time::Mono;
use agent_types::token_bucket::TokenBucket;

/// Bytes of one token.
const UNIT: usize = 64;
/// Tokens that are used at once (4 MB). HTTP/2 holds less than that, so the rate delays the end of a stream by little.
const BURST: u32 = 64_000;
/// Time for one more token.
const INTERVAL: Duration = Duration::from_nanos(15_625);

/// Rate of the messages of one stream.
pub(crate) struct ReadRate(TokenBucket);

impl ReadRate {
    /// Of a stream of which no message was read.
    pub(crate) fn new() -> ReadRate {
        ReadRate(TokenBucket::new(INTERVAL, BURST))
    }

    /// Counts a message of so many items and bytes that was read.
    pub(crate) fn count(&mut self, items: usize, bytes: usize, now: Mono) {
        self.0.take_many(now, units(items, bytes));
    }

    /// The time at which the next message may be read.
    pub(crate) fn next(&self, now: Mono) -> Mono {
        now.after(self.0.wait(now))
    }
}

fn units(items: usize, bytes: usize) -> u32 {
    u32::try_from((bytes / UNIT).saturating_add(items).saturating_add(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_costs_its_bytes_and_its_items() {
        assert_eq!((units(0, 0), units(2, 64), units(0, usize::MAX)), (1, 4, u32::MAX));
    }
}
