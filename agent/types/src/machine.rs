//! The shape of every owner of state: an event and the time in, actions out, one timer.
//!
//! The shell (the daemon's `tasks::actor`) gives each machine a mailbox, performs the actions, and arms
//! exactly one timer from [`Machine::deadline`]. The simulator does the same with virtual time.
//!
//! The mailbox has no bound: two machines that send to each other and wait for room would wait for ever. The mailbox stays short
//! because newer events replace older ones, and because answers come only to calls that the machine made. The shell reports a
//! mailbox that grows beyond its expected depth as a defect.

use serde::{Deserialize, Serialize};

use crate::time::{Mono, Now};

/// A state owner. `step` is total: no panic on any input, no I/O, no clock.
pub trait Machine {
    /// Events of the machine.
    type Event;
    /// Requests of the machine to its shell.
    type Action;

    /// Processes one event at `now`, and appends the resulting actions to `out`.
    fn step(&mut self, now: Now, event: Self::Event, out: &mut Outbox<Self::Action>);

    /// Time of the machine's next tick event, if any. The shell arms one timer for it after every step.
    fn deadline(&self) -> Option<Mono>;
}

/// Identifies one effect of one machine incarnation; the answer contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EffectId(pub u64);

/// Actions of one step, in order.
#[derive(Debug)]
pub struct Outbox<A> {
    actions: Vec<A>,
}

impl<A> Default for Outbox<A> {
    fn default() -> Self {
        Outbox { actions: Vec::new() }
    }
}

impl<A> Outbox<A> {
    /// An empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one action.
    pub fn push(&mut self, action: A) {
        self.actions.push(action);
    }

    /// Take all actions, oldest first.
    pub fn drain(&mut self) -> std::vec::Drain<'_, A> {
        self.actions.drain(..)
    }

    /// The queued actions, for tests and checkers.
    #[must_use]
    pub fn as_slice(&self) -> &[A] {
        &self.actions
    }
}
