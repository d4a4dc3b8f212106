//! Recent uses of images by pods, so that no image is removed between a pod's look at it and the creation of the
//! container.
//!
//! In: effects that look at, pull or use an image; removals. Out: the images used lately; a turn for each removal.
//! Invariant: an image is never removed while an effect uses it or soon after; an effect that wants an image under
//! removal waits until it is gone, and then finds it missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::lock::Lock;
use agent_types::time::Mono;
use tokio::sync::Notify;

/// The time from the look at an image to its container is shorter, unless the pod waits for something else.
const LATELY: Duration = Duration::from_mins(2);

/// By then the collector, which runs every five minutes, has seen the image.
const KEPT: Duration = Duration::from_mins(10);

/// The uses of images on one node; clones share them.
#[derive(Clone, Debug, Default)]
pub struct ImageUses(Arc<ImageUsesInner>);

#[derive(Debug, Default)]
struct ImageUsesInner {
    records: Lock<UseRecords>,
    removed: Notify,
}

#[derive(Debug, Default)]
struct UseRecords {
    /// Time of the last use of each image.
    asked: BTreeMap<String, Mono>,
    /// And first.
    since: BTreeMap<String, Mono>,
    removing: BTreeSet<String>,
}

/// A removal under way; over when it is dropped.
#[derive(Debug)]
pub struct Removing {
    uses: ImageUses,
    names: Vec<String>,
}

impl ImageUses {
    /// An effect wants the image, as it spells it. Waits while it is being removed.
    pub async fn ask(&self, image: &str, now: Mono) {
        loop {
            let removed = self.0.removed.notified();
            {
                let mut records = self.0.records.lock();
                if !records.removing.contains(image) {
                    records.asked.retain(|_, at| now.since(*at) < LATELY);
                    records.asked.insert(image.to_owned(), now);
                    records.since.retain(|_, at| now.since(*at) < KEPT);
                    records.since.entry(image.to_owned()).or_insert(now);
                    return;
                }
            }
            // Dropping the future loses nothing: no state is changed before the removal is over.
            removed.await;
        }
    }

    /// First use of each image that was not long ago.
    #[must_use]
    pub fn since(&self) -> BTreeMap<String, Mono> {
        self.0.records.lock().since.clone()
    }

    /// A turn to remove an image with these names; `None` if a pod used one of them lately.
    #[must_use]
    pub fn remove(&self, names: Vec<String>, now: Mono) -> Option<Removing> {
        let mut records = self.0.records.lock();
        if names.iter().any(|name| records.asked.get(name).is_some_and(|at| now.since(*at) < LATELY)) {
            return None;
        }
        records.removing.extend(names.iter().cloned());
        records.since.retain(|name, _| !names.contains(name));
        drop(records);
        Some(Removing { uses: self.clone(), names })
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        let mut records = self.uses.0.records.lock();
        for name in &self.names {
            records.removing.remove(name);
        }
        drop(records);
        self.uses.0.removed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["sha256:a".to_owned(), "r.example/a:1".to_owned()]
    }

    fn at(seconds: u64) -> Mono {
        Mono(0).after(Duration::from_secs(seconds))
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_lately_is_not_removed() {
        let uses = ImageUses::default();
        uses.ask("r.example/a:1", at(0)).await;
        assert!(uses.remove(names(), at(119)).is_none());
        assert!(uses.remove(vec!["r.example/b:1".to_owned()], at(119)).is_some());
        assert!(uses.remove(names(), at(120)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_question_counts_until_it_is_removed() {
        let uses = ImageUses::default();
        for seconds in [0, 100] {
            uses.ask("r.example/a:1", at(seconds)).await;
            assert_eq!(uses.since(), BTreeMap::from([("r.example/a:1".to_owned(), at(0))]));
        }
        drop(uses.remove(names(), at(300)).unwrap());
        assert_eq!(uses.since(), BTreeMap::new());
        uses.ask("r.example/a:1", at(301)).await;
        uses.ask("r.example/b:1", at(900)).await;
        uses.ask("r.example/c:1", at(902)).await;
        assert_eq!(uses.since().into_keys().collect::<Vec<_>>(), ["r.example/b:1", "r.example/c:1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_what_is_being_removed_waits_for_the_end() {
        let uses = ImageUses::default();
        let removing = uses.remove(names(), at(0)).unwrap();
        uses.ask("r.example/b:1", at(0)).await;
        let waiting = tokio::time::timeout(Duration::from_secs(60), uses.ask("r.example/a:1", at(0)));
        assert!(waiting.await.is_err(), "still being removed");
        let (other, late) = (uses.clone(), at(5));
        tokio::join!(
            async move {
                tokio::task::yield_now().await;
                drop(removing);
            },
            async move { other.ask("r.example/a:1", late).await },
        );
        assert!(uses.remove(names(), at(6)).is_none());
    }
}
