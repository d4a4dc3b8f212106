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

use agent_kubelet_api::server_policy::bearer_token;
use agent_linux::clock::boottime;
use agent_linux::files::{Durability, read_capped, write_atomic};
use agent_types::lock::Lock;
use futures_util::stream::{self, BoxStream};
use orlop_proto::node_api::v1alpha1::captures_server::CapturesServer;
use orlop_proto::node_api::v1alpha1::config_server::ConfigServer;
use orlop_proto::node_api::v1alpha1::logs_server::{Logs, LogsServer};
use orlop_proto::node_api::v1alpha1::node_server::{Node, NodeServer};
use orlop_proto::node_api::v1alpha1::operations_server::OperationsServer;
use orlop_proto::node_api::v1alpha1::{
    GetRequest, GetResponse, KindsRequest, KindsResponse, ListRequest, ListResponse, PodLogRequest,
    ReadRequest, VersionInfo, VersionRequest,
};
use socket2::{Domain, Socket};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::answers;
use crate::areas::ApiArea;
use crate::capture::CapturePlaces;
use crate::cluster::ClusterIdentities;
use crate::collect::{Collector, Sources, THREADS, node_config};
use crate::configuration::DOCUMENT_MAX;
use crate::connection::{CallPeer, Connection};
use crate::doors::{self, DoorDeps};
use crate::facts::accepts_cluster;
use crate::guard::{CallerClass, Door, DoorLimits, Peer};
use crate::kinds::{self, ObjectKind};
use crate::logs::{LogReader, LogStream, STREAMS_MAX as READERS_MAX};
use crate::network_door;
use crate::operations::handle::{OperationHandle, WATCHERS_MAX};
use crate::operations::keeper::keeper;
use crate::operations::notices::notices;
use crate::pod_logs;
use crate::refusal::{Reason, Refusal};
use crate::shares::{UserShare, held};
use crate::tls::{ServerTls, TlsError, server_tls};
use crate::watching::{self, WATCHES_MAX, WatchStream};

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

/// Limits and records of calls.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    // Held for a moment only.
    unix: Lock<DoorLimits>,
    vsock: Lock<DoorLimits>,
    tcp: Lock<DoorLimits>,
    serial: Lock<DoorLimits>,
}

impl Gate {
    fn limits(&self, door: Door) -> &Lock<DoorLimits> {
        match door {
            Door::Unix => &self.unix,
            Door::Vsock => &self.vsock,
            Door::Tcp => &self.tcp,
            Door::Serial => &self.serial,
        }
    }

    /// The token of a stranger's call: a token of the cluster may be worth nothing.
    fn admit_token(&self, door: Door) -> Result<(), Refusal> {
        self.limits(door).lock().admit(boottime(), door, CallerClass::Stranger)
    }

