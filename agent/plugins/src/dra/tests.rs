//! A plugin on a real socket, which comes, goes and drops its connections.

use std::collections::HashMap;
use std::net::Shutdown;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, stream};
use orlop_proto::dra::v1::dra_plugin_server::{DraPlugin as V1, DraPluginServer as V1Server};
use orlop_proto::dra::v1::{NodePrepareResourcesResponse, NodeUnprepareResourcesResponse};
use orlop_proto::dra::v1beta1::dra_plugin_server::{DraPlugin as V1Beta1, DraPluginServer as V1Beta1Server};
use orlop_proto::dra_health::v1alpha1::dra_resource_health_server::{
    DraResourceHealth, DraResourceHealthServer,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tonic::Request;
use tonic::transport::Server;

use super::*;

type Connections = Arc<Mutex<Vec<std::os::unix::net::UnixStream>>>;

#[derive(Clone, Default)]
struct Plugin {
    connections: Connections,
}

/// The plugin while it serves.
struct Serving {
    path: PathBuf,
    connections: Connections,
    server: JoinHandle<()>,
}

impl Serving {
    fn drop_connections(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            connection.shutdown(Shutdown::Both).unwrap();
        }
    }

    fn stop(self) {
        self.server.abort();
        self.drop_connections();
        std::fs::remove_file(self.path).unwrap();
    }
}

fn serve(path: &Path) -> Serving {
    let plugin = Plugin::default();
    let listener = UnixListener::bind(path).unwrap();
    let (connections, kept) = (plugin.connections.clone(), plugin.connections.clone());
    let incoming = stream::unfold(listener, move |listener| {
        let connections = connections.clone();
        async move {
            let stream = listener.accept().await.unwrap().0.into_std().unwrap();
            connections.lock().unwrap().push(stream.try_clone().unwrap());
            Some((UnixStream::from_std(stream), listener))
        }
    });
    let server = Server::builder()
        .add_service(V1Server::new(plugin.clone()))
        .add_service(V1Beta1Server::new(plugin.clone()))
        .add_service(DraResourceHealthServer::new(plugin))
        .serve_with_incoming(incoming);
    let server = tokio::spawn(async move { server.await.unwrap() });
    Serving { path: path.to_owned(), connections: kept, server }
}

#[tonic::async_trait]
impl V1 for Plugin {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            match claim.name.as_str() {
                "hangs" => std::future::pending().await,
                "refused" => return Err(Status::new(Code::Internal, "x".repeat(5000))),
                "huge" => {
                    let result = NodePrepareResourceResponse {
                        error: "x".repeat(MESSAGE_BYTES_MAX),
                        ..NodePrepareResourceResponse::default()
                    };
                    claims.insert(claim.uid, result);
                }
                name => {
                    let device = Device {
                        device_name: name.to_owned(),
                        share_id: Some("s".to_owned()),
                        ..Device::default()
                    };
                    let result = NodePrepareResourceResponse { devices: vec![device], error: String::new() };
                    claims.insert(claim.uid, result);
                }
            }
        }
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        _: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        Err(Status::unknown("busy"))
    }
}

