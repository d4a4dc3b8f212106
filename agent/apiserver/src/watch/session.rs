//! One watch for its whole life: list, watch, resume, list again.
//!
//! In: a client, a selection. Out: events. Invariants are those of the module above; in addition, every stream
//! ends at the latest a little after the `timeoutSeconds` that the server was given.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::api::WatchEvent;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use orlop_config::error_chain::chain;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::backoff::Failures;
use super::decode::{self, Frame, Item, Key};
use super::lines::{Line, Lines};
use super::store::Store;
use super::{Selection, Watched};
use crate::error::cut;
use crate::{ApiClient, client, error, random};

/// Longer objects are skipped: etcd takes 1.5 MiB.
const LINE_MAX: usize = 8 * 1024 * 1024;
/// A plain list in one answer.
const LIST_MAX: usize = 64 * 1024 * 1024;
/// The server ends a watch after 5 to 10 minutes, at random, so that nodes do not come back all at once.
const WATCH_S: (f64, f64) = (300.0, 300.0);
/// And is given this much longer to do so.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// A stream that cannot be opened, or a list that does not arrive, within this is lost.
const OPEN_MAX: Duration = Duration::from_secs(30);
/// Between two objects of a streamed list.
const LIST_SILENCE_MAX: Duration = Duration::from_secs(60);
/// More lines on one stream than this that are no events, and it is no watch.
const NONSENSE_MAX: u32 = 16;
/// The same words about the same object are worth a line only this often.
const SAY_EVERY: Duration = Duration::from_secs(60);
const SAID_MAX: usize = 256;
/// How far apart nodes begin that see the server come back.
const RETURN_SPREAD: Duration = Duration::from_secs(1);
/// A watch that ends sooner than this without an event is a fault, not a routine.
const SHORT: Duration = Duration::from_secs(1);

/// How an attempt ended.
enum End {
    /// The consumer is gone.
    Receiver,
    /// As agreed, or for a new connection: go on where it was.
    Resume,
    /// It did not last: go on where it was, after a while.
    Wait,
    /// The version is too old: list again.
    Expired,
    /// A fault: say so, wait, list again.
    Lost(String),
}

pub(super) struct Session<T> {
    client: ApiClient,
    selection: Selection,
    events: mpsc::Sender<WatchEvent<T>>,
    store: Store,
    /// The version up to which the consumer has events; empty before the first list.
    version: String,
    streamed_lists: bool,
    failures: Failures,
    said: BTreeMap<String, Instant>,
}

impl<T: Watched> Session<T> {
    pub(super) fn new(client: ApiClient, selection: Selection, events: mpsc::Sender<WatchEvent<T>>) -> Self {
        Session {
            client,
            selection,
            events,
            store: Store::new(),
            version: String::new(),
            streamed_lists: true,
            failures: Failures::default(),
            said: BTreeMap::new(),
        }
    }

    /// Runs until the receiver is dropped.
    pub(super) async fn run(mut self) {
        let mut lost = false;
        loop {
            let end = if self.version.is_empty() { self.list().await } else { self.watch().await };
            let why = match end {
                End::Receiver => return,
                End::Resume => {
                    lost = false;
                    continue;
                }
                End::Wait => String::new(),
                End::Expired => {
                    tracing::info!(path = self.selection.path, "watch expired: listing again");
                    self.version.clear();
                    // Not a fault the first time, but a server that says so for ever is not to be hammered.
                    String::new()
                }
                End::Lost(why) => why,
            };
            if !why.is_empty() {
                self.version.clear();
                if !lost {
                    tracing::warn!(path = self.selection.path, why, "watch lost");
                }
                lost = true;
                if self.events.send(WatchEvent::Lost(why)).await.is_err() {
                    return;
                }
            }
            let wait = self.failures.failed(Instant::now(), random::fraction());
            if !self.wait(wait).await {
                return;
            }
        }
    }

    /// Until the next attempt, or soon after another call has found the server back; false once the consumer is gone.
    async fn wait(&mut self, wait: Duration) -> bool {
        let mut returned = self.client.returned();
        tokio::select! {
            closed = timeout(wait, self.events.closed()) => return closed.is_err(),
            // The sender lives as long as the client.
            _ = returned.changed() => {}
        }
        self.failures = Failures::default();
        // A thousand nodes see the server come back at the same time.
        let spread = RETURN_SPREAD.mul_f64(random::fraction());
        timeout(spread, self.events.closed()).await.is_err()
    }

    async fn list(&mut self) -> End {
        if self.streamed_lists {
            match self.list_streamed().await {
                Err(refused) => {
                    tracing::info!(path = self.selection.path, refused, "streamed list refused: plain lists");
                    self.streamed_lists = false;
                }
                Ok(end) => return end,
            }
        }
        self.list_plain().await
    }

