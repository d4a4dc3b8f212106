//! [`CriClient`]: the connection, the deadline around every call, and the log of failures.
//!
//! In: requests as CRI messages from the trait implementations next to this file. Out: responses, or a
//! [`CallError`] that has been logged. Invariant: no call without a deadline except where `None` is passed.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use agent_types::failure::{Class, DriverError};
use agent_types::lock::Lock;
use orlop_proto::cri::v1::image_service_client::ImageServiceClient;
use orlop_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use orlop_proto::cri::v1::{VersionRequest, VersionResponse};
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use crate::connect;
use crate::error::{CallError, CriError};
use crate::error_log::ErrorLog;
use crate::status_cache::StatusCache;

/// Largest answer that is read, bytes.
const RECEIVE_MAX: usize = 16 << 20;
/// Pace of asking a runtime that does not answer at the start; connections have their own back-off.
const ASK_AGAIN: Duration = connect::BACKOFF.first;
/// The call that lasts as long as its stream.
pub(crate) const EVENTS: &str = "GetContainerEvents";
/// What the kubelet says of itself in `Version`, and what the runtime must repeat in the field `version`.
pub(crate) const KUBELET_API_VERSION: &str = "0.1.0";

/// Gets each call and event, for metrics. Called from the tasks that make the calls: it must not wait.
pub trait CallObserver: Send + Sync + 'static {
    /// A call ended, by its CRI verb; one that was given up has failed. `GetContainerEvents` lasts as long as its
    /// stream and is no call here.
    fn called(&self, verb: &'static str, took: Duration, failed: bool);

    /// The event stream began, or broke or did not begin.
    fn event_stream(&self, up: bool);

    /// An event arrived; the runtime made it then (nanoseconds since 1970, by its clock).
    fn event(&self, created_ns: i64);
}

/// A call that is under way; dropped before its end it has failed.
struct Observed {
    by: Arc<dyn CallObserver>,
    verb: &'static str,
    began: Instant,
    failed: bool,
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.by.called(self.verb, self.began.elapsed(), self.failed);
    }
}

/// A client of one container runtime; clones share the connection.
#[derive(Clone)]
pub struct CriClient {
    runtime: RuntimeServiceClient<Channel>,
    image: ImageServiceClient<Channel>,
    request_timeout: Duration,
    endpoint: Arc<str>,
    // Held for a moment only, never across an await.
    log: Arc<Lock<ErrorLog>>,
    // The same.
    pub(crate) mounted: Arc<Lock<MountedImages>>,
    pub(crate) known: Arc<StatusCache>,
    observer: Option<Arc<dyn CallObserver>>,
}

/// Images that containers mount, by the containers' ids. What a container mounts never changes, so it is asked once.
pub(crate) type MountedImages = BTreeMap<String, Vec<String>>;

impl fmt::Debug for CriClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CriClient")
            .field("endpoint", &self.endpoint)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

/// What is being called, for deadlines, errors and logs.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// CRI verb.
    pub(crate) operation: &'static str,
    /// Pod, container or image.
    pub(crate) object: &'a str,
    /// `None` waits for ever.
    pub(crate) deadline: Option<Duration>,
}

impl CriClient {
    /// Connects to `unix:///…` and checks that the runtime speaks CRI v1. A runtime that does not answer yet is
    /// asked again for up to `request_timeout` (`runtimeRequestTimeout`, also the deadline of
    /// ordinary calls later on).
    ///
    /// # Errors
    /// [`CriError`]: endpoint not understood, no answer in time, or another CRI version.
    pub async fn connect(endpoint: &str, request_timeout: Duration) -> Result<CriClient, CriError> {
        let path = connect::socket_path(endpoint)?;
        let channel = connect::channel(&path);
        let client = CriClient {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(RECEIVE_MAX),
            image: ImageServiceClient::new(channel).max_decoding_message_size(RECEIVE_MAX),
            request_timeout,
            endpoint: Arc::from(endpoint),
            log: Arc::default(),
            mounted: Arc::default(),
            known: Arc::default(),
            observer: None,
        };
        let version = client.await_version().await?;
        check_version(endpoint, &version)?;
        tracing::info!(
            endpoint,
            runtime = version.runtime_name,
            version = version.runtime_version,
            "container runtime connected"
        );
        Ok(client)
    }

