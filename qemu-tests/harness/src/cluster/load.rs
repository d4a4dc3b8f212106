//! Streams under load, past the API server: execs that echo over WebSocket `v5.channel.k8s.io`, and followers of a log,
//! every byte of which is compared with what it must be.
//!
//! In: a node, an administrator's certificate, the number of streams of each kind. Out: the number of bytes.
//! Invariant: a missing, doubled or wrong byte is an error with its offset.

mod follower;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::fixture::{STAYS, api_pod, await_pod_gone};
use super::kubeconfig::Credentials;
use super::plane::Cluster;
use super::proxy::inside;
use crate::usage::resident_kib;

use follower::{LINE, LINES, Log};

/// A prime, so that a shifted stream does not look like itself.
const PERIOD: usize = 65_521;
/// More than a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(900);
/// Between two looks at how much memory there is in use.
const SAMPLE: Duration = Duration::from_millis(100);

/// Amount of the load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Execs at once.
    pub execs: usize,
    /// Bytes that each of them echoes.
    pub echo_bytes: usize,
    /// Followers of the log at once.
    pub followers: usize,
    /// Megabytes of the log, a tenth of a second apart.
    pub rounds: usize,
}

/// Result of the load.
#[derive(Clone, Debug)]
pub struct LoadResult {
    /// Bytes that went into execs and came back.
    pub echoed: usize,
    /// Bytes of the log that followers got.
    pub followed: usize,
    /// Seconds until all of it was there.
    pub took_s: f64,
    /// The node's process before, at its largest and afterwards, KiB.
    pub resident_kib: [u64; 3],
    /// Incomplete streams, if the caller accepts them.
    pub problems: Vec<String>,
}

