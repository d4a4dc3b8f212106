//! The way to a node through a virtio-serial port, as a stream: frames on the hypervisor's socket.
//!
//! In: the unix socket of the port's device at the hypervisor. Out: the bytes of one connection. Invariants: what an earlier client has
//! left on the port is passed over; the node's answer is awaited before anything is sent; the caller's limit ends the wait.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use orlop_proto::node_api_serial::{DATA_MAX, SerialFrame, SerialReader};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Time until the beginning is sent again: the node may have been starting, or its kernel has passed on the bytes before the news that
/// this client is there, and they were taken for a rest.
const AGAIN: Duration = Duration::from_millis(500);
/// Bytes between the connection and its pump.
const BUFFER: usize = 64 << 10;

/// Opens a connection to the node.
pub(crate) async fn open(path: &Path) -> io::Result<DuplexStream> {
    let mut stream = UnixStream::connect(path).await?;
    let mut number = [0; 8];
    let random = SystemRandom::new().fill(&mut number);
    random.map_err(|_| io::Error::other("the system has no random numbers"))?;
    let session = u64::from_le_bytes(number);
    let mut reader = SerialReader::default();
    let first = loop {
        // The zero ends what an earlier client may have left.
        let mut beginning = vec![0];
        SerialFrame::Open { session }.encode(&mut beginning);
        stream.write_all(&beginning).await?;
        // Nothing that was read is lost at the end of the time: the reader has it.
        if let Ok(answered) = timeout(AGAIN, answer(&mut stream, &mut reader, session)).await {
            break answered?;
        }
    };
    let (near, far) = tokio::io::duplex(BUFFER);
    // It ends with the connection, or with the stream.
    tokio::spawn(pump(stream, reader, first, session, far));
    Ok(near)
}

/// Waits for the answer; returns the bytes that came right behind it.
async fn answer(stream: &mut UnixStream, reader: &mut SerialReader, session: u64) -> io::Result<Vec<u8>> {
    let mut bytes = [0; DATA_MAX];
    loop {
        let length = stream.read(&mut bytes).await?;
        if length == 0 {
            return Err(closed("the hypervisor has closed the port: another client may have it"));
        }
        let mut frames = reader.take(bytes.get(..length).unwrap_or_default()).into_iter();
        while let Some(frame) = frames.next() {
            match frame {
                SerialFrame::Opened { session: of } if of == session => return first(frames, session),
                SerialFrame::Close { session: of } if of == session => {
                    return Err(closed("the node has the port, and its management API does not start"));
                }
                _ => {}
            }
        }
    }
}

/// Bytes of frames that came together with the answer.
fn first(frames: impl Iterator<Item = SerialFrame>, session: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for frame in frames {
        if frame == (SerialFrame::Close { session }) {
            return Err(closed("the node has closed the connection at once"));
        }
        bytes.extend(data(frame, session).unwrap_or_default());
    }
    Ok(bytes)
}

fn closed(message: &'static str) -> io::Error {
    io::Error::new(ErrorKind::ConnectionAborted, message)
}

fn data(frame: SerialFrame, session: u64) -> Option<Vec<u8>> {
    match frame {
        SerialFrame::Data { session: of, bytes } if of == session => Some(bytes),
        _ => None,
    }
}

/// Passes bytes until one side ends; the other side's stream ends with it.
async fn pump(
    stream: UnixStream,
    reader: SerialReader,
    first: Vec<u8>,
    session: u64,
    far: DuplexStream,
) -> io::Result<()> {
    let (from_port, to_port) = stream.into_split();
    let (from_client, to_client) = tokio::io::split(far);
    tokio::select! {
        ended = to_the_client(from_port, reader, first, session, to_client) => ended,
        ended = to_the_node(from_client, to_port, session) => ended,
    }
}