    fn admit(&self, caller: &CallPeer) -> Result<(), Refusal> {
        let class = CallerClass::of(&caller.identity);
        if class != CallerClass::Stranger || !caller.is_counted {
            self.limits(caller.door).lock().admit(boottime(), caller.door, class)?;
        }
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

/// What users of the cluster may take of the places of readers.
#[derive(Debug)]
pub(crate) struct UserShares {
    logs: UserShare,
    changes: UserShare,
    pub(crate) operations: UserShare,
    pub(crate) config: UserShare,
}

impl Default for UserShares {
    fn default() -> UserShares {
        UserShares {
            logs: UserShare::of("logs", READERS_MAX),
            changes: UserShare::of("objects", WATCHES_MAX),
            operations: UserShare::of("operations", WATCHERS_MAX),
            config: UserShare::of("configuration", THREADS),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ApiParts {
    pub(crate) collector: Arc<Collector>,
    logs: LogReader,
    pub(crate) operations: OperationHandle,
    cluster: ClusterIdentities,
    /// Places of readers of changes.
    watches: Arc<Semaphore>,
    pub(crate) captures: CapturePlaces,
    pub(crate) shares: UserShares,
    gate: Arc<Gate>,
    version: String,
    /// Fingerprint of the key in the network.
    server_key: String,
}

/// The services; clones are the same server.
#[derive(Clone, Debug)]
pub(crate) struct NodeApi(pub(crate) Arc<ApiParts>);

impl NodeApi {
    /// Who asks for something of this area: by the connection, or by the token of the call.
    pub(crate) async fn caller(&self, asks: AskingCall, area: ApiArea) -> Option<CallPeer> {
        let AskingCall { caller, token } = asks;
        let mut caller = caller?;
        let Some(token) = token.filter(|_| caller.identity.is_err() && caller.door == Door::Tcp) else {
            return Some(caller);
        };
        if !accepts_cluster(&node_config(&self.0.collector.sources().root)) {
            return Some(caller);
        }
        caller.identity = match self.0.cluster.known(&token, area) {
            Some(identity) => Ok(identity),
            None => {
                caller.is_counted = true;
                match self.0.gate.admit_token(caller.door) {
                    Ok(()) => self.0.cluster.identify(caller.peer, &token, area).await,
                    Err(refusal) => Err(refusal),
                }
            }
        };
        if caller.identity.is_ok() {
            caller.prove();
        }
        Some(caller)
    }

    /// The answer to a request, as it is now.
    pub(crate) async fn snapshot(&self, request: &GetRequest) -> Result<GetResponse, Refusal> {
        let kinds: Vec<ObjectKind> = kinds::requested(request)?;
        let mut facts = self.0.collector.collect(&kinds).await?;
        if kinds.contains(&ObjectKind::Operations) {
            facts.operations = Some(self.0.operations.list().await);
        }
        answers::get(request, &facts)
    }

    /// Admits a call, does its work and records it.
    pub(crate) async fn call<T>(
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

/// What a call has to say who it is from.
pub(crate) struct AskingCall {
    caller: Option<CallPeer>,
    /// A bearer token (RFC 6750).
    token: Option<String>,
}

pub(crate) fn asks<T>(request: &Request<T>) -> AskingCall {
    let header = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
    AskingCall {
        caller: request.extensions().get::<CallPeer>().cloned(),
        token: header.and_then(bearer_token).map(str::to_owned),
    }
}

/// The class of a caller.
pub(crate) fn class(caller: Option<&CallPeer>) -> CallerClass {
    caller.map_or(CallerClass::Stranger, |caller| CallerClass::of(&caller.identity))
}

#[tonic::async_trait]
impl Node for NodeApi {
    async fn version(&self, request: Request<VersionRequest>) -> Result<Response<VersionInfo>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let work = async {
            let facts = self.0.collector.collect(&[]).await?;
            Ok::<_, Refusal>(answers::version(&self.0.version, &self.0.server_key, &facts))
        };
        self.call(caller, "Node.Version", String::new(), work).await
    }

    async fn kinds(&self, request: Request<KindsRequest>) -> Result<Response<KindsResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let work = async { Ok::<_, Refusal>(KindsResponse { kinds: kinds::table() }) };
        self.call(caller, "Node.Kinds", String::new(), work).await
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let request = request.into_inner();
        let object = format!("{} {}", request.kinds.join(","), request.names.join(","));
        let work = self.snapshot(&request);
        self.call(caller, "Node.Get", object, work).await
    }

    type WatchStream = WatchStream;

    async fn watch(&self, request: Request<GetRequest>) -> Result<Response<WatchStream>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Status).await;
        let request = request.into_inner();
        let object = format!("{} {}", request.kinds.join(","), request.names.join(","));
        let class = class(caller.as_ref());
        let work = async {
            let share = self.0.shares.changes.take(class)?;
            let place = self.0.watches.clone().try_acquire_owned().map_err(|_| {
                let message = format!("{WATCHES_MAX} readers of changes are there already");
                Refusal::new(Reason::TooManyStreams, "objects", message)
            })?;
            Ok::<_, Refusal>(held(watching::watch(self.clone(), request, place).await?, share))
        };
        self.call(caller, "Node.Watch", object, work).await
    }
}

#[tonic::async_trait]
impl Logs for NodeApi {
    type ReadStream = LogStream;
    type ReadPodStream = LogStream;

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Logs).await;
        let work = self.0.logs.list(&self.0.collector);
        self.call(caller, "Logs.List", String::new(), work).await
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<LogStream>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Logs).await;
        let request = request.into_inner();
        let object = match (request.file.as_str(), request.kernel) {
            ("", true) => "kernel".to_owned(),
            ("", false) => request.units.join(","),
            (file, _) => format!("file {file}"),
        };
        let class = class(caller.as_ref());
        let work = async {
            let share = self.0.shares.logs.take(class)?;
            Ok::<_, Refusal>(held(self.0.logs.read(&self.0.collector, &request).await?, share))
        };
        self.call(caller, "Logs.Read", object, work).await
    }

