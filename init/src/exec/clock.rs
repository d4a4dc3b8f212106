//! Time of the ledger: milliseconds of CLOCK_BOOTTIME (0 is kernel start, suspend counts).

use nix::time::{ClockId, clock_gettime};

/// Now.
#[must_use]
pub fn boottime_ms() -> u64 {
    let Ok(t) = clock_gettime(ClockId::CLOCK_BOOTTIME) else { return 0 };
    let seconds = u64::try_from(t.tv_sec()).unwrap_or(0);
    let nanoseconds = u64::try_from(t.tv_nsec()).unwrap_or(0);
    seconds * 1000 + nanoseconds / 1_000_000
}
