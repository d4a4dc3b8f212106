//! Work that may hang in the kernel: file systems whose device is dead.
//!
//! Invariant: a caller waits [`ANSWER_MAX`] at most, and threads that hang are at most as many as the source has places; callers who
//! come after that get the same refusal and no thread.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::refusal::{Reason, Refusal};

/// What the kernel does not answer within this is not waited for.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A source with a bounded number of threads.
#[derive(Debug)]
pub(crate) struct BlockingSource {
    object: &'static str,
    places: Arc<Semaphore>,
}

impl BlockingSource {
    /// `object` names it in refusals.
    pub(crate) fn new(object: &'static str, places: usize) -> BlockingSource {
        BlockingSource { object, places: Arc::new(Semaphore::new(places)) }
    }

    /// Does the work on a thread of its own.
    ///
    /// # Errors
    /// It takes too long, or earlier work still hangs.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let task = async {
            let place = self.places.clone().acquire_owned().await.ok()?;
            let thread = tokio::task::spawn_blocking(move || {
                let found = work();
                drop(place);
                found
            });
            thread.await.ok()
        };
        match tokio::time::timeout(ANSWER_MAX, task).await {
            Ok(Some(found)) => Ok(found),
            Ok(None) | Err(_) => {
                let message = format!("no answer within {} s", ANSWER_MAX.as_secs());
                Err(Refusal::new(Reason::PartSilent, self.object, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_that_hangs_costs_its_place_and_later_callers_are_refused() {
        let source = BlockingSource::new("file systems", 1);
        assert_eq!(source.look(|| 7).await, Ok(7));
        let (release, hangs) = mpsc::channel::<()>();
        let hung = source.look(move || hangs.recv().is_err());
        let later = async {
            // The first one is asked first.
            tokio::task::yield_now().await;
            source.look(|| true).await
        };
        let (hung, later) = tokio::join!(hung, later);
        for refused in [hung, later] {
            let refusal = refused.unwrap_err();
            assert_eq!((refusal.reason, refusal.object.as_str()), (Reason::PartSilent, "file systems"));
        }
        drop(release);
        assert_eq!(source.look(|| 8).await, Ok(8), "the place is free again");
    }
}