    /// `sendInitialEvents`: the objects come one by one on the watch itself, which then just goes on. `Err` if the
    /// server does not know it.
    async fn list_streamed(&mut self) -> Result<End, String> {
        let query = "&resourceVersionMatch=NotOlderThan&sendInitialEvents=true";
        let (generation, seconds) = (self.client.0.connection.generation(), watch_seconds());
        let response = match self.open(&self.watch_path(seconds, query)).await {
            Ok(response) => response,
            Err(why) => return Ok(End::Lost(why)),
        };
        match response.status() {
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
                let body = client::read_start(response.into_body(), 4096).await;
                return Err(cut(&String::from_utf8_lossy(&body)));
            }
            _ => {}
        }
        let mut stream = match self.accepted(response, seconds).await {
            Ok(stream) => stream,
            Err(end) => return Ok(end),
        };
        let mut items = Vec::new();
        let version = loop {
            let line = match timeout(LIST_SILENCE_MAX, stream.next()).await {
                Ok(Ok(Some(line))) => line,
                Ok(Ok(None)) => return Ok(End::Lost("the list ended before it was complete".to_owned())),
                Ok(Err(why)) => return Ok(End::Lost(why)),
                Err(_) => return Ok(End::Lost("the list does not go on".to_owned())),
            };
            match whole::<T>(line) {
                Frame::Applied(key, object) => items.push(Item::Good(key, object)),
                Frame::Undecodable(key, why) => items.push(Item::Bad(key, why)),
                Frame::Deleted(..) => {}
                Frame::Bookmark { version, listed: true } => break version,
                Frame::Bookmark { .. } => {}
                Frame::Refused(status) => return Ok(refused(&status)),
                Frame::Nonsense(why) if stream.nonsense() => return Ok(End::Lost(why)),
                Frame::Nonsense(why) => items.push(Item::Nameless(why)),
            }
            if stream.bytes > LIST_MAX {
                return Ok(End::Lost(format!("the list is longer than {LIST_MAX} bytes")));
            }
        };
        if let Err(end) = self.deliver_list(version, items).await {
            return Ok(end);
        }
        Ok(self.follow(stream, generation).await)
    }

    async fn list_plain(&mut self) -> End {
        let path = format!("{}?fieldSelector={}", self.selection.path, self.selection.field);
        let attempt = async {
            let response = self.open(&path).await?;
            let (parts, body) = response.into_parts();
            if !parts.status.is_success() {
                let body = client::read_start(body, 4096).await;
                return Err(error::refused("list".to_owned(), parts.status, &parts.headers, &body).message);
            }
            client::read(body, LIST_MAX).await
        };
        let body = match timeout(OPEN_MAX, attempt).await {
            Ok(Ok(body)) => body,
            Ok(Err(why)) => return End::Lost(why),
            Err(_) => return End::Lost("the list did not arrive in time".to_owned()),
        };
        match decode::list::<T>(&body) {
            Ok((version, items)) => match self.deliver_list(version, items).await {
                Ok(()) => End::Resume,
                Err(end) => end,
            },
            Err(why) => End::Lost(format!("the list cannot be read: {why}")),
        }
    }

    async fn deliver_list(&mut self, version: String, items: Vec<Item<T>>) -> Result<(), End> {
        let (listed, bad) = self.store.replace(items);
        for (name, why) in bad {
            self.undecodable(&name, &why);
        }
        if !version_is_plain(&version) {
            return Err(End::Lost("the list's resourceVersion is none".to_owned()));
        }
        self.version = version;
        self.events.send(WatchEvent::Listed(listed)).await.map_err(|_| End::Receiver)
    }

    async fn watch(&mut self) -> End {
        let (generation, seconds) = (self.client.0.connection.generation(), watch_seconds());
        let query = format!("&resourceVersion={}", self.version);
        let began = Instant::now();
        let response = match self.open(&self.watch_path(seconds, &query)).await {
            Ok(response) => response,
            Err(why) => return End::Lost(why),
        };
        let stream = match self.accepted(response, seconds).await {
            Ok(stream) => stream,
            Err(end) => return end,
        };
        let before = self.version.clone();
        let end = self.follow(stream, generation.clone()).await;
        let moved = generation.has_changed().unwrap_or(false);
        if matches!(end, End::Resume) && began.elapsed() < SHORT && before == self.version && !moved {
            return End::Wait;
        }
        end
    }

    /// Delivers events until the stream ends.
    async fn follow(&mut self, mut stream: Stream, mut generation: tokio::sync::watch::Receiver<u64>) -> End {
        loop {
            let line = tokio::select! {
                // Cancel-safe: pieces already read are in the stream's own buffer.
                line = stream.next() => line,
                // A new identity: the next watch, from where this one is, goes out on the new connection.
                _ = generation.changed() => return End::Resume,
                () = self.events.closed() => return End::Receiver,
            };
            let line = match line {
                Ok(Some(line)) => line,
                Ok(None) => return End::Resume,
                // A stream that breaks is taken up where it was; if that fails too, it is lost.
                Err(why) => {
                    tracing::debug!(path = self.selection.path, why, "watch broke off");
                    return End::Resume;
                }
            };
            let event = match whole::<T>(line) {
                Frame::Applied(key, object) => {
                    self.advance(&key);
                    WatchEvent::Applied(self.store.apply(&key, object))
                }
                Frame::Deleted(key, object) => {
                    self.advance(&key);
                    match self.store.delete(&key, object) {
                        Some(object) => WatchEvent::Deleted(object),
                        None => continue,
                    }
                }
                Frame::Undecodable(key, why) => {
                    self.advance(&key);
                    self.undecodable(&key.full_name(), &why);
                    continue;
                }
                Frame::Bookmark { version, .. } => {
                    if version_is_plain(&version) {
                        self.version = version;
                    }
                    continue;
                }
                Frame::Refused(status) => return refused(&status),
                Frame::Nonsense(why) if stream.nonsense() => return End::Lost(why),
                Frame::Nonsense(why) => {
                    self.undecodable("", &why);
                    continue;
                }
            };
            if self.events.send(event).await.is_err() {
                return End::Receiver;
            }
        }
    }

    fn advance(&mut self, key: &Key) {
        if let Some(version) = key.resource_version.as_ref().filter(|v| version_is_plain(v)) {
            self.version.clone_from(version);
        }
    }

    fn undecodable(&mut self, name: &str, why: &str) {
        let now = Instant::now();
        if self.said.get(name).is_some_and(|said| now.saturating_duration_since(*said) < SAY_EVERY) {
            return;
        }
        if self.said.len() >= SAID_MAX {
            self.said.clear();
        }
        self.said.insert(name.to_owned(), now);
        tracing::warn!(
            path = self.selection.path,
            name,
            why,
            "object from the API server cannot be decoded; it stands as it was"
        );
    }

    fn watch_path(&self, seconds: u64, query: &str) -> String {
        format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&fieldSelector={}{query}",
            self.selection.path, self.selection.field
        )
    }

    async fn open(&self, path: &str) -> Result<Response<Incoming>, String> {
        let request = Request::get(path).body(Vec::new()).map_err(|e| e.to_string())?;
        match timeout(OPEN_MAX, self.client.exchange(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer from the API server in time".to_owned()),
        }
    }

    async fn accepted(&self, response: Response<Incoming>, seconds: u64) -> Result<Stream, End> {
        let (parts, body) = response.into_parts();
        if parts.status == StatusCode::GONE {
            return Err(End::Expired);
        }
        if !parts.status.is_success() {
            let body = client::read_start(body, 4096).await;
            let error = error::refused("watch".to_owned(), parts.status, &parts.headers, &body);
            return Err(End::Lost(error.message));
        }
        let until = Instant::now() + Duration::from_secs(seconds) + WATCH_GRACE;
        Ok(Stream { body, lines: Lines::new(LINE_MAX), until, bytes: 0, nonsense: 0 })
    }
}

