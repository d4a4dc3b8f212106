//! The process: doors, services, the end without clients.
//!
//! In: settings, sockets. Out: gRPC until no client has been there for [`Settings::idle`]. Invariants: every call has one record in
//! the log with who, by which door, what and the verdict (refused ones at a bounded rate, with the number of those left out; what
//! journald does not read is lost, and counted); a call without an identity does no work (`calls`, `gate`).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_linux::files::{Durability, read_capped, write_atomic};
use futures_util::stream::{self, BoxStream};
use orlop_proto::node_api::v1alpha1::captures_server::CapturesServer;
use orlop_proto::node_api::v1alpha1::config_server::ConfigServer;
use orlop_proto::node_api::v1alpha1::logs_server::LogsServer;
use orlop_proto::node_api::v1alpha1::node_server::NodeServer;
use orlop_proto::node_api::v1alpha1::operations_server::OperationsServer;
use socket2::{Domain, Socket};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until};
use tonic::transport::Server;

use crate::calls::{ApiParts, NodeApi, UserShares};
use crate::capture::CapturePlaces;
use crate::cluster::ClusterIdentities;
use crate::collect::{Collector, Sources};
use crate::configuration::DOCUMENT_MAX;
use crate::connection::Connection;
use crate::doors::{self, DoorDeps};
use crate::gate::Gate;
use crate::logs::LogReader;
use crate::network_door;
use crate::operations::keeper::keeper;
use crate::operations::notices::notices;
use crate::tls::{ServerTls, TlsError, server_tls};
use crate::watching::WATCHES_MAX;

/// Calls at once on one connection.
const CALLS_MAX: usize = 16;
/// The same, for HTTP/2's own limit.
const STREAMS_MAX: u32 = 16;
/// Headers of a request, bytes.
const HEADERS_MAX: u32 = 16 << 10;
/// A request, bytes.
const REQUEST_MAX: usize = 64 << 10;
/// A request with a document of the configuration, bytes.
const CONFIG_REQUEST_MAX: usize = DOCUMENT_MAX + REQUEST_MAX;
/// A silent connection is asked for a sign of life after this, and closed without one after that.
const ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// A fingerprint is not longer, bytes.
const FINGERPRINT_MAX: u64 = 128;

/// What the process is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the node is looked at.
    pub sources: Sources,
    /// The user whose processes may ask on the unix socket.
    pub uid: u32,
    /// The process ends when no client has been connected for so long.
    pub idle: Duration,
    /// Its own version.
    pub version: String,
}

