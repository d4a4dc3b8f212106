//! WebSocket clients in front of a node, and runtimes of raw bytes behind it.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;

use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::api::tunnel::tests::ends_first;

struct Start;

impl Spawn for Start {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send + 'static>>) {
        tokio::spawn(task);
    }
}

const IDLE: Duration = Duration::from_secs(60);
const ALL: StreamOptions =
    StreamOptions { command: Vec::new(), stdin: true, stdout: true, stderr: true, tty: false };
const SUCCESS: &[u8] = br#"{"metadata":{},"status":"Success"}"#;
/// The example of RFC 6455.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// A client in front of a node whose runtime waits at `url`: exec, or port-forward with a tunnel.
fn client(url: String, is_exec: bool) -> DuplexStream {
    let (client, node) = duplex(64 * 1024);
    let service = service_fn(move |request: Request<Incoming>| {
        let streams = Streams { idle: IDLE, spawner: Arc::new(Start), extended: true };
        let url = url.clone();
        async move {
            let response = if is_exec {
                translated(request, url, &ALL, streams)
            } else {
                tunnelled(request, &url, vec!["portforward.k8s.io".to_owned()], streams).await
            };
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    tokio::spawn(async move {
        let connection = server::Builder::new().serve_connection(TokioIo::new(node), service);
        let _ = connection.with_upgrades().await;
    });
    client
}

fn asking(method: &str, version: &str, key: &str) -> String {
    format!(
        "{method} /exec/a/b/c?command=x HTTP/1.1\r\nHost: node:10250\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: {version}\r\nSec-WebSocket-Key: {key}\r\nAuthorization: Bearer secret\r\n\r\n"
    )
}

async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap().to_lowercase()
}

const SPDY_SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";

/// A runtime that answers one request with `answer`, then does `then` with the stream; answers of its URL.
async fn runtime<F: Future<Output = ()> + Send>(
    answer: String,
    then: impl FnOnce(String, TcpStream) -> F + Send + 'static,
) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/exec/ticket", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let seen = head(&mut stream).await;
        stream.write_all(answer.as_bytes()).await.unwrap();
        then(seen, stream).await;
    });
    url
}

fn exec_switch() -> String {
    format!("{SPDY_SWITCH}X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n")
}

/// A frame of data of the runtime.
fn data(stream: u8, fin: bool, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [&[0, 0, 0, stream, u8::from(fin), length[1], length[2], length[3]], bytes].concat()
}

/// Runs `cat` as a container would: error, input, output and errors are streams 1, 3, 5 and 7.
async fn cat(seen: String, mut stream: TcpStream) {
    assert!(seen.starts_with("post /exec/ticket http/1.1\r\n") && !seen.contains("secret"), "{seen}");
    assert!(seen.contains("x-stream-protocol-version: v4.channel.k8s.io"), "{seen}");
    loop {
        let mut frame = [0; 8];
        stream.read_exact(&mut frame).await.unwrap();
        let length = u32::from_be_bytes([0, frame[5], frame[6], frame[7]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if frame[0] == 0x80 {
            assert_eq!(frame[..4], [0x80, 3, 0, 1], "a stream is opened");
            let reply = [&[0x80, 3, 0, 2, 0, 0, 0, 4], &payload[..4]].concat();
            stream.write_all(&reply).await.unwrap();
            continue;
        }
        assert_eq!(frame[3], 3, "input");
        stream.write_all(&data(5, false, &payload)).await.unwrap();
        if frame[4] == 1 {
            break;
        }
    }
    let last = [data(7, true, b"done"), data(5, true, b""), data(1, true, SUCCESS)].concat();
    stream.write_all(&last).await.unwrap();
}

/// A frame of the client; its mask is zero.
fn message(channel: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x82, 0xfe];
    out.extend_from_slice(&u16::try_from(bytes.len() + 1).unwrap().to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 0, channel]);
    out.extend_from_slice(bytes);
    out
}

/// The server's next frame: opcode and payload.
async fn frame<S: AsyncRead + Unpin>(stream: &mut S) -> (u8, Vec<u8>) {
    let (zero, one) = (stream.read_u8().await.unwrap(), stream.read_u8().await.unwrap());
    let length = if one == 126 { usize::from(stream.read_u16().await.unwrap()) } else { usize::from(one) };
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await.unwrap();
    (zero & 0xf, payload)
}

