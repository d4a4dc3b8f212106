//! [`FakeCri`]: a CRI server on a unix socket in this process, with faults on demand.
//!
//! ```text
//! client ──unix socket──► service ──► fault? ──► FakeState ──► fault? ──► answer
//!                                                    └──► events ──broadcast──► GetContainerEvents
//! ```
//! In: CRI calls, [`Fault`]s queued by verb. Out: answers, events, and the [`RecordedCall`] calls. Stopping it breaks every
//! connection at once, as a killed runtime does; starting it again keeps the state, as a restarted runtime does.
//! Invariant: one fault is used up by one call.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_types::lock::Lock;
use futures_util::stream;
use orlop_proto::cri::v1;
use orlop_proto::cri::v1::image_service_server::ImageServiceServer;
use orlop_proto::cri::v1::runtime_service_server::RuntimeServiceServer;
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Request, Status};

use super::fake_service::Service;
use super::fake_state::FakeState;

/// What goes wrong with one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Answered with this instead of being applied.
    Refuse(Code, String),
    /// Applied, then never answered.
    LoseReply,
    /// Never applied, never answered.
    Hang,
    /// Applied and answered this much later.
    Delay(Duration),
}

/// One call that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// CRI verb.
    pub verb: &'static str,
    /// The deadline that came with it.
    pub deadline: Option<Duration>,
    /// False while it is being worked on, and if it was cancelled.
    pub answered: bool,
    /// The caller went away before the answer.
    pub cancelled: bool,
}

/// What the server and its handle share.
#[derive(Debug)]
pub(super) struct ServerState {
    state: Lock<FakeState>,
    faults: Lock<HashMap<&'static str, VecDeque<Fault>>>,
    seen: Lock<Vec<RecordedCall>>,
    version: Lock<String>,
    /// `Err` ends the streams that are open.
    pub(super) events: broadcast::Sender<Result<v1::ContainerEventResponse, Code>>,
    connections: Lock<Vec<StdUnixStream>>,
}

/// Events that a slow subscriber may lag behind.
const EVENTS_MAX: usize = 1024;

/// A fake runtime and its server. Dropping it stops the server and removes the socket.
#[derive(Debug)]
pub struct FakeCri {
    shared: Arc<ServerState>,
    server: JoinSet<()>,
    socket: PathBuf,
    // Held for its destructor.
    _directory: tempfile::TempDir,
}

impl FakeCri {
    /// A server with one image, `sha256:fake` tagged `localhost/fake:1`, listening.
    ///
    /// # Errors
    /// The temporary directory or the socket cannot be made.
    pub fn start() -> std::io::Result<FakeCri> {
        let mut fake = FakeCri::stopped()?;
        fake.listen()?;
        Ok(fake)
    }

    /// The same, not yet listening.
    ///
    /// # Errors
    /// The temporary directory cannot be made.
    pub fn stopped() -> std::io::Result<FakeCri> {
        let directory = tempfile::Builder::new().prefix("fake-cri-").tempdir()?;
        let mut state = FakeState::default();
        let tags = vec!["localhost/fake:1".to_owned()];
        let image =
            v1::Image { id: "sha256:fake".to_owned(), repo_tags: tags, size: 42, ..Default::default() };
        state.images.insert(image.id.clone(), image);
        let shared = ServerState {
            state: Lock::new(state),
            faults: Lock::default(),
            seen: Lock::default(),
            version: Lock::new("0.1.0".to_owned()),
            events: broadcast::channel(EVENTS_MAX).0,
            connections: Lock::default(),
        };
        let socket = directory.path().join("cri.sock");
        Ok(FakeCri { shared: Arc::new(shared), server: JoinSet::new(), socket, _directory: directory })
    }

