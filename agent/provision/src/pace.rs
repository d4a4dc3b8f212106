//! How often the service is asked: 0.2 s after the first failure, twice as long after each further one, 10 s at most. A machine
//! that has no network yet asks no service: it looks again each 0.2 s while the agent waits, so that the agent does not wait longer
//! than the network does.

use std::time::Duration;

/// After the first failure.
const FIRST: Duration = Duration::from_millis(200);
/// At most.
const LAST: Duration = Duration::from_secs(10);

/// The pause while the machine has no network and the agent waits.
pub const WITHOUT_NETWORK: Duration = FIRST;

/// The pause after so many failures in a row, the first counted as 1.
#[must_use]
pub fn pause(failures: u32) -> Duration {
    // More doublings than these are longer than the longest pause.
    FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_ten_seconds() {
        let ms: Vec<u128> = (1..9).map(|n| pause(n).as_millis()).collect();
        assert_eq!(ms, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!((pause(0), pause(u32::MAX)), (FIRST, LAST));
    }
}
