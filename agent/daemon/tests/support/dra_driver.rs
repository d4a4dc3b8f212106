//! A plugin of a DRA driver on real sockets: one for its registration, one for its services.

use std::collections::HashMap;
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, stream};
use orlop_proto::dra::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use orlop_proto::dra::v1::{
    Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use orlop_proto::dra_health::v1alpha1::dra_resource_health_server::{
    DraResourceHealth, DraResourceHealthServer,
};
use orlop_proto::dra_health::v1alpha1::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};
use orlop_proto::plugin_registration::registration_server::{Registration, RegistrationServer};
use orlop_proto::plugin_registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// A plugin that gives each claim the device `d` of the pool `p`; clones share it.
#[derive(Clone)]
pub struct ScriptedDriver {
    pub info: PluginInfo,
    /// Results of registrations.
    pub told: watch::Sender<Vec<RegistrationStatus>>,
    /// Calls with the UIDs of their claims.
    pub calls: Arc<Mutex<Vec<String>>>,
    /// Health of the device; `None`: no report.
    pub health: watch::Sender<Option<HealthStatus>>,
    connections: Arc<Mutex<Vec<std::os::unix::net::UnixStream>>>,
    /// Connections so far.
    pub connected: Arc<Mutex<usize>>,
}

/// A socket while it is served.
pub struct Serving {
    path: PathBuf,
    server: JoinHandle<()>,
}

impl Serving {
    /// Closes the socket for new connections, and removes it.
    pub fn stop(self) {
        self.server.abort();
        std::fs::remove_file(self.path).unwrap();
    }
}

impl ScriptedDriver {
    pub fn new(driver: &str, endpoint: &Path, versions: &[&str]) -> ScriptedDriver {
        let info = PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: driver.to_owned(),
            endpoint: endpoint.display().to_string(),
            supported_versions: versions.iter().map(|version| (*version).to_owned()).collect(),
        };
        ScriptedDriver {
            info,
            told: watch::Sender::new(Vec::new()),
            calls: Arc::default(),
            health: watch::Sender::new(None),
            connections: Arc::default(),
            connected: Arc::default(),
        }
    }

    /// Serves the plugin's services.
    pub fn serve(&self) -> Serving {
        let path = PathBuf::from(&self.info.endpoint);
        let (connections, connected) = (self.connections.clone(), self.connected.clone());
        let incoming = stream::unfold(UnixListener::bind(&path).unwrap(), move |listener| {
            let (connections, connected) = (connections.clone(), connected.clone());
            async move {
                let stream = listener.accept().await.unwrap().0.into_std().unwrap();
                connections.lock().unwrap().push(stream.try_clone().unwrap());
                *connected.lock().unwrap() += 1;
                Some((UnixStream::from_std(stream), listener))
            }
        });
        let server = Server::builder()
            .add_service(DraPluginServer::new(self.clone()))
            .add_service(DraResourceHealthServer::new(self.clone()))
            .serve_with_incoming(incoming);
        Serving { path, server: tokio::spawn(async move { drop(server.await) }) }
    }

    /// Serves the registration at another socket.
    pub fn register(&self, path: &Path) -> Serving {
        let incoming = stream::unfold(UnixListener::bind(path).unwrap(), |listener| async move {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let server = Server::builder()
            .add_service(RegistrationServer::new(self.clone()))
            .serve_with_incoming(incoming);
        Serving { path: path.to_owned(), server: tokio::spawn(async move { drop(server.await) }) }
    }

    /// Waits for the next result of a registration: empty for success.
    pub async fn next_told(&self) -> String {
        let mut told = self.told.subscribe();
        let status = told.wait_for(|told| !told.is_empty()).await.unwrap()[0].clone();
        self.told.send_modify(|told| drop(told.remove(0)));
        assert_eq!(status.plugin_registered, status.error.is_empty());
        status.error
    }

    /// Ends all connections, as a crash of the plugin does.
    pub fn drop_connections(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            // The agent may have closed it.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn called(&self, call: &str, mut uids: Vec<&str>) {
        uids.sort_unstable();
        self.calls.lock().unwrap().push(format!("{call} {}", uids.join(",")));
    }
}

#[tonic::async_trait]
impl Registration for ScriptedDriver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        told: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.told.send_modify(|all| all.push(told.into_inner()));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for ScriptedDriver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let request = request.into_inner();
        self.called("prepare", request.claims.iter().map(|claim| claim.uid.as_str()).collect());
        let device = Device {
            request_names: vec!["r".to_owned()],
            pool_name: "p".to_owned(),
            device_name: "d".to_owned(),
            cdi_device_ids: vec!["example.com/gpu=d".to_owned()],
            share_id: None,
        };
        let result = NodePrepareResourceResponse { devices: vec![device], error: String::new() };
        let claims: HashMap<_, _> =
            request.claims.into_iter().map(|claim| (claim.uid, result.clone())).collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let request = request.into_inner();
        self.called("unprepare", request.claims.iter().map(|claim| claim.uid.as_str()).collect());
        let result = NodeUnprepareResourceResponse::default();
        let claims: HashMap<_, _> =
            request.claims.into_iter().map(|claim| (claim.uid, result.clone())).collect();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for ScriptedDriver {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let reports = stream::unfold((self.health.subscribe(), true), |(mut health, first)| async move {
            if !first {
                health.changed().await.ok()?;
            }
            let status = *health.wait_for(Option::is_some).await.ok()?;
            health.mark_unchanged();
            let device = DeviceIdentifier { pool_name: "p".to_owned(), device_name: "d".to_owned() };
            let report = DeviceHealth {
                device: Some(device),
                health: status.unwrap_or_default().into(),
                message: "hot".to_owned(),
                ..DeviceHealth::default()
            };
            Some((Ok(NodeWatchResourcesResponse { devices: vec![report] }), (health, false)))
        });
        Ok(Response::new(Box::pin(reports)))
    }
}