#[tokio::test]
async fn an_exec_is_translated_and_loses_nothing() {
    let mut client = client(runtime(exec_switch(), cat).await, true);
    client.write_all(asking("GET", "13", KEY).as_bytes()).await.unwrap();
    let answer = head(&mut client).await;
    assert!(answer.starts_with("http/1.1 101") && answer.contains("upgrade: websocket"), "{answer}");
    assert!(answer.contains("sec-websocket-protocol: v5.channel.k8s.io"), "{answer}");
    assert!(answer.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{answer}");
    let sent: Vec<u8> = (0..400_000_u32).map(|n| n.to_le_bytes()[n as usize % 4]).collect();
    let (mut reads, mut writes) = split(client);
    let write = async {
        for piece in sent.chunks(30_000) {
            writes.write_all(&message(0, piece)).await.unwrap();
        }
        writes.write_all(&message(255, &[0])).await.unwrap();
    };
    let read = async {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        assert_eq!(frame(&mut reads).await, (2, vec![1]), "the greeting");
        loop {
            match frame(&mut reads).await {
                (2, m) if m[0] == 1 => output.extend_from_slice(&m[1..]),
                (2, m) if m[0] == 2 => errors.extend_from_slice(&m[1..]),
                (2, m) => break (output, errors, m),
                other => panic!("{other:?}"),
            }
        }
    };
    let ((), (output, errors, status)) = tokio::join!(write, read);
    assert!(output == sent && errors == b"done");
    assert_eq!((status[0], &status[1..]), (3, SUCCESS));
    assert_eq!(frame(&mut reads).await, (8, vec![3, 0xe8]));
    assert_eq!(reads.read(&mut [0; 1]).await.unwrap(), 0, "and then the connection ends");
}

#[tokio::test]
async fn what_goes_wrong_with_the_runtime_is_the_status() {
    let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Length: 7\r\n\r\nnot so\n".to_owned();
    let other = format!("{SPDY_SWITCH}X-Stream-Protocol-Version: v3.channel.k8s.io\r\n\r\n");
    let silent = |_, _| async {};
    for (url, words) in [
        (runtime(refusal, silent).await, "unable to upgrade connection: 400 Bad Request: not so"),
        (runtime(other, silent).await, "speaks Some(\\\"v3.channel.k8s.io\\\") instead of v4.channel.k8s.io"),
        (
            runtime(exec_switch(), silent).await,
            "the runtime's connection ended before it told how the stream ended",
        ),
        ("https://127.0.0.1:1/x".to_owned(), "wants TLS, which is not supported"),
    ] {
        let mut client = client(url, true);
        client.write_all(asking("GET", "13", KEY).as_bytes()).await.unwrap();
        assert!(head(&mut client).await.starts_with("http/1.1 101"));
        assert_eq!(frame(&mut client).await, (2, vec![1]));
        let (_, status) = frame(&mut client).await;
        let status = String::from_utf8(status).unwrap();
        assert!(status.contains(words) && status.contains("InternalError"), "{status}");
        assert_eq!(frame(&mut client).await, (8, vec![3, 0xe8]));
    }
}

#[tokio::test]
async fn what_is_no_opening_of_a_websocket() {
    for (method, version, key) in
        [("POST", "13", KEY), ("GET", "8", KEY), ("GET", "13", "c2hvcnQ="), ("GET", "13", "*")]
    {
        for is_exec in [true, false] {
            let mut client = client("http://127.0.0.1:1/".to_owned(), is_exec);
            client.write_all(asking(method, version, key).as_bytes()).await.unwrap();
            let answer = head(&mut client).await;
            assert!(answer.starts_with("http/1.1 400"), "{method} {version} {key}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_tunnel_carries_bytes_and_a_refusal_passes_through() {
    let switch = format!("{SPDY_SWITCH}X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n");
    let url = runtime(switch, |seen, mut stream| async move {
        assert!(seen.starts_with("post ") && seen.contains("upgrade: spdy/3.1"), "{seen}");
        assert!(seen.contains("x-stream-protocol-version: portforward.k8s.io"), "{seen}");
        let mut four = [0; 4];
        stream.read_exact(&mut four).await.unwrap();
        stream.write_all(&four).await.unwrap();
    })
    .await;
    let mut tunnel = client(url, false);
    tunnel.write_all(asking("GET", "13", KEY).as_bytes()).await.unwrap();
    let answer = head(&mut tunnel).await;
    assert!(answer.contains("sec-websocket-protocol: spdy/3.1+portforward.k8s.io"), "{answer}");
    tunnel.write_all(&message(b'a', b"bcd")).await.unwrap();
    assert_eq!(frame(&mut tunnel).await, (2, b"abcd".to_vec()));
    assert_eq!(frame(&mut tunnel).await, (8, vec![3, 0xe8]), "the runtime has ended");
    let refusal = "HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n".to_owned();
    let mut refused = client(runtime(refusal, |_, _| async {}).await, false);
    refused.write_all(asking("GET", "13", KEY).as_bytes()).await.unwrap();
    assert!(head(&mut refused).await.starts_with("http/1.1 404"));
    let mut nobody = client("http://127.0.0.1:1/x".to_owned(), false);
    nobody.write_all(asking("GET", "13", KEY).as_bytes()).await.unwrap();
    assert!(head(&mut nobody).await.starts_with("http/1.1 502"));
}

/// A runtime that takes all streams and then only listens.
async fn listens(_: String, mut stream: TcpStream, ended: tokio::sync::oneshot::Sender<()>) {
    for stream_id in [1_u8, 3, 5, 7] {
        stream.write_all(&[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, stream_id]).await.unwrap();
    }
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all).await;
    ended.send(()).unwrap();
}

#[tokio::test]
async fn a_client_that_goes_and_one_that_does_nothing_end_their_streams() {
    for breaks_off in [true, false] {
        let (ended, seen) = tokio::sync::oneshot::channel();
        let url = runtime(exec_switch(), |seen, stream| listens(seen, stream, ended)).await;
        let mut client = client(url, true);
        client.write_all(asking("GET", "13", KEY).as_bytes()).await.unwrap();
        head(&mut client).await;
        frame(&mut client).await;
        // A ping goes all the way: both directions stand.
        client.write_all(&[0x89, 0x80, 0, 0, 0, 0]).await.unwrap();
        assert_eq!(frame(&mut client).await, (10, Vec::new()));
        if breaks_off {
            drop(client);
            seen.await.unwrap();
            continue;
        }
        // Time passes only while everybody waits.
        tokio::time::pause();
        let start = tokio::time::Instant::now();
        seen.await.unwrap();
        assert!(start.elapsed() >= IDLE, "{:?}", start.elapsed());
    }
}

/// Sends input without end, until the node takes no more. What a `yes |` does.
async fn flood(mut writes: impl AsyncWrite + Unpin) {
    let piece = message(0, &[b'y'; 30_000]);
    while writes.write_all(&piece).await.is_ok() {}
}

/// All that arrives until the connection ends: frames.
async fn until_closed(reads: &mut (impl AsyncRead + Unpin)) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        all.push(frame(reads).await);
        if all.last().is_some_and(|(opcode, _)| *opcode == 8) {
            assert_eq!(reads.read(&mut [0; 1]).await.unwrap(), 0, "and then the connection ends");
            return all;
        }
    }
}

/// Takes all streams and a little input, waits until neither side can move, and ends with `last`; then the connection is closed with
/// what was not read, or `held` open.
async fn takes_no_more(mut stream: TcpStream, last: Vec<u8>, held: bool) {
    for stream_id in [1_u8, 3, 5, 7] {
        stream.write_all(&[0x80, 3, 0, 2, 0, 0, 0, 4, 0, 0, 0, stream_id]).await.unwrap();
    }
    stream.read_exact(&mut [0; 1000]).await.unwrap();
    // The clock stands: time passes once everybody waits.
    let _ = timeout(Duration::from_secs(1), std::future::pending::<()>()).await;
    stream.write_all(&last).await.unwrap();
    if held {
        std::future::pending::<()>().await;
    }
}

/// How a client that never ends its input hears of the end: frames.
async fn heard_by_a_flood(last: Vec<u8>, held: bool) -> Vec<(u8, Vec<u8>)> {
    let url = runtime(exec_switch(), move |_, stream| takes_no_more(stream, last, held)).await;
    let mut client = client(url, true);
    client.write_all(asking("GET", "13", KEY).as_bytes()).await.unwrap();
    head(&mut client).await;
    frame(&mut client).await;
    tokio::time::pause();
    let (mut reads, writes) = split(client);
    tokio::select! {
        heard = until_closed(&mut reads) => heard,
        () = flood(writes) => panic!("the client's end came before the command's"),
    }
}

#[tokio::test]
async fn input_that_is_not_taken_holds_no_end_back() {
    let causes = serde_json::json!([{"reason": "ExitCode", "message": "3"}]);
    let status =
        serde_json::json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}});
    let status = status.to_string().into_bytes();
    let outputs = [data(5, true, b"y\n"), data(7, true, b"")].concat();
    let reset = |stream: u8| [0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, stream, 0, 0, 0, 5];
    // The end of a stream, or a reset of all as containerd has it; the connection closed with input unread, or left open.
    let resets: Vec<u8> = [1, 3, 5, 7].into_iter().flat_map(reset).collect();
    for ended in [data(1, true, &status), [data(1, false, &status), resets].concat()] {
        for held in [true, false] {
            let heard = heard_by_a_flood([outputs.clone(), ended.clone()].concat(), held).await;
            tokio::time::resume();
            let [(2, output), (2, status), (8, code)] = heard.as_slice() else { panic!("{heard:?}") };
            assert_eq!((output.as_slice(), code.as_slice()), (&b"\x01y\n"[..], &[3, 0xe8][..]));
            let status: serde_json::Value = serde_json::from_slice(&status[1..]).unwrap();
            assert_eq!(status["details"]["causes"][0]["message"], "3", "{status}");
        }
    }
}

