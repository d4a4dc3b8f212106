//! Time as data. Core has no clock: every step receives the time.
//!
//! [`Mono`] orders events and arms timers; [`Wall`] is only for people and the API.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds on a clock that never goes back (CLOCK_BOOTTIME in production, virtual in simulation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mono(pub u64);

/// Nanoseconds since the Unix epoch; may jump when the clock is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Wall(pub i64);

/// Both clocks, read once by the shell before a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For ordering and timers.
    pub mono: Mono,
    /// For timestamps that leave the node.
    pub wall: Wall,
}

impl Mono {
    /// `self + d`, saturating at the end of time.
    #[must_use]
    pub fn after(self, d: Duration) -> Mono {
        Mono(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Wall {
    /// Time from `earlier` to `self`; zero if `earlier` is later (the clock was set back).
    #[must_use]
    pub fn since(self, earlier: Wall) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}
