//! gRPC to a plugin of a DRA driver (`DRAPlugin`, `DRAResourceHealth`).
//!
//! ```text
//! DraKeeper: connect ─► connected until the stream ends ─► connect again, after 1 s doubling to 8 s
//!               └──────── state ────────► DraPlugin: calls, health, connectivity
//! ```
//! In: the path of a socket, claims. Out: the messages of v1, also for a plugin with v1beta1; the state of the connection. Invariants:
//! one connection for all services; a plugin counts as connected from its first bytes on, because the kernel accepts a connection for a
//! process that hangs; a call to a plugin that is not connected fails at once, unless an attempt to connect runs; no call takes longer
//! than [`CALL_MAX`]; no message is larger than [`MESSAGE_BYTES_MAX`] or takes more memory than module shapes allows, because a plugin
//! is a pod and must not fill the agent's memory. The plugin chooses the socket's path, which may lead to any process: the agent calls
//! no other methods than these on it. Upstream: pkg/kubelet/cm/dra/plugin.

mod connection;

use std::collections::HashMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orlop_proto::dra::v1::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use orlop_proto::dra::v1beta1;
use orlop_proto::dra_health::v1alpha1::{
    DeviceHealth, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status, Streaming};

pub use connection::DraKeeper;
use connection::{ConnectionState, Link};

use crate::PluginError;
use crate::bounded::{Bounded, streaming, unary};

/// Time limit of a call.
pub const CALL_MAX: Duration = Duration::from_secs(45);
/// Largest message of a plugin, bytes; Go's gRPC, which upstream uses, accepts four times as much. A device of a claim takes some
/// hundred bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Longest error text of a plugin in events and logs, bytes.
const WORDS_BYTES_MAX: usize = 2048;

/// Version of `DRAPlugin` that a plugin serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraVersion {
    /// `v1.DRAPlugin`.
    V1,
    /// `v1beta1.DRAPlugin`.
    V1Beta1,
}

/// A method of `DRAPlugin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraMethod {
    /// `NodePrepareResources`.
    Prepare,
    /// `NodeUnprepareResources`.
    Unprepare,
}

impl DraMethod {
    /// The method's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DraMethod::Prepare => "NodePrepareResources",
            DraMethod::Unprepare => "NodeUnprepareResources",
        }
    }

    /// The path of the method in HTTP, with a leading slash.
    #[must_use]
    pub fn path(self, version: DraVersion) -> &'static str {
        match (version, self) {
            (DraVersion::V1, DraMethod::Prepare) => {
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
            }
            (DraVersion::V1, DraMethod::Unprepare) => {
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
            }
            (DraVersion::V1Beta1, DraMethod::Prepare) => {
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources"
            }
            (DraVersion::V1Beta1, DraMethod::Unprepare) => {
                "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"
            }
        }
    }
}

/// A plugin of a DRA driver; clones share its connection.
#[derive(Clone, Debug)]
pub struct DraPlugin {
    endpoint: PathBuf,
    version: DraVersion,
    state: watch::Receiver<ConnectionState>,
}

/// The stream of a plugin's health reports.
#[derive(Debug)]
pub struct HealthReports {
    stream: Streaming<NodeWatchResourcesResponse>,
    link: Link,
    endpoint: PathBuf,
}

/// The state of a plugin's connection.
#[derive(Debug)]
pub struct Connectivity {
    state: watch::Receiver<ConnectionState>,
    last: bool,
}

impl Connectivity {
    /// Waits for a change, and returns the new state (true: connected); `None` after the end of the keeper. At first a plugin is not
    /// connected.
    pub async fn next(&mut self) -> Option<bool> {
        let last = self.last;
        self.state.wait_for(|state| state.is_connected() != last).await.ok()?;
        self.last = !last;
        Some(self.last)
    }
}

impl HealthReports {
    /// The next report; `None` after the end of the stream.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn next(&mut self) -> Result<Option<Vec<DeviceHealth>>, PluginError> {
        match self.stream.message().await {
            Ok(report) => Ok(report.map(|report| report.devices)),
            Err(status) => {
                Err(refused("NodeWatchResources", &self.endpoint, translate(status, self.link.has_ended())))
            }
        }
    }
}

impl DraPlugin {
    /// A plugin with its socket, and the keeper of its connection. There is no connection while the keeper does not run.
    #[must_use]
    pub fn new(endpoint: PathBuf, version: DraVersion) -> (DraPlugin, DraKeeper) {
        let (to, state) = watch::channel(ConnectionState::Connecting);
        let keeper = DraKeeper::new(endpoint.clone(), to);
        (DraPlugin { endpoint, version, state }, keeper)
    }

    /// The version of the methods that are called.
    #[must_use]
    pub fn version(&self) -> DraVersion {
        self.version
    }

    /// Follows the state of the connection.
    #[must_use]
    pub fn connectivity(&self) -> Connectivity {
        Connectivity { state: self.state.clone(), last: false }
    }

    /// Waits until the plugin is connected; false after the end of the keeper.
    pub async fn connected(&self) -> bool {
        self.state.clone().wait_for(ConnectionState::is_connected).await.is_ok()
    }

