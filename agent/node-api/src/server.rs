//! The process: doors, services, the record of each call, the end without clients.
//!
//! In: settings, sockets. Out: gRPC until no client has been there for [`Settings::idle`]. Invariants: every call has one record in
//! the log with who, by which door, what and the verdict (refused ones at a bounded rate, with the number of those left out; what
//! journald does not read is lost, and counted); a call without an identity does no work.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_linux::clock::boottime;
use agent_types::lock::Lock;
use futures_util::stream::{self, BoxStream};
use orlop_proto::node_api::v1alpha1::logs_server::{Logs, LogsServer};
use orlop_proto::node_api::v1alpha1::node_server::{Node, NodeServer};
use orlop_proto::node_api::v1alpha1::{
    GetRequest, GetResponse, KindsRequest, KindsResponse, ListRequest, ListResponse, ReadRequest,
    VersionInfo, VersionRequest,
};
use socket2::{Domain, Socket};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::answers;
use crate::collect::{Collector, Sources};
use crate::connection::{CallPeer, Connection};
use crate::doors::{self, DoorDeps};
use crate::guard::{Door, DoorLimits, Peer};
use crate::kinds::{self, ObjectKind};
use crate::logs::{LogReader, LogStream};
use crate::network_door;
use crate::refusal::Refusal;
use crate::tls::{ServerTls, TlsError, server_tls};

/// Calls at once on one connection.
const CALLS_MAX: usize = 16;
/// The same, for HTTP/2's own limit.
const STREAMS_MAX: u32 = 16;
/// Headers of a request, bytes.
const HEADERS_MAX: u32 = 16 << 10;
/// A request, bytes.
const REQUEST_MAX: usize = 64 << 10;
/// A silent connection is asked for a sign of life after this, and closed without one after that.
const ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// Characters of an object in the log.
const OBJECT_CHARS_MAX: usize = 200;

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
    let deps = DoorDeps { root: sources.root.clone(), uid, gate: gate.clone(), open };
    let collector = Collector::new(sources);
    let (doors, server_key) = open_doors(sockets, &deps, &collector).await?;
    let api = NodeApi(Arc::new(ApiParts { collector, logs: LogReader::new(), gate, version, server_key }));
    Server::builder()
        .concurrency_limit_per_connection(CALLS_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADERS_MAX)
        .http2_keepalive_interval(Some(ALIVE.0))
        .http2_keepalive_timeout(Some(ALIVE.1))
        .add_service(NodeServer::new(api.clone()).max_decoding_message_size(REQUEST_MAX))
        .add_service(LogsServer::new(api).max_decoding_message_size(REQUEST_MAX))
        .serve_with_incoming_shutdown(stream::select_all(doors), without_clients(connected, idle))
        .await
        .map_err(ServeError::Serve)
}

/// Where the server's key in the network is, below the root directory.
const KEY: &str = "var/lib/orlop/api/key";

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
            let ServerTls { config, fingerprint } = network_tls(deps, collector).await?;
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
    let made = match collector.state().look(move || server_tls(&file)).await {
        Ok(made) => made,
        Err(refusal) => {
            tracing::warn!(%refusal, "the server's key cannot be read");
            server_tls(Path::new(""))
        }
    };
    made.map_err(ServeError::Tls)
}

/// Ends when no client has been connected for `idle`.
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

/// Limits and records of calls.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    // Held for a moment only.
    unix: Lock<DoorLimits>,
    vsock: Lock<DoorLimits>,
    tcp: Lock<DoorLimits>,
}

impl Gate {
    fn limits(&self, door: Door) -> &Lock<DoorLimits> {
        match door {
            Door::Unix => &self.unix,
            Door::Vsock => &self.vsock,
            Door::Tcp => &self.tcp,
        }
    }

    fn admit(&self, caller: &CallPeer) -> Result<(), Refusal> {
        self.limits(caller.door).lock().admit(boottime(), caller.door, caller.identity.is_err())?;
        caller.identity.clone().map(drop)
    }

    fn record(&self, caller: &CallPeer, method: &'static str, object: &str, refusal: Option<&Refusal>) {
        let (door, peer) = (caller.door, caller.peer);
        let (who, role) = match &caller.identity {
            Ok(identity) => (identity.name.as_str(), identity.role.name()),
            Err(_) => ("stranger", "none"),
        };
        let Some(refusal) = refusal else {
            tracing::info!(who, role, %door, %peer, method, object, verdict = "OK", "call");
            return;
        };
        if let Some(left_out) = self.limits(door).lock().say_refused(boottime()) {
            let verdict = refusal.reason.word();
            tracing::warn!(who, role, %door, %peer, method, object, verdict, %refusal, left_out, "call");
        }
    }

    /// A connection that was closed before it said anything.
    pub(crate) fn say_closed(&self, door: Door, peer: Peer, why: &str) {
        if self.limits(door).lock().say_closed(boottime()) {
            tracing::warn!(%door, %peer, why, "connection closed");
        }
    }
}

#[derive(Debug)]
struct ApiParts {
    collector: Collector,
    logs: LogReader,
    gate: Arc<Gate>,
    version: String,
    /// Fingerprint of the key in the network.
    server_key: String,
}

