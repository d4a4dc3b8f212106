//! Answers: whole ones, and streams that are as slow as their reader.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;

/// What every answer's body is.
pub type Body = UnsyncBoxBody<Bytes, Broken>;

/// A stream ended before its end; the client sees a broken connection, not a short answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

/// A text with a status.
#[must_use]
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    whole(status, "text/plain; charset=utf-8", text.into())
}

/// A JSON document with a status.
#[must_use]
pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    whole(status, "application/json", Bytes::from(value.to_string()))
}

/// A body of a type.
#[must_use]
pub fn whole(status: StatusCode, kind: &'static str, bytes: Bytes) -> Response<Body> {
    let full = Full::new(bytes).map_err(|never: Infallible| match never {});
    let mut response = Response::new(full.boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Pieces as they arrive; the sender learns from the dropped receiver that the client is gone.
#[must_use]
pub fn streamed(pieces: mpsc::Receiver<Result<Bytes, Broken>>) -> Response<Body> {
    let mut response = Response::new(Pieces(pieces).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

struct Pieces(mpsc::Receiver<Result<Bytes, Broken>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
