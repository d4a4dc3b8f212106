//! A tunnel between a client and a runtime, both of raw bytes.

use std::net::Ipv4Addr;
use std::pin::Pin;

use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use tokio::io::{DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

struct Start;

impl Spawn for Start {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send + 'static>>) {
        tokio::spawn(task);
    }
}

const IDLE: Duration = Duration::from_secs(60);
const ASK: &[u8] = b"POST /exec/a/b/c?command=x HTTP/1.1\r\nHost: node:10250\r\nConnection: Upgrade\r\n\
    Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nAuthorization: Bearer secret\r\n\
    Content-Length: 0\r\n\r\n";

/// A client in front of a node whose runtime waits at `url`.
fn client(url: String) -> DuplexStream {
    let (client, node) = duplex(64 * 1024);
    let service = service_fn(move |request| {
        let url = url.clone();
        async move { Ok::<_, std::convert::Infallible>(lead(request, &url, IDLE, Arc::new(Start)).await) }
    });
    tokio::spawn(async move {
        let connection = server::Builder::new().serve_connection(TokioIo::new(node), service);
        let _ = connection.with_upgrades().await;
    });
    client
}

/// Reads up to the end of a head.
async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

/// A runtime that answers one request with `answer`, then does `then` with the stream.
async fn runtime<F: Future<Output = ()> + Send>(
    answer: &'static str,
    then: impl FnOnce(TcpStream) -> F + Send + 'static,
) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/exec/ticket", listener.local_addr().unwrap());
    let seen = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let seen = head(&mut stream).await;
        stream.write_all(answer.as_bytes()).await.unwrap();
        then(stream).await;
        seen
    });
    (url, seen)
}

const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
    X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

#[tokio::test]
async fn bytes_go_both_ways_and_a_closed_half_stays_one() {
    let (url, seen) = runtime(SWITCH, |mut stream| async move {
        stream.write_all(b"hello ").await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        // The client has closed its half; the other one is still good.
        stream.write_all(&all).await.unwrap();
    })
    .await;
    let mut client = client(url);
    client.write_all(ASK).await.unwrap();
    let answer = head(&mut client).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 101") && answer.contains("upgrade: spdy/3.1"), "{answer}");
    assert!(answer.contains("x-stream-protocol-version: v4.channel.k8s.io"), "{answer}");
    let sent = vec![b'x'; 300_000];
    let (mut reads, mut writes) = split(client);
    let write = async {
        writes.write_all(&sent).await.unwrap();
        writes.shutdown().await.unwrap();
    };
    let mut all = Vec::new();
    let (_, read) = tokio::join!(write, reads.read_to_end(&mut all));
    read.unwrap();
    assert_eq!(all.len(), sent.len() + 6);
    assert!(all.starts_with(b"hello xxx"));
    let seen = seen.await.unwrap().to_lowercase();
    assert!(seen.starts_with("post /exec/ticket http/1.1\r\n"), "{seen}");
    assert!(seen.contains("upgrade: spdy/3.1") && seen.contains("host: 127.0.0.1:"), "{seen}");
    assert!(!seen.contains("secret") && !seen.contains("node:10250"), "{seen}");
}

#[tokio::test]
async fn a_refusal_of_the_runtime_is_the_clients_answer() {
    let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Length: 18\r\n\r\nunable to upgrade\n";
    let (url, _seen) = runtime(refusal, |_| async {}).await;
    let mut client = client(url);
    client.write_all(ASK).await.unwrap();
    assert!(head(&mut client).await.starts_with("HTTP/1.1 400"));
    for url in ["nonsense", "https://127.0.0.1:1/x", "http://127.0.0.1:1/x"] {
        let mut client = self::client(url.to_owned());
        client.write_all(ASK).await.unwrap();
        let answer = head(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 502"), "{url}: {answer}");
    }
}

#[tokio::test]
async fn a_stream_in_which_nothing_moves_ends() {
    let (url, seen) = runtime(SWITCH, |mut stream| async move {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all).await;
    })
    .await;
    let mut client = client(url);
    client.write_all(ASK).await.unwrap();
    head(&mut client).await;
    // Time passes only while everybody waits.
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert!(start.elapsed() >= IDLE, "{:?}", start.elapsed());
    seen.await.unwrap();
}

/// A runtime that reads a little, closes its half a second later, and takes no more; `held`: it keeps the connection open.
pub(in crate::api) async fn ends_first(mut stream: impl AsyncRead + AsyncWrite + Unpin, held: bool) {
    stream.read_exact(&mut [0; 1000]).await.unwrap();
    // The clock stands: time passes once both sides wait.
    let _ = timeout(Duration::from_secs(1), std::future::pending::<()>()).await;
    stream.write_all(b"bye").await.unwrap();
    stream.shutdown().await.unwrap();
    if held {
        std::future::pending::<()>().await;
    }
}

#[tokio::test]
async fn a_runtime_that_ends_is_the_end_although_the_client_sends() {
    for held in [false, true] {
        let (url, _seen) = runtime(SWITCH, move |stream| ends_first(stream, held)).await;
        let mut client = client(url);
        client.write_all(ASK).await.unwrap();
        head(&mut client).await;
        tokio::time::pause();
        let (mut reads, mut writes) = split(client);
        let mut said = Vec::new();
        tokio::select! {
            read = reads.read_to_end(&mut said) => { read.unwrap(); }
            () = async { while writes.write_all(&[b'y'; 30_000]).await.is_ok() {} } => panic!("not taken"),
        }
        tokio::time::resume();
        assert_eq!(said, b"bye");
    }
}