/// The services; clones are the same server.
#[derive(Clone, Debug)]
struct NodeApi(Arc<ApiParts>);

impl NodeApi {
    /// Admits a call, does its work and records it.
    async fn call<T>(
        &self,
        caller: Option<CallPeer>,
        method: &'static str,
        object: String,
        work: impl Future<Output = Result<T, Refusal>> + Send,
    ) -> Result<Response<T>, Status> {
        // Every connection of the doors has one.
        let Some(caller) = caller else { return Err(Status::internal("a call without a connection")) };
        let object = short(&object);
        let result = match self.0.gate.admit(&caller) {
            Ok(()) => work.await,
            Err(refusal) => Err(refusal),
        };
        self.0.gate.record(&caller, method, &object, result.as_ref().err());
        result.map(Response::new).map_err(Status::from)
    }
}

/// Words of a request for the log: printable, and not too many.
fn short(text: &str) -> String {
    agent_core::console::text::clean(text, OBJECT_CHARS_MAX)
}

fn caller<T>(request: &Request<T>) -> Option<CallPeer> {
    request.extensions().get::<CallPeer>().cloned()
}

#[tonic::async_trait]
impl Node for NodeApi {
    async fn version(&self, request: Request<VersionRequest>) -> Result<Response<VersionInfo>, Status> {
        let work = async {
            let facts = self.0.collector.collect(&[]).await?;
            Ok::<_, Refusal>(answers::version(&self.0.version, &self.0.server_key, &facts))
        };
        self.call(caller(&request), "Node.Version", String::new(), work).await
    }

    async fn kinds(&self, request: Request<KindsRequest>) -> Result<Response<KindsResponse>, Status> {
        let work = async { Ok::<_, Refusal>(KindsResponse { kinds: kinds::table() }) };
        self.call(caller(&request), "Node.Kinds", String::new(), work).await
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let caller = caller(&request);
        let request = request.into_inner();
        let object = format!("{} {}", request.kinds.join(","), request.names.join(","));
        let work = async {
            let kinds: Vec<ObjectKind> = kinds::requested(&request)?;
            let facts = self.0.collector.collect(&kinds).await?;
            answers::get(&request, &facts)
        };
        self.call(caller, "Node.Get", object, work).await
    }
}

#[tonic::async_trait]
impl Logs for NodeApi {
    type ReadStream = LogStream;

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let work = self.0.logs.list(&self.0.collector);
        self.call(caller(&request), "Logs.List", String::new(), work).await
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<LogStream>, Status> {
        let caller = caller(&request);
        let request = request.into_inner();
        let object = match (request.file.as_str(), request.kernel) {
            ("", true) => "kernel".to_owned(),
            ("", false) => request.units.join(","),
            (file, _) => format!("file {file}"),
        };
        let work = self.0.logs.read(&self.0.collector, &request);
        self.call(caller, "Logs.Read", object, work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Identity, Role};
    use crate::refusal::Reason;

    fn of(identity: Result<Identity, Refusal>) -> CallPeer {
        CallPeer { door: Door::Vsock, peer: Peer::Machine { cid: 2 }, identity }
    }

    fn stranger() -> CallPeer {
        of(Err(Refusal::new(Reason::NotTrusted, "cid 2", "this node does not trust the host of its machine")))
    }

    fn api() -> NodeApi {
        let parts = ApiParts {
            collector: Collector::new(Sources::default()),
            logs: LogReader::new(),
            gate: Arc::default(),
            version: "1".to_owned(),
            server_key: String::new(),
        };
        NodeApi(Arc::new(parts))
    }

    #[tokio::test]
    async fn a_stranger_s_call_does_no_work() {
        let mut done = false;
        let work = async {
            done = true;
            Ok::<_, Refusal>(())
        };
        let refused = api().call(Some(stranger()), "Node.Get", "node".to_owned(), work).await;
        assert_eq!(refused.unwrap_err().code(), tonic::Code::Unauthenticated);
        assert!(!done);
    }

    #[tokio::test]
    async fn a_flood_at_one_door_costs_the_other_nothing() {
        let api = api();
        let ask = |caller: CallPeer| {
            api.call(Some(caller), "Node.Kinds", String::new(), async { Ok::<_, Refusal>(()) })
        };
        let mut codes = Vec::new();
        for _ in 0..200 {
            codes.push(ask(stranger()).await.unwrap_err().code());
        }
        assert!(codes.contains(&tonic::Code::ResourceExhausted), "{codes:?}");
        let root = Identity { name: "uid 0".to_owned(), role: Role::Operator };
        let root =
            CallPeer { door: Door::Unix, peer: Peer::Process { uid: 0, pid: None }, identity: Ok(root) };
        assert!(ask(root).await.is_ok());
    }

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

    #[test]
    fn words_for_the_log_are_short_and_printable() {
        assert_eq!(short("a\u{1b}[2J\nb"), "a [2J b");
        assert!(short(&"x".repeat(9999)).len() <= OBJECT_CHARS_MAX);
    }
}
