//! The socket: connections in, requests to the one job, reports out.
//!
//! One task owns the job and the times for which sources are left; connections ask it over a channel and read its reports in a watch.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::job::{JobEnd, UpdaterPaths, run};
use super::plan::{PlannedSource, UpdatePlan, plan};
use super::protocol::{REQUEST_BYTES_MAX, UpdateReport, UpdateRequest, UpdateState, request};
use super::slots;

/// Without a request the process ends after this time.
const IDLE: Duration = Duration::from_secs(60);
/// A source that has lied or was away is not asked again within this time.
const LEFT: Duration = Duration::from_secs(600);
/// Connections at once; further ones wait in the socket.
const CONNECTIONS_MAX: usize = 8;
/// A connection has its request within this time.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// A report that nobody reads ends its connection after this time.
const REPORT_LIMIT: Duration = Duration::from_secs(10);

/// The request that runs. The task that owns the socket drives it.
type JobFuture = Pin<Box<dyn Future<Output = JobEnd>>>;

/// A request that wants to start.
struct JobOrder {
    request: UpdateRequest,
    /// None once it runs; else the report that says why not.
    answer: oneshot::Sender<Option<UpdateReport>>,
}

/// Answers requests until there are none any more. `say` shows the last report of a request that has done something.
///
/// # Errors
/// The socket cannot be used.
pub async fn serve(
    listener: UnixListener,
    paths: UpdaterPaths,
    mut say: impl FnMut(&UpdateReport),
) -> io::Result<()> {
    let (reports, _) = watch::channel(UpdateReport::new(UpdateState::Idle, "nothing was asked for"));
    // A connection has one request.
    let (orders, mut waiting) = mpsc::channel::<JobOrder>(CONNECTIONS_MAX);
    let mut connections = JoinSet::new();
    let mut updater = Updater { paths, reports, job: None, asks_server: false, left: BTreeMap::new() };
    let mut idle_since = Instant::now();
    loop {
        let is_idle = updater.job.is_none() && connections.is_empty();
        if !is_idle {
            idle_since = Instant::now();
        }
        let idle_until = updater.idle_until(idle_since);
        tokio::select! {
            // Each branch waits for one event and loses nothing when another one comes first.
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                let (stream, _) = accepted?;
                let (paths, reports) = (updater.paths.clone(), updater.reports.subscribe());
                connections.spawn(connection(stream, paths, orders.clone(), reports));
            }
            Some(order) = waiting.recv() => {
                let refused = updater.start(order.request, Instant::now());
                // The connection may be gone; what has started goes on.
                let _ = order.answer.send(refused);
            }
            end = ended(&mut updater.job) => {
                let report = updater.finish(end, Instant::now());
                say(&report);
            }
            Some(_) = connections.join_next() => {}
            () = sleep_until(idle_until), if is_idle => return Ok(()),
        }
    }
}

/// The end of the job; never without one.
async fn ended(job: &mut Option<JobFuture>) -> JobEnd {
    let Some(running) = job else { return std::future::pending().await };
    let end = running.as_mut().await;
    *job = None;
    end
}

struct Updater {
    paths: UpdaterPaths,
    reports: watch::Sender<UpdateReport>,
    job: Option<JobFuture>,
    /// The job, or the last one, has a server as its source.
    asks_server: bool,
    /// Sources that are left: until when, and why.
    left: BTreeMap<String, (Instant, String)>,
}

impl Updater {
    /// Starts a request; a report if it does not start.
    fn start(&mut self, request: UpdateRequest, now: Instant) -> Option<UpdateReport> {
        // Who stands there with a drive does not wait for a server, which may be as slow as it likes. A request that is dropped leaves
        // what a power cut leaves.
        let yields = request == UpdateRequest::Stick && self.asks_server;
        if self.job.is_some() && !yields {
            let running = self.reports.borrow().message.clone();
            return Some(UpdateReport::new(UpdateState::Busy, format!("another request runs: {running}")));
        }
        let plan = match self.paths.settings().and_then(|settings| plan(&settings, request)) {
            Ok(plan) => plan,
            Err(report) => return Some(report),
        };
        if let Some(report) = self.is_left(&plan, now) {
            return Some(report);
        }
        self.asks_server = matches!(plan.source, PlannedSource::Https(_));
        self.reports.send_replace(UpdateReport::new(UpdateState::Looking, "begins"));
        self.job = Some(Box::pin(run(self.paths.clone(), plan, self.reports.clone())));
        None
    }

    fn is_left(&mut self, plan: &UpdatePlan, now: Instant) -> Option<UpdateReport> {
        self.left.retain(|_, (until, _)| *until > now);
        let PlannedSource::Https(base) = &plan.source else { return None };
        let (until, why) = self.left.get(base.trim_end_matches('/'))?;
        let minutes = until.duration_since(now).as_secs().div_ceil(60);
        let message = format!("{base} is left for {minutes} min more: {why}");
        Some(UpdateReport::new(UpdateState::Failed, message))
    }

