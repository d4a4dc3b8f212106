//! From an address to a connection: name, TCP, TLS, handshake of HTTP/2 (or HTTP/1.1, where that is asked for).
//!
//! In: [`Access`] and its TLS configuration. Out: a sender of requests and the connection's own task, or
//! [`ConnectError`]. Invariants: a dial ends within its limit; a peer that goes silent is noticed by pings within
//! 45 s, as upstream's transport does; a peer cannot make it buffer more than its windows.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use orlop_config::error_chain::chain;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::access::Access;
use crate::tls::{self, TlsError};

/// One address gets this long; a node with several addresses of the server tries them in turn.
const TCP_MAX: Duration = Duration::from_secs(5);
/// All of it.
const DIAL_MAX: Duration = Duration::from_secs(10);
/// After this long without a frame a ping is sent.
const PING_AFTER: Duration = Duration::from_secs(30);
/// And has to be answered within this.
const PONG_WITHIN: Duration = Duration::from_secs(15);
/// What the server may send on one stream before we have read it.
const STREAM_WINDOW: u32 = 256 * 1024;
/// And on all streams together.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Response headers in all.
const HEADERS_MAX: u32 = 16 * 1024;
/// What is buffered of an answer over HTTP/1.1, its headers whole.
const HEADERS1_MAX: usize = 64 * 1024;
/// Copied into one write.
const SEND_BUFFER: usize = 64 * 1024;

/// Sends requests; a clone is a handle on the same connection.
pub(crate) type Sender = http2::SendRequest<Full<Bytes>>;
/// The connection's own work, which must be polled.
type Task = std::pin::Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>;

/// No connection: the request was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name has no address.
    #[error("{server}: the name does not resolve: {reason}; is DNS configured?")]
    Resolve {
        /// URL.
        server: String,
        /// The resolver's words.
        reason: String,
    },
    /// No server accepts the connection.
    #[error("{server}: cannot connect: {reason}; is the API server running and reachable from this node?")]
    Tcp {
        /// URL.
        server: String,
        /// The kernel's words, for each address that was tried.
        reason: String,
    },
    /// No trusted connection.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// It is not an API server, or something stands between.
    #[error("{server}: does not speak {protocol}: {reason}; is it an API server?")]
    Protocol {
        /// URL.
        server: String,
        /// What it was to speak.
        protocol: Protocol,
        /// What went wrong.
        reason: String,
    },
    /// Too slow.
    #[error("{server}: no connection within {seconds} s; is the API server overloaded or the network down?")]
    TimedOut {
        /// URL.
        server: String,
        /// The limit.
        seconds: u64,
    },
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// One connection for everything.
    Http2,
    /// One connection for each request under way.
    Http1,
}

impl Protocol {
    /// Its name in the TLS handshake.
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Protocol::Http2 => b"h2",
            Protocol::Http1 => b"http/1.1",
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Protocol::Http2 => "HTTP/2",
            Protocol::Http1 => "HTTP/1.1",
        })
    }
}

/// How bytes get to the server.
#[derive(Clone)]
pub(crate) enum Dialer {
    /// As everybody does.
    Tcp,
    /// Through memory: tests with a clock of their own, which real sockets would not follow.
    #[cfg(feature = "testing")]
    Memory(crate::testing::MemoryNetwork),
}

/// A connection that is ready: what sends, and what has to be polled for it to live.
pub(crate) struct Dialed<S> {
    pub(crate) sender: S,
    /// The node's end; none in memory.
    pub(crate) local: Option<IpAddr>,
    pub(crate) task: Task,
}

/// True if the host still has the address: nothing sent from another one is ever answered, and the kernel
/// reports no error.
pub(crate) fn is_of_host(address: IpAddr) -> bool {
    match std::net::UdpSocket::bind((address, 0)) {
        Err(error) => error.kind() != std::io::ErrorKind::AddrNotAvailable,
        Ok(_) => true,
    }
}

/// Dials for HTTP/2, within [`DIAL_MAX`].
pub(crate) async fn dial(
    access: &Access,
    config: Arc<ClientConfig>,
    dialer: &Dialer,
) -> Result<Dialed<Sender>, ConnectError> {
    within_limit(access, async {
        let (stream, local) = secured(access, config, dialer, Protocol::Http2).await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS_MAX)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PONG_WITHIN)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| protocol(access, Protocol::Http2, chain(&error)))?;
        Ok(Dialed { sender, local, task: Box::pin(connection) as Task })
    })
    .await
}