/// Why the process cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nobody passed a socket.
    #[error("no socket was passed: orlop-node-api is started by its socket units")]
    NoSocket,
    /// A passed socket cannot be used.
    #[error("use a passed socket")]
    Socket(#[source] io::Error),
    /// There is no TLS for the network.
    #[error("open the port")]
    Tls(#[source] TlsError),
    /// gRPC ended.
    #[error("serve")]
    Serve(#[source] tonic::transport::Error),
}

/// Serves until no client has been there for [`Settings::idle`].
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(settings: Settings, sockets: Vec<OwnedFd>) -> Result<(), ServeError> {
    if sockets.is_empty() {
        return Err(ServeError::NoSocket);
    }
    let Settings { sources, uid, idle, version } = settings;
    let (open, connected) = watch::channel(0);
    let gate = Arc::new(Gate::default());
    let deps = DoorDeps { root: sources.root.clone(), uid, gate: gate.clone(), open: open.clone() };
    let cluster = ClusterIdentities::new(&sources.root);
    let collector = Arc::new(Collector::new(sources));
    let (doors, server_key) = open_doors(sockets, &deps, &collector).await?;
    let (notices, notice_task) = notices(&collector.sources().root);
    let (operations, keeper) = keeper(collector.clone(), open, notices);
    let logs = LogReader::new();
    let watches = Arc::new(Semaphore::new(WATCHES_MAX));
    let shares = UserShares::default();
    let captures = CapturePlaces::default();
    let parts = ApiParts {
        collector,
        logs,
        operations,
        cluster,
        watches,
        captures,
        shares,
        gate,
        version,
        server_key,
    };
    let api = NodeApi(Arc::new(parts));
    let served = Server::builder()
        .concurrency_limit_per_connection(CALLS_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADERS_MAX)
        .http2_keepalive_interval(Some(ALIVE.0))
        .http2_keepalive_timeout(Some(ALIVE.1))
        .add_service(CapturesServer::new(api.clone()).max_decoding_message_size(REQUEST_MAX))
        .add_service(NodeServer::new(api.clone()).max_decoding_message_size(REQUEST_MAX))
        .add_service(ConfigServer::new(api.clone()).max_decoding_message_size(CONFIG_REQUEST_MAX))
        .add_service(LogsServer::new(api.clone()).max_decoding_message_size(REQUEST_MAX))
        .add_service(OperationsServer::new(api).max_decoding_message_size(REQUEST_MAX))
        .serve_with_incoming_shutdown(stream::select_all(doors), without_clients(connected, idle));
    tokio::select! {
        // The tasks run for as long as the server has handles to them.
        served = served => served.map_err(ServeError::Serve),
        () = keeper.run() => Ok(()),
        () = notice_task.run() => Ok(()),
    }
}

/// Where the server's key in the network is, below the root directory.
const KEY: &str = "var/lib/orlop/api/key";

/// The fingerprint of that key, for the agent, which shows it in the Node.
pub const FINGERPRINT_FILE: &str = "/var/lib/orlop/api/fingerprint";

/// Connections of a door.
type DoorConnections = BoxStream<'static, io::Result<Connection>>;

/// A door for each socket, and the fingerprint of the server's key if one of them is in the network.
async fn open_doors(
    sockets: Vec<OwnedFd>,
    deps: &DoorDeps,
    collector: &Collector,
) -> Result<(Vec<DoorConnections>, String), ServeError> {
    let (mut opened, mut server_key) = (Vec::new(), String::new());
    for socket in sockets.into_iter().map(Socket::from) {
        let domain = socket.local_addr().map_err(ServeError::Socket)?.domain();
        let door = if domain == Domain::IPV4 || domain == Domain::IPV6 {
            let ServerTls { config, fingerprint, .. } = network_tls(deps, collector).await?;
            tracing::info!(key = %fingerprint, "the port in the network is open");
            server_key = fingerprint;
            network_door::connections(socket, config, deps.clone())
        } else {
            doors::connections(socket, deps.clone())
        };
        opened.push(door.map_err(ServeError::Socket)?);
    }
    Ok((opened, server_key))
}

/// A state partition that does not answer keeps nobody out: the key is in memory then.
async fn network_tls(deps: &DoorDeps, collector: &Collector) -> Result<ServerTls, ServeError> {
    let file = deps.root.join(KEY);
    let shown = deps.root.join(FINGERPRINT_FILE.trim_start_matches('/'));
    let made = match collector.state().look(move || kept_tls(&file, &shown)).await {
        Ok(made) => made,
        Err(refusal) => {
            tracing::warn!(%refusal, "the server's key cannot be read");
            server_tls(Path::new(""))
        }
    };
    made.map_err(ServeError::Tls)
}

/// TLS with the key of a file, and its fingerprint in another one. Blocking.
fn kept_tls(file: &Path, shown: &Path) -> Result<ServerTls, TlsError> {
    let made = server_tls(file)?;
    // A key that lives in memory is another one in the server's next life: clients must not pin it.
    if made.is_kept
        && read_capped(shown, FINGERPRINT_MAX).ok().as_deref() != Some(made.fingerprint.as_bytes())
    {
        let written = write_atomic(shown, made.fingerprint.as_bytes(), 0o644, Durability::Contents);
        if let Err(error) = written {
            let error = orlop_config::error_chain::chain(&error);
            tracing::warn!(error, "the Node does not show the server's key");
        }
    }
    Ok(made)
}

/// Ends when no client has been connected, and no operation open, for `idle`.
async fn without_clients(mut connected: watch::Receiver<usize>, idle: Duration) {
    loop {
        // The sender lives as long as the doors.
        if connected.wait_for(|count| *count == 0).await.is_err() {
            return;
        }
        let deadline = Instant::now() + idle;
        tokio::select! {
            // Cancel-safe: it only looks at the present count.
            came = connected.wait_for(|count| *count > 0) => {
                if came.is_err() {
                    return;
                }
            }
            () = sleep_until(deadline) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_process_ends_without_clients_and_not_with_one() {
        let (open, connected) = watch::channel(1_usize);
        let idle = Duration::from_secs(300);
        let mut ends = std::pin::pin!(without_clients(connected, idle));
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, ends.as_mut()).await.is_err(), "a client is there");
        open.send_replace(0);
        assert!(tokio::time::timeout(Duration::from_secs(200), ends.as_mut()).await.is_err());
        open.send_replace(1);
        assert!(tokio::time::timeout(hour, ends.as_mut()).await.is_err(), "a client came back");
        open.send_replace(0);
        let began = Instant::now();
        ends.await;
        let took = Instant::now() - began;
        assert!(took >= idle && took < idle + Duration::from_secs(1), "{took:?}");
    }
}