    fn finish(&mut self, end: JobEnd, now: Instant) -> UpdateReport {
        let JobEnd { report, leaves } = end;
        if let Some(place) = leaves {
            self.left.insert(place, (now + LEFT, report.message.clone()));
        }
        self.reports.send_replace(report.clone());
        report
    }

    /// When the process may end: it remembers the sources that it has left.
    fn idle_until(&self, since: Instant) -> Instant {
        let left = self.left.values().map(|(until, _)| *until).max();
        (since + IDLE).max(left.unwrap_or(since))
    }
}

async fn connection(
    mut stream: UnixStream,
    paths: UpdaterPaths,
    orders: mpsc::Sender<JobOrder>,
    mut reports: watch::Receiver<UpdateReport>,
) {
    let line = match timeout(REQUEST_LIMIT, request_line(&mut stream)).await {
        Ok(Ok(line)) => line,
        // Who says nothing hears nothing.
        Ok(Err(_)) | Err(_) => return,
    };
    let asked = match request(&line) {
        Ok(UpdateRequest::Status) => {
            let report = reports.borrow().clone();
            let _ = send(&mut stream, &report).await;
            return;
        }
        // The record's lock keeps these apart from a request that writes the slot.
        Ok(UpdateRequest::Slots) => {
            let report = slots::apart(move || slots::seen(&paths)).await;
            let _ = send(&mut stream, &report).await;
            return;
        }
        Ok(UpdateRequest::Try { version }) => {
            let report = slots::apart(move || slots::order(&paths, version)).await;
            let _ = send(&mut stream, &report).await;
            return;
        }
        Ok(asked) => asked,
        Err(error) => {
            let report = UpdateReport::new(UpdateState::Failed, format!("no request: {error}"));
            let _ = send(&mut stream, &report).await;
            return;
        }
    };
    let (answer, started) = oneshot::channel();
    reports.mark_unchanged();
    if orders.send(JobOrder { request: asked, answer }).await.is_err() {
        return;
    }
    match started.await {
        Ok(None) => {}
        Ok(Some(report)) => {
            let _ = send(&mut stream, &report).await;
            return;
        }
        Err(_) => return,
    }
    // The newest report; some are passed over if the other side reads slowly.
    while reports.changed().await.is_ok() {
        let report = reports.borrow_and_update().clone();
        if !send(&mut stream, &report).await || report.is_last() {
            return;
        }
    }
}

/// Sends a report; false if nobody takes it.
async fn send(stream: &mut UnixStream, report: &UpdateReport) -> bool {
    let sent = timeout(REPORT_LIMIT, stream.write_all(&report.line())).await;
    matches!(sent, Ok(Ok(())))
}

