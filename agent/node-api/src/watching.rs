//! `Watch`: the same request again and again, and what has changed.
//!
//! Invariants: a reader that is slow delays its own next look and nothing is kept for it; readers are few; each has a sign of life in
//! [`ALIVE`].

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use orlop_proto::node_api::v1alpha1::{GetRequest, WatchEvent};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::calls::NodeApi;
use crate::changes::{ObjectChanges, bookmark};
use crate::refusal::Refusal;

/// Readers at once: each has systemd asked.
pub(crate) const WATCHES_MAX: usize = 4;
/// Between two looks.
const EVERY: Duration = Duration::from_secs(2);
/// Longest time without an event.
const ALIVE: Duration = Duration::from_secs(30);

/// Events of a request.
pub(crate) type WatchStream = BoxStream<'static, Result<WatchEvent, Status>>;

/// A reader.
struct ObjectWatch {
    api: NodeApi,
    request: GetRequest,
    changes: ObjectChanges,
    /// Events that the reader has not taken.
    waiting: VecDeque<WatchEvent>,
    next_look: Instant,
    last_event: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

/// The objects of a request, and their changes. The first look is done already: a request that cannot be is refused at once.
pub(crate) async fn watch(
    api: NodeApi,
    request: GetRequest,
    place: OwnedSemaphorePermit,
) -> Result<WatchStream, Refusal> {
    let mut watch = ObjectWatch {
        api,
        request,
        changes: ObjectChanges::default(),
        waiting: VecDeque::new(),
        next_look: Instant::now(),
        last_event: None,
        _place: place,
    };
    watch.look().await?;
    watch.waiting.push_back(bookmark());
    // The stream ends after its first refusal.
    let events = stream::unfold(Some(watch), |watch: Option<ObjectWatch>| async move {
        let mut watch = watch?;
        match watch.next_event().await {
            Ok(event) => Some((Ok(event), Some(watch))),
            Err(refusal) => Some((Err(Status::from(refusal)), None)),
        }
    });
    Ok(events.boxed())
}

impl ObjectWatch {
    async fn next_event(&mut self) -> Result<WatchEvent, Refusal> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.last_event = Some(Instant::now());
                return Ok(event);
            }
            sleep_until(self.next_look).await;
            self.look().await?;
            let is_silent = self.last_event.is_none_or(|last| last.elapsed() >= ALIVE);
            if self.waiting.is_empty() && is_silent {
                self.waiting.push_back(bookmark());
            }
        }
    }

    async fn look(&mut self) -> Result<(), Refusal> {
        let answer = self.api.snapshot(&self.request).await?;
        self.waiting.extend(self.changes.take(answer));
        self.next_look = Instant::now() + EVERY;
        Ok(())
    }
}