#[tonic::async_trait]
impl V1Beta1 for Plugin {
    async fn node_unprepare_resources(
        &self,
        request: Request<v1beta1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodeUnprepareResourcesResponse>, Status> {
        let result = |claim: v1beta1::Claim| {
            (claim.uid, v1beta1::NodeUnprepareResourceResponse { error: format!("{} stays", claim.name) })
        };
        let claims = request.into_inner().claims.into_iter().map(result).collect();
        Ok(Response::new(v1beta1::NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Plugin {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let report = NodeWatchResourcesResponse { devices: vec![DeviceHealth::default()] };
        let reports = stream::iter([Ok(report)]);
        Ok(Response::new(Box::pin(futures_util::StreamExt::chain(reports, stream::pending()))))
    }
}

fn claim(name: &str) -> Vec<Claim> {
    vec![Claim { namespace: "ns".to_owned(), uid: format!("uid-{name}"), name: name.to_owned() }]
}

fn start(path: &Path, version: DraVersion) -> (DraPlugin, JoinHandle<()>) {
    let (plugin, keeper) = DraPlugin::new(path.to_owned(), version);
    (plugin, tokio::spawn(keeper.run()))
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_called_in_its_version_and_refuses_in_gos_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dra.sock");
    let _serving = serve(&path);
    let (plugin, _keeper) = start(&path, DraVersion::V1);
    let prepared = plugin.prepare(claim("c")).await.unwrap();
    let device = &prepared["uid-c"].devices[0];
    assert_eq!((device.device_name.as_str(), device.share_id.as_deref()), ("c", Some("s")));
    let words = async |name: &str| plugin.prepare(claim(name)).await.unwrap_err().words();
    assert_eq!(words("hangs").await, "rpc error: code = DeadlineExceeded desc = context deadline exceeded");
    let refused = words("refused").await;
    assert!(refused.starts_with("rpc error: code = Internal desc = xxx") && refused.len() < 2100);
    let huge = words("huge").await;
    assert!(
        huge.starts_with("rpc error: code = ResourceExhausted desc = grpc: received message larger"),
        "{huge}"
    );
    let busy = plugin.unprepare(claim("c")).await.unwrap_err().words();
    assert_eq!(busy, "rpc error: code = Unknown desc = busy");

    let (older, _keeper) = start(&path, DraVersion::V1Beta1);
    assert_eq!(older.unprepare(claim("c")).await.unwrap()["uid-c"], "c stays");
    let missing = older.prepare(claim("c")).await.unwrap_err();
    assert_eq!(missing.code(), Code::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn the_state_of_the_connection_is_known_without_a_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dra.sock");
    let (plugin, keeper) = start(&path, DraVersion::V1);
    let down = plugin.prepare(claim("c")).await.unwrap_err().words();
    let expected = format!(
        "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix {}: connect: no \
         such file or directory\"",
        path.display()
    );
    assert_eq!(down, expected);
    let mut connectivity = plugin.connectivity();
    let serving = serve(&path);
    assert_eq!(connectivity.next().await, Some(true));
    let mut reports = plugin.health().await.unwrap();
    assert_eq!(reports.next().await.unwrap().unwrap().len(), 1);
    tokio::time::advance(Duration::from_secs(10)).await;
    serving.drop_connections();
    let broken = reports.next().await.unwrap_err().words();
    assert_eq!(broken, "rpc error: code = Unavailable desc = error reading from server: EOF");
    // A connection that was of use is made again at once, so the plugin may be connected again already.
    assert!(plugin.connected().await);
    plugin.prepare(claim("c")).await.unwrap();
    assert_eq!(serving.connections.lock().unwrap().len(), 1, "one connection for all calls");

    serving.stop();
    let mut connectivity = plugin.connectivity();
    connectivity.last = true;
    assert_eq!(connectivity.next().await, Some(false));
    let serving = serve(&path);
    assert_eq!(connectivity.next().await, Some(true));
    keeper.abort();
    assert_eq!(connectivity.next().await, Some(false));
    assert_eq!(connectivity.next().await, None);
    let closing = plugin.prepare(claim("c")).await.unwrap_err().words();
    assert!(closing.ends_with("grpc: the client connection is closing"), "{closing}");
    drop(serving);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_accepts_and_never_speaks_is_not_connected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dra.sock");
    // Accepted by the kernel, and nobody reads.
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (plugin, _keeper) = start(&path, DraVersion::V1);
    let silent = plugin.prepare(claim("c")).await.unwrap_err().words();
    assert!(silent.starts_with("rpc error: code = Unavailable desc = connection error: "), "{silent}");
    assert!(!plugin.state.borrow().is_connected());
}
