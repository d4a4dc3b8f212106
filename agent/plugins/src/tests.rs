//! A plugin on a real socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::stream;
use orlop_proto::csi::v1::node_server::{Node, NodeServer};
use orlop_proto::csi::v1::{NodeGetInfoResponse, Topology};
use orlop_proto::plugin_registration::registration_server::{Registration, RegistrationServer};
use orlop_proto::plugin_registration::{PluginInfo as Info, RegistrationStatusResponse};
use prost::Message;
use tokio::net::UnixListener;
use tonic::Request;
use tonic::transport::Server;

use super::*;

#[derive(Clone, Default)]
struct Plugin {
    heard: Arc<Mutex<Vec<RegistrationStatus>>>,
    /// The driver refuses NodeGetInfo.
    refuses: bool,
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<Info>, Status> {
        Ok(Response::new(Info {
            r#type: "CSIPlugin".to_owned(),
            name: "x.example".to_owned(),
            endpoint: "/run/x.sock".to_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        told: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.heard.lock().unwrap().push(told.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Plugin {
    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        if self.refuses {
            return Err(Status::unavailable("not yet"));
        }
        Ok(Response::new(NodeGetInfoResponse {
            node_id: "n-1".to_owned(),
            max_volumes_per_node: 5,
            accessible_topology: Some(Topology { segments: [("zone".to_owned(), "a".to_owned())].into() }),
        }))
    }
}

/// Serves until the test ends.
fn serve(path: &Path, plugin: Plugin) {
    let listener = UnixListener::bind(path).unwrap();
    let incoming = stream::unfold(listener, |listener| async move {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    let server = Server::builder()
        .add_service(RegistrationServer::new(plugin.clone()))
        .add_service(NodeServer::new(plugin))
        .serve_with_incoming(incoming);
    drop(tokio::spawn(server));
}

#[tokio::test]
async fn a_plugin_says_what_it_is_and_hears_what_became_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, plugin) = (dir.path().join("x.sock"), Plugin::default());
    serve(&path, plugin.clone());
    let expected = PluginInfo {
        kind: "CSIPlugin".to_owned(),
        name: "x.example".to_owned(),
        endpoint: "/run/x.sock".to_owned(),
        versions: vec!["1.0.0".to_owned()],
    };
    assert_eq!(plugin_info(&path).await.unwrap(), expected);
    let topology = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let expected = NodeInfo { node_id: "n-1".to_owned(), volumes_max: 5, topology };
    assert_eq!(node_info(&path).await.unwrap(), expected);
    notify(&path, &Ok(())).await.unwrap();
    notify(&path, &Err("no".to_owned())).await.unwrap();
    let told = |registered, error: &str| RegistrationStatus {
        plugin_registered: registered,
        error: error.to_owned(),
    };
    assert_eq!(*plugin.heard.lock().unwrap(), [told(true, ""), told(false, "no")]);
}

#[tokio::test]
async fn a_plugin_that_is_not_there_or_refuses_is_told_with_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let error = plugin_info(&path).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("dial failed at socket {}: ", path.display())), "{error}");
    serve(&path, Plugin { refuses: true, ..Plugin::default() });
    let error = node_info(&path).await.unwrap_err().to_string();
    assert!(error.starts_with("NodeGetInfo at socket") && error.ends_with("not yet"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_never_answers_has_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    // The kernel accepts the connection, and no process reads from it.
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = plugin_info(&path).await.unwrap_err();
    assert!(matches!(error, PluginError::Late { .. } | PluginError::Dial { .. }), "{error}");
}

/// An answer as another implementation writes it, with the numbers and types of fields of pluginregistration.v1.
#[test]
fn the_wire_is_that_of_the_public_definitions() {
    let info = Info::decode(&b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v\x22\x01w"[..]).unwrap();
    assert_eq!((info.r#type.as_str(), info.name.as_str(), info.endpoint.as_str()), ("t", "n", "e"));
    assert_eq!(info.supported_versions, ["v", "w"]);
    let status = RegistrationStatus { plugin_registered: true, error: "e".to_owned() };
    assert_eq!(status.encode_to_vec(), b"\x08\x01\x12\x01e");
    let node =
        NodeGetInfoResponse::decode(&b"\x0a\x01n\x10\x05\x1a\x08\x0a\x06\x0a\x01k\x12\x01v"[..]).unwrap();
    assert_eq!((node.node_id.as_str(), node.max_volumes_per_node), ("n", 5));
    assert_eq!(node.accessible_topology.unwrap().segments["k"], "v");
}

#[test]
fn what_an_answer_says_about_asking_again() {
    let refused = |code| PluginError::Refused {
        call: "NodeExpandVolume",
        path: PathBuf::from("/s"),
        status: Box::new(Status::new(code, "no")),
    };
    // (code, the call has ended, not while the volume is in use, never possible)
    for (code, is_final, in_use, infeasible) in [
        (Code::InvalidArgument, true, false, true),
        (Code::OutOfRange, true, false, true),
        (Code::NotFound, true, false, true),
        (Code::FailedPrecondition, true, true, false),
        (Code::Internal, true, false, false),
        (Code::Unimplemented, true, false, false),
        (Code::Aborted, false, false, false),
        (Code::DeadlineExceeded, false, false, false),
        (Code::Unavailable, false, false, false),
    ] {
        let error = refused(code);
        let told = (error.is_final(), error.is_in_use(), error.is_infeasible());
        assert_eq!(told, (is_final, in_use, infeasible), "{code:?}");
    }
    let late = PluginError::Late { call: "x", path: PathBuf::from("/s"), limit: Duration::from_secs(1) };
    assert!(!late.is_final() && !late.is_in_use() && !late.is_infeasible());
}
