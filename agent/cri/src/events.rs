//! The CRI event stream (`GetContainerEvents`) as hints for pleg. Upstream: pkg/kubelet/pleg/evented.go.
//!
//! ```text
//! GetContainerEvents ──► driver future ──► mpsc (64) ──► pleg
//! ```
//! In: the runtime's event stream. Out: [`RuntimeSignal`]s. An event only causes an inspection. Invariants:
//! whenever events may be lost, a `Relist` precedes the next hint; a slow reader slows the stream down and
//! loses no hints; the driver ends when the receiver is gone or the runtime has no events.

use std::pin::pin;
use std::time::Duration;

use agent_types::failure::DriverError;
use agent_types::ids::PodUid;
use agent_types::runtime::observed::{RelistReason, RuntimeHint, RuntimeSignal};
use orlop_proto::cri::v1;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Code, Streaming};

use crate::CriClient;
use crate::client::{Call, EVENTS};
use crate::connect::Failures;
use crate::convert::observed;
use crate::error::CallError;

/// Hints waiting for pleg. Small: the runtime has its own queue, and a hint repeated is a hint.
const SIGNALS_MAX: usize = 64;

/// A runtime that has not refused the stream by then has accepted it: gRPC servers in Go send nothing at all, not
/// even the headers, before the first event, which may be hours away on an idle node.
const SILENCE_IS_CONSENT: Duration = Duration::from_millis(500);

/// How a stream ended.
enum End {
    ReceiverGone,
    Unsupported,
    Broken,
}

impl CriClient {
    /// The signals, and the future that produces them: spawn it next to the reader. It ends by itself when
    /// the receiver is dropped, and can be dropped at any time.
    pub fn events(&self) -> (mpsc::Receiver<RuntimeSignal>, impl Future<Output = ()> + Send + use<>) {
        let (signals, receiver) = mpsc::channel(SIGNALS_MAX);
        (receiver, self.clone().drive_events(signals))
    }

    async fn drive_events(self, signals: mpsc::Sender<RuntimeSignal>) {
        let mut failures = Failures::default();
        loop {
            match self.one_stream(&signals, &mut failures).await {
                End::ReceiverGone => return,
                End::Unsupported => {
                    // The receiver may be gone; then no task needs the signal.
                    let _ = signals.send(RuntimeSignal::Unsupported).await;
                    return;
                }
                End::Broken => self.observed_stream(false),
            }
            failures.failed(Instant::now(), ());
            // Until the next attempt, or until the receiver is gone.
            if timeout(failures.delay(), signals.closed()).await.is_ok() {
                return;
            }
        }
    }

    fn observed_stream(&self, up: bool) {
        self.known.forget();
        if let Some(observer) = self.observer() {
            observer.event_stream(up);
        }
    }

    async fn open_stream(
        &self,
        signals: &mpsc::Sender<RuntimeSignal>,
    ) -> Result<Streaming<v1::ContainerEventResponse>, End> {
        let call = Call { operation: EVENTS, object: "all", deadline: None };
        let request = v1::GetEventsRequest {};
        let answer = self.runtime(call, request, |mut c, r| async move { c.get_container_events(r).await });
        let mut answer = pin!(answer);
        let (mut assumed, consent) = (false, Instant::now() + SILENCE_IS_CONSENT);
        let say =
            async |reason| signals.send(RuntimeSignal::Relist(reason)).await.map_err(|_| End::ReceiverGone);
        let answer = loop {
            tokio::select! {
                // Kept across rounds; when it is dropped, the call is reset on the wire with nothing read from it.
                answer = &mut answer => break answer,
                () = sleep_until(consent), if !assumed => {
                    assumed = true;
                    self.observed_stream(true);
                    say(RelistReason::Established).await?;
                }
                () = signals.closed() => return Err(End::ReceiverGone),
            }
        };
        match answer {
            Ok(stream) => {
                if !assumed {
                    self.observed_stream(true);
                }
                Ok(stream)
            }
            Err(error) if error.code == Code::Unimplemented => Err(End::Unsupported),
            Err(_) => {
                if assumed {
                    say(RelistReason::Lost).await?;
                }
                Err(End::Broken)
            }
        }
    }

    async fn one_stream(&self, signals: &mpsc::Sender<RuntimeSignal>, failures: &mut Failures<()>) -> End {
        let mut stream = match self.open_stream(signals).await {
            Ok(stream) => stream,
            Err(end) => return end,
        };
        // Said again if it was assumed: what happened before the runtime really listened is unknown.
        if signals.send(RuntimeSignal::Relist(RelistReason::Established)).await.is_err() {
            return End::ReceiverGone;
        }
        loop {
            let event = tokio::select! {
                // `message` keeps a partly read message in the stream when it is dropped.
                event = stream.message() => event,
                () = signals.closed() => return End::ReceiverGone,
            };
            let signal = match event {
                Ok(Some(event)) => {
                    failures.succeeded();
                    if let Some(observer) = self.observer() {
                        observer.event(event.created_at);
                    }
                    signal(&event)
                }
                Ok(None) => RuntimeSignal::Relist(RelistReason::Lost),
                Err(status) if status.code() == Code::Unimplemented => return End::Unsupported,
                Err(status) => {
                    let error: DriverError = CallError::status(EVENTS, "all", &status).into();
                    self.log_failure(&error);
                    RuntimeSignal::Relist(RelistReason::Lost)
                }
            };
            let lost = signal == RuntimeSignal::Relist(RelistReason::Lost);
            if signals.send(signal).await.is_err() {
                return End::ReceiverGone;
            }
            if lost {
                return End::Broken;
            }
        }
    }
}

/// The pod of an event: from its sandbox, or from the labels of one of its containers.
fn signal(event: &v1::ContainerEventResponse) -> RuntimeSignal {
    let from_metadata = event
        .pod_sandbox_status
        .as_ref()
        .and_then(|s| s.metadata.as_ref())
        .map(|m| m.uid.as_str())
        .filter(|uid| !uid.is_empty())
        .map(PodUid::from);
    let from_labels =
        || event.containers_statuses.iter().find_map(|c| observed::pod_key(&c.labels)).map(|k| k.uid);
    match from_metadata.or_else(from_labels) {
        Some(uid) => RuntimeSignal::Hint(RuntimeHint { uid }),
        None => RuntimeSignal::Relist(RelistReason::Unnamed),
    }
}
