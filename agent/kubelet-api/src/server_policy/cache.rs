//! Cache of review answers, for their lifetime only.
//!
//! In: answers with their lifetime, look-ups with the time. Out: cached answers. Invariants: an expired
//! answer is never returned; at most `max` answers are kept, and the one that expires first is dropped
//! first. An expired answer stays until its place is needed: it shows that its key was answered before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::time::Mono;

/// Remembers at most so many answers.
#[derive(Clone, Debug)]
pub struct ReviewCache<K, V> {
    answers: BTreeMap<K, (Mono, V)>,
    ends: BTreeSet<(Mono, K)>,
    max: usize,
}

impl<K: Ord + Clone, V: Clone> ReviewCache<K, V> {
    /// Empty; keeps `max` answers.
    #[must_use]
    pub fn new(max: usize) -> ReviewCache<K, V> {
        ReviewCache { answers: BTreeMap::new(), ends: BTreeSet::new(), max }
    }

    /// The answer, if it still holds at `now`.
    #[must_use]
    pub fn get(&self, key: &K, now: Mono) -> Option<V> {
        self.answers.get(key).filter(|(end, _)| now < *end).map(|(_, answer)| answer.clone())
    }

    /// True if an answer to `key` is kept, also an expired one.
    #[must_use]
    pub fn knew(&self, key: &K) -> bool {
        self.answers.contains_key(key)
    }

    /// Remembers an answer given at `now` for `ttl`.
    pub fn keep(&mut self, key: K, answer: V, now: Mono, ttl: Duration) {
        self.forget(&key);
        while !self.answers.is_empty() && self.answers.len() >= self.max {
            self.forget_first();
        }
        let end = now.after(ttl);
        if end > now && self.answers.len() < self.max {
            self.ends.insert((end, key.clone()));
            self.answers.insert(key, (end, answer));
        }
    }

    /// How many answers are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// True if nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Forgets the answer to `key`.
    pub fn forget(&mut self, key: &K) {
        if let Some((end, _)) = self.answers.remove(key) {
            self.ends.remove(&(end, key.clone()));
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, key)) = self.ends.pop_first() {
            self.answers.remove(&key);
        }
    }
}
