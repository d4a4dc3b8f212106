//! State owners for the watchdog: a name, and a mailbox whose owner can be asked for a sign of life.

use crate::tasks::mailbox::Sender;

/// A mailbox whose owner can be asked for a sign of life.
trait Alive: Send + Sync {
    /// Asks.
    fn ask(&self, round: u64);
    /// True if the owner has answered.
    fn has_answered(&self, round: u64) -> bool;
}

impl<E: Send> Alive for Sender<E> {
    fn ask(&self, round: u64) {
        Sender::ask(self, round);
    }

    fn has_answered(&self, round: u64) -> bool {
        Sender::has_answered(self, round)
    }
}

/// A state owner that the watchdog asks.
pub struct Owner {
    /// For the log.
    pub name: &'static str,
    mailbox: Box<dyn Alive>,
}

impl Owner {
    /// The owner of this mailbox.
    #[must_use]
    pub fn new<E: Send + 'static>(name: &'static str, mailbox: Sender<E>) -> Owner {
        Owner { name, mailbox: Box::new(mailbox) }
    }

    /// Asks for an answer to this round.
    pub fn ask(&self, round: u64) {
        self.mailbox.ask(round);
    }

    /// True if the owner has answered this round.
    #[must_use]
    pub fn has_answered(&self, round: u64) -> bool {
        self.mailbox.has_answered(round)
    }
}
