//! Captures: packets of an interface, as a file of pcap.
//!
//! ```text
//! packet socket ─► filter ─► pcap ─► pieces, a bounded number of them ─► gRPC stream ─► client
//! ```
//! In: a request of an administrator. Out: pieces, and one end that says why and how many packets were lost. Invariants: a capture ends at
//! its time, its bytes or its packets, and with its client; at most [`CAPTURES_MAX`] are there; a client that reads slowly loses packets
//! and holds neither the socket nor other clients back; the interface is not put into another mode.

mod filter;
mod pcap;
mod wish;

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram as StdUnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_linux::files::read_capped;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use jiff::Timestamp;
use nix::sys::socket::{LinkAddr, recvfrom};
use orlop_proto::node_api::v1alpha1::captures_server::Captures;
use orlop_proto::node_api::v1alpha1::{CaptureEnd, CapturePiece, CaptureRequest};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Request, Response, Status};

use self::pcap::{LinkKind, PACKET_HEAD, PacketTime};
use self::wish::CaptureWish;
use crate::areas::ApiArea;
use crate::calls::{NodeApi, asks};
use crate::connection::CallPeer;
use crate::guard::{self, Peer};
use crate::refusal::{Reason, Refusal};

/// Captures at once.
const CAPTURES_MAX: usize = 2;
/// Pieces that wait for a client.
const PIECES_MAX: usize = 16;
/// A piece is sent when it has so many bytes, or when no packet waits.
const PIECE_BYTES: usize = 32 << 10;
/// Packets between two looks at the clock and the client.
const BATCH: usize = 64;
/// Bytes of the kernel's queue.
const QUEUE_BYTES: usize = 1 << 20;
/// Largest packet that is read whole, bytes: segments that the card puts together are larger than a frame.
const PACKET_MAX: usize = 1 << 17;
/// The end waits so long for a place in the queue of pieces.
const END_MAX: Duration = Duration::from_secs(30);
/// A number of /sys is not longer, bytes.
const NUMBER_MAX: u64 = 32;
/// All protocols (`ETH_P_ALL` of linux/if_ether.h).
const ALL_PROTOCOLS: u16 = 3;
/// A packet that this machine sends (`PACKET_OUTGOING` of linux/if_packet.h).
const OUTGOING: u8 = 4;
/// Hardware type of the loopback interface, on which each packet is seen twice.
const LOOPBACK: u32 = 772;

/// Pieces of a capture.
pub(crate) type CaptureStream = BoxStream<'static, Result<CapturePiece, Status>>;

/// The places of captures.
#[derive(Debug)]
pub(crate) struct CapturePlaces(Arc<Semaphore>);

impl Default for CapturePlaces {
    fn default() -> CapturePlaces {
        CapturePlaces(Arc::new(Semaphore::new(CAPTURES_MAX)))
    }
}

impl CapturePlaces {
    fn take(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.0.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{CAPTURES_MAX} captures are there already");
            Refusal::new(Reason::TooManyStreams, "capture", message)
        })
    }
}

/// Who may see packets: those who may change the node, and no user of the cluster.
fn may_capture(caller: Option<&CallPeer>) -> Result<(), Refusal> {
    // A call without a connection is ended before its work begins.
    let missing = || Refusal::new(Reason::NotTrusted, "call", "it has no connection");
    guard::admin(caller.ok_or_else(missing)?.identity.as_ref().map_err(Clone::clone)?)
}

#[tonic::async_trait]
impl Captures for NodeApi {
    type CaptureStream = CaptureStream;

    async fn capture(&self, request: Request<CaptureRequest>) -> Result<Response<CaptureStream>, Status> {
        let caller = self.caller(asks(&request), ApiArea::Operations).await;
        let request = request.into_inner();
        let allowed = may_capture(caller.as_ref());
        let client = caller.as_ref().and_then(|caller| match caller.peer {
            Peer::Network { address } => Some(address),
            Peer::Process { .. } | Peer::Machine { .. } | Peer::Port => None,
        });
        let object = object(&request);
        let work = async {
            allowed?;
            let wish = wish::wish(&request, client)?;
            let place = self.0.captures.take()?;
            begin(&self.0.collector.sources().root, wish, place)
        };
        self.call(caller, "Captures.Capture", object, work).await
    }
}

