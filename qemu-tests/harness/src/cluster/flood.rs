//! Clients without credentials that speak HTTP/2 to a node's HTTPS API, frame by frame: thousands of unknown tokens,
//! and connections that do not read their answers.
//!
//! In: the node's address, the cluster's CA, the numbers. Out: the results. No client has a
//! certificate, and no token is one of the cluster's.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::client::TlsStream;

use super::strangers::tls_of;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END: u8 = 0x5;

/// Number of clients, and duration.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Simultaneous connections; a connection that ends is made again.
    pub connections: usize,
    /// Requests at once on each, each with a token of its own.
    pub streams: u32,
    /// Duration of the flood.
    pub lasts: Duration,
}

/// Results of the requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flooded {
    /// Requests sent.
    pub sent: u64,
    /// Connections made.
    pub connections: u64,
}

/// Sends requests with unknown tokens as fast as the node accepts them.
///
/// # Errors
/// If no connection was made.
pub async fn tokens(node: SocketAddr, ca: &str, flood: Flood) -> Result<Flooded> {
    let until = Instant::now() + flood.lasts;
    let one = async |number: usize| {
        let mut seen = Flooded::default();
        while Instant::now() < until {
            // The node may end the connection at any time, and should.
            let asked = ask_until_ended(node, ca, (number, flood.streams), &mut seen);
            let _ = timeout_at(until, asked).await;
        }
        seen
    };
    let mut all: FuturesUnordered<_> = (0..flood.connections).map(one).collect();
    let mut sum = Flooded::default();
    while let Some(seen) = all.next().await {
        sum.sent += seen.sent;
        sum.connections += seen.connections;
    }
    ensure!(sum.sent > 0, "no stranger could ask");
    Ok(sum)
}

async fn ask_until_ended(
    node: SocketAddr,
    ca: &str,
    (number, streams): (usize, u32),
    seen: &mut Flooded,
) -> Result<()> {
    let (mut reads, mut writes) = connected(node, ca, 65_535).await?;
    seen.connections += 1;
    let connection = seen.connections;
    let mut next = 1;
    loop {
        for _ in 0..streams {
            let token = format!("stranger {number} {connection} {next}");
            send(&mut writes, HEADERS, END, next, &head(Some(&token))?).await?;
            seen.sent += 1;
            next += 2;
        }
        // The last request's answer, or its refusal, is the sign for the next ones.
        while frame(&mut reads, &mut writes).await?.stream != next - 2 {}
    }
}

/// Makes `many` connections, sends one request on each and does not read the answer; returns the lifetime of the last
/// of them.
///
/// # Errors
/// If a connection still exists after `most`.
pub async fn takers_of_nothing(node: SocketAddr, ca: &str, many: usize, most: Duration) -> Result<Duration> {
    let began = Instant::now();
    let one = async || {
        let (mut reads, mut writes) = connected(node, ca, 0).await?;
        send(&mut writes, HEADERS, END, 1, &head(None)?).await?;
        while frame(&mut reads, &mut writes).await.is_ok() {}
        anyhow::Ok(())
    };
    let mut all: FuturesUnordered<_> = (0..many).map(|_| one()).collect();
    // One that is not even connected is as good as ended.
    while let Some(_ended) =
        timeout_at(began + most, all.next()).await.context("a connection that takes nothing lives on")?
    {}
    Ok(began.elapsed())
}

type Halves = (ReadHalf<TlsStream<TcpStream>>, WriteHalf<TlsStream<TcpStream>>);

/// A connection on which the node may send `window` bytes of an answer.
async fn connected(node: SocketAddr, ca: &str, window: u32) -> Result<Halves> {
    let (reads, mut writes) = split(tls_of(node, ca, &[b"h2"]).await?);
    writes.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
    let mut initial_window = 4_u16.to_be_bytes().to_vec();
    initial_window.extend(window.to_be_bytes());
    send(&mut writes, SETTINGS, 0, 0, &initial_window).await?;
    Ok((reads, writes))
}

/// GET of `/pods` in HPACK, nothing compressed: method, scheme and authority, path, and a token.
fn head(token: Option<&str>) -> Result<Vec<u8>> {
    let mut head = vec![0x82, 0x87, 0x01, 4];
    head.extend(b"node");
    head.extend([0x04, 5]);
    head.extend(b"/pods");
    if let Some(token) = token {
        let value = format!("Bearer {}", token.replace(' ', "-"));
        head.extend([0x0f, 8, u8::try_from(value.len()).context("a short token")?]);
        head.extend(value.as_bytes());
    }
    Ok(head)
}

async fn send(
    to: &mut WriteHalf<TlsStream<TcpStream>>,
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &[u8],
) -> Result<()> {
    let [_, length @ ..] = u32::try_from(payload.len()).context("a short frame")?.to_be_bytes();
    let mut frame = length.to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    to.write_all(&frame).await?;
    to.flush().await?;
    Ok(())
}

struct Frame {
    stream: u32,
}

/// The next frame; pings and settings are acknowledged.
async fn frame(
    from: &mut ReadHalf<TlsStream<TcpStream>>,
    to: &mut WriteHalf<TlsStream<TcpStream>>,
) -> Result<Frame> {
    let mut head = [0; 9];
    from.read_exact(&mut head).await?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c]))?];
    from.read_exact(&mut payload).await?;
    if flags & ACK == 0 {
        match kind {
            SETTINGS => send(to, SETTINGS, ACK, 0, &[]).await?,
            PING => send(to, PING, ACK, 0, &payload).await?,
            _ => {}
        }
    }
    ensure!(kind != GOAWAY, "the node ends the connection");
    Ok(Frame { stream: u32::from_be_bytes(stream) })
}