/// The pod that writes: it waits for `/go`, then a megabyte every tenth of a second.
#[must_use]
pub fn writer(node: &str, rounds: usize) -> Value {
    let script = format!(
        "awk 'BEGIN {{ for (i = 0; i < {LINES}; i++) {{ s = sprintf(\"%04d \", i); \
         while (length(s) < {}) s = s \"0123456789abcdefghijklmnopqrstuvwxyz \"; print substr(s, 1, {}) }} }}' > /block; \
         echo ready; while [ ! -e /go ]; do sleep 0.1; done; i=0; \
         while [ $i -lt {rounds} ]; do printf 'round %06d\\n' $i; cat /block; i=$((i+1)); sleep 0.1; done",
        LINE - 1,
        LINE - 1,
    );
    let mut pod = api_pod("writes", node, &script, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-s", "/block"]}, "periodSeconds": 1});
    pod
}

/// The pod that is executed in.
#[must_use]
pub fn echoer(node: &str) -> Value {
    api_pod("echoes", node, STAYS, 1)
}

/// Loads the node at `address` whose kubelet is process `pid`; both pods are Ready there. An incomplete log or echo is
/// a problem in the result, everything else is an error.
///
/// # Errors
/// A stream that breaks or has wrong bytes.
pub fn run(cluster: &Cluster, address: SocketAddr, pid: i32, load: Load) -> Result<LoadResult> {
    let Credentials::Certificate { certificate, key } = cluster.pki().node_admin()? else {
        bail!("the administrator has no certificate");
    };
    let tls = Arc::new(client_config(&cluster.pki().ca.pem, &certificate, &key)?);
    let before = resident_kib(pid)?;
    let (stop, stopped) = std::sync::mpsc::channel();
    let sampler = std::thread::spawn(move || largest(pid, stopped));
    let result = inside(cluster.pid()?, async move || {
        let node = Node { address, tls };
        let start = Instant::now();
        let logs = try_join_all(
            (0..load.followers).map(|_| node.follow("/containerLogs/default/writes/c?follow=true")),
        )
        .await
        .context("open the followers")?;
        let execs = try_join_all((0..load.execs).map(|n| node.echo(n, load.echo_bytes)));
        let logs = async {
            let read = logs.into_iter().map(|log| tokio::spawn(log.compare(load.rounds)));
            let read: Vec<_> = read.collect();
            let (status, said) = node.post("/run/default/writes/c?cmd=touch+/go").await?;
            ensure!(status == 200, "start the writer: {status} {said}");
            let mut all = Vec::new();
            for log in read {
                all.push(log.await.context("a follower")?);
            }
            anyhow::Ok(all)
        };
        let both = async { tokio::try_join!(execs, logs) };
        let (echoed, logs) = timeout(PATIENCE, both).await.context("the load does not end")??;
        Ok((echoed, logs, start.elapsed().as_secs_f64()))
    });
    drop(stop);
    let largest = sampler.join().map_err(|_| anyhow::anyhow!("the sampler panicked"))?;
    let (echoed, logs, took_s) = result?;
    let followed = logs.iter().map(|(bytes, _)| bytes).sum();
    let short = echoed.iter().enumerate().filter(|(_, bytes)| **bytes != load.echo_bytes);
    let short = short.map(|(n, bytes)| format!("exec {n}: {bytes} of {} bytes came back", load.echo_bytes));
    let problems = short.chain(logs.into_iter().filter_map(|(_, problem)| problem)).collect();
    Ok(LoadResult {
        echoed: echoed.iter().sum(),
        followed,
        took_s,
        resident_kib: [before, largest.max(before), resident_kib(pid)?],
        problems,
    })
}

/// Deletes both pods.
///
/// # Errors
/// If they do not go.
pub fn clean(cluster: &Cluster) -> Result<()> {
    for name in ["writes", "echoes"] {
        cluster.kubectl(&["delete", "pod", name, "--wait=false"])?;
        await_pod_gone(cluster, name, 60)?;
    }
    Ok(())
}

/// The largest memory of a process until `stopped`, KiB.
fn largest(pid: i32, stopped: Receiver<()>) -> u64 {
    let mut most = 0;
    while matches!(stopped.recv_timeout(SAMPLE), Err(RecvTimeoutError::Timeout)) {
        most = most.max(resident_kib(pid).unwrap_or_default());
    }
    most
}

fn client_config(ca: &str, certificate: &str, key: &str) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).context("the cluster's CA")?)?;
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).context("the administrator's key")?;
    let config = ClientConfig::builder().with_root_certificates(roots);
    config.with_client_auth_cert(chain.context("a certificate")?, key).context("a client's identity")
}

/// The way to the node.
struct Node {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
}

type Stream = BufReader<TlsStream<TcpStream>>;

impl Node {
    /// Sends a request's head; returns the status and the stream after the answer's head.
    async fn ask(&self, request: &str) -> Result<(u16, Stream)> {
        let stream = TcpStream::connect(self.address).await.context("connect to the node")?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let mut stream = TlsConnector::from(self.tls.clone()).connect(name, stream).await.context("TLS")?;
        stream.write_all(format!("{request}\r\nHost: node\r\n\r\n").as_bytes()).await?;
        stream.flush().await?;
        let mut stream = BufReader::with_capacity(64 * 1024, stream);
        let mut status = String::new();
        stream.read_line(&mut status).await?;
        let mut line = String::new();
        while stream.read_line(&mut line).await? > 2 {
            line.clear();
        }
        let code = status.split(' ').nth(1).with_context(|| format!("an answer: {status:?}"))?.parse()?;
        Ok((code, stream))
    }

    async fn post(&self, path: &str) -> Result<(u16, String)> {
        let request = format!("POST {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: 0");
        let (status, mut stream) = self.ask(&request).await?;
        let mut said = String::new();
        // The node may end the connection without a word of TLS.
        let _ = stream.read_to_string(&mut said).await;
        Ok((status, said))
    }

