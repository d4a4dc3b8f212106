//! Limits the reviews that the node sends to the API server, and caches their answers.
//!
//! In: requests for a review with the time, answers. Out: a cached answer, the order to send a review or to
//! wait for one in flight, or a refusal. Invariants: at most one review of a key is in flight, and at most
//! [`DeskLimits::under_way`] in all; over any time `t` at most `burst + t / interval` are started; keys
//! without an earlier positive answer take at most three quarters of either, so that strangers leave room for
//! clients whose answer has expired; a negative answer never displaces a valid positive one.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_types::time::Mono;

use super::cache::ReviewCache;

/// Limits for reviews of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeskLimits {
    /// Between two reviews on average.
    pub interval: Duration,
    /// Reviews that may be begun at once after a quiet time.
    pub burst: u32,
    /// Reviews that wait for the API server.
    pub under_way: usize,
    /// Requests that wait for a review; several may wait for the same one.
    pub waiting: usize,
    /// Answers of each sort, yes and no, that are remembered.
    pub remembered: usize,
}

impl Default for DeskLimits {
    /// Half of the rate of upstream's whole client (50 a second, 100 at once), for tokens and for permissions
    /// each.
    fn default() -> Self {
        DeskLimits {
            interval: Duration::from_millis(40),
            burst: 50,
            under_way: 16,
            waiting: 256,
            remembered: 1024,
        }
    }
}

/// What becomes of a request for a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReviewStep<V> {
    /// The answer is remembered: believed with a value, or refused.
    Known(Option<V>),
    /// Ask the API server; [`ReviewDesk::ended`] and [`ReviewDesk::left`] must follow.
    Ask,
    /// Wait for the review that is under way; [`ReviewDesk::left`] must follow.
    Join,
    /// Too many reviews: refuse the request now.
    Busy,
}

/// Reviews of one kind. Equal `K` make two reviews the same; `V` is the value of a positive answer.
#[derive(Clone, Debug)]
pub struct ReviewDesk<K, V> {
    limits: DeskLimits,
    believed: ReviewCache<K, V>,
    refused: ReviewCache<K, ()>,
    under_way: BTreeSet<K>,
    waiting: usize,
    /// The reviews so far are paid for up to then.
    paid_until: Mono,
}

impl<K: Ord + Clone, V: Clone> ReviewDesk<K, V> {
    /// Nothing is remembered, nothing is under way.
    #[must_use]
    pub fn new(limits: DeskLimits) -> ReviewDesk<K, V> {
        ReviewDesk {
            believed: ReviewCache::new(limits.remembered),
            refused: ReviewCache::new(limits.remembered),
            under_way: BTreeSet::new(),
            waiting: 0,
            paid_until: Mono(0),
            limits,
        }
    }

    /// The value of a positive answer that holds.
    #[must_use]
    pub fn known(&self, key: &K, now: Mono) -> Option<V> {
        self.believed.get(key, now)
    }

    /// A request needs the review of `key`.
    pub fn request(&mut self, key: &K, now: Mono) -> ReviewStep<V> {
        if let Some(value) = self.believed.get(key, now) {
            return ReviewStep::Known(Some(value));
        }
        if self.refused.get(key, now).is_some() {
            return ReviewStep::Known(None);
        }
        if self.waiting >= self.limits.waiting {
            return ReviewStep::Busy;
        }
        if self.under_way.contains(key) {
            self.waiting += 1;
            return ReviewStep::Join;
        }
        if !self.may_begin(self.believed.knew(key), now) {
            return ReviewStep::Busy;
        }
        self.paid_until = self.paid_until.max(now).after(self.limits.interval);
        self.under_way.insert(key.clone());
        self.waiting += 1;
        ReviewStep::Ask
    }

    /// A request waits no longer.
    pub fn left(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// The review of `key` is over: with an answer and its lifetime, or without one.
    pub fn ended(&mut self, key: K, answer: Option<(Option<V>, Duration)>, now: Mono) {
        self.under_way.remove(&key);
        match answer {
            Some((Some(value), ttl)) => {
                self.refused.forget(&key);
                self.believed.keep(key, value, now, ttl);
            }
            Some((None, ttl)) => {
                self.believed.forget(&key);
                self.refused.keep(key, (), now, ttl);
            }
            None => {}
        }
    }

    /// How many reviews are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    fn may_begin(&self, known: bool, now: Mono) -> bool {
        let DeskLimits { interval, burst, under_way, .. } = self.limits;
        let (burst, places) = if known { (burst, under_way) } else { (burst / 4 * 3, under_way / 4 * 3) };
        let paid = self.paid_until.since(now).saturating_add(interval);
        self.under_way.len() < places && paid <= interval.saturating_mul(burst)
    }
}

/// Admits a line of the log once in a while, and counts the lines that it leaves out.
#[derive(Clone, Copy, Debug)]
pub struct RareLine {
    quiet: Duration,
    last: Option<Mono>,
    left_out: u64,
}

impl RareLine {
    /// Allows at most one log line in each `quiet`.
    #[must_use]
    pub fn new(quiet: Duration) -> RareLine {
        RareLine { quiet, last: None, left_out: 0 }
    }

    /// `Some` if this line may be written, with the number of lines suppressed since the last one.
    pub fn admit(&mut self, now: Mono) -> Option<u64> {
        if self.last.is_some_and(|last| now.since(last) < self.quiet) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests;