    async fn read_pod(&self, request: Request<PodLogRequest>) -> Result<Response<LogStream>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Logs).await;
        let request = request.into_inner();
        let object = format!("pod {}/{} {}", request.namespace, request.pod, request.container);
        let class = class(caller.as_ref());
        let work = async {
            let share = self.0.shares.logs.take(class)?;
            let place = self.0.logs.place()?;
            Ok::<_, Refusal>(held(pod_logs::read(&self.0.collector, &request, place).await?, share))
        };
        self.call(caller, "Logs.ReadPod", object, work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Identity, Role};

    fn of(identity: Result<Identity, Refusal>) -> CallPeer {
        CallPeer::new(Door::Vsock, Peer::Machine { cid: 2 }, identity)
    }

    fn stranger() -> CallPeer {
        of(Err(Refusal::new(Reason::NotTrusted, "cid 2", "this node does not trust the host of its machine")))
    }

    fn api() -> NodeApi {
        let collector = Arc::new(Collector::new(Sources::default()));
        let (notices, _notice_task) = notices(Path::new("/nowhere"));
        let (operations, _keeper) = keeper(collector.clone(), watch::channel(0).0, notices);
        let parts = ApiParts {
            collector,
            logs: LogReader::new(),
            operations,
            cluster: ClusterIdentities::new(Path::new("/nowhere")),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
            captures: CapturePlaces::default(),
            shares: UserShares::default(),
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
        let root = CallPeer::new(Door::Unix, Peer::Process { uid: 0, pid: None }, Ok(root));
        assert!(ask(root).await.is_ok());
    }

    #[tokio::test]
    async fn a_flood_of_a_user_of_the_cluster_costs_an_administrator_nothing() {
        let api = api();
        let ask = |name: &str, role| {
            let identity = Identity { name: name.to_owned(), role };
            let caller = CallPeer::new(Door::Tcp, Peer::Machine { cid: 2 }, Ok(identity));
            api.call(Some(caller), "Node.Kinds", String::new(), async { Ok::<_, Refusal>(()) })
        };
        let mut codes = Vec::new();
        for _ in 0..200 {
            codes.push(ask("ops", Role::Cluster).await.err().map(|status| status.code()));
        }
        assert!(codes.contains(&Some(tonic::Code::ResourceExhausted)), "{codes:?}");
        assert!(ask("ops-1", Role::Admin).await.is_ok());
    }

    #[tokio::test]
    async fn a_refused_token_is_one_call() {
        let api = api();
        let mut codes = Vec::new();
        for _ in 0..10 {
            let admitted = api.0.gate.admit_token(Door::Vsock);
            assert!(admitted.is_ok(), "{admitted:?}");
            let mut caller = stranger();
            caller.is_counted = true;
            let call = api.call(Some(caller), "Node.Kinds", String::new(), async { Ok::<_, Refusal>(()) });
            codes.push(call.await.unwrap_err().code());
        }
        assert_eq!(codes, [tonic::Code::Unauthenticated; 10]);
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