/// Dials for HTTP/1.1, within [`DIAL_MAX`].
pub(crate) async fn dial_http1(
    access: &Access,
    config: Arc<ClientConfig>,
    dialer: &Dialer,
) -> Result<Dialed<crate::http1::Sender>, ConnectError> {
    within_limit(access, async {
        let (stream, local) = secured(access, config, dialer, Protocol::Http1).await?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEADERS1_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| protocol(access, Protocol::Http1, chain(&error)))?;
        Ok(Dialed { sender, local, task: Box::pin(connection) as Task })
    })
    .await
}

/// The certificate that the server shows in a handshake of its own, DER; the connection ends with it. Within [`DIAL_MAX`].
pub(crate) async fn certificate(access: &Access, dialer: &Dialer) -> Result<Option<Vec<u8>>, ConnectError> {
    let config = tls::client_config(access, Protocol::Http1)?;
    within_limit(access, async {
        let (stream, _) = secured(access, config, dialer, Protocol::Http1).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        Ok(shown.map(|certificate| certificate.to_vec()))
    })
    .await
}

async fn within_limit<T>(
    access: &Access,
    attempt: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    timeout(DIAL_MAX, attempt).await.unwrap_or_else(|_| {
        Err(ConnectError::TimedOut { server: access.server.to_string(), seconds: DIAL_MAX.as_secs() })
    })
}

fn protocol(access: &Access, protocol: Protocol, reason: String) -> ConnectError {
    ConnectError::Protocol { server: access.server.to_string(), protocol, reason }
}

/// Bytes both ways.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A trusted stream on which both sides speak `wanted`, and the node's end of it.
async fn secured(
    access: &Access,
    config: Arc<ClientConfig>,
    dialer: &Dialer,
    wanted: Protocol,
) -> Result<(TlsStream<Box<dyn Stream>>, Option<IpAddr>), ConnectError> {
    let (stream, local): (Box<dyn Stream>, _) = match dialer {
        Dialer::Tcp => {
            let stream = tcp(access).await?;
            let local = stream.local_addr().ok().map(|address| address.ip());
            (Box::new(stream), local)
        }
        #[cfg(feature = "testing")]
        Dialer::Memory(network) => {
            let stream = network.connect().ok_or_else(|| ConnectError::Tcp {
                server: access.server.to_string(),
                reason: "refused".to_owned(),
            })?;
            (Box::new(stream), None)
        }
    };
    let name = access.server.certificate_name();
    let name = ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Unusable {
        what: "tls-server-name",
        reason: format!("{name:?} is neither a DNS name nor an IP address"),
    })?;
    let stream = TlsConnector::from(config)
        .connect(name, stream)
        .await
        .map_err(|error| tls::explain(access, &error))?;
    // A server that knows of no protocols speaks HTTP/1.1.
    let agreed = stream.get_ref().1.alpn_protocol();
    if agreed != Some(wanted.alpn()) && !(agreed.is_none() && wanted == Protocol::Http1) {
        let reason = "the server did not agree to it in the TLS handshake (ALPN)".to_owned();
        return Err(protocol(access, wanted, reason));
    }
    Ok((stream, local))
}

async fn tcp(access: &Access) -> Result<TcpStream, ConnectError> {
    let (server, host, port) = (access.server.to_string(), access.server.host.as_str(), access.server.port);
    let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => match tokio::net::lookup_host((host, port)).await {
            Ok(found) => found.collect(),
            Err(error) => return Err(ConnectError::Resolve { server, reason: error.to_string() }),
        },
    };
    if addresses.is_empty() {
        return Err(ConnectError::Resolve { server, reason: "no address".to_owned() });
    }
    let mut reasons = Vec::new();
    for address in addresses {
        match timeout(TCP_MAX, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Small requests must not wait for each other; a refusal only makes them slower.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => reasons.push(format!("{address}: {error}")),
            Err(_) => reasons.push(format!("{address}: no answer within {} s", TCP_MAX.as_secs())),
        }
    }
    Err(ConnectError::Tcp { server, reason: reasons.join("; ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_the_host_does_not_have_is_told() {
        assert!(is_of_host("127.0.0.1".parse().unwrap()));
        // TEST-NET-1, RFC 5737.
        assert!(!is_of_host("192.0.2.77".parse().unwrap()));
    }
}