    /// Listens, with the state it has. Needs a tokio runtime around it.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(&mut self) -> std::io::Result<()> {
        self.stop();
        let listener = UnixListener::bind(&self.socket)?;
        let shared = Arc::clone(&self.shared);
        let incoming = stream::unfold(listener, move |listener| {
            let shared = Arc::clone(&shared);
            async move {
                let accepted = listener.accept().await.and_then(|(stream, _)| {
                    let twin = stream.as_fd().try_clone_to_owned()?;
                    shared.connections.lock().push(twin.into());
                    Ok(stream)
                });
                Some((accepted, listener))
            }
        });
        let service = Service::new(Arc::clone(&self.shared));
        let serve = tonic::transport::Server::builder()
            .add_service(RuntimeServiceServer::new(service.clone()))
            .add_service(ImageServiceServer::new(service))
            .serve_with_incoming(incoming);
        self.server.spawn(async move {
            // Ends by being aborted; an error of the listener shows as clients that cannot connect.
            let _ = serve.await;
        });
        Ok(())
    }

    /// Stops listening and breaks every connection.
    pub fn stop(&mut self) {
        self.server.abort_all();
        self.break_connections();
        // Not there before the first start.
        let _ = std::fs::remove_file(&self.socket);
    }

    /// Breaks every connection that is open; new ones are accepted.
    pub fn break_connections(&self) {
        for connection in self.shared.connections.lock().drain(..) {
            // The peer may have closed it already.
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    /// `unix:///…`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The socket's path.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Queues a fault for the next call of `verb` that has none yet.
    pub fn inject(&self, verb: &'static str, fault: Fault) {
        self.shared.faults.lock().entry(verb).or_default().push_back(fault);
    }

    /// Works on the state and publishes what happened.
    pub fn with<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        self.shared.with(change)
    }

    /// Answers this CRI version from now on.
    pub fn set_version(&self, version: &str) {
        version.clone_into(&mut self.shared.version.lock());
    }

    /// Ends the event streams that are open with this code.
    pub fn end_event_streams(&self, code: Code) {
        // No subscriber, nothing to end.
        let _ = self.shared.events.send(Err(code));
    }

    /// How many event streams are open.
    #[must_use]
    pub fn event_streams(&self) -> usize {
        self.shared.events.receiver_count()
    }

    /// Publishes an event as it is.
    pub fn send_event(&self, event: v1::ContainerEventResponse) {
        let _ = self.shared.events.send(Ok(event));
    }

    /// Every call of `verb` so far.
    #[must_use]
    pub fn seen(&self, verb: &str) -> Vec<RecordedCall> {
        self.shared.seen.lock().iter().filter(|s| s.verb == verb).cloned().collect()
    }
}

impl Drop for FakeCri {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ServerState {
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        for event in state.events.drain(..) {
            // There may be no listener.
            let _ = self.events.send(Ok(event));
        }
        result
    }

    pub(super) fn version(&self) -> String {
        self.version.lock().clone()
    }

    /// Notes the call, then does it as the queued fault has it.
    pub(super) async fn serve<Q, A>(
        &self,
        verb: &'static str,
        request: Request<Q>,
        apply: impl FnOnce(&mut FakeState, Q) -> Result<A, Status>,
    ) -> Result<tonic::Response<A>, Status> {
        let deadline = request.metadata().get("grpc-timeout").and_then(|v| grpc_timeout(v.to_str().ok()?));
        let index = {
            let mut seen = self.seen.lock();
            seen.push(RecordedCall { verb, deadline, answered: false, cancelled: false });
            seen.len() - 1
        };
        // Marks the call as cancelled unless it is defused below.
        let mut watch = Watch { shared: self, index, answered: false };
        let fault = self.faults.lock().get_mut(verb).and_then(VecDeque::pop_front);
        match &fault {
            Some(Fault::Refuse(code, words)) => {
                watch.answered = true;
                return Err(Status::new(*code, words.clone()));
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Delay(time)) => sleep_until(Instant::now() + *time).await,
            Some(Fault::LoseReply) | None => {}
        }
        let answer = self.with(|state| apply(state, request.into_inner()));
        if matches!(fault, Some(Fault::LoseReply)) {
            std::future::pending().await
        }
        watch.answered = true;
        answer.map(tonic::Response::new)
    }
}

struct Watch<'a> {
    shared: &'a ServerState,
    index: usize,
    answered: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(seen) = self.shared.seen.lock().get_mut(self.index) {
            seen.answered = self.answered;
            seen.cancelled = !self.answered;
        }
    }
}

/// The value of gRPC's header: digits and a unit.
fn grpc_timeout(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number.checked_mul(3600)?)),
        "M" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}