    /// The same client, whose calls from now on are reported to `observer`.
    #[must_use]
    pub fn observed(self, observer: Arc<dyn CallObserver>) -> CriClient {
        CriClient { observer: Some(observer), ..self }
    }

    /// Who hears of calls and events.
    pub(crate) fn observer(&self) -> Option<&dyn CallObserver> {
        self.observer.as_deref()
    }

    /// Deadline of ordinary calls.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// An ordinary call's description.
    pub(crate) fn ordinary<'a>(&self, operation: &'static str, object: &'a str) -> Call<'a> {
        Call { operation, object, deadline: Some(self.request_timeout) }
    }

    /// Calls RuntimeService.
    pub(crate) async fn runtime<Q, A, F>(
        &self,
        call: Call<'_>,
        request: Q,
        send: impl FnOnce(RuntimeServiceClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.run(call, send(self.runtime.clone(), prepare(call, request))).await
    }

    /// Calls ImageService.
    pub(crate) async fn image<Q, A, F>(
        &self,
        call: Call<'_>,
        request: Q,
        send: impl FnOnce(ImageServiceClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.run(call, send(self.image.clone(), prepare(call, request))).await
    }

    /// Logs a failure unless the same words were logged within a minute.
    pub(crate) fn log_failure(&self, error: &DriverError) {
        let words = error.to_string();
        let admitted = self.log.lock().admit(std::time::Instant::now(), &words);
        if let Some(left_out) = admitted {
            tracing::warn!(
                operation = error.operation,
                object = error.object,
                class = ?error.class,
                error = error.message,
                left_out,
                "CRI call failed"
            );
        }
    }

    async fn run<A>(
        &self,
        call: Call<'_>,
        answer: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, CallError> {
        let mut observed = self.observe(call);
        let outcome = match call.deadline {
            None => answer.await,
            Some(deadline) => match timeout(deadline, answer).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let error = CallError::deadline(call.operation, call.object);
                    self.log_failure(&error.driver);
                    return Err(error);
                }
            },
        };
        if let Some(observed) = &mut observed {
            observed.failed = outcome.is_err();
        }
        drop(observed);
        outcome.map(Response::into_inner).map_err(|status| {
            let error = CallError::status(call.operation, call.object, &status);
            // Expected answers: races with removal, features a runtime does not have.
            if !matches!(error.code, Code::NotFound | Code::Unimplemented) && !error.name_is_taken() {
                self.log_failure(&error.driver);
            }
            error
        })
    }

    fn observe(&self, call: Call<'_>) -> Option<Observed> {
        let by = self.observer.clone().filter(|_| call.operation != EVENTS)?;
        Some(Observed { by, verb: call.operation, began: Instant::now(), failed: true })
    }

    async fn await_version(&self) -> Result<VersionResponse, CriError> {
        let start = Instant::now();
        loop {
            let request = VersionRequest { version: KUBELET_API_VERSION.to_owned() };
            let left = self.request_timeout.saturating_sub(start.elapsed());
            let call = Call { operation: "Version", object: &self.endpoint, deadline: Some(left) };
            let failure =
                match self.runtime(call, request, |mut c, r| async move { c.version(r).await }).await {
                    Ok(version) => return Ok(version),
                    Err(error) => error.driver,
                };
            if start.elapsed() + ASK_AGAIN >= self.request_timeout || failure.class == Class::Invalid {
                return Err(CriError::NoAnswer {
                    endpoint: self.endpoint.to_string(),
                    waited_ms: start.elapsed().as_millis(),
                    last: failure.to_string(),
                });
            }
            // A runtime that starts announces neither its socket nor, behind that, its CRI.
            tokio::time::sleep_until(Instant::now() + ASK_AGAIN).await;
        }
    }
}

fn prepare<Q>(call: Call<'_>, request: Q) -> Request<Q> {
    let mut request = Request::new(request);
    if let Some(deadline) = call.deadline {
        // Gives the runtime the time at which to give up, in case we die while it works.
        request.set_timeout(deadline);
    }
    request
}

fn check_version(endpoint: &str, version: &VersionResponse) -> Result<(), CriError> {
    if version.version == KUBELET_API_VERSION {
        return Ok(());
    }
    let found = version.version.clone();
    Err(CriError::Version { endpoint: endpoint.to_owned(), found, wanted: KUBELET_API_VERSION })
}
