//! Returns memory to the kernel after a burst of work.
//!
//! In: changes of pods' statuses, which accompany every burst. Out: calls of `give_back`, at most one for a burst.
//! Invariant: an idle node is not woken.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// A burst ends after this time without a change.
pub const QUIET: Duration = Duration::from_secs(10);

/// A burst that does not end is interrupted that often.
pub const BURST_MAX: Duration = Duration::from_secs(300);

/// Calls `give_back` after each burst of changes, until the sender of changes is gone.
pub async fn after_bursts<T>(mut changes: watch::Receiver<T>, give_back: impl Fn()) {
    while changes.changed().await.is_ok() {
        let _ = timeout(BURST_MAX, quiet(&mut changes)).await;
        give_back();
    }
}

async fn quiet<T>(changes: &mut watch::Receiver<T>) {
    while let Ok(Ok(())) = timeout(QUIET, changes.changed()).await {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::advance;
    use tokio_util::sync::CancellationToken;

    use crate::tasks::actor::Tasks;
    use crate::testing::VirtualClock;

    struct Watched {
        sender: watch::Sender<u32>,
        calls: Arc<AtomicUsize>,
    }

    impl Watched {
        fn start() -> Watched {
            let (sender, changes) = watch::channel(0);
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = calls.clone();
            let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
            tasks.start(after_bursts(changes, move || {
                counted.fetch_add(1, Ordering::Relaxed);
            }));
            Watched { sender, calls }
        }

        /// A change, and then no change for `then`.
        async fn change(&self, then: Duration) {
            self.sender.send_modify(|n| *n += 1);
            tokio::task::yield_now().await;
            self.pass(then).await;
        }

        async fn pass(&self, time: Duration) {
            advance(time).await;
            tokio::task::yield_now().await;
        }

        fn calls(&self) -> usize {
            self.calls.load(Ordering::Relaxed)
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn one_burst_is_followed_by_one_call() {
        let watched = Watched::start();
        tokio::task::yield_now().await;
        for _ in 0..100 {
            watched.change(SECOND).await;
        }
        assert_eq!(watched.calls(), 0, "the burst goes on");
        watched.pass(QUIET).await;
        assert_eq!(watched.calls(), 1);
        watched.pass(BURST_MAX * 100).await;
        assert_eq!(watched.calls(), 1, "nothing happened since");
        watched.change(QUIET).await;
        assert_eq!(watched.calls(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_without_end_is_interrupted() {
        let watched = Watched::start();
        tokio::task::yield_now().await;
        for _ in 0..1000 {
            watched.change(SECOND).await;
        }
        assert_eq!(watched.calls(), 3);
    }
}
