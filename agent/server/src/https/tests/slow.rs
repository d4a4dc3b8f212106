//! Clients that take nothing, or little, of their answers: HTTP/2 by hand, frame by frame, and HTTP/1.

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::io::AsyncWriteExt;

use super::*;
use crate::body::Broken;

const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const DATA: u8 = 0;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
/// More than any limit here.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of `…/much`; more than the kernel buffers on the loopback.
const MUCH: usize = 64 << 20;
/// Bytes of `…/some`.
const SOME: usize = 40_000;

/// Reports that the body was dropped.
struct BodyDropSignal(Arc<watch::Sender<usize>>);

impl Drop for BodyDropSignal {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count += 1);
    }
}

/// The body of a path: `…/much` and `…/some` in one piece, `…/silent` one byte and then nothing more.
pub(super) fn body(path: &str, gone: &Arc<watch::Sender<usize>>) -> Option<Body> {
    let (length, ends) = match path.rsplit('/').next()? {
        "much" => (MUCH, true),
        "some" => (SOME, true),
        "silent" => (1, false),
        _ => return None,
    };
    let gone = BodyDropSignal(gone.clone());
    let pieces = futures_util::stream::unfold((0, gone), move |(sent, gone)| async move {
        match sent {
            0 => Some((Ok::<_, Broken>(Frame::data(Bytes::from(vec![b'x'; length]))), (1, gone))),
            _ if ends => None,
            _ => std::future::pending().await,
        }
    });
    Some(StreamBody::new(pieces).boxed_unsync())
}

/// An HTTP/2 client that does what the test wants.
struct Frames(TlsStream<TcpStream>);

struct Read {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frames {
    /// Connects; the streams' window is `window`.
    async fn connect(to: SocketAddr, shows: Option<&(String, String)>, window: u32) -> Frames {
        let mut frames = Frames(connect(to, "h2", shows).await.unwrap());
        frames.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut settings = 4_u16.to_be_bytes().to_vec();
        settings.extend(window.to_be_bytes());
        frames.send(SETTINGS, 0, 0, &settings).await.unwrap();
        frames
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).await?;
        self.0.flush().await
    }

    /// GET of a path, complete.
    async fn get(&mut self, stream: u32, path: &str) {
        // :method GET, :scheme https, :authority n, and the path as a literal.
        let mut head = vec![0x82, 0x87, 0x41, 1, b'n', 0x44, u8::try_from(path.len()).unwrap()];
        head.extend(path.as_bytes());
        self.send(HEADERS, 0x5, stream, &head).await.unwrap();
    }

    /// The next frame that is no matter of course; `None` if the connection has ended.
    async fn next(&mut self) -> Option<Read> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            let [a, b, c, kind, flags, s @ ..] = head;
            let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
            self.0.read_exact(&mut payload).await.ok()?;
            if kind == SETTINGS && flags & ACK == 0 {
                self.send(SETTINGS, ACK, 0, &[]).await.ok()?;
                return Some(Read { kind, stream: 0, payload });
            }
            if kind == PING && flags & ACK == 0 {
                self.send(PING, ACK, 0, &payload).await.ok()?;
            } else if kind != SETTINGS {
                return Some(Read { kind, stream: u32::from_be_bytes(s), payload });
            }
        }
    }

    /// Kinds of frames until the connection ends.
    async fn until_end(&mut self) -> Vec<u8> {
        let mut kinds = Vec::new();
        while let Some(frame) = self.next().await {
            kinds.push(frame.kind);
        }
        kinds
    }

    /// The next frame of this kind.
    async fn await_kind(&mut self, kind: u8) -> Read {
        loop {
            let frame = self.next().await.expect("the connection lives");
            if frame.kind == kind {
                return frame;
            }
        }
    }
}

#[tokio::test]
async fn a_stranger_that_takes_no_answer_is_ended() {
    let limits = Limits { life_of_strangers: MOMENT * 20, ..Limits::default() };
    let world = world(limits).await;
    let mut stranger = Frames::connect(world.at, None, 0).await;
    stranger.get(1, "/stranger").await;
    let kinds = timeout(PATIENCE, stranger.until_end()).await.expect("its connection is ended");
    assert!(kinds.contains(&HEADERS) && kinds.contains(&GOAWAY) && !kinds.contains(&DATA), "{kinds:?}");
}

