//! Virtual time: events ordered by (time, order of scheduling).

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::time::Mono;

/// Events of the world in the order of virtual time.
#[derive(Debug)]
pub struct Queue<E> {
    now: Mono,
    sequence: u64,
    events: BTreeMap<(Mono, u64), E>,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        // The time does not start at zero: a machine that subtracts from the present time at boot must not rely on saturation.
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

    /// Advances the time to the next event and returns the event. If no event is due by `until`: `None`, and the time is
    /// `until`.
    pub fn pop_until(&mut self, until: Mono) -> Option<E> {
        let (&key, _) = self.events.first_key_value()?;
        if key.0 > until {
            self.now = self.now.max(until);
            return None;
        }
        self.now = key.0;
        self.events.remove(&key)
    }

    /// Time of the next event.
    #[must_use]
    pub fn next_at(&self) -> Option<Mono> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes the events for which `keep` is false (a reboot ends the calls in flight).
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        self.events.retain(|_, e| keep(e));
    }

    /// Number of waiting events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True if no event waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