/// The request, for the record.
fn object(request: &CaptureRequest) -> String {
    let mut object = format!("interface {}", request.interface);
    let port = if request.port == 0 { String::new() } else { request.port.to_string() };
    for (name, value) in [("host", &request.host), ("port", &port), ("protocol", &request.protocol)] {
        if !value.is_empty() {
            object.push_str(&format!(" {name} {value}"));
        }
    }
    object
}

/// An interface of the machine.
#[derive(Clone, Copy, Debug)]
struct Interface {
    number: u32,
    hardware: u32,
    link: LinkKind,
}

/// # Errors
/// There is none of this name, or its packets are not understood.
fn interface(root: &Path, name: &str) -> Result<Interface, Refusal> {
    let refused = |message: String| Refusal::new(Reason::BadRequest, format!("interface {name}"), message);
    let number = |file: &str| {
        let path = root.join("sys/class/net").join(name).join(file);
        let text = read_capped(&path, NUMBER_MAX).ok()?;
        std::str::from_utf8(&text).ok()?.trim().parse::<u32>().ok()
    };
    let (Some(index), Some(hardware)) = (number("ifindex"), number("type")) else {
        return Err(refused(
            "this machine has no such interface; `orlopctl get links` lists them".to_owned(),
        ));
    };
    let unknown = || refused(format!("packets of its hardware type {hardware} are not understood"));
    Ok(Interface { number: index, hardware, link: LinkKind::of(hardware).ok_or_else(unknown)? })
}

/// Begins a capture; it goes on while the stream is read.
fn begin(root: &Path, wish: CaptureWish, place: OwnedSemaphorePermit) -> Result<CaptureStream, Refusal> {
    let interface = interface(root, &wish.interface)?;
    let down = |error: io::Error| {
        Refusal::new(Reason::PartDown, "capture", format!("the kernel gives no packets: {error}"))
    };
    let packets = packet_socket(interface).and_then(awaited).map_err(down)?;
    let (pieces, taken) = mpsc::channel(PIECES_MAX);
    let deadline = Instant::now() + wish.time;
    let capture =
        Capture { interface, wish, pieces, piece: Vec::new(), in_piece: 0, bytes: 0, count: 0, lost: 0 };
    tokio::spawn(async move {
        capture.run(packets, deadline).await;
        drop(place);
    });
    let pieces = stream::unfold(taken, |mut taken: mpsc::Receiver<CapturePiece>| async move {
        let piece = taken.recv().await?;
        Some((Ok(piece), taken))
    });
    Ok(pieces.boxed())
}

