//! gRPC to device plugins (`v1beta1.DevicePlugin`).
//!
//! In: paths of sockets, questions. Out: the messages of the API. Invariants: one connection for each registration, because its end is
//! the end of the plugin; no message is larger than the limits here, because a plugin is a pod and must not take the agent's memory;
//! calls without a time limit here get one from their caller. Upstream: pkg/kubelet/cm/devicemanager/endpoint.go,
//! plugin/v1beta1/client.go.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orlop_proto::device_plugin::v1beta1::device_plugin_client::DevicePluginClient;
use orlop_proto::device_plugin::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest,
};
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::{PluginError, dial, within};

/// Largest message of a plugin, bytes: the limit of Go's gRPC, and so of upstream.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Time for `GetDevicePluginOptions`; upstream has no limit.
const OPTIONS_MAX: Duration = Duration::from_secs(10);

/// Why a plugin cannot be registered.
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
    client: DevicePluginClient<Channel>,
    path: PathBuf,
}

/// Lists of a plugin.
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
    /// The plugin does not answer, or with an error.
    pub async fn connect(path: &Path) -> Result<(DevicePlugin, DevicePluginOptions), ConnectError> {
        let channel = dial(path).await.map_err(ConnectError::Dial)?;
        let client = DevicePluginClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let mut plugin = DevicePlugin { client, path: path.to_owned() };
        let asked = plugin.client.get_device_plugin_options(Empty {});
        let options = within("GetDevicePluginOptions", path, OPTIONS_MAX, asked).await;
        options.map(|options| (plugin, options)).map_err(ConnectError::Options)
    }

    /// Begins the stream of lists.
    ///
    /// # Errors
    /// The plugin refuses.
    pub async fn lists(&mut self) -> Result<DeviceLists, Box<Status>> {
        let stream = self.client.list_and_watch(Empty {}).await.map_err(Box::new)?;
        Ok(DeviceLists(stream.into_inner()))
    }

    /// Asks which devices the plugin prefers.
    ///
    /// # Errors
    /// The call failed.
    pub async fn preferred(
        &mut self,
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
        let path = self.path.clone();
        let asked = self.client.get_preferred_allocation(request);
        let answer = within("GetPreferredAllocation", &path, limit, asked).await?;
        let first = answer.container_responses.into_iter().next();
        Ok(first.into_iter().flat_map(|of| of.device_i_ds).collect())
    }

    /// Has devices allocated for a container; `None`: the answer has no response.
    ///
    /// # Errors
    /// The call failed.
    pub async fn allocate(
        &mut self,
        ids: &BTreeSet<String>,
        limit: Duration,
    ) -> Result<Option<ContainerAllocateResponse>, PluginError> {
        let request = ContainerAllocateRequest { devices_ids: ids.iter().cloned().collect() };
        let path = self.path.clone();
        let asked = self.client.allocate(AllocateRequest { container_requests: vec![request] });
        Ok(within("Allocate", &path, limit, asked).await?.container_responses.into_iter().next())
    }

    /// Reports that a container with these devices is about to start.
    ///
    /// # Errors
    /// The call failed.
    pub async fn pre_start(&mut self, ids: &BTreeSet<String>, limit: Duration) -> Result<(), PluginError> {
        let path = self.path.clone();
        let request = PreStartContainerRequest { devices_ids: ids.iter().cloned().collect() };
        within("PreStartContainer", &path, limit, self.client.pre_start_container(request)).await.map(drop)
    }
}
