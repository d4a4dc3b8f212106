//! The agent's two clocks, read once before each step of a machine.
//!
//! Out: [`Now`]. [`Mono`] is CLOCK_BOOTTIME, so it counts suspended time and agrees with the boot ledger;
//! [`Wall`] is CLOCK_REALTIME and may jump. Invariant: `mono` never goes back.

use agent_types::time::{Mono, Now, Wall};
use nix::time::{ClockId, clock_gettime};

/// Where a shell reads the time before it steps a machine. Tests put virtual time here.
pub trait Clock: Send + Sync + 'static {
    /// Both clocks, as of one moment.
    fn now(&self) -> Now;
}

/// CLOCK_BOOTTIME and CLOCK_REALTIME.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinuxClock;

impl Clock for LinuxClock {
    fn now(&self) -> Now {
        Now { mono: boottime(), wall: realtime() }
    }
}

/// Nanoseconds since the kernel started, suspend included.
#[must_use]
pub fn boottime() -> Mono {
    let t = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME exists since Linux 2.6.39");
    let seconds = u64::try_from(t.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(t.tv_nsec()).unwrap_or(0);
    Mono(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Nanoseconds since the Unix epoch.
#[must_use]
pub fn realtime() -> Wall {
    let t = clock_gettime(ClockId::CLOCK_REALTIME).expect("CLOCK_REALTIME always exists");
    Wall(t.tv_sec().saturating_mul(1_000_000_000).saturating_add(t.tv_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_never_goes_back_and_agrees_with_proc_uptime() {
        let first = boottime();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let hundredths: u64 = uptime.split_whitespace().next().unwrap().replace('.', "").parse().unwrap();
        let second = boottime();
        assert!(second >= first);
        let uptime_ns = hundredths * 10_000_000;
        // /proc/uptime has hundredths of a second.
        assert!(
            uptime_ns + 20_000_000 >= first.0 && uptime_ns <= second.0 + 20_000_000,
            "{uptime} {first:?}"
        );
    }

    #[test]
    fn realtime_is_this_century() {
        let now = realtime();
        let std_now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let difference = i128::from(now.0) - i128::try_from(std_now.as_nanos()).unwrap();
        assert!(difference.abs() < 5_000_000_000, "{difference}");
    }
}