/// A socket that has the packets of the interface alone.
fn packet_socket(interface: Interface) -> io::Result<Socket> {
    let protocol = Protocol::from(i32::from(ALL_PROTOCOLS.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    socket.set_recv_buffer_size(QUEUE_BYTES)?;
    socket.attach_filter(&only(interface.number))?;
    Ok(socket)
}

/// The socket as one that the runtime waits for: tokio waits for any socket as for one of datagrams.
fn awaited(socket: Socket) -> io::Result<UnixDatagram> {
    UnixDatagram::from_std(StdUnixDatagram::from(OwnedFd::from(socket)))
}

/// A program for the kernel's packet filter (classic BPF): packets of one interface, whole. Binding the socket does the same and needs
/// unsafe code. What came before the filter was there is passed over when it is read.
fn only(interface: u32) -> [SockFilter; 4] {
    // `SKF_AD_OFF + SKF_AD_IFINDEX` of linux/filter.h: the number of the packet's interface.
    const INTERFACE: u32 = 0xffff_f000 + 8;
    [
        SockFilter::new(0x20, 0, 0, INTERFACE),
        SockFilter::new(0x15, 0, 1, interface),
        SockFilter::new(0x06, 0, 0, u32::MAX),
        SockFilter::new(0x06, 0, 0, 0),
    ]
}

/// What a look at the queue found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueLook {
    /// More may be there.
    More,
    /// The queue is empty.
    Empty,
}

/// One capture.
struct Capture {
    interface: Interface,
    wish: CaptureWish,
    pieces: mpsc::Sender<CapturePiece>,
    piece: Vec<u8>,
    /// Packets of the piece.
    in_piece: u64,
    /// Of the file so far, with the piece.
    bytes: u64,
    count: u64,
    lost: u64,
}

impl Capture {
    async fn run(mut self, packets: UnixDatagram, deadline: Instant) {
        let head = pcap::file_head(self.interface.link, self.wish.snap_bytes);
        self.bytes = head.len() as u64;
        self.piece = head;
        self.send();
        let mut buffer = vec![0; PACKET_MAX];
        let reason = loop {
            let ready = tokio::select! {
                () = self.pieces.closed() => break "client",
                () = sleep_until(deadline) => break "time",
                ready = packets.readable() => ready,
            };
            if ready.is_err() {
                break "interface";
            }
            let looked = self.look(&packets, &mut buffer);
            self.send();
            match looked {
                // A flood of packets must not hold other calls back.
                Ok(QueueLook::More) => tokio::task::yield_now().await,
                Ok(QueueLook::Empty) => {}
                Err(reason) => break reason,
            }
        };
        let end = CaptureEnd { reason: reason.to_owned(), packets: self.count, lost_packets: self.lost };
        tracing::info!(interface = %self.wish.interface, reason, packets = end.packets, lost = end.lost_packets, "capture ended");
        let last = CapturePiece { data: Vec::new(), end: Some(end) };
        // A client that is gone or reads nothing any more misses the end as well.
        let _ = timeout(END_MAX, self.pieces.send(last)).await;
    }

    /// Takes some packets of the queue; an error is the reason of the capture's end.
    fn look(&mut self, socket: &UnixDatagram, buffer: &mut [u8]) -> Result<QueueLook, &'static str> {
        for _ in 0..BATCH {
            let receive = || recvfrom::<LinkAddr>(socket.as_raw_fd(), buffer).map_err(io::Error::from);
            let (length, from) = match socket.try_io(Interest::READABLE, receive) {
                Ok(found) => found,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(QueueLook::Empty),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // The interface is down or gone.
                Err(_) => return Err("interface"),
            };
            let is_ours = from.is_some_and(|from| {
                let is_twice = self.interface.hardware == LOOPBACK && from.pkttype() == OUTGOING;
                u32::try_from(from.ifindex()) == Ok(self.interface.number) && !is_twice
            });
            let packet = buffer.get(..length).unwrap_or_default();
            if is_ours && self.wish.filter.takes(self.interface.link, packet) {
                self.take(packet)?;
            }
        }
        Ok(QueueLook::More)
    }

    /// Appends a packet; an error is the reason of the capture's end.
    fn take(&mut self, packet: &[u8]) -> Result<(), &'static str> {
        let snap_bytes = usize::try_from(self.wish.snap_bytes).unwrap_or(usize::MAX);
        let added = (packet.len().min(snap_bytes) + PACKET_HEAD) as u64;
        if self.bytes + added > self.wish.bytes {
            return Err("bytes");
        }
        self.bytes += added;
        pcap::packet(&mut self.piece, now(), packet, snap_bytes);
        self.in_piece += 1;
        if self.piece.len() >= PIECE_BYTES {
            self.send();
        }
        if self.count + self.in_piece >= self.wish.packets {
            return Err("packets");
        }
        Ok(())
    }

    /// Gives the client the piece, or loses its packets. The first piece finds an empty queue, so the file has its head.
    fn send(&mut self) {
        if self.piece.is_empty() {
            return;
        }
        let data = std::mem::take(&mut self.piece);
        let (packets, length) = (std::mem::take(&mut self.in_piece), data.len() as u64);
        match self.pieces.try_send(CapturePiece { data, end: None }) {
            Ok(()) => self.count += packets,
            Err(_) => {
                self.lost += packets;
                self.bytes = self.bytes.saturating_sub(length);
            }
        }
    }
}

fn now() -> PacketTime {
    let now = Timestamp::now();
    let micros = u32::try_from(now.subsec_microsecond()).unwrap_or(0);
    PacketTime { seconds: u32::try_from(now.as_second()).unwrap_or(0), micros }
}

#[cfg(test)]
mod tests;