#[tokio::test]
async fn an_admitted_client_outlives_strangers_and_loses_only_the_stream_it_does_not_take() {
    let limits = Limits { life_of_strangers: MOMENT * 20, stalled: MOMENT * 8, ..Limits::default() };
    let world = world(limits).await;
    let mut client = Frames::connect(world.at, None, 0).await;
    client.get(1, "/admitted").await;
    let reset = timeout(PATIENCE, client.await_kind(RESET)).await.expect("the stream is ended");
    assert_eq!(reset.stream, 1);
    // Nothing but the stream was ended.
    client.get(3, "/admitted/silent").await;
    client.send(WINDOW_UPDATE, 0, 3, &100_u32.to_be_bytes()).await.unwrap();
    let data = timeout(PATIENCE, client.await_kind(DATA)).await.expect("an answer");
    assert_eq!((data.stream, data.payload.len()), (3, 1));
    // Its log is silent now, and it is not ended for it.
    assert!(timeout(MOMENT * 24, client.next()).await.is_err(), "a silent stream is left alone");
}

#[tokio::test]
async fn a_client_that_takes_little_at_a_time_gets_all() {
    let limits = Limits { stalled: MOMENT * 20, idle: MOMENT * 20, ..Limits::default() };
    let world = world(limits).await;
    let mut client = Frames::connect(world.at, None, 0).await;
    client.get(1, "/admitted/some").await;
    let (mut got, mut tick) = (0, tokio::time::interval(MOMENT));
    while got < SOME {
        tick.tick().await;
        client.send(WINDOW_UPDATE, 0, 1, &1000_u32.to_be_bytes()).await.unwrap();
        got += timeout(PATIENCE, client.await_kind(DATA)).await.expect("a piece").payload.len();
    }
    assert_eq!(got, SOME);
}

#[tokio::test]
async fn strangers_have_fewer_streams() {
    let world = world(Limits::default()).await;
    for (shows, streams) in [(None, 16), (Some(pair()), 250)] {
        let mut client = Frames::connect(world.at, shows.as_ref(), 65_535).await;
        let settings = timeout(PATIENCE, client.await_kind(SETTINGS)).await.unwrap().payload;
        let most =
            settings.chunks_exact(6).find(|setting| setting[..2] == [0, 3]).expect("MAX_CONCURRENT_STREAMS");
        assert_eq!(u32::from_be_bytes([most[2], most[3], most[4], most[5]]), streams);
    }
}

#[tokio::test]
async fn a_client_of_http1_that_reads_nothing_is_ended() {
    for path in ["/admitted/much", "/much"] {
        let limits = match path {
            "/much" => Limits { life_of_strangers: MOMENT * 2, ..Limits::default() },
            _ => Limits { stalled: MOMENT * 2, ..Limits::default() },
        };
        let mut world = world(limits).await;
        let mut client = connect(world.at, "http/1.1", None).await.unwrap();
        client.write_all(format!("GET {path} HTTP/1.1\r\nHost: n\r\n\r\n").as_bytes()).await.unwrap();
        let gone = timeout(PATIENCE, world.gone.wait_for(|gone| *gone == 1)).await;
        gone.expect("the answer is given up").unwrap();
        // Bytes under way still arrive, and then the end.
        let read = timeout(PATIENCE, client.read_to_end(&mut Vec::new())).await.expect("the connection ends");
        assert!(read.is_err() || read.unwrap() < MUCH, "{path}");
    }
}

#[tokio::test]
async fn a_follower_of_a_silent_log_over_http1_is_left_alone() {
    let limits =
        Limits { stalled: MOMENT, idle: MOMENT, life_of_strangers: MOMENT * 20, ..Limits::default() };
    let world = world(limits).await;
    let mut client = connect(world.at, "http/1.1", None).await.unwrap();
    client.write_all(b"GET /admitted/silent HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\nx\r\n") {
        let mut piece = [0; 1024];
        let read = timeout(PATIENCE, client.read(&mut piece)).await.expect("an answer").unwrap();
        assert!(read > 0, "ended after {:?}", String::from_utf8_lossy(&answer));
        answer.extend(&piece[..read]);
    }
    assert!(timeout(MOMENT * 24, client.read(&mut [0; 64])).await.is_err(), "a silent answer is left alone");
    assert_eq!(*world.gone.borrow(), 0);
}
