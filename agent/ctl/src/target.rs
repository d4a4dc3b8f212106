//! The ways to a node, and a gRPC channel over one.
//!
//! Invariant: a channel has one connection; when that is gone, calls fail and nothing is tried again behind the caller's back.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use orlop_config::error_chain::chain;
use orlop_proto::node_api::PORT;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::failure::CtlError;
use crate::keys;
use crate::serial;
use crate::tls::{HandshakeFailure, secured};

/// A node that is silent while something is awaited is asked for a sign of life after this, and given up without one after that: a
/// machine that lost its power says no goodbye.
const ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));
/// Bytes of a hypervisor's answer to a request for a port.
const ANSWER_MAX: usize = 64;

/// A way to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The node's own socket.
    Unix(PathBuf),
    /// The machine with this context identifier.
    Vsock(u32),
    /// A hypervisor's socket, which leads to a port of its machine.
    VsockSocket(PathBuf),
    /// A hypervisor's socket, which is the other end of its machine's virtio-serial port.
    Serial(PathBuf),
    /// The network.
    Tcp {
        /// Host and port.
        address: String,
        /// What the client shows.
        credential: NodeCredential,
        /// Fingerprint of the node's key; empty: not known.
        pin: String,
    },
}

/// Who the client is, in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeCredential {
    /// File of an administrator's key.
    Key(PathBuf),
    /// A token of the cluster.
    Token(BearerToken),
}

/// A token of the cluster; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BearerToken(MetadataValue<Ascii>);

impl BearerToken {
    /// # Errors
    /// The text is none that a header can have.
    pub(crate) fn new(text: &str) -> Result<BearerToken, CtlError> {
        let odd = || CtlError::Key("token: it is none that can be sent".to_owned());
        let text = text.trim();
        if text.is_empty() || text.contains(char::is_whitespace) {
            return Err(odd());
        }
        let mut header: MetadataValue<Ascii> = format!("Bearer {text}").parse().map_err(|_| odd())?;
        header.set_sensitive(true);
        Ok(BearerToken(header))
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

/// Puts a token into each call.
#[derive(Clone, Debug)]
pub(crate) struct TokenHeader(Option<BearerToken>);

impl Interceptor for TokenHeader {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(BearerToken(header)) = &self.0 {
            request.metadata_mut().insert("authorization", header.clone());
        }
        Ok(request)
    }
}

/// A channel to a node, whose calls have the client's token, if it has one.
pub(crate) type NodeChannel = InterceptedService<Channel, TokenHeader>;

/// Bytes of a connection.
trait NodeStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> NodeStream for T {}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Unix(path) => write!(f, "the node at {}", path.display()),
            Target::Vsock(cid) => write!(f, "the machine with the vsock identifier {cid}"),
            Target::VsockSocket(path) => write!(f, "the machine behind {}", path.display()),
            Target::Serial(path) => write!(f, "the machine with the serial port {}", path.display()),
            Target::Tcp { address, .. } => write!(f, "the node at {address}"),
        }
    }
}

impl Target {
    /// Connects within `limit`.
    pub(crate) async fn connect(&self, limit: Duration) -> Result<NodeChannel, CtlError> {
        let token = match self {
            Target::Tcp { credential: NodeCredential::Token(token), .. } => Some(token.clone()),
            _ => None,
        };
        let channel = self.channel(limit).await?;
        Ok(InterceptedService::new(channel, TokenHeader(token)))
    }

    async fn channel(&self, limit: Duration) -> Result<Channel, CtlError> {
        let attempt = async {
            let mut stream = Some(TokioIo::new(self.open(limit).await?));
            let connector = tower::service_fn(move |_| {
                let once = stream.take().ok_or_else(|| io::Error::other("the connection is gone"));
                std::future::ready(once)
            });
            // The authority is not used on these connections, but gRPC servers refuse an odd one.
            let endpoint = Endpoint::from_static("http://localhost")
                .http2_keep_alive_interval(ALIVE.0)
                .keep_alive_timeout(ALIVE.1);
            endpoint.connect_with_connector(connector).await.map_err(|error| self.unreachable(&error))
        };
        match timeout(limit, attempt).await {
            Ok(result) => result,
            Err(_) => Err(CtlError::TimedOut { what: self.to_string(), limit }),
        }
    }

    fn unreachable(&self, why: &dyn std::error::Error) -> CtlError {
        CtlError::Unreachable { target: self.to_string(), why: chain(why) }
    }

    async fn open(&self, limit: Duration) -> Result<Box<dyn NodeStream>, CtlError> {
        let stream = match self {
            Target::Unix(path) => UnixStream::connect(path).await,
            Target::Vsock(cid) => {
                let cid = *cid;
                let connected = tokio::task::spawn_blocking(move || vsock(cid, limit)).await;
                connected.map_err(io::Error::other).flatten().and_then(UnixStream::from_std)
            }
            Target::VsockSocket(path) => hypervisor(path).await,
            Target::Serial(path) => {
                let stream = serial::open(path).await.map_err(|error| self.unreachable(&error))?;
                return Ok(Box::new(stream));
            }
            Target::Tcp { address, credential, pin } => return self.network(address, credential, pin).await,
        };
        let stream = stream.map_err(|error| self.unreachable(&error))?;
        Ok(Box::new(stream))
    }

    async fn network(
        &self,
        address: &str,
        credential: &NodeCredential,
        pin: &str,
    ) -> Result<Box<dyn NodeStream>, CtlError> {
        let own = match credential {
            NodeCredential::Key(file) => keys::load(file)?,
            // The handshake needs some key; the node looks at the token.
            NodeCredential::Token(_) => keys::passing()?,
        };
        let stream = TcpStream::connect(address).await.map_err(|error| self.unreachable(&error))?;
        // A connection without it is slower.
        let _ = stream.set_nodelay(true);
        match secured(stream, &own, pin).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(HandshakeFailure::OtherKey(shown)) => {
                Err(CtlError::OtherKey { target: self.to_string(), shown, pin: pin.to_owned() })
            }
            Err(HandshakeFailure::Failed(why)) => {
                Err(CtlError::Unreachable { target: self.to_string(), why })
            }
        }
    }
}

/// A stream of vsock; it is read and written as one of the unix family.
fn vsock(cid: u32, limit: Duration) -> io::Result<StdUnixStream> {
    let socket = Socket::new(Domain::VSOCK, Type::STREAM, None)?;
    socket.connect_timeout(&SockAddr::vsock(cid, PORT), limit)?;
    socket.set_nonblocking(true)?;
    Ok(StdUnixStream::from(OwnedFd::from(socket)))
}

/// Asks a hypervisor for the port: `CONNECT <port>`, answered by `OK <number>`, as Firecracker documents for its vsock device.
async fn hypervisor(path: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(format!("CONNECT {PORT}\n").as_bytes()).await?;
    let mut answer = Vec::new();
    // Byte by byte: what follows the line is the node's.
    while !answer.ends_with(b"\n") && answer.len() < ANSWER_MAX {
        let closed =
            |_| io::Error::other(format!("the hypervisor has no connection to port {PORT} of its machine"));
        answer.push(stream.read_u8().await.map_err(closed)?);
    }
    if answer.starts_with(b"OK ") && answer.ends_with(b"\n") {
        return Ok(stream);
    }
    Err(io::Error::other(format!("the hypervisor answers {:?}", String::from_utf8_lossy(&answer))))
}
