//! The share of users of the cluster in places that all callers of the network use: readers of logs, of changes, of operations, of the
//! configuration.
//!
//! Invariant: users of the cluster take half of the places of a kind at most, so the others are left for root, a trusted host and
//! administrators of the configuration.

use std::sync::Arc;

use futures_util::stream::{BoxStream, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::guard::CallerClass;
use crate::refusal::{Reason, Refusal};

/// Half of the places of a kind of readers.
#[derive(Debug)]
pub(crate) struct UserShare {
    what: &'static str,
    max: usize,
    places: Arc<Semaphore>,
}

impl UserShare {
    /// `what` is read, by `readers_max` at once.
    pub(crate) fn of(what: &'static str, readers_max: usize) -> UserShare {
        let max = readers_max / 2;
        UserShare { what, max, places: Arc::new(Semaphore::new(max)) }
    }

    /// The part of a reader; `None`: the reader is no user of the cluster.
    ///
    /// # Errors
    /// The share is taken.
    pub(crate) fn take(&self, class: CallerClass) -> Result<Option<OwnedSemaphorePermit>, Refusal> {
        if class != CallerClass::User {
            return Ok(None);
        }
        self.places.clone().try_acquire_owned().map(Some).map_err(|_| {
            let message = format!("{} readers of users of the cluster are there already", self.max);
            Refusal::new(Reason::TooManyStreams, self.what, message)
        })
    }
}

/// The stream, which keeps the part of its reader until it is dropped.
pub(crate) fn held<T: 'static>(
    stream: BoxStream<'static, T>,
    share: Option<OwnedSemaphorePermit>,
) -> BoxStream<'static, T> {
    let kept = stream.map(move |item| {
        let _share = &share;
        item
    });
    kept.boxed()
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[test]
    fn users_of_the_cluster_take_half_of_the_places_and_give_them_back() {
        let share = UserShare::of("logs", 4);
        let mut readers: Vec<BoxStream<'static, u8>> = Vec::new();
        for _ in 0..2 {
            readers.push(held(stream::empty().boxed(), share.take(CallerClass::User).unwrap()));
        }
        assert_eq!(share.take(CallerClass::User).unwrap_err().reason, Reason::TooManyStreams);
        for class in [CallerClass::Trusted, CallerClass::Stranger] {
            assert!(share.take(class).unwrap().is_none());
        }
        readers.pop();
        assert!(share.take(CallerClass::User).unwrap().is_some());
    }
}