    async fn follow(&self, path: &str) -> Result<Log> {
        let (status, stream) = self.ask(&format!("GET {path} HTTP/1.1")).await?;
        ensure!(status == 200, "follow: {status}");
        Ok(Log::new(stream))
    }

    /// Sends bytes into `cat` and compares the echo; returns its length.
    async fn echo(&self, number: usize, bytes: usize) -> Result<usize> {
        let path = "/exec/default/echoes/c?command=cat&input=1&output=1";
        let request = format!(
            "GET {path} HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io"
        );
        let (status, stream) = self.ask(&request).await?;
        ensure!(status == 101, "exec: {status}");
        let (mut reads, mut writes) = split(stream);
        let pattern = Pattern::new(number);
        let write = async {
            let mut sent = 0;
            while sent < bytes {
                let piece = pattern.at(sent, (bytes - sent).min(16_000));
                writes.write_all(&message(0, piece)).await?;
                sent += piece.len();
            }
            writes.write_all(&message(255, &[0])).await?;
            writes.flush().await?;
            anyhow::Ok(())
        };
        let read = async {
            let (mut got, mut ended) = (0, false);
            // Channels have no order among each other: messages after the status count.
            while let Some((channel, payload)) =
                next_message(&mut reads).await.with_context(|| format!("after {got} bytes"))?
            {
                if channel == 3 {
                    let status = String::from_utf8_lossy(&payload).into_owned();
                    ensure!(status.contains("\"Success\""), "exec {number}: {status}");
                    ended = true;
                    continue;
                }
                let mut rest = payload.as_slice();
                while !rest.is_empty() {
                    let expected = pattern.at(got, rest.len());
                    let (piece, more) = rest.split_at(expected.len());
                    ensure!(piece == expected, "exec {number}: other bytes after {got}");
                    (rest, got) = (more, got + piece.len());
                }
            }
            ensure!(ended, "exec {number}: the node ended the stream without a status");
            Ok(got)
        };
        let ((), got) = tokio::try_join!(write, read).with_context(|| format!("exec {number}"))?;
        Ok(got)
    }
}

/// Bytes that know their place.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new(number: usize) -> Pattern {
        let mut state = number as u64 + 1;
        let bytes = (0..PERIOD).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_le_bytes()[7]
        });
        Pattern(bytes.collect())
    }

    /// At most so many bytes from a place on, at least one.
    fn at(&self, place: usize, most: usize) -> &[u8] {
        let from = place % PERIOD;
        &self.0[from..(from + most).min(PERIOD)]
    }
}

/// A client's message; its mask is zero.
fn message(channel: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len() + 1).unwrap_or(u16::MAX).to_be_bytes();
    [&[0x82, 0xfe, length[0], length[1], 0, 0, 0, 0, channel], bytes].concat()
}

/// The next message of a server: channel and bytes; `None` at the end.
async fn next_message(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<Option<(u8, Vec<u8>)>> {
    loop {
        let (opcode, length) = (stream.read_u8().await? & 0xf, stream.read_u8().await?);
        let length = match length {
            126 => u64::from(stream.read_u16().await?),
            127 => stream.read_u64().await?,
            length => u64::from(length),
        };
        let mut payload = vec![0; usize::try_from(length)?];
        stream.read_exact(&mut payload).await?;
        match (opcode, payload.split_first()) {
            (2, Some((channel, bytes))) => return Ok(Some((*channel, bytes.to_vec()))),
            (8, _) => return Ok(None),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_bytes_of_their_own() {
        let (one, other) = (Pattern::new(1), Pattern::new(2));
        assert_ne!(one.at(0, 100), other.at(0, 100));
        assert_eq!(one.at(PERIOD - 1, 100).len(), 1);
        assert_eq!(one.at(PERIOD + 3, 5), one.at(3, 5));
        assert_eq!(message(255, &[0]), [0x82, 0xfe, 0, 2, 0, 0, 0, 0, 255, 0]);
    }
}
