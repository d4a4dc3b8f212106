//! gRPC to plugins of the node, which serve on UNIX sockets: registration of plugins; node information of CSI drivers, and the volumes
//! that they stage, publish, expand and measure; device plugins ([`devices`]); plugins of DRA drivers ([`dra`]).
//!
//! In: paths of sockets. Out: answers as values of `agent_volumes::csi::plugin`. Invariants: every call has upstream's time limit;
//! the answers of device plugins and DRA drivers are measured before they are decoded; each function here opens its own connection, so
//! that no call reaches a plugin that was replaced; core checks the content of answers. Upstream:
//! pkg/kubelet/pluginmanager/operationexecutor, pkg/volume/csi/csi_client.go.

#![forbid(unsafe_code)]

mod bounded;
pub mod devices;
pub mod dra;
mod memory;
mod shapes;
#[cfg(feature = "testing")]
pub mod testing;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_volumes::csi::plugin::{NodeInfo, PluginInfo};
use agent_volumes::csi::request::{
    Access, Amounts, BytesAndInodes, Capabilities, Capability, Condition, Expand, Publish, Stage, Usage,
};
use hyper_util::rt::TokioIo;
use orlop_proto::csi::v1::node_client::NodeClient;
use orlop_proto::csi::v1::volume_capability::access_mode::Mode;
use orlop_proto::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use orlop_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest,
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability, node_service_capability, volume_usage,
};
use orlop_proto::plugin_registration::registration_client::RegistrationClient;
use orlop_proto::plugin_registration::{InfoRequest, RegistrationStatus};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

/// Time limit for a connection.
const DIAL_MAX: Duration = Duration::from_secs(10);
/// Time limit for `GetInfo`.
const INFO_MAX: Duration = Duration::from_secs(1);
/// Largest answer to `GetInfo`, bytes: a kind, a name, a path and some versions.
const INFO_BYTES_MAX: usize = 16 << 10;
/// Time limit for `NotifyRegistrationStatus`.
const NOTIFY_MAX: Duration = Duration::from_secs(5);
/// Time limit for a call of a CSI driver.
const CSI_MAX: Duration = Duration::from_secs(120);

/// Reason for which a call of a plugin failed.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// No process listens on the socket.
    #[error("dial failed at socket {}: {why}", path.display())]
    Dial {
        /// The socket.
        path: PathBuf,
        /// Error text of the system.
        why: String,
    },
    /// The plugin's answer is an error.
    #[error("{call} at socket {}: rpc error: code = {:?} desc = {}", path.display(), status.code(), status.message())]
    Refused {
        /// Name of the call.
        call: &'static str,
        /// The socket.
        path: PathBuf,
        /// The answer.
        status: Box<Status>,
    },
    /// There was no answer in time.
    #[error("{call} at socket {}: no answer within {} s", path.display(), limit.as_secs())]
    Late {
        /// Name of the call.
        call: &'static str,
        /// The socket.
        path: PathBuf,
        /// Time limit of the call.
        limit: Duration,
    },
}

impl PluginError {
    /// True if the plugin has ended the call and keeps nothing of it. Otherwise the plugin may still carry it out, or have done so, and
    /// the caller must undo the request (upstream: pkg/volume/csi/csi_client.go isFinalError).
    #[must_use]
    pub fn is_final(&self) -> bool {
        let PluginError::Refused { status, .. } = self else { return false };
        !matches!(
            status.code(),
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        )
    }

    /// True if the plugin cannot do this while the volume is in use, so a retry is useless (`FAILED_PRECONDITION`).
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, PluginError::Refused { status, .. } if status.code() == Code::FailedPrecondition)
    }

    /// True if the request can never succeed (upstream: pkg/volume/csi/expander.go isInfeasibleError).
    #[must_use]
    pub fn is_infeasible(&self) -> bool {
        let PluginError::Refused { status, .. } = self else { return false };
        matches!(status.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
    }

    /// The code of the failure.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            PluginError::Dial { .. } => Code::Unavailable,
            PluginError::Refused { status, .. } => status.code(),
            PluginError::Late { .. } => Code::DeadlineExceeded,
        }
    }

    /// The text for events: the plugin's own message without the socket, as upstream.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            PluginError::Dial { .. } => self.to_string(),
            PluginError::Refused { status, .. } => {
                format!("rpc error: code = {} desc = {}", code_name(status.code()), status.message())
            }
            PluginError::Late { .. } => {
                "rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned()
            }
        }
    }
}

/// The name of a code as Go's gRPC prints it.
#[must_use]
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// Calls `GetInfo` of a plugin.
///
/// # Errors
/// The plugin does not answer, or answers with an error.
pub async fn plugin_info(socket: &Path) -> Result<PluginInfo, PluginError> {
    let channel = dial(socket).await?;
    let mut client = RegistrationClient::new(channel).max_decoding_message_size(INFO_BYTES_MAX);
    let asked = client.get_info(InfoRequest {});
    let info = within("GetInfo", socket, INFO_MAX, asked).await?;
    Ok(PluginInfo {
        kind: info.r#type,
        name: info.name,
        endpoint: info.endpoint,
        versions: info.supported_versions,
    })
}

