//! The queue in front of every state owner: many senders, one reader, sending never waits.
//!
//! In: events. Out: the same events in order, except that a newer event may take an older one's place
//! ([`Coalesce`]): desired and observed state are latest-wins, answers and kills are never dropped.
//!
//! No bound is enforced. A sender that waits for room would stop two owners that send to each other, and no event may be
//! dropped: an owner that misses an answer waits for ever. The queue stays short because state coalesces, and because the
//! number of answers is the number of calls that the owner made. A queue that reaches [`DEPTH_MAX`] shows an owner that
//! does not keep up, which is reported; the events stay.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent_types::lock::Lock;
use tokio::sync::Notify;

/// More events than this waiting is a defect: 500 pods with every kind of event queued stay far below.
pub const DEPTH_MAX: usize = 4096;

/// How a newer event relates to one that is still queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The newer event replaces the queued one.
    Supersedes,
    /// The events are unrelated; look further back.
    Independent,
    /// The order of the events matters; events before the queued one must stay.
    Ordered,
}

/// Events that can replace older ones.
pub trait Coalesce {
    /// Relation of `self`, which is queued, to the newer event.
    fn relation(&self, newer: &Self) -> Relation;
}

#[derive(Debug)]
struct MailboxInner<E> {
    queue: Lock<Option<VecDeque<E>>>,
    wake: Notify,
    /// Number of [`Sender::ask`] calls, and the last one that the owner has answered.
    asked: AtomicU64,
    answered: AtomicU64,
    answer: Arc<Notify>,
}

/// The senders' end; clones share the queue.
#[derive(Debug)]
pub struct Sender<E>(Arc<MailboxInner<E>>);

impl<E> Clone for Sender<E> {
    fn clone(&self) -> Self {
        Sender(self.0.clone())
    }
}

/// The owner's end.
#[derive(Debug)]
pub struct Inbox<E>(Arc<MailboxInner<E>>);

/// A queue. `answer` is notified whenever the owner answers a round of [`Sender::ask`].
#[must_use]
pub fn mailbox<E: Coalesce>(answer: Arc<Notify>) -> (Sender<E>, Inbox<E>) {
    let shared = Arc::new(MailboxInner {
        queue: Lock::new(Some(VecDeque::new())),
        wake: Notify::new(),
        asked: AtomicU64::new(0),
        answered: AtomicU64::new(0),
        answer,
    });
    (Sender(shared.clone()), Inbox(shared))
}

impl<E> MailboxInner<E> {
    /// The lock is held for a moment only, never across an await.
    fn with<T>(&self, f: impl FnOnce(&mut Option<VecDeque<E>>) -> T) -> T {
        f(&mut self.queue.lock())
    }
}

impl<E: Coalesce> Sender<E> {
    /// Queues an event; false if the owner has ended.
    pub fn send(&self, event: E) -> bool {
        let depth = self.0.with(|queue| {
            let queue = queue.as_mut()?;
            match superseded(queue, &event) {
                Some(index) => queue[index] = event,
                None => queue.push_back(event),
            }
            Some(queue.len())
        });
        self.0.wake.notify_one();
        if depth == Some(DEPTH_MAX) {
            tracing::error!(
                depth = DEPTH_MAX,
                owner = std::any::type_name::<E>(),
                "mailbox overflows: the owner does not keep up"
            );
        }
        depth.is_some()
    }
}

impl<E> Sender<E> {
    /// Asks the owner to show that it is alive; it answers between two events.
    pub fn ask(&self, round: u64) {
        self.0.asked.fetch_max(round, Ordering::AcqRel);
        self.0.wake.notify_one();
    }

    /// True if the owner has answered `round`.
    #[must_use]
    pub fn has_answered(&self, round: u64) -> bool {
        self.0.answered.load(Ordering::Acquire) >= round
    }
}

fn superseded<E: Coalesce>(queue: &VecDeque<E>, newer: &E) -> Option<usize> {
    for (index, queued) in queue.iter().enumerate().rev() {
        match queued.relation(newer) {
            Relation::Supersedes => return Some(index),
            Relation::Independent => {}
            Relation::Ordered => return None,
        }
    }
    None
}

impl<E> Inbox<E> {
    /// The next event. Cancel-safe: an event leaves the queue only when it is returned.
    pub async fn recv(&mut self) -> E {
        loop {
            self.answer();
            if let Some(event) = self.0.with(|queue| queue.as_mut().and_then(VecDeque::pop_front)) {
                return event;
            }
            // A permit is kept if the sender was faster, so no wake-up is lost between the look and the wait.
            self.0.wake.notified().await;
        }
    }

    fn answer(&self) {
        let asked = self.0.asked.load(Ordering::Acquire);
        if self.0.answered.swap(asked, Ordering::AcqRel) < asked {
            self.0.answer.notify_waiters();
        }
    }
}

impl<E> Drop for Inbox<E> {
    fn drop(&mut self) {
        self.0.with(Option::take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Ev {
        Desired(u8),
        Observed(u8),
        Kill,
        Done(u8),
    }

    impl Coalesce for Ev {
        fn relation(&self, newer: &Self) -> Relation {
            match (self, newer) {
                (Ev::Desired(_), Ev::Desired(_))
                | (Ev::Observed(_), Ev::Observed(_))
                | (Ev::Kill, Ev::Kill) => Relation::Supersedes,
                (Ev::Kill, Ev::Desired(_)) | (Ev::Desired(_), Ev::Kill) => Relation::Ordered,
                _ => Relation::Independent,
            }
        }
    }

    async fn take(inbox: &mut Inbox<Ev>) -> Vec<Ev> {
        let mut events = Vec::new();
        while inbox.0.with(|q| q.as_ref().is_some_and(|q| !q.is_empty())) {
            events.push(inbox.recv().await);
        }
        events
    }

    #[tokio::test]
    async fn latest_wins_but_nothing_else_is_lost_or_reordered() {
        let (sender, mut inbox) = mailbox(Arc::new(Notify::new()));
        for event in [
            Ev::Desired(1),
            Ev::Observed(1),
            Ev::Done(1),
            Ev::Desired(2),
            Ev::Kill,
            Ev::Observed(2),
            Ev::Done(2),
            Ev::Desired(3),
            Ev::Desired(4),
        ] {
            assert!(sender.send(event));
        }
        let expected = [Ev::Desired(2), Ev::Observed(2), Ev::Done(1), Ev::Kill, Ev::Done(2), Ev::Desired(4)];
        assert_eq!(take(&mut inbox).await, expected);
    }

    #[tokio::test]
    async fn a_gone_owner_is_noticed() {
        let (sender, inbox) = mailbox(Arc::new(Notify::new()));
        drop(inbox);
        assert!(!sender.send(Ev::Kill));
    }

    #[tokio::test]
    async fn an_idle_owner_answers_and_a_stuck_one_does_not() {
        let answer = Arc::new(Notify::new());
        let (sender, mut inbox) = mailbox::<Ev>(answer.clone());
        sender.ask(1);
        assert!(!sender.has_answered(1));
        let waiting = answer.notified();
        tokio::select! {
            biased;
            _ = inbox.recv() => unreachable!("nothing was sent"),
            () = waiting => {}
        }
        assert!(sender.has_answered(1));
        assert!(!sender.has_answered(2));
    }
}
