//! gRPC to device plugins (`v1beta1.DevicePlugin`).
//!
//! In: paths of sockets, questions. Out: the messages of the API. Invariants: one connection for each registration, because the end of the
//! connection is the end of the plugin; a limit on the size of messages, and on the memory that they take (module shapes), because a
//! plugin is a pod and must not fill the agent's memory; the caller sets the time limit of calls that have none here. Upstream:
//! pkg/kubelet/cm/devicemanager/endpoint.go, plugin/v1beta1/client.go.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orlop_proto::device_plugin::v1beta1::device_plugin_client::DevicePluginClient;
use orlop_proto::device_plugin::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest, PreferredAllocationResponse,
};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use crate::bounded::{streaming, unary};
use crate::{PluginError, dial, within};

/// Largest message of a plugin, bytes: the limit of Go's gRPC, which upstream uses.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Paths of the methods whose answers have lists.
const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
const PREFERRED: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
/// Time limit for `GetDevicePluginOptions`; upstream has none.
const OPTIONS_MAX: Duration = Duration::from_secs(10);

/// Reason for which a plugin cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No plugin listens on the socket.
    #[error(transparent)]
    Dial(PluginError),
    /// `GetDevicePluginOptions` failed.
    #[error(transparent)]
    Options(PluginError),
}

/// The connection to a device plugin; clones share it.
#[derive(Clone, Debug)]
pub struct DevicePlugin {
    channel: Channel,
    path: PathBuf,
}

/// The stream of a plugin's lists.
#[derive(Debug)]
pub struct DeviceLists(Streaming<ListAndWatchResponse>);

impl DeviceLists {
    /// The next list; `None` after the end of the stream.
    ///
    /// # Errors
    /// The stream broke.
    pub async fn next(&mut self) -> Result<Option<Vec<Device>>, Box<Status>> {
        Ok(self.0.message().await.map_err(Box::new)?.map(|list| list.devices))
    }
}

impl DevicePlugin {
    /// Connects to a plugin and asks for its options.
    ///
    /// # Errors
    /// The plugin does not answer, or answers with an error.
    pub async fn connect(path: &Path) -> Result<(DevicePlugin, DevicePluginOptions), ConnectError> {
        let channel = dial(path).await.map_err(ConnectError::Dial)?;
        let plugin = DevicePlugin { channel, path: path.to_owned() };
        let mut client = plugin.client();
        let asked = client.get_device_plugin_options(Empty {});
        let options = within("GetDevicePluginOptions", path, OPTIONS_MAX, asked).await;
        options.map(|options| (plugin, options)).map_err(ConnectError::Options)
    }

    /// The client for methods whose answers have no list.
    fn client(&self) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Starts the stream of lists.
    ///
    /// # Errors
    /// The plugin refuses.
    pub async fn lists(&self) -> Result<DeviceLists, Box<Status>> {
        let stream = streaming(self.channel.clone(), LIST_AND_WATCH, Request::new(Empty {}));
        stream.await.map(DeviceLists).map_err(Box::new)
    }

    /// Asks which devices the plugin prefers.
    ///
    /// # Errors
    /// The call failed.
    pub async fn preferred(
        &self,
        available: &BTreeSet<String>,
        must_include: &BTreeSet<String>,
        size: usize,
        limit: Duration,
    ) -> Result<BTreeSet<String>, PluginError> {
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: available.iter().cloned().collect(),
            must_include_device_i_ds: must_include.iter().cloned().collect(),
            allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let asked = unary(self.channel.clone(), PREFERRED, Request::new(request));
        let answer: PreferredAllocationResponse =
            within("GetPreferredAllocation", &self.path, limit, asked).await?;
        let first = answer.container_responses.into_iter().next();
        Ok(first.into_iter().flat_map(|of| of.device_i_ds).collect())
    }

    /// Calls `Allocate` for a container; `None`: the answer has no response.
    ///
    /// # Errors
    /// The call failed.
    pub async fn allocate(
        &self,
        ids: &BTreeSet<String>,
        limit: Duration,
    ) -> Result<Option<ContainerAllocateResponse>, PluginError> {
        let request = ContainerAllocateRequest { devices_ids: ids.iter().cloned().collect() };
        let request = Request::new(AllocateRequest { container_requests: vec![request] });
        let asked = unary(self.channel.clone(), ALLOCATE, request);
        let answer: AllocateResponse = within("Allocate", &self.path, limit, asked).await?;
        Ok(answer.container_responses.into_iter().next())
    }

    /// Reports that a container with these devices is about to start.
    ///
    /// # Errors
    /// The call failed.
    pub async fn pre_start(&self, ids: &BTreeSet<String>, limit: Duration) -> Result<(), PluginError> {
        let request = PreStartContainerRequest { devices_ids: ids.iter().cloned().collect() };
        let mut client = self.client();
        let asked = client.pre_start_container(request);
        within("PreStartContainer", &self.path, limit, asked).await.map(drop)
    }
}
