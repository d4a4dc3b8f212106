//! Reviews of one kind on their way to the API server: each is asked once, however many requests wait for it.
//!
//! ```text
//! request ─► desk ─┬─ known ─► answer            ask: first request of its key, sends the review
//!                  ├─ busy ──► refusal           join: waits for the review that the first one sent
//!                  └─ ask, join ─► flight (shared) ─► answer, kept by the desk
//! ```
//! In: digests of questions, how to ask. Out: answers. Invariants: a flight lives as long as a request waits for it, so
//! one whose requests have all gone away takes no place; the lock is held for a look-up only, never across an await.
//! Decisions are in [`agent_kubelet_api::server_policy::ReviewDesk`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_kubelet_api::server_policy::{DeskLimits, ReviewDesk, ReviewStep};
use agent_types::lock::Lock;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use ring::digest::{SHA256, digest};

use super::Clock;

/// SHA-256 of a token or of a question.
pub(super) type Digest = [u8; 32];

/// The digest of what makes two reviews the same.
pub(super) fn digest_of(text: &str) -> Digest {
    let mut key = Digest::default();
    key.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    key
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// Too many reviews are under way or were begun.
    Busy,
    /// The API server could not be asked.
    Failed(String),
}

/// An answer of the API server: yes with a value, or no; and for how long it holds.
pub(super) type ReviewResult<V> = Result<(Option<V>, Duration), String>;

type Flight<V> = BoxFuture<'static, Result<Option<V>, Unanswered>>;

struct ReviewState<V> {
    desk: ReviewDesk<Digest, V>,
    flights: BTreeMap<Digest, WeakShared<Flight<V>>>,
}

/// Asks for reviews of one kind.
pub(super) struct Reviewer<V> {
    state: Arc<Lock<ReviewState<V>>>,
    clock: Clock,
}

impl<V: Clone + Send + Sync + 'static> Reviewer<V> {
    pub(super) fn new(limits: DeskLimits, clock: Clock) -> Reviewer<V> {
        let state = ReviewState { desk: ReviewDesk::new(limits), flights: BTreeMap::new() };
        Reviewer { state: Arc::new(Lock::new(state)), clock }
    }

    /// The answer to the question of `key`; `ask` sends it, if it has to be sent.
    pub(super) async fn answer(
        &self,
        key: Digest,
        ask: impl FnOnce() -> BoxFuture<'static, ReviewResult<V>>,
    ) -> Result<Option<V>, Unanswered> {
        let now = (self.clock)().mono;
        // Declared before the lock is taken, so dropped after it is let go of.
        let (flight, _waiting);
        {
            let mut state = self.state.lock();
            match state.desk.request(&key, now) {
                ReviewStep::Known(answer) => return Ok(answer),
                ReviewStep::Busy => return Err(Unanswered::Busy),
                ReviewStep::Ask => {
                    let begun = self.flight(key, ask());
                    // Held below for as long as this request waits.
                    state.flights.extend(begun.downgrade().map(|weak| (key, weak)));
                    flight = Some(begun);
                }
                // `None`: the request that waited for it has just given it up.
                ReviewStep::Join => flight = state.flights.get(&key).and_then(WeakShared::upgrade),
            }
            _waiting = Waiting(self.state.clone());
        }
        match flight {
            Some(flight) => flight.await,
            None => Err(Unanswered::Busy),
        }
    }

    fn flight(&self, key: Digest, asked: BoxFuture<'static, ReviewResult<V>>) -> Shared<Flight<V>> {
        let under_way =
            InFlightReview { state: self.state.clone(), clock: self.clock.clone(), key, answer: None };
        let flight = async move {
            let mut under_way = under_way;
            let (answer, ttl) = asked.await.map_err(Unanswered::Failed)?;
            under_way.answer = Some((answer.clone(), ttl));
            // Kept before anybody who waits goes on.
            drop(under_way);
            Ok(answer)
        };
        flight.boxed().shared()
    }
}

/// A request that waits for a review.
struct Waiting<V: Clone>(Arc<Lock<ReviewState<V>>>);

impl<V: Clone> Drop for Waiting<V> {
    fn drop(&mut self) {
        self.0.lock().desk.left();
    }
}

/// A review that is under way; dropped before its answer it has none.
struct InFlightReview<V: Clone> {
    state: Arc<Lock<ReviewState<V>>>,
    clock: Clock,
    key: Digest,
    answer: Option<(Option<V>, Duration)>,
}

impl<V: Clone> Drop for InFlightReview<V> {
    fn drop(&mut self) {
        let now = (self.clock)().mono;
        let mut state = self.state.lock();
        state.flights.remove(&self.key);
        state.desk.ended(self.key, self.answer.take(), now);
    }
}
