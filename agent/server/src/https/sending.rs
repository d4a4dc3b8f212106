//! Answers on their way to the client: in pieces, and watched for a client that takes none.
//!
//! ```text
//! body ─► Counted (a piece at a time) ─► hyper ─► client
//!            └─ since when a piece waits for the client ─► stalled() ─► the stream or the connection is ended
//! ```
//! In: an answer's body. Out: the same in pieces. Invariants: an answer is stalled only while a piece of it waits for the
//! client, never while there is nothing to send (a log that is followed in silence); each byte that the client takes
//! counts as progress; the connection is busy until the last piece was taken by the protocol.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::body::{Body, Broken};

/// What the protocol buffers at once of an answer, so that it asks for more only as the client takes some.
const PIECE: usize = 16 * 1024;

/// Since when a piece has been waiting for the client; `None` while none is.
pub(super) type Sending = watch::Sender<Option<Instant>>;

tokio::task_local! {
    /// Of the stream (HTTP/2) or the connection (HTTP/1) that is served by the running task.
    pub(super) static SENDING: Sending;
}

/// Returns once a piece has waited for the client for `limit`.
pub(super) async fn stalled(mut sending: watch::Receiver<Option<Instant>>, limit: Duration) {
    loop {
        let since = *sending.borrow_and_update();
        let changed = match since {
            None => sending.changed().await,
            Some(since) => match timeout_at(since + limit, sending.changed()).await {
                Ok(changed) => changed,
                Err(_) => return,
            },
        };
        if changed.is_err() {
            // Nothing is sent any more.
            return std::future::pending().await;
        }
    }
}

/// A request under way, until its answer was sent to the end.
pub(super) struct RequestGuard(Arc<watch::Sender<usize>>);

impl RequestGuard {
    pub(super) fn new(active: &Arc<watch::Sender<usize>>) -> RequestGuard {
        active.send_modify(|count| *count += 1);
        RequestGuard(active.clone())
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// An answer's body that holds its connection busy.
pub(super) struct CountedBody {
    body: Body,
    /// Of the last frame of the body.
    rest: Bytes,
    sending: Option<Sending>,
    _busy: RequestGuard,
}

impl CountedBody {
    /// The body of an answer that the running task sends.
    pub(super) fn new(body: Body, busy: RequestGuard) -> CountedBody {
        CountedBody { body, rest: Bytes::new(), sending: SENDING.try_with(Clone::clone).ok(), _busy: busy }
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if self.rest.is_empty() {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                other => return other,
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn note(&self, since: Option<Instant>) {
        if let Some(sending) = &self.sending {
            sending.send_replace(since);
        }
    }
}

impl hyper::body::Body for CountedBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let next = self.next(cx);
        // The protocol asks for the next piece once the client took enough of this one.
        self.note(matches!(next, Poll::Ready(Some(Ok(_)))).then(Instant::now));
        next
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(hint.lower().saturating_add(held));
        hint
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        self.note(None);
    }
}
