//! The shape of every state owner: an event and the time in, actions out, one timer.
//!
//! The shell (`orlop-agent::tasks::actor`) gives each machine a mailbox, performs the actions, and arms exactly one timer
//! from [`Machine::deadline`]. The simulator does the same with virtual time.
//!
//! The mailbox has no bound: two machines that send to each other and wait for room would never go on. It stays short
//! because newer events take the place of older ones, and because answers come only to calls that the machine made. The
//! shell reports a mailbox that grows beyond all expectation as a defect.

use serde::{Deserialize, Serialize};

use crate::time::{Mono, Now};

/// A state owner. `step` is total: no panic on any input, no I/O, no clock.
pub trait Machine {
    /// What it reacts to.
    type Event;
    /// What it asks the shell to do.
    type Action;

    /// Absorb one event at `now`; push what must happen next into `out`.
    fn step(&mut self, now: Now, event: Self::Event, out: &mut Outbox<Self::Action>);

    /// When the machine next wants to be stepped with its tick event, if ever.
    /// The shell arms one timer for it after every step.
    fn deadline(&self) -> Option<Mono>;
}

/// Names one effect of one machine incarnation; the answer carries it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EffectId(pub u64);

/// The ordered actions of one step.
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

    /// Append one action; order is kept.
    pub fn push(&mut self, action: A) {
        self.actions.push(action);
    }

    /// Take all actions, oldest first.
    pub fn drain(&mut self) -> std::vec::Drain<'_, A> {
        self.actions.drain(..)
    }

    /// What is queued, for tests and checkers.
    #[must_use]
    pub fn as_slice(&self) -> &[A] {
        &self.actions
    }
}
