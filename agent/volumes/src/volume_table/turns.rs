//! Turns: one task at a time works at a volume, in the order in which the tasks asked.
//!
//! In: tasks that ask and end. Out: the ticket whose turn it is. Invariants: a subject has at most one holder; the task
//! that asked first is next; a subject without a holder takes no memory; a ticket that ended is never granted.

use std::collections::{BTreeMap, VecDeque};

use crate::key::VolumeKey;

/// A task that asked for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What at most one task works at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A volume: staging it for one pod and unstaging it after another must not overlap.
    Volume(VolumeKey),
    /// An iSCSI target, by its name: sessions are shared by the target's disks.
    Target(String),
}

/// All turns; the first in each line has its turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    next: u64,
    lines: BTreeMap<Subject, VecDeque<Ticket>>,
    subjects: BTreeMap<Ticket, Subject>,
}

impl Turns {
    /// Another task wants a turn; true if it has it at once.
    pub(super) fn ask(&mut self, subject: Subject) -> (Ticket, bool) {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.subjects.insert(ticket, subject.clone());
        let line = self.lines.entry(subject).or_default();
        line.push_back(ticket);
        (ticket, line.len() == 1)
    }

    /// A task has ended, or does not wait any more. The answer is the ticket whose turn it is now.
    pub(super) fn end(&mut self, ticket: Ticket) -> Option<Ticket> {
        let subject = self.subjects.remove(&ticket)?;
        let line = self.lines.get_mut(&subject)?;
        let had = line.front() == Some(&ticket);
        line.retain(|other| *other != ticket);
        if line.is_empty() {
            self.lines.remove(&subject);
            return None;
        }
        line.front().copied().filter(|_| had)
    }

    /// The volume whose turn this ticket has.
    pub(super) fn volume(&self, ticket: Ticket) -> Option<&VolumeKey> {
        let subject = self.subjects.get(&ticket)?;
        let has = self.lines.get(subject).and_then(VecDeque::front) == Some(&ticket);
        match subject {
            Subject::Volume(key) if has => Some(key),
            _ => None,
        }
    }

    /// No task has a turn or waits for one.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Subject {
        Subject::Target(name.to_owned())
    }

    #[test]
    fn one_waits_for_another_of_the_same_subject_only_and_the_first_is_next() {
        let mut turns = Turns::default();
        let (a, at_once) = turns.ask(target("x"));
        let (b, waits) = turns.ask(target("x"));
        let (other, apart) = turns.ask(target("y"));
        let (c, _) = turns.ask(target("x"));
        assert!(at_once && !waits && apart);
        // One that waits no more is never granted.
        assert_eq!(turns.end(b), None);
        assert_eq!(turns.end(a), Some(c));
        assert_eq!(turns.end(a), None, "a ticket ends once");
        assert_eq!((turns.end(c), turns.end(other)), (None, None));
        assert!(turns.is_empty() && turns.subjects.is_empty(), "nothing is left");
    }

    #[test]
    fn a_ticket_speaks_for_its_volume_in_its_turn_only() {
        let key = VolumeKey { driver: "d".to_owned(), handle: "h".to_owned() };
        let mut turns = Turns::default();
        let (a, _) = turns.ask(Subject::Volume(key.clone()));
        let (b, _) = turns.ask(Subject::Volume(key.clone()));
        assert_eq!((turns.volume(a), turns.volume(b)), (Some(&key), None));
        turns.end(a);
        assert_eq!((turns.volume(a), turns.volume(b)), (None, Some(&key)));
        let (of_target, _) = turns.ask(target("x"));
        assert_eq!(turns.volume(of_target), None);
    }
}