    /// Calls `NodePrepareResources`. The results are by claim UID.
    ///
    /// # Errors
    /// The call failed. [`PluginError::words`] is the text of Go's gRPC.
    pub async fn prepare(
        &self,
        claims: Vec<Claim>,
    ) -> Result<HashMap<String, NodePrepareResourceResponse>, PluginError> {
        match self.version {
            DraVersion::V1 => {
                let request = NodePrepareResourcesRequest { claims };
                let answer: NodePrepareResourcesResponse = self.call(DraMethod::Prepare, request).await?;
                Ok(answer.claims)
            }
            DraVersion::V1Beta1 => {
                let claims = claims.into_iter().map(older_claim).collect();
                let request = v1beta1::NodePrepareResourcesRequest { claims };
                let answer: v1beta1::NodePrepareResourcesResponse =
                    self.call(DraMethod::Prepare, request).await?;
                Ok(answer.claims.into_iter().map(|(uid, result)| (uid, newer_result(result))).collect())
            }
        }
    }

    /// Calls `NodeUnprepareResources`. The results are error texts by claim UID, empty for success.
    ///
    /// # Errors
    /// The call failed.
    pub async fn unprepare(&self, claims: Vec<Claim>) -> Result<HashMap<String, String>, PluginError> {
        match self.version {
            DraVersion::V1 => {
                let request = NodeUnprepareResourcesRequest { claims };
                let answer: NodeUnprepareResourcesResponse = self.call(DraMethod::Unprepare, request).await?;
                Ok(answer.claims.into_iter().map(|(uid, result)| (uid, result.error)).collect())
            }
            DraVersion::V1Beta1 => {
                let claims = claims.into_iter().map(older_claim).collect();
                let request = v1beta1::NodeUnprepareResourcesRequest { claims };
                let answer: v1beta1::NodeUnprepareResourcesResponse =
                    self.call(DraMethod::Unprepare, request).await?;
                Ok(answer.claims.into_iter().map(|(uid, result)| (uid, result.error)).collect())
            }
        }
    }

    /// Starts the stream of health reports. A server may send its headers with the first report, so there is no time limit.
    ///
    /// # Errors
    /// The plugin is not connected, or refuses.
    pub async fn health(&self) -> Result<HealthReports, PluginError> {
        const CALL: &str = "NodeWatchResources";
        const PATH: &str = "/v1alpha1.DRAResourceHealth/NodeWatchResources";
        let link = self.link().await.map_err(|status| refused(CALL, &self.endpoint, status))?;
        let request = tonic::Request::new(NodeWatchResourcesRequest {});
        match streaming(link.channel.clone(), PATH, request).await {
            Ok(stream) => Ok(HealthReports { stream, link, endpoint: self.endpoint.clone() }),
            Err(status) => Err(refused(CALL, &self.endpoint, translate(status, link.has_ended()))),
        }
    }

    /// The connection; waits while an attempt to connect runs.
    async fn link(&self) -> Result<Link, Status> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, ConnectionState::Connecting)).await;
        match settled.as_deref() {
            Ok(ConnectionState::Connected(link)) => Ok(link.clone()),
            Ok(ConnectionState::Down(why)) => Err(Status::unavailable(why.clone())),
            Ok(ConnectionState::Connecting) | Err(_) => Err(Status::cancelled(connection::CLOSING)),
        }
    }

    async fn call<Q, A>(&self, method: DraMethod, request: Q) -> Result<A, PluginError>
    where
        Q: Message + 'static,
        A: Bounded,
    {
        let call = method.name();
        let asked = async {
            let link = self.link().await?;
            let asked = unary(link.channel.clone(), method.path(self.version), within(request)).await;
            asked.map_err(|status| translate(status, link.has_ended()))
        };
        match timeout_at(Instant::now() + CALL_MAX, asked).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(refused(call, &self.endpoint, status)),
            Err(_) => Err(PluginError::Late { call, path: self.endpoint.clone(), limit: CALL_MAX }),
        }
    }
}

/// The request with its time limit, which the plugin sees.
fn within<T>(request: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(request);
    request.set_timeout(CALL_MAX);
    request
}

fn refused(call: &'static str, endpoint: &Path, status: Status) -> PluginError {
    PluginError::Refused { call, path: endpoint.to_owned(), status: Box::new(status) }
}

/// The status with the code and text of Go's gRPC. A status with a source does not come from the server: the connection broke, or this
/// client gave up.
fn translate(status: Status, has_ended: bool) -> Status {
    let is_own = status.source().is_some();
    match status.code() {
        Code::Cancelled if is_own && status.message().contains("Timeout expired") => {
            Status::deadline_exceeded("context deadline exceeded")
        }
        Code::Unknown | Code::Unavailable if is_own => Status::unavailable("error reading from server: EOF"),
        _ if is_own && has_ended => Status::unavailable("error reading from server: EOF"),
        Code::OutOfRange if status.message().contains("message length too large") => {
            Status::resource_exhausted(format!(
                "grpc: received message larger than max ({MESSAGE_BYTES_MAX})"
            ))
        }
        code => Status::new(code, cut(status.message())),
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(WORDS_BYTES_MAX)]
}

fn older_claim(claim: Claim) -> v1beta1::Claim {
    let Claim { namespace, uid, name } = claim;
    v1beta1::Claim { namespace, uid, name }
}

fn newer_result(result: v1beta1::NodePrepareResourceResponse) -> NodePrepareResourceResponse {
    let newer = |device: v1beta1::Device| {
        let v1beta1::Device { request_names, pool_name, device_name, cdi_device_ids } = device;
        Device { request_names, pool_name, device_name, cdi_device_ids, share_id: None }
    };
    NodePrepareResourceResponse {
        devices: result.devices.into_iter().map(newer).collect(),
        error: result.error,
    }
}

#[cfg(test)]
mod tests;
