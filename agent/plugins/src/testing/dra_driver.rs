//! [`FakeDraDriver`]: a plugin of a DRA driver on real sockets, one for its registration, one for its services.
//!
//! In: calls of the agent, orders of a test. Out: answers, and the calls that came. Invariants: it gives each claim the device `d` of
//! the pool `p`, unless the claim's name says otherwise: `hangs` (no answer), `refused` (an error of 5000 bytes), `huge` (an answer
//! larger than a message may be), `many` (a small answer of many devices), `shared` (a share of the device), `busy` (its unpreparation
//! is refused), `stays` (its unpreparation fails). A connection ends when the test says so, because a server that stops leaves its
//! connections open.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, stream};
use orlop_proto::dra::v1::dra_plugin_server::{DraPlugin as V1, DraPluginServer as V1Server};
use orlop_proto::dra::v1::{
    Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use orlop_proto::dra::v1beta1;
use orlop_proto::dra::v1beta1::dra_plugin_server::{DraPlugin as V1Beta1, DraPluginServer as V1Beta1Server};
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

use crate::dra::MESSAGE_BYTES_MAX;

/// A plugin of a DRA driver; clones share it.
#[derive(Clone, Debug)]
pub struct FakeDraDriver {
    /// Its words about itself.
    pub info: PluginInfo,
    /// Results of registrations.
    pub told: watch::Sender<Vec<RegistrationStatus>>,
    /// Calls with the UIDs of their claims.
    pub calls: Arc<Mutex<Vec<String>>>,
    /// Health of the device; `None`: no report.
    pub health: watch::Sender<Option<HealthStatus>>,
    /// Connections so far.
    pub connected: Arc<Mutex<usize>>,
    connections: Arc<Mutex<Vec<StdUnixStream>>>,
}

/// A socket while it is served.
#[derive(Debug)]
pub struct Served {
    path: PathBuf,
    server: JoinHandle<()>,
}

impl Served {
    /// Closes the socket for new connections, and removes it.
    ///
    /// # Panics
    /// The socket is not there any more.
    pub fn stop(self) {
        self.server.abort();
        std::fs::remove_file(self.path).unwrap();
    }
}

impl FakeDraDriver {
    /// A plugin of `driver` that serves at `endpoint` and lists these services. It offers both versions, also those
    /// that it does not list.
    #[must_use]
    pub fn new(driver: &str, endpoint: &Path, versions: &[&str]) -> FakeDraDriver {
        let info = PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: driver.to_owned(),
            endpoint: endpoint.display().to_string(),
            supported_versions: versions.iter().map(|version| (*version).to_owned()).collect(),
        };
        FakeDraDriver {
            info,
            told: watch::Sender::new(Vec::new()),
            calls: Arc::default(),
            health: watch::Sender::new(None),
            connected: Arc::default(),
            connections: Arc::default(),
        }
    }

    /// Serves the plugin's services.
    ///
    /// # Panics
    /// The endpoint cannot be bound.
    #[must_use]
    pub fn serve(&self) -> Served {
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
            .add_service(V1Server::new(self.clone()))
            .add_service(V1Beta1Server::new(self.clone()))
            .add_service(DraResourceHealthServer::new(self.clone()))
            .serve_with_incoming(incoming);
        Served { path, server: tokio::spawn(async move { drop(server.await) }) }
    }

    /// Serves the registration at another socket.
    ///
    /// # Panics
    /// The socket cannot be bound.
    #[must_use]
    pub fn register(&self, path: &Path) -> Served {
        let incoming = stream::unfold(UnixListener::bind(path).unwrap(), |listener| async move {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let server = Server::builder()
            .add_service(RegistrationServer::new(self.clone()))
            .serve_with_incoming(incoming);
        Served { path: path.to_owned(), server: tokio::spawn(async move { drop(server.await) }) }
    }

    /// Waits for the next result of a registration: empty for success.
    ///
    /// # Panics
    /// The result has an error and no error at once.
    pub async fn next_told(&self) -> String {
        let mut told = self.told.subscribe();
        let status = told.wait_for(|told| !told.is_empty()).await.unwrap()[0].clone();
        self.told.send_modify(|told| drop(told.remove(0)));
        assert_eq!(status.plugin_registered, status.error.is_empty());
        status.error
    }

    /// Ends all connections, as a crash of the plugin does.
    ///
    /// # Panics
    /// An earlier user of the connections panicked.
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

fn device() -> Device {
    Device {
        request_names: vec!["r".to_owned()],
        pool_name: "p".to_owned(),
        device_name: "d".to_owned(),
        cdi_device_ids: vec!["example.com/gpu=d".to_owned()],
        share_id: None,
    }
}

#[tonic::async_trait]
impl Registration for FakeDraDriver {
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
impl V1 for FakeDraDriver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let request = request.into_inner();
        self.called("prepare", request.claims.iter().map(|claim| claim.uid.as_str()).collect());
        let mut claims = HashMap::new();
        for claim in request.claims {
            let (devices, error) = match claim.name.as_str() {
                "hangs" => std::future::pending().await,
                "refused" => return Err(Status::internal("x".repeat(5000))),
                "huge" => (Vec::new(), "x".repeat(MESSAGE_BYTES_MAX)),
                "many" => (vec![Device::default(); 20_000], String::new()),
                "shared" => (vec![Device { share_id: Some("s".to_owned()), ..device() }], String::new()),
                _ => (vec![device()], String::new()),
            };
            claims.insert(claim.uid, NodePrepareResourceResponse { devices, error });
        }
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let request = request.into_inner();
        self.called("unprepare", request.claims.iter().map(|claim| claim.uid.as_str()).collect());
        let mut claims = HashMap::new();
        for claim in request.claims {
            let error = unprepared(&claim.name)?;
            claims.insert(claim.uid, NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

/// It does not prepare in this version.
#[tonic::async_trait]
impl V1Beta1 for FakeDraDriver {
    async fn node_unprepare_resources(
        &self,
        request: Request<v1beta1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let error = unprepared(&claim.name)?;
            claims.insert(claim.uid, v1beta1::NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(v1beta1::NodeUnprepareResourcesResponse { claims }))
    }
}

/// The error text of an unpreparation.
fn unprepared(claim: &str) -> Result<String, Status> {
    match claim {
        "busy" => Err(Status::unknown("busy")),
        "stays" => Ok("the claim stays".to_owned()),
        _ => Ok(String::new()),
    }
}

#[tonic::async_trait]
impl DraResourceHealth for FakeDraDriver {
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
