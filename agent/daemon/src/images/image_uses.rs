//! Effects that wait for the end of an image's removal, and turns of removals.
//!
//! In: effects that look at, pull or use an image; removals. Out: the images used lately; a turn for each removal. The decisions are
//! those of [`UseRecords`]. Invariants: the lock is held for one of its short steps, never across an await, and only here (see
//! docs/decisions/locks-over-decisions.md); a removal is over when its turn is dropped, also with its task.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_core::images::uses::UseRecords;
use agent_types::lock::Lock;
use agent_types::time::Mono;
use tokio::sync::Notify;

/// The uses of images on one node; clones share them.
#[derive(Clone, Debug, Default)]
pub struct ImageUses(Arc<ImageUsesInner>);

#[derive(Debug, Default)]
struct ImageUsesInner {
    records: Lock<UseRecords>,
    removed: Notify,
}

/// A removal under way; over when it is dropped.
#[derive(Debug)]
pub struct Removing {
    uses: ImageUses,
    names: Vec<String>,
}

impl ImageUses {
    /// An effect wants the image, as it spells it. Waits while it is being removed; the use counts from the end of the wait.
    pub async fn ask(&self, image: &str, clock: impl Fn() -> Mono) {
        loop {
            // Before the look: the end of a removal between look and wait is not missed.
            let removed = self.0.removed.notified();
            let now = clock();
            if self.0.records.lock().begin_use(image, now) {
                return;
            }
            // Dropping the future loses nothing: no state is changed before the removal is over.
            removed.await;
        }
    }

    /// First use of each image that was not long ago.
    #[must_use]
    pub fn since(&self) -> BTreeMap<String, Mono> {
        self.0.records.lock().first_uses().clone()
    }

    /// A turn to remove an image with these names; `None` if a pod used one of them lately.
    #[must_use]
    pub fn remove(&self, names: Vec<String>, now: Mono) -> Option<Removing> {
        let begun = self.0.records.lock().begin_removal(&names, now);
        begun.then(|| Removing { uses: self.clone(), names })
    }
}

impl Drop for Removing {
    fn drop(&mut self) {
        self.uses.0.records.lock().end_removal(&self.names);
        self.uses.0.removed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        uses.ask("r.example/a:1", || at(0)).await;
        assert!(uses.remove(names(), at(119)).is_none());
        assert!(uses.remove(vec!["r.example/b:1".to_owned()], at(119)).is_some());
        assert!(uses.remove(names(), at(120)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_question_counts_until_it_is_removed() {
        let uses = ImageUses::default();
        for seconds in [0, 100] {
            uses.ask("r.example/a:1", || at(seconds)).await;
            assert_eq!(uses.since(), BTreeMap::from([("r.example/a:1".to_owned(), at(0))]));
        }
        drop(uses.remove(names(), at(300)).unwrap());
        assert_eq!(uses.since(), BTreeMap::new());
        uses.ask("r.example/a:1", || at(301)).await;
        uses.ask("r.example/b:1", || at(900)).await;
        uses.ask("r.example/c:1", || at(902)).await;
        assert_eq!(uses.since().into_keys().collect::<Vec<_>>(), ["r.example/b:1", "r.example/c:1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_what_is_being_removed_waits_for_the_end() {
        let uses = ImageUses::default();
        let removing = uses.remove(names(), at(0)).unwrap();
        uses.ask("r.example/b:1", || at(0)).await;
        let waiting = tokio::time::timeout(Duration::from_secs(60), uses.ask("r.example/a:1", || at(0)));
        assert!(waiting.await.is_err(), "still being removed");
        let (other, late) = (uses.clone(), at(5));
        tokio::join!(
            async move {
                tokio::task::yield_now().await;
                drop(removing);
            },
            async move { other.ask("r.example/a:1", move || late).await },
        );
        assert!(uses.remove(names(), at(6)).is_none());
    }
}
