//! A device plugin on a real socket.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, stream};
use orlop_proto::device_plugin::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use orlop_proto::device_plugin::v1beta1::registration_client::RegistrationClient;
use orlop_proto::device_plugin::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    Device, DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

/// The annotation in which the plugin names the devices of a container.
pub const ANNOTATION: &str = "example.com/ids";

/// A plugin that answers as its script says; clones share it.
#[derive(Clone)]
pub struct ScriptedPlugin {
    /// Lists that it sends one after the other before it ends the stream; empty: those of `lists`.
    pub script: Vec<Vec<Device>>,
    /// Its devices.
    pub lists: watch::Sender<Vec<Device>>,
    /// Calls with their ids.
    pub calls: Arc<Mutex<Vec<String>>>,
    /// `Allocate` fails.
    pub refuses: bool,
}

impl ScriptedPlugin {
    /// A plugin with these healthy devices, on a socket until the test ends.
    pub fn serve(socket: &Path, ids: &[&str], refuses: bool) -> ScriptedPlugin {
        let lists = watch::Sender::new(ids.iter().map(|id| healthy_device(id)).collect());
        ScriptedPlugin { script: Vec::new(), lists, calls: Arc::default(), refuses }.start(socket)
    }

    /// A plugin that sends these lists as fast as it can, and ends the stream.
    pub fn serve_lists(socket: &Path, script: Vec<Vec<Device>>) -> ScriptedPlugin {
        let lists = watch::Sender::new(Vec::new());
        ScriptedPlugin { script, lists, calls: Arc::default(), refuses: false }.start(socket)
    }

    fn start(self, socket: &Path) -> ScriptedPlugin {
        let listener = UnixListener::bind(socket).unwrap();
        let incoming = stream::unfold(listener, |listener| async move {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let server = Server::builder()
            .add_service(DevicePluginServer::new(self.clone()))
            .serve_with_incoming(incoming);
        drop(tokio::spawn(server));
        self
    }

    fn called(&self, call: &str, mut ids: Vec<String>) {
        ids.sort();
        self.calls.lock().unwrap().push(format!("{call} {}", ids.join(",")));
    }
}

/// A healthy device without topology.
pub fn healthy_device(id: &str) -> Device {
    Device { id: id.to_owned(), health: "Healthy".to_owned(), topology: None }
}

/// Calls `Register` as a plugin does.
pub async fn register(kubelet: &Path, version: &str, endpoint: &str, resource: &str) -> Result<(), String> {
    let server = Endpoint::from_shared(format!("unix://{}", kubelet.display())).map_err(|e| e.to_string())?;
    let mut client = RegistrationClient::new(server.connect().await.map_err(|e| e.to_string())?);
    let request = RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    client.register(request).await.map(drop).map_err(|status| status.message().to_owned())
}

#[tonic::async_trait]
impl DevicePlugin for ScriptedPlugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        }))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        if !self.script.is_empty() {
            let lists = self.script.clone().into_iter();
            let messages = stream::iter(lists.map(|devices| Ok(ListAndWatchResponse { devices })));
            return Ok(Response::new(Box::pin(messages)));
        }
        let lists = self.lists.subscribe();
        let messages = stream::unfold((lists, true), |(mut lists, first)| async move {
            if !first {
                lists.changed().await.ok()?;
            }
            let devices = lists.borrow_and_update().clone();
            Some((Ok(ListAndWatchResponse { devices }), (lists, false)))
        });
        Ok(Response::new(Box::pin(messages)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let request = request.into_inner().container_requests.into_iter().next().unwrap();
        self.called("prefer", request.available_device_i_ds.clone());
        let mut last = request.available_device_i_ds;
        last.sort();
        let size = usize::try_from(request.allocation_size).unwrap();
        let last = last.split_off(last.len() - size);
        let response = ContainerPreferredAllocationResponse { device_i_ds: last };
        Ok(Response::new(PreferredAllocationResponse { container_responses: vec![response] }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        if self.refuses {
            return Err(Status::unknown("no such luck"));
        }
        let mut ids = request.into_inner().container_requests.into_iter().next().unwrap().devices_ids;
        self.called("allocate", ids.clone());
        ids.sort();
        let response = ContainerAllocateResponse {
            annotations: [(ANNOTATION.to_owned(), ids.join(","))].into(),
            ..ContainerAllocateResponse::default()
        };
        Ok(Response::new(AllocateResponse { container_responses: vec![response] }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.called("pre-start", request.into_inner().devices_ids);
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