struct Stream {
    body: Incoming,
    lines: Lines,
    until: Instant,
    /// Read so far.
    bytes: usize,
    nonsense: u32,
}

impl Stream {
    /// Counts a line that is no event; true if it was one too many.
    fn nonsense(&mut self) -> bool {
        self.nonsense += 1;
        self.nonsense > NONSENSE_MAX
    }

    /// The next line; `None` at the end, the agreed one or ours.
    async fn next(&mut self) -> Result<Option<Line>, String> {
        loop {
            if let Some(line) = self.lines.next() {
                return Ok(Some(line));
            }
            match timeout_at(self.until, self.body.frame()).await {
                Err(_) | Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(chain(&error)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.bytes = self.bytes.saturating_add(data.len());
                        self.lines.push(&data);
                    }
                }
            }
        }
    }
}

fn whole<T: Watched>(line: Line) -> Frame<T> {
    match line {
        Line::Whole(line) => decode::frame(&line),
        Line::TooLong(start) => Frame::Nonsense(format!(
            "longer than {LINE_MAX} bytes, begins with {}",
            cut(&String::from_utf8_lossy(&start[..start.len().min(200)]))
        )),
    }
}

fn refused(status: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Status) -> End {
    match (status.code, status.reason.as_deref()) {
        (Some(410), _) | (_, Some("Expired" | "Gone")) => End::Expired,
        _ => End::Lost(cut(status.message.as_deref().unwrap_or("the server ended the watch"))),
    }
}

/// It goes into a query.
fn version_is_plain(version: &str) -> bool {
    !version.is_empty() && version.len() <= 64 && version.bytes().all(|b| b.is_ascii_alphanumeric())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 300 to 600
fn watch_seconds() -> u64 {
    (WATCH_S.0 + WATCH_S.1 * random::fraction()) as u64
}
