//! The way to the node agent: its unix socket, root only.

use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Error};

/// The socket below a root directory.
pub(crate) fn path(root: &Path) -> PathBuf {
    root.join(orlop_proto::node_api::AGENT_SOCKET.trim_start_matches('/'))
}

/// A channel with one connection.
///
/// # Errors
/// The agent does not listen.
pub(crate) async fn channel(socket: &Path) -> Result<Channel, Error> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The authority is not used on this connection, but gRPC servers refuse an odd one.
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await
}