/// The first line, without its end; at most [`REQUEST_BYTES_MAX`] bytes.
async fn request_line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut memory = [0; 512];
    loop {
        let read = stream.read(&mut memory).await?;
        line.extend_from_slice(&memory[..read]);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
        if read == 0 {
            return Ok(line);
        }
        if line.len() > REQUEST_BYTES_MAX {
            return Err(io::Error::other("a request is one short line"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::client::ask;
    use orlop_config::node::{Update, UpdatePolicy};
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Paths of a machine that was not booted from an image, and whose settings name a source that nobody serves.
    fn paths(dir: &Path) -> UpdaterPaths {
        let paths = UpdaterPaths {
            trust: dir.join("trust.json"),
            kept: dir.join("kept"),
            settings: dir.join("update.json"),
            os_release: dir.join("os-release"),
            machine_id: dir.join("machine-id"),
            synchronized: dir.join("synchronized"),
            stick: dir.join("stick"),
            authorities: dir.join("ca.pem"),
            further_authorities: None,
            registry_logins: dir.join("config.json"),
        };
        let (source, policy) = ("https://127.0.0.1:1/o".to_owned(), UpdatePolicy::Stage);
        let settings = Update { source, policy, ..Update::default() };
        fs::write(&paths.settings, serde_json::to_vec(&settings).expect("JSON")).expect("written");
        fs::write(&paths.os_release, "IMAGE_VERSION=0.1.0\n").expect("written");
        paths
    }

    /// Runs `test`, which gets the socket, beside a server; returns what the server has said.
    async fn beside_server(dir: &Path, test: impl AsyncFnOnce(PathBuf)) -> Vec<UpdateReport> {
        let socket = dir.join("update.sock");
        let listener = UnixListener::bind(&socket).expect("bound");
        let mut said = Vec::new();
        let server = serve(listener, paths(dir), |report| said.push(report.clone()));
        tokio::select! {
            ended = server => panic!("the server has ended: {ended:?}"),
            () = test(socket) => {}
        }
        said
    }

    async fn asked(socket: &Path, request: UpdateRequest) -> (UpdateReport, Vec<UpdateState>) {
        let socket = socket.to_owned();
        let asking = tokio::task::spawn_blocking(move || {
            let mut states = Vec::new();
            let last = ask(&socket, &request, |report| states.push(report.state)).expect("an answer");
            (last, states)
        });
        asking.await.expect("asked")
    }

    #[tokio::test]
    async fn a_request_is_followed_to_its_end() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let said = beside_server(dir.path(), async |socket| {
            let (idle, _) = asked(&socket, UpdateRequest::Status).await;
            assert_eq!(idle.state, UpdateState::Idle);
            // No authority, so there is no source.
            let (last, states) = asked(&socket, UpdateRequest::Check).await;
            let is_named = last.message.contains("no certificate authority");
            assert!(last.state == UpdateState::Failed && is_named, "{last:?}");
            assert_eq!(states.last(), Some(&UpdateState::Failed));
            assert_eq!(asked(&socket, UpdateRequest::Status).await.0, last);
            // A drive, and no trust document in the image.
            let (last, _) = asked(&socket, UpdateRequest::Stick).await;
            assert!(last.message.contains("updates are not configured"), "{last:?}");
            // No slots: this machine was not booted from an image. Neither is the end of a request that is said on the consoles.
            let version = "0.2.0".parse().expect("a version");
            for request in [UpdateRequest::Slots, UpdateRequest::Try { version }] {
                let (last, _) = asked(&socket, request).await;
                assert!(last.state == UpdateState::Failed && last.slots.is_none(), "{last:?}");
                assert!(last.message.contains("was not booted from an image"), "{last:?}");
            }
        })
        .await;
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said.iter().all(|report| report.state == UpdateState::Failed), "{said:?}");
    }

    #[tokio::test]
    async fn strangers_words_are_answered() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        beside_server(dir.path(), async |socket| {
            for line in ["{\"do\":\"boot\"}\n", "\n"] {
                let mut stream = UnixStream::connect(&socket).await.expect("connected");
                stream.write_all(line.as_bytes()).await.expect("sent");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.expect("an answer");
                assert!(answer.contains("no request"), "{answer}");
            }
            let mut stream = UnixStream::connect(&socket).await.expect("connected");
            // The other side may close before all of it is sent.
            let _ = stream.write_all(&vec![b'x'; 100_000]).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            assert!(answer.is_empty());
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_when_nobody_asks() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let listener = UnixListener::bind(dir.path().join("update.sock")).expect("bound");
        let begun = Instant::now();
        serve(listener, paths(dir.path()), |report| panic!("{report:?}")).await.expect("an end");
        assert_eq!(begun.elapsed().as_secs(), IDLE.as_secs());
    }

    #[test]
    fn a_source_is_left_for_ten_minutes() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let (reports, _) = watch::channel(UpdateReport::new(UpdateState::Idle, ""));
        let (paths, left) = (paths(dir.path()), BTreeMap::new());
        let mut updater = Updater { paths, reports, job: None, asks_server: false, left };
        let now = Instant::now();
        let report = UpdateReport::new(UpdateState::Failed, "block 3 does not match its hash");
        updater.finish(JobEnd { report, leaves: Some("https://127.0.0.1:1/o".to_owned()) }, now);
        let left = updater.start(UpdateRequest::Check, now).expect("not started");
        assert_eq!(
            left.message,
            "https://127.0.0.1:1/o is left for 10 min more: block 3 does not match its hash"
        );
        assert_eq!(updater.idle_until(now), now + LEFT);
        let (source, channel) = (PlannedSource::Stick, String::new());
        let plan = UpdatePlan { source, channel, version: None, is_named: false };
        assert!(updater.is_left(&plan, now).is_none(), "a drive is another source");
        assert!(updater.start(UpdateRequest::Check, now + LEFT).is_none());
        let busy = updater.start(UpdateRequest::Check, now + LEFT).expect("not started");
        assert_eq!(busy.state, UpdateState::Busy);
        assert_eq!(updater.idle_until(now), now + IDLE);
        // A drive does not wait for a server; nothing else takes its place, and it takes that of no drive.
        assert!(updater.start(UpdateRequest::Stick, now + LEFT).is_none());
        for request in [UpdateRequest::Stick, UpdateRequest::Check, UpdateRequest::Take { version: None }] {
            let busy = updater.start(request, now + LEFT).expect("not started");
            assert_eq!(busy.state, UpdateState::Busy, "{request:?}");
        }
    }
}