/// Calls `NotifyRegistrationStatus` of a plugin.
///
/// # Errors
/// The plugin does not answer, or answers with an error.
pub async fn notify(socket: &Path, outcome: &Result<(), String>) -> Result<(), PluginError> {
    let mut client = RegistrationClient::new(dial(socket).await?);
    let error = outcome.as_ref().err().cloned().unwrap_or_default();
    let told =
        client.notify_registration_status(RegistrationStatus { plugin_registered: outcome.is_ok(), error });
    within("NotifyRegistrationStatus", socket, NOTIFY_MAX, told).await.map(drop)
}

/// Calls NodeGetInfo of a CSI driver.
///
/// # Errors
/// The plugin does not answer, or answers with an error.
pub async fn node_info(endpoint: &Path) -> Result<NodeInfo, PluginError> {
    let mut client = NodeClient::new(dial(endpoint).await?);
    let asked = client.node_get_info(NodeGetInfoRequest {});
    let info = within("NodeGetInfo", endpoint, CSI_MAX, asked).await?;
    Ok(NodeInfo {
        node_id: info.node_id,
        volumes_max: info.max_volumes_per_node,
        topology: info.accessible_topology.map(|t| t.segments.into_iter().collect()).unwrap_or_default(),
    })
}

/// Calls NodeGetCapabilities of a CSI driver.
///
/// # Errors
/// The plugin does not answer, or answers with an error.
pub async fn capabilities(endpoint: &Path) -> Result<Capabilities, PluginError> {
    ask_capabilities(&mut NodeClient::new(dial(endpoint).await?), endpoint).await
}

async fn ask_capabilities(
    client: &mut NodeClient<Channel>,
    endpoint: &Path,
) -> Result<Capabilities, PluginError> {
    let asked = client.node_get_capabilities(NodeGetCapabilitiesRequest {});
    let all = within("NodeGetCapabilities", endpoint, CSI_MAX, asked).await?.capabilities;
    let mut found = Capabilities::default();
    for capability in all {
        let Some(node_service_capability::Type::Rpc(rpc)) = capability.r#type else { continue };
        match rpc.r#type() {
            node_service_capability::rpc::Type::StageUnstageVolume => found.stages = true,
            node_service_capability::rpc::Type::VolumeMountGroup => found.gives_groups = true,
            node_service_capability::rpc::Type::SingleNodeMultiWriter => found.tells_writers = true,
            node_service_capability::rpc::Type::ExpandVolume => found.expands = true,
            node_service_capability::rpc::Type::GetVolumeStats => found.measures = true,
            node_service_capability::rpc::Type::VolumeCondition => found.tells_condition = true,
            _ => {}
        }
    }
    Ok(found)
}

fn capability(of: &Capability) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: of.fs_type.clone(),
        mount_flags: of.flags.clone(),
        volume_mount_group: of.group.map(|group| group.to_string()).unwrap_or_default(),
    };
    let kind = if of.block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(mount) };
    let mode = match of.access {
        Access::Unknown => Mode::Unknown,
        Access::SingleNodeWriter => Mode::SingleNodeWriter,
        Access::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        Access::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
        Access::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        Access::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
    };
    VolumeCapability { access_type: Some(kind), access_mode: Some(AccessMode { mode: mode.into() }) }
}

/// Calls NodeStageVolume.
///
/// # Errors
/// The driver does not answer, or answers with an error.
pub async fn stage(endpoint: &Path, volume: &Stage) -> Result<(), PluginError> {
    let mut client = NodeClient::new(dial(endpoint).await?);
    let asked = client.node_stage_volume(NodeStageVolumeRequest {
        volume_id: volume.handle.clone(),
        publish_context: volume.attached.clone().into_iter().collect(),
        staging_target_path: volume.path.clone(),
        volume_capability: Some(capability(&volume.capability)),
        secrets: volume.secrets.clone().into_iter().collect(),
        volume_context: volume.context.clone().into_iter().collect(),
    });
    within("NodeStageVolume", endpoint, CSI_MAX, asked).await.map(drop)
}

/// Calls NodeUnstageVolume.
///
/// # Errors
/// The driver does not answer, or answers with an error.
pub async fn unstage(endpoint: &Path, handle: &str, path: &Path) -> Result<(), PluginError> {
    let mut client = NodeClient::new(dial(endpoint).await?);
    let asked = client.node_unstage_volume(NodeUnstageVolumeRequest {
        volume_id: handle.to_owned(),
        staging_target_path: path.display().to_string(),
    });
    within("NodeUnstageVolume", endpoint, CSI_MAX, asked).await.map(drop)
}

