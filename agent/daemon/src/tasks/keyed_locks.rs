//! Locks by name, for long work. A caller holds one lock at most, and waits for no other lock meanwhile.
//!
//! In: a key. Out: a guard. Invariant: a lock without holder and without waiters takes no memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::lock::Lock;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Locks by key.
#[derive(Debug)]
pub(crate) struct KeyedLocks<K>(Lock<BTreeMap<K, Arc<AsyncMutex<()>>>>);

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        KeyedLocks(Lock::default())
    }
}

impl<K: Ord + Clone> KeyedLocks<K> {
    /// Alone with `key`, until the answer is dropped.
    pub(crate) async fn alone(&self, key: &K) -> OwnedMutexGuard<()> {
        self.lock_of(key).lock_owned().await
    }

    /// Alone with `key`, unless it is held.
    pub(crate) fn try_alone(&self, key: &K) -> Option<OwnedMutexGuard<()>> {
        self.lock_of(key).try_lock_owned().ok()
    }

    fn lock_of(&self, key: &K) -> Arc<AsyncMutex<()>> {
        // Every change of it is whole.
        let mut locks = self.0.lock();
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(key.clone()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_waits_for_another_of_the_same_key_only() {
        let locks = KeyedLocks::<u32>::default();
        let one = locks.alone(&1).await;
        assert!(locks.alone(&2).now_or_never().is_some());
        let mut again = Box::pin(locks.alone(&1));
        assert!((&mut again).now_or_never().is_none());
        assert!(locks.try_alone(&1).is_none() && locks.try_alone(&3).is_some());
        drop(one);
        assert!((&mut again).now_or_never().is_some());
        drop(again);
        let _two = locks.alone(&2).await;
        assert_eq!(locks.0.lock().len(), 1, "nothing is left of the first");
    }
}
