//! Virtual time: events ordered by (time, order of scheduling).

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::time::Mono;

/// The world's agenda.
#[derive(Debug)]
pub struct Queue<E> {
    now: Mono,
    sequence: u64,
    events: BTreeMap<(Mono, u64), E>,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        // Not zero: a machine that subtracts from "now" at boot must not live on saturation.
        Queue { now: Mono(5_000_000_000), sequence: 0, events: BTreeMap::new() }
    }
}

impl<E> Queue<E> {
    /// The virtual present.
    #[must_use]
    pub fn now(&self) -> Mono {
        self.now
    }

    /// Schedules `event` after `delay`.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now.after(delay), event);
    }

    /// Schedules `event` at `when`, or now if that is past.
    pub fn at(&mut self, when: Mono, event: E) {
        self.sequence += 1;
        self.events.insert((when.max(self.now), self.sequence), event);
    }

    /// Advances to the next event and takes it; `None` when none is due by `until`, and time is `until` then.
    pub fn pop_until(&mut self, until: Mono) -> Option<E> {
        let (&key, _) = self.events.first_key_value()?;
        if key.0 > until {
            self.now = self.now.max(until);
            return None;
        }
        self.now = key.0;
        self.events.remove(&key)
    }

    /// When the next event is due.
    #[must_use]
    pub fn next_at(&self) -> Option<Mono> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Drops what `keep` refuses (a reboot ends the calls in flight).
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        self.events.retain(|_, e| keep(e));
    }

    /// How many events wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True if nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
