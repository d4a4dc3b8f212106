//! Clients that attack a node's HTTPS API: thousands of connections, endless heads and bodies, silence.
//!
//! In: the node's address, the cluster's CA. Out: how the node ended each of them. No client has a
//! certificate or a token.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// More than any limit of the node.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than the node's time limit for a handshake, for every thousand simultaneous connections.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes sent at once.
const PIECE: usize = 64 * 1024;

/// Opens `many` connections at once and sends nothing on any of them; returns the number that the node accepted, after
/// the node has ended all of those.
///
/// # Errors
/// If an accepted connection does not end.
pub async fn silent_crowd(node: SocketAddr, many: usize, held: Duration) -> Result<usize> {
    let one = async || -> Result<bool> {
        // The node accepts connections of the kernel's queue as places become free, or never.
        let Ok(Ok(mut stream)) = timeout(held, TcpStream::connect(node)).await else { return Ok(false) };
        // A connection that was broken off was ended, too.
        if timeout(SILENCE, stream.read(&mut [0; 1])).await.is_ok() {
            return Ok(true);
        }
        // If the queue was full, the kernel may have completed a connection for the client alone: the client notices
        // this with its first byte.
        let poked = async {
            stream.write_all(b"?").await?;
            stream.read(&mut [0; 1]).await
        };
        // A connection that waited in the queue all the time gets the error of a broken handshake.
        Ok(timeout(SILENCE, poked).await.context("a silent connection is not ended")?.is_ok())
    };
    let mut crowd: FuturesUnordered<_> = (0..many).map(|_| one()).collect();
    let mut taken = 0;
    while let Some(was_taken) = crowd.next().await {
        taken += usize::from(was_taken?);
    }
    Ok(taken)
}

/// A request with an endless head; returns the number of bytes that the node read before it closed the connection.
///
/// # Errors
/// If the node reads more than `most`.
pub async fn endless_head(node: SocketAddr, ca: &str, most: usize) -> Result<usize> {
    let mut stream = tls(node, ca).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\nX-Endless: ").await?;
    let taken = pour(&mut stream, most).await?;
    Ok(taken)
}

/// A request with an endless body; returns the status and the number of bytes that the node read.
///
/// # Errors
/// If the node reads more than `most`, or does not answer.
pub async fn endless_body(node: SocketAddr, ca: &str, most: usize) -> Result<(u16, usize)> {
    let stream = tls(node, ca).await?;
    let (mut answers, mut body) = tokio::io::split(stream);
    body.write_all(
        b"POST /run/default/x/c?cmd=ls HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n",
    )
    .await?;
    let mut answer = [0; 16];
    let read = async {
        timeout(PATIENCE, answers.read_exact(&mut answer)).await.context("no answer")?.context("no answer")
    };
    let pour = async {
        let mut chunk = format!("{PIECE:x}\r\n").into_bytes();
        chunk.resize(chunk.len() + PIECE, b'x');
        chunk.extend(b"\r\n");
        pour_pieces(&mut body, &chunk, most).await
    };
    let (read, taken) = tokio::join!(read, pour);
    read?;
    let status = std::str::from_utf8(&answer)?.split(' ').nth(1).context("a status")?.parse()?;
    Ok((status, taken?))
}

/// A request that arrives byte by byte; returns the time after which the node gave up.
///
/// # Errors
/// If the node does not give up.
pub async fn slow_head(node: SocketAddr, ca: &str) -> Result<Duration> {
    let mut stream = tls(node, ca).await?;
    let begun = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    while begun.elapsed() < PATIENCE {
        tick.tick().await;
        if stream.write_all(b"G").await.is_err() || stream.flush().await.is_err() {
            return Ok(begun.elapsed());
        }
        // Any answer counts; its content does not matter.
        if timeout(Duration::from_millis(1), stream.read(&mut [0; 64])).await.is_ok() {
            return Ok(begun.elapsed());
        }
    }
    bail!("a request that comes a byte at a time is still waited for after {PATIENCE:?}")
}

async fn pour(stream: &mut TlsStream<TcpStream>, most: usize) -> Result<usize> {
    pour_pieces(stream, &vec![b'x'; PIECE], most).await
}

/// Writes until the node reads no more: it closed the connection, or its buffers are full.
async fn pour_pieces(to: &mut (impl AsyncWriteExt + Unpin), piece: &[u8], most: usize) -> Result<usize> {
    let mut taken = 0;
    while taken < most {
        let sent = async {
            to.write_all(piece).await?;
            to.flush().await
        };
        match timeout(PATIENCE, sent).await {
            Ok(Ok(())) => taken += piece.len(),
            Ok(Err(_)) => return Ok(taken),
            Err(_) => bail!("the node neither reads nor ends a request without end ({taken} bytes taken)"),
        }
    }
    bail!("the node took {taken} bytes of a request without end")
}

async fn tls(node: SocketAddr, ca: &str) -> Result<TlsStream<TcpStream>> {
    tls_of(node, ca, &[]).await
}

/// A connection of a client with these protocols (ALPN).
///
/// # Errors
/// If there is no connection, or the node's certificate is not the cluster's.
pub async fn tls_of(node: SocketAddr, ca: &str, protocols: &[&[u8]]) -> Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).context("the cluster's CA")?)?;
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let connect = async {
        let stream = TcpStream::connect(node).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::IpAddress(node.ip().into()), stream).await
    };
    timeout(PATIENCE, connect).await.context("no connection to the node")?.context("connect to the node")
}
