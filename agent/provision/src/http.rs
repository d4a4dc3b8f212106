//! The driver of requests: one connection each, HTTP/1.1, bounded in time and in bytes. It reads no proxy and follows no redirect.

use super::exchange::{ExchangeFailure, MetadataRequest, MetadataResponse, RequestMethod};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

/// `User-Agent`.
const AGENT: &str = concat!("orlop/", env!("CARGO_PKG_VERSION"));

/// Sends a request to `address` and reads the whole answer, all of it within `limit`, and the connection within `connect_max`.
pub(crate) async fn exchange(
    address: SocketAddr,
    request: &MetadataRequest,
    connect_max: Duration,
    limit: Duration,
) -> Result<MetadataResponse, ExchangeFailure> {
    let end = Instant::now() + limit;
    let stream = match timeout(connect_max.min(limit), TcpStream::connect(address)).await {
        Err(_) => return Err(ExchangeFailure::NoConnection("it does not answer".to_owned())),
        Ok(Err(e)) => return Err(unconnected(&e)),
        Ok(Ok(stream)) => stream,
    };
    let host = host(address, request.host);
    timeout_at(end, converse(stream, &host, request)).await.unwrap_or(Err(ExchangeFailure::Silent))
}

/// `Host`: the service's name if it has one, else the address that is asked.
fn host(address: SocketAddr, named: &str) -> String {
    match address {
        SocketAddr::V6(v6) if named.parse::<IpAddr>().is_ok() => format!("[{}]", v6.ip()),
        _ => named.to_owned(),
    }
}

fn unconnected(error: &io::Error) -> ExchangeFailure {
    match error.kind() {
        ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown | ErrorKind::AddrNotAvailable => {
            ExchangeFailure::NoRoute(error.to_string())
        }
        _ => ExchangeFailure::NoConnection(error.to_string()),
    }
}

async fn converse(
    stream: TcpStream,
    host: &str,
    request: &MetadataRequest,
) -> Result<MetadataResponse, ExchangeFailure> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
    let talk = ask(sender, host, request);
    tokio::pin!(talk, connection);
    tokio::select! {
        // Dropping either branch loses nothing: the other one finishes here, or no caller waits for it.
        biased;
        done = &mut talk => done,
        // The request reports the end of the connection as well.
        _ = &mut connection => talk.await,
    }
}

async fn ask(
    mut sender: SendRequest<Full<Bytes>>,
    host: &str,
    request: &MetadataRequest,
) -> Result<MetadataResponse, ExchangeFailure> {
    let method = match request.method {
        RequestMethod::Get => Method::GET,
        RequestMethod::Put => Method::PUT,
        RequestMethod::Post => Method::POST,
    };
    let mut built = Request::builder()
        .method(method)
        .uri(request.target)
        .header(HOST, host)
        .header(USER_AGENT, AGENT)
        .header(CONNECTION, "close");
    for (name, value) in &request.headers {
        built = built.header(*name, value);
    }
    let body = Full::new(Bytes::copy_from_slice(request.body.as_bytes()));
    let built = built.body(body).map_err(|e| ExchangeFailure::Broken(e.to_string()))?;
    let response = sender.send_request(built).await.map_err(|e| broken(&e))?;
    let status = response.status().as_u16();
    let body = read(response.into_body(), request.bytes_max).await?;
    Ok(MetadataResponse { status, body })
}

async fn read(mut incoming: Incoming, bytes_max: usize) -> Result<Vec<u8>, ExchangeFailure> {
    let mut body = Vec::new();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|e| broken(&e))?;
        if let Some(data) = frame.data_ref() {
            if body.len() + data.len() > bytes_max {
                return Err(ExchangeFailure::TooLarge(bytes_max));
            }
            body.extend_from_slice(data);
        }
    }
    Ok(body)
}

/// The innermost cause says it best.
fn broken(error: &hyper::Error) -> ExchangeFailure {
    let mut words: &dyn std::error::Error = error;
    while let Some(source) = words.source() {
        words = source;
    }
    ExchangeFailure::Broken(words.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_the_services_name_or_the_address_that_is_asked() {
        let by = |address: &str, named: &str| host(address.parse().expect("an address"), named);
        assert_eq!(by("169.254.169.254:80", "169.254.169.254"), "169.254.169.254");
        assert_eq!(by("[fd00:ec2::254]:80", "169.254.169.254"), "[fd00:ec2::254]");
        assert_eq!(by("[fd20:ce::254]:80", "metadata.google.internal"), "metadata.google.internal");
    }

    #[test]
    fn a_machine_without_a_network_is_told_from_a_service_that_is_not_there() {
        for kind in [ErrorKind::NetworkUnreachable, ErrorKind::NetworkDown, ErrorKind::AddrNotAvailable] {
            assert!(matches!(unconnected(&kind.into()), ExchangeFailure::NoRoute(_)), "{kind:?}");
        }
        for kind in [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable, ErrorKind::PermissionDenied] {
            assert!(matches!(unconnected(&kind.into()), ExchangeFailure::NoConnection(_)), "{kind:?}");
        }
    }
}
