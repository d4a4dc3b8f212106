//! One watch of the fake, as the lines of a body.
//!
//! In: the fake, a selection, options. Out: a body that goes on until its time is up, its connections are cut or its
//! version is forgotten. Invariant: lines come in the order of versions; a bookmark ends a streamed list.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use agent_sim::fake_api::{Resource, Selector, Status, WatchLine};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::fake_server::{Body, ServerState};
use super::route::WatchOptions;

/// Upstream's shortest default.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Bookmarks come about once a minute.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

struct Watching {
    shared: Arc<ServerState>,
    resource: Resource,
    selector: Selector,
    version: u64,
    bookmarks: bool,
    until: Instant,
    lines: VecDeque<Bytes>,
    over: bool,
    changed: watch::Receiver<u64>,
    cut: watch::Receiver<u64>,
}

fn line(value: &Value) -> Bytes {
    Bytes::from(format!("{value}\n"))
}

fn mark(resource: Resource, version: u64) -> Bytes {
    let mut body = WatchLine::Bookmark(version).body(resource);
    body["object"]["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    line(&body)
}

pub(super) fn body(
    shared: &Arc<ServerState>,
    resource: Resource,
    selector: Selector,
    options: &WatchOptions,
) -> Body {
    let mut lines: VecDeque<Bytes> = VecDeque::new();
    // Before the state is read: a change after it is not missed.
    let (changed, cut) = (shared.changed.subscribe(), shared.cut.subscribe());
    let version = {
        let api = shared.api();
        let (objects, now) = api.list(resource, &selector);
        if options.initial || options.version.is_none_or(|v| v == 0) {
            lines.extend(objects.into_iter().map(|o| line(&WatchLine::Added(o).body(resource))));
        }
        if options.initial {
            lines.push_back(mark(resource, now));
        }
        options.version.filter(|v| !options.initial && *v != 0).unwrap_or(now)
    };
    let until = Instant::now() + options.timeout_s.map_or(TIMEOUT, Duration::from_secs);
    let shared = Arc::clone(shared);
    let watching = Watching {
        shared,
        resource,
        selector,
        version,
        bookmarks: options.bookmarks,
        until,
        lines,
        over: false,
        changed,
        cut,
    };
    let frames = stream::unfold(watching, |mut w| async move {
        let line = w.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(line)), w))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames).map_err(|never| match never {}))
}

impl Watching {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.over {
                return None;
            }
            self.changed.mark_unchanged();
            let news = self.shared.api().changes_since(self.resource, &self.selector, self.version);
            match news {
                Err(gone) => {
                    self.over = true;
                    return Some(error_line(&gone));
                }
                Ok(new) if !new.is_empty() => {
                    self.version = new.last().map_or(self.version, WatchLine::version);
                    self.lines.extend(new.iter().map(|l| line(&l.body(self.resource))));
                }
                Ok(_) => self.wait().await,
            }
        }
    }

    async fn wait(&mut self) {
        let bookmark_at = (Instant::now() + BOOKMARK_EVERY).min(self.until);
        tokio::select! {
            // All cancel-safe: they only report that there is something to look at.
            _ = self.changed.changed() => {}
            _ = self.cut.changed() => self.over = true,
            _ = timeout_at(bookmark_at, std::future::pending::<()>()) => {
                self.over = Instant::now() >= self.until;
                if self.bookmarks && !self.over {
                    self.version = self.version.max(self.shared.api().version());
                    self.lines.push_back(line(&WatchLine::Bookmark(self.version).body(self.resource)));
                }
            }
        }
    }
}

fn error_line(status: &Status) -> Bytes {
    line(&json!({ "type": "ERROR", "object": status.body() }))
}