#[tokio::test]
async fn a_command_of_which_only_the_outputs_end_is_given_up() {
    let outputs = [data(5, true, b"y\n"), data(7, true, b"")].concat();
    let start = tokio::time::Instant::now();
    let heard = heard_by_a_flood(outputs, true).await;
    assert!(start.elapsed() >= UNTAKEN, "{:?}", start.elapsed());
    let [(2, output), (2, status), (8, _)] = heard.as_slice() else { panic!("{heard:?}") };
    assert_eq!(output, b"\x01y\n");
    let status = String::from_utf8_lossy(status);
    assert!(status.contains("InternalError") && status.contains("its input is not taken"), "{status}");
}

#[tokio::test]
async fn a_command_that_takes_no_input_for_long_is_waited_for() {
    // One of its outputs is open: it may read on.
    let url = runtime(exec_switch(), |_, stream| takes_no_more(stream, data(5, true, b""), true)).await;
    let mut client = client(url, true);
    client.write_all(asking("GET", "13", KEY).as_bytes()).await.unwrap();
    head(&mut client).await;
    frame(&mut client).await;
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    let (mut reads, writes) = split(client);
    let mut byte = [0; 1];
    let last = tokio::select! {
        read = reads.read(&mut byte) => read.unwrap(),
        () = flood(writes) => 0,
    };
    assert_eq!(last, 0);
    assert!(start.elapsed() >= IDLE, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_forwarded_port_whose_peer_closes_ends_although_the_client_sends() {
    let switch = format!("{SPDY_SWITCH}X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n");
    for held in [false, true] {
        let url = runtime(switch.clone(), move |_, stream| ends_first(stream, held)).await;
        let mut client = client(url, false);
        client.write_all(asking("GET", "13", KEY).as_bytes()).await.unwrap();
        head(&mut client).await;
        tokio::time::pause();
        let (mut reads, writes) = split(client);
        let heard = tokio::select! {
            heard = until_closed(&mut reads) => heard,
            () = flood(writes) => panic!("the client's end came before the peer's"),
        };
        tokio::time::resume();
        assert_eq!(heard, [(2, b"bye".to_vec()), (8, vec![3, 0xe8])]);
    }
}