async fn to_the_client(
    mut port: OwnedReadHalf,
    mut reader: SerialReader,
    first: Vec<u8>,
    session: u64,
    mut client: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    client.write_all(&first).await?;
    let mut bytes = [0; DATA_MAX];
    loop {
        let length = port.read(&mut bytes).await?;
        if length == 0 {
            return Ok(());
        }
        for frame in reader.take(bytes.get(..length).unwrap_or_default()) {
            if frame == (SerialFrame::Close { session }) {
                return Ok(());
            }
            if let Some(bytes) = data(frame, session) {
                client.write_all(&bytes).await?;
            }
        }
    }
}

async fn to_the_node(
    mut client: impl AsyncRead + Unpin,
    mut port: OwnedWriteHalf,
    session: u64,
) -> io::Result<()> {
    let mut bytes = [0; DATA_MAX];
    loop {
        let length = client.read(&mut bytes).await?;
        let frame = match length {
            0 => SerialFrame::Close { session },
            _ => SerialFrame::Data { session, bytes: bytes.get(..length).unwrap_or_default().to_vec() },
        };
        let mut encoded = Vec::new();
        frame.encode(&mut encoded);
        port.write_all(&encoded).await?;
        if length == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    fn encoded(frame: &SerialFrame) -> Vec<u8> {
        let mut out = Vec::new();
        frame.encode(&mut out);
        out
    }

    /// The session of the first beginning that comes.
    async fn begun(port: &mut UnixStream, reader: &mut SerialReader) -> u64 {
        loop {
            let mut bytes = [0; 64];
            let length = port.read(&mut bytes).await.unwrap();
            if let Some(SerialFrame::Open { session }) = reader.take(&bytes[..length]).first() {
                return *session;
            }
        }
    }

    #[tokio::test]
    async fn the_rest_of_another_client_is_passed_over_and_bytes_go_both_ways() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port");
        let listener = UnixListener::bind(&path).unwrap();
        let node = async {
            let (mut port, _) = listener.accept().await.unwrap();
            let mut reader = SerialReader::default();
            let session = begun(&mut port, &mut reader).await;
            let mut bytes = vec![0x55; 300];
            bytes.push(0);
            for frame in [
                SerialFrame::Data { session: session ^ 1, bytes: b"stale".to_vec() },
                SerialFrame::Close { session: session ^ 1 },
                SerialFrame::Opened { session },
                SerialFrame::Data { session, bytes: b"first".to_vec() },
            ] {
                bytes.extend(encoded(&frame));
            }
            port.write_all(&bytes).await.unwrap();
            let mut heard = Vec::new();
            while heard.len() < 4 {
                let mut bytes = [0; 64];
                let length = port.read(&mut bytes).await.unwrap();
                for frame in reader.take(&bytes[..length]) {
                    heard.extend(data(frame, session).unwrap_or_default());
                }
            }
            port.write_all(&encoded(&SerialFrame::Close { session })).await.unwrap();
            (heard, port)
        };
        let client = async {
            let mut stream = open(&path).await.unwrap();
            let mut first = [0; 5];
            stream.read_exact(&mut first).await.unwrap();
            stream.write_all(b"ping").await.unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.unwrap();
            (first, rest)
        };
        let ((heard, _port), (first, rest)) = tokio::join!(node, client);
        assert_eq!((heard.as_slice(), &first, rest.as_slice()), (&b"ping"[..], b"first", &b""[..]));
    }

    #[tokio::test]
    async fn a_node_that_starts_late_finds_the_beginning_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port");
        let listener = UnixListener::bind(&path).unwrap();
        let node = async {
            let (mut port, _) = listener.accept().await.unwrap();
            let mut reader = SerialReader::default();
            let lost = begun(&mut port, &mut reader).await;
            let session = begun(&mut port, &mut reader).await;
            assert_eq!(session, lost, "it is the same client");
            port.write_all(&encoded(&SerialFrame::Close { session })).await.unwrap();
        };
        let ((), opened) = tokio::join!(node, open(&path));
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }
}