/// Calls NodeExpandVolume.
///
/// # Errors
/// The driver does not answer, or answers with an error.
pub async fn expand(endpoint: &Path, volume: &Expand) -> Result<(), PluginError> {
    let mut client = NodeClient::new(dial(endpoint).await?);
    let asked = client.node_expand_volume(NodeExpandVolumeRequest {
        volume_id: volume.handle.clone(),
        volume_path: volume.path.clone(),
        capacity_range: Some(CapacityRange { required_bytes: volume.bytes, limit_bytes: 0 }),
        staging_target_path: volume.staging.clone().unwrap_or_default(),
        volume_capability: Some(capability(&volume.capability)),
        secrets: volume.secrets.clone().into_iter().collect(),
    });
    within("NodeExpandVolume", endpoint, CSI_MAX, asked).await.map(drop)
}

/// Calls NodeGetVolumeStats for a volume that is published at `path`; `None`: the driver does not support this call.
///
/// # Errors
/// The plugin does not answer, or answers with an error.
pub async fn usage(endpoint: &Path, handle: &str, path: &Path) -> Result<Option<Usage>, PluginError> {
    let mut client = NodeClient::new(dial(endpoint).await?);
    let can = ask_capabilities(&mut client, endpoint).await?;
    if !can.measures {
        return Ok(None);
    }
    let asked = client.node_get_volume_stats(NodeGetVolumeStatsRequest {
        volume_id: handle.to_owned(),
        volume_path: path.display().to_string(),
        staging_target_path: String::new(),
    });
    let answer = within("NodeGetVolumeStats", endpoint, CSI_MAX, asked).await?;
    let condition = answer.volume_condition.unwrap_or_default();
    let condition = Condition { abnormal: condition.abnormal, message: condition.message };
    let mut found = BytesAndInodes::default();
    let any = !answer.usage.is_empty();
    // A negative amount counts as zero.
    let amount = |says: i64| u64::try_from(says).unwrap_or_default();
    for says in answer.usage {
        let amounts =
            Amounts { available: amount(says.available), total: amount(says.total), used: amount(says.used) };
        match says.unit() {
            volume_usage::Unit::Bytes => found.bytes = amounts,
            volume_usage::Unit::Inodes => found.inodes = amounts,
            volume_usage::Unit::Unknown => {}
        }
    }
    Ok(Some(Usage { amounts: any.then_some(found), condition: can.tells_condition.then_some(condition) }))
}

/// Calls NodePublishVolume.
///
/// # Errors
/// The driver does not answer, or answers with an error.
pub async fn publish(endpoint: &Path, volume: &Publish) -> Result<(), PluginError> {
    let mut client = NodeClient::new(dial(endpoint).await?);
    let asked = client.node_publish_volume(NodePublishVolumeRequest {
        volume_id: volume.handle.clone(),
        publish_context: volume.attached.clone().into_iter().collect(),
        staging_target_path: volume.staging.clone().unwrap_or_default(),
        target_path: volume.target.clone(),
        volume_capability: Some(capability(&volume.capability)),
        readonly: volume.read_only,
        secrets: volume.secrets.clone().into_iter().collect(),
        volume_context: volume.context.clone().into_iter().collect(),
    });
    within("NodePublishVolume", endpoint, CSI_MAX, asked).await.map(drop)
}

/// Calls NodeUnpublishVolume.
///
/// # Errors
/// The driver does not answer, or answers with an error.
pub async fn unpublish(endpoint: &Path, handle: &str, target: &Path) -> Result<(), PluginError> {
    let mut client = NodeClient::new(dial(endpoint).await?);
    let asked = client.node_unpublish_volume(NodeUnpublishVolumeRequest {
        volume_id: handle.to_owned(),
        target_path: target.display().to_string(),
    });
    within("NodeUnpublishVolume", endpoint, CSI_MAX, asked).await.map(drop)
}

async fn dial(path: &Path) -> Result<Channel, PluginError> {
    let failed = |why: String| PluginError::Dial { path: path.to_owned(), why };
    // The stream is opened here, so that the error has the system's text. tonic does not ask for a second stream.
    let stream = timeout(DIAL_MAX, UnixStream::connect(path)).await;
    let stream = stream.map_err(|_| failed(format!("no connection within {} s", DIAL_MAX.as_secs())))?;
    let mut stream = Some(TokioIo::new(stream.map_err(|e| failed(e.to_string()))?));
    let connector = tower::service_fn(move |_| {
        let once = stream.take().ok_or_else(|| std::io::Error::other("the plugin closed its connection"));
        std::future::ready(once)
    });
    // A UNIX socket does not need the authority, but gRPC servers refuse an unusual one.
    let endpoint = Endpoint::from_static("http://localhost");
    match timeout(DIAL_MAX, endpoint.connect_with_connector(connector)).await {
        Ok(channel) => channel.map_err(|e| failed(e.to_string())),
        Err(_) => Err(failed(format!("no gRPC within {} s", DIAL_MAX.as_secs()))),
    }
}

async fn within<T>(
    call: &'static str,
    path: &Path,
    limit: Duration,
    asked: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, PluginError> {
    match timeout(limit, asked).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => {
            Err(PluginError::Refused { call, path: path.to_owned(), status: Box::new(status) })
        }
        Err(_) => Err(PluginError::Late { call, path: path.to_owned(), limit }),
    }
}

#[cfg(test)]
mod tests;
