//! Correlation of events: aggregates similar ones, counts equal ones, filters spam.
//!
//! In: an event with count 1. Out: the event to write and the key of its count, or nothing. Invariants: three
//! caches of at most [`CACHE_MAX`] entries, the least recently used entry is dropped first; more than
//! [`SIMILAR_MAX`] - 1 events that differ only in their message within [`SIMILAR_WITHIN`] become one; one
//! source sends [`SPAM_BURST`] events of one type about one object at once, then one in [`SPAM_INTERVAL`].
//! Upstream: `EventAggregator`, `eventLogger`, `EventSourceObjectSpamFilter` of
//! client-go/tools/record/events_cache.go, in that order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::time::{Mono, Now};
use agent_types::token_bucket::TokenBucket;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::pod_source::identity::digest;

/// Entries of each cache.
pub const CACHE_MAX: usize = 4096;
/// Different messages from which on similar events become one.
pub const SIMILAR_MAX: usize = 10;
/// Time after the last similar event at which a new series starts.
pub const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
/// Events at once about one object.
pub const SPAM_BURST: u32 = 25;
/// One more event about the object in this time.
pub const SPAM_INTERVAL: Duration = Duration::from_secs(300);

/// A map that drops the least recently used entry.
#[derive(Clone, Debug)]
struct Lru<V> {
    entries: BTreeMap<u128, (u64, V)>,
    used: BTreeMap<u64, u128>,
    clock: u64,
}

impl<V> Default for Lru<V> {
    fn default() -> Self {
        Lru { entries: BTreeMap::new(), used: BTreeMap::new(), clock: 0 }
    }
}

impl<V> Lru<V> {
    fn get_or_insert(&mut self, key: u128, new: impl FnOnce() -> V) -> &mut V {
        self.clock += 1;
        if let Some((at, _)) = self.entries.get(&key) {
            self.used.remove(at);
        } else if self.entries.len() >= CACHE_MAX
            && let Some((_, oldest)) = self.used.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.used.insert(self.clock, key);
        let entry = self.entries.entry(key).or_insert_with(|| (0, new()));
        entry.0 = self.clock;
        &mut entry.1
    }

    fn remove(&mut self, key: u128) {
        if let Some((at, _)) = self.entries.remove(&key) {
            self.used.remove(&at);
        }
    }
}

/// Events that differ only in their message.
#[derive(Clone, Debug, Default)]
struct Similar {
    messages: BTreeSet<u128>,
    last: Mono,
}

/// An event that was sent.
#[derive(Clone, Debug)]
struct RecordedEvent {
    count: i32,
    first: Option<Time>,
    name: Option<String>,
}

/// The three stages.
#[derive(Clone, Debug, Default)]
pub struct Correlator {
    similar: Lru<Similar>,
    told: Lru<RecordedEvent>,
    spam: Lru<Option<TokenBucket>>,
}

impl Correlator {
    /// The event to write, with the count and the name that it has by now.
    pub fn correlate(&mut self, event: Event, now: Now) -> Option<(u128, Event)> {
        let (key, event) = self.aggregate(event, now);
        let event = self.count(key, event);
        self.passes_spam_filter(&event, now.mono).then_some((key, event))
    }

    /// The event under `key` was not written: the next equal one starts again.
    pub fn forget(&mut self, key: u128) {
        self.told.remove(key);
    }

    /// How many entries each cache has.
    #[must_use]
    pub fn sizes(&self) -> [usize; 3] {
        [self.similar.entries.len(), self.told.entries.len(), self.spam.entries.len()]
    }

    fn aggregate(&mut self, mut event: Event, now: Now) -> (u128, Event) {
        let object = object_key(&event);
        let reason = event.reason.clone().unwrap_or_default();
        let field = event.involved_object.field_path.clone().unwrap_or_default();
        let message = event.message.clone().unwrap_or_default();
        let group = key(&["similar", &object, &reason]);
        let record = self.similar.get_or_insert(group, Similar::default);
        if now.mono.since(record.last) > SIMILAR_WITHIN {
            record.messages.clear();
        }
        record.messages.insert(digest(message.as_bytes()));
        record.last = now.mono;
        if record.messages.len() < SIMILAR_MAX {
            return (key(&["event", &object, &field, &reason, &message]), event);
        }
        record.messages.pop_first();
        event.message = Some(format!("(combined from similar events): {message}"));
        (group, event)
    }

    fn count(&mut self, key: u128, mut event: Event) -> Event {
        let fresh = || RecordedEvent {
            count: 0,
            first: event.first_timestamp.clone(),
            name: event.metadata.name.clone(),
        };
        let told = self.told.get_or_insert(key, fresh);
        told.count = told.count.saturating_add(1);
        event.count = Some(told.count);
        event.first_timestamp.clone_from(&told.first);
        event.metadata.name.clone_from(&told.name);
        event
    }

    fn passes_spam_filter(&mut self, event: &Event, now: Mono) -> bool {
        let bucket = self.spam.get_or_insert(key(&["spam", &object_key(event)]), || None);
        let bucket = bucket.get_or_insert_with(|| TokenBucket::new(SPAM_INTERVAL, SPAM_BURST));
        bucket.reserve(now, Duration::ZERO).is_ok()
    }
}

/// The object and the severity; the source is always this node.
fn object_key(event: &Event) -> String {
    let o = &event.involved_object;
    let part = |t: &Option<String>| t.clone().unwrap_or_default();
    [part(&o.kind), part(&o.namespace), part(&o.name), part(&o.uid), part(&event.type_)].join("\u{0}")
}

fn key(parts: &[&str]) -> u128 {
    digest(parts.join("\u{1}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut lru = Lru::default();
        for n in 0..CACHE_MAX as u128 {
            lru.get_or_insert(n, || n);
        }
        lru.get_or_insert(0, || 99);
        lru.get_or_insert(u128::MAX, || 1);
        assert_eq!((lru.entries.len(), lru.used.len()), (CACHE_MAX, CACHE_MAX));
        assert_eq!(*lru.get_or_insert(0, || 99), 0);
        assert_eq!(*lru.get_or_insert(1, || 99), 99);
    }
}
