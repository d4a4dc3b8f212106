//! Helpers of this crate's tests: a clock that follows tokio's, which tests pause.

use agent_linux::clock::Clock;
use agent_types::time::{Mono, Now, Wall};
use tokio::time::Instant;

/// Tokio's clock as the node's: virtual while a test has paused it.
#[derive(Clone, Copy, Debug)]
pub struct VirtualClock {
    start: Instant,
}

impl VirtualClock {
    /// Starts at an arbitrary moment, not zero, as a machine that has been up for a while.
    #[must_use]
    pub fn new() -> VirtualClock {
        VirtualClock { start: Instant::now() }
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Now {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mono = Mono(1_000_000_000_000 + elapsed);
        let wall = Wall(1_700_000_000_000_000_000 + i64::try_from(elapsed).unwrap_or(i64::MAX));
        Now { mono, wall }
    }
}
