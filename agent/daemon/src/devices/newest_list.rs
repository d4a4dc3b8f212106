//! The newest list of a connection, until it is passed on.
//!
//! In: lists as they come, the time. Out: the list to pass on, and when the next one is read. Invariants: one list waits, the newest; a
//! list that says the same as the one that was passed on last does not wait and takes no token; lists are passed on as
//! [`limits::lists`] bounds, and read as [`ReadRate`] does. Upstream passes on each list.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use agent_managers::devices::plugin::PluginDevice;
use agent_types::time::Mono;
use agent_types::token_bucket::TokenBucket;

use super::limits::{self, ListSize};
use crate::tasks::read_rate::ReadRate;

/// Lists of one connection.
pub(super) struct NewestList {
    /// The list that waits, with its fingerprint.
    waiting: Option<(u64, Vec<PluginDevice>)>,
    /// Fingerprint of the list that was passed on last. The list itself would take its memory once more.
    passed: Option<u64>,
    /// For lists that are passed on.
    tokens: TokenBucket,
    reads: ReadRate,
}

impl NewestList {
    /// No list yet.
    pub(super) fn new() -> NewestList {
        NewestList { waiting: None, passed: None, tokens: limits::lists(), reads: ReadRate::new() }
    }

    /// A list was read. It takes the place of the one that waits.
    pub(super) fn read(&mut self, mut devices: Vec<PluginDevice>, size: ListSize, now: Mono) {
        self.reads.count(size.devices, size.bytes, now);
        // Devices have no order. Those of one id keep theirs, because the last of them counts.
        devices.sort_by(|a, b| a.id.cmp(&b.id));
        let fingerprint = fingerprint(&devices);
        self.waiting = (self.passed != Some(fingerprint)).then_some((fingerprint, devices));
    }

    /// When the next list may be read.
    pub(super) fn read_at(&self, now: Mono) -> Mono {
        self.reads.next(now)
    }

    /// When the list that waits may be passed on; `None`: none waits.
    pub(super) fn due_at(&self, now: Mono) -> Option<Mono> {
        self.waiting.is_some().then(|| now.after(self.tokens.wait(now)))
    }

    /// The list that waits, if it may be passed on now.
    pub(super) fn take_due(&mut self, now: Mono) -> Option<Vec<PluginDevice>> {
        self.waiting.as_ref()?;
        self.tokens.reserve(now, Duration::ZERO).ok()?;
        self.take()
    }

    /// The list that waits, without a token: no other will come, because the stream has ended.
    pub(super) fn take(&mut self) -> Option<Vec<PluginDevice>> {
        let (fingerprint, devices) = self.waiting.take()?;
        self.passed = Some(fingerprint);
        Some(devices)
    }
}

/// A plugin that makes two lists with one fingerprint hides its own devices' news only.
fn fingerprint(devices: &[PluginDevice]) -> u64 {
    let mut hasher = DefaultHasher::new();
    devices.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn list(ids: &[&str]) -> Vec<PluginDevice> {
        let device = |id: &&str| PluginDevice {
            id: (*id).to_owned(),
            health: "Healthy".to_owned(),
            nodes: BTreeSet::new(),
        };
        ids.iter().map(device).collect()
    }

    fn read(lists: &mut NewestList, ids: &[&str], now: Mono) {
        lists.read(list(ids), ListSize { devices: ids.len(), bytes: 16 * ids.len() }, now);
    }

    #[test]
    fn the_newest_list_is_passed_on_when_a_token_comes() {
        let (mut lists, now) = (NewestList::new(), Mono(0));
        assert_eq!((lists.due_at(now), lists.take_due(now)), (None, None));
        let mut passed = 0;
        for number in 0..1000 {
            assert_eq!(lists.read_at(now), now, "the lists before are no reason to wait");
            read(&mut lists, &[&number.to_string()], now);
            passed += usize::from(lists.take_due(now).is_some());
        }
        assert_eq!(passed, 10);
        assert_eq!(lists.due_at(now), Some(now.after(SECOND)));
        assert_eq!(lists.take_due(now), None);
        assert_eq!(lists.take_due(now.after(SECOND)), Some(list(&["999"])));
        assert_eq!(lists.due_at(now.after(SECOND)), None, "the others are gone");
    }

    #[test]
    fn the_last_list_of_a_stream_needs_no_token() {
        let (mut lists, now) = (NewestList::new(), Mono(0));
        for number in 0..20 {
            read(&mut lists, &[&number.to_string()], now);
            lists.take_due(now);
        }
        assert_eq!(lists.take(), Some(list(&["19"])));
        assert_eq!(lists.take(), None);
    }

    #[test]
    fn a_list_that_says_the_same_takes_no_token() {
        let (mut lists, now) = (NewestList::new(), Mono(0));
        read(&mut lists, &["a", "b"], now);
        assert_eq!(lists.take_due(now), Some(list(&["a", "b"])));
        for ids in [["a", "b"], ["b", "a"]].iter().cycle().take(100) {
            read(&mut lists, ids, now);
            assert_eq!(lists.take_due(now), None);
        }
        for number in 0..9 {
            read(&mut lists, &[&number.to_string()], now);
            assert!(lists.take_due(now).is_some());
        }
        // A change that is taken back before anybody heard of it is none.
        read(&mut lists, &["a"], now);
        assert!(lists.due_at(now).is_some());
        read(&mut lists, &["8"], now);
        assert_eq!(lists.due_at(now), None);
    }

    #[test]
    fn of_two_devices_with_one_id_the_last_one_stays_the_last() {
        let mut twice = list(&["b", "a", "a"]);
        twice[1].health = "Unhealthy".to_owned();
        let (mut lists, now) = (NewestList::new(), Mono(0));
        lists.read(twice, ListSize::default(), now);
        let passed = lists.take_due(now).unwrap();
        let healths: Vec<&str> = passed.iter().map(|device| device.health.as_str()).collect();
        assert_eq!(healths, ["Unhealthy", "Healthy", "Healthy"]);
    }

    #[test]
    fn lists_without_end_are_read_at_a_bounded_rate() {
        let (mut lists, mut now) = (NewestList::new(), Mono(0));
        let large = ListSize { devices: 1000, bytes: 64_000 };
        let mut read = 0;
        while now < Mono(0).after(10 * SECOND) {
            lists.read(Vec::new(), large, now);
            read += 1;
            now = lists.read_at(now);
        }
        // The burst, and 32 each second.
        assert!((340..=360).contains(&read), "{read}");
    }
}
