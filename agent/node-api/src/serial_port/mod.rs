//! The virtio-serial port of the management API: a program of its own that passes bytes between the port and the server.
//!
//! ```text
//! host ─► port ─frames─► session ─► api-serial.sock ─► server
//! ```
//! In: the port, the server's socket. Out: bytes of one connection at a time. Invariants: the server is started by the first client and
//! not by the port; while no client is there this program sleeps; a direction has one chunk under way at most, so who does not read makes
//! the other end wait; a client that is gone takes its connection along. Why a program: the kernel reports a hang-up on a port whose host
//! is away, which systemd takes for a broken socket, so systemd cannot wait for the first byte itself. Why epoll with edges, and no async
//! runtime: the hang-up comes and goes, and a runtime takes it for the end. Specification: docs/reference/node-api.md.

mod session;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::stat::Mode;
use nix::unistd::{read, write};
use orlop_proto::node_api_serial::{DATA_MAX, SerialFrame, SerialReader};
use socket2::{Domain, SockAddr, Socket, Type};

use self::session::{PortAction, PortSession};

/// Events that are fetched at once; there are two sources. Each wake-up of the port's queue in the kernel is an edge: bytes, room, a host
/// that comes or goes. So no look with a timer is needed.
const EVENTS_MAX: usize = 4;
/// Reads that empty a port without a host: a host that comes meanwhile repeats its beginning.
const DRAIN_MAX: usize = 64;

/// Why the port is not served.
#[derive(Debug, thiserror::Error)]
#[error("{operation} the virtio-serial port: it is not served until this program is started again")]
pub struct SerialPortError {
    operation: &'static str,
    #[source]
    source: io::Error,
}

/// Opens the port, so that neither a read nor a write waits.
///
/// # Errors
/// The port cannot be opened, for example because another process has it.
pub fn open_port(path: &Path) -> Result<OwnedFd, SerialPortError> {
    let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    open(path, flags, Mode::empty()).map_err(of_port("open"))
}

/// Serves the port until it fails. `server` is the server's socket. Blocks.
///
/// # Errors
/// The port is gone, or cannot be waited for.
pub fn serve_port(port: OwnedFd, server: &Path) -> Result<(), SerialPortError> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(of_port("wait for"))?;
    epoll.add(&port, EpollEvent::new(edges(), 0)).map_err(of_port("wait for"))?;
    let mut bridge = Bridge {
        port,
        server: server.to_owned(),
        epoll,
        session: PortSession::default(),
        reader: SerialReader::default(),
        connection: None,
        to_host: Chunk::default(),
        to_server: Chunk::default(),
    };
    loop {
        while bridge.step()? {}
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        match bridge.epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(of_port("wait for")(errno)),
        }
    }
}

fn edges() -> EpollFlags {
    EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET
}

/// Bytes under way.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// So many are written.
    at: usize,
}

impl Chunk {
    fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.at = 0;
    }

    /// Writes what the other side takes; true if it took something.
    fn write(&mut self, to: impl AsFd) -> nix::Result<bool> {
        if self.is_empty() {
            return Ok(false);
        }
        match write(to, self.bytes.get(self.at..).unwrap_or_default()) {
            Ok(written) => {
                self.at += written;
                if self.is_empty() {
                    self.clear();
                }
                Ok(written > 0)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

/// The port, and the connection of its present client.
struct Bridge {
    port: OwnedFd,
    server: PathBuf,
    epoll: Epoll,
    session: PortSession,
    reader: SerialReader,
    connection: Option<UnixStream>,
    to_host: Chunk,
    to_server: Chunk,
}

impl Bridge {
    /// Moves what can be moved without waiting; true if something was.
    fn step(&mut self) -> Result<bool, SerialPortError> {
        if !self.has_host()? {
            self.forget_host()?;
            return Ok(false);
        }
        let mut moved = self.to_host.write(&self.port).map_err(of_port("write to"))?;
        if let Some(connection) = &self.connection {
            match self.to_server.write(connection) {
                Ok(written) => moved |= written,
                Err(_) => self.server_closed(),
            }
        }
        if self.to_server.is_empty() && self.to_host.is_empty() {
            moved |= self.read_host()?;
        }
        if self.to_host.is_empty() {
            moved |= self.read_server();
        }
        Ok(moved)
    }

    /// Whether a client is at the other end, as far as the hypervisor says so.
    fn has_host(&self) -> Result<bool, SerialPortError> {
        let mut fds = [PollFd::new(self.port.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(of_port("look at")(errno)),
        }
        let [port] = fds;
        let events = port.revents().unwrap_or(PollFlags::empty());
        Ok(!events.contains(PollFlags::POLLHUP))
    }

    /// The client is gone: its connection, and the rest of its bytes.
    fn forget_host(&mut self) -> Result<(), SerialPortError> {
        self.session.host_gone();
        self.connection = None;
        self.to_server.clear();
        self.to_host.clear();
        self.reader = SerialReader::default();
        let mut rest = [0; DATA_MAX];
        for _ in 0..DRAIN_MAX {
            match read(&self.port, &mut rest) {
                Ok(1..) => {}
                // A port that was unplugged has a hang-up for ever, and this error.
                Err(Errno::ENODEV) => return Err(of_port("read")(Errno::ENODEV)),
                Ok(_) | Err(_) => break,
            }
        }
        Ok(())
    }

    fn read_host(&mut self) -> Result<bool, SerialPortError> {
        let mut bytes = [0; DATA_MAX];
        let length = match read(&self.port, &mut bytes) {
            Ok(length) => length,
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            Err(errno) => return Err(of_port("read")(errno)),
        };
        for frame in self.reader.take(bytes.get(..length).unwrap_or_default()) {
            for action in self.session.heard(frame) {
                self.act(action);
            }
        }
        Ok(length > 0)
    }

    fn act(&mut self, action: PortAction) {
        match action {
            PortAction::Connect(session) => match self.connect() {
                Ok(connection) => {
                    self.connection = Some(connection);
                    self.send(&SerialFrame::Opened { session });
                }
                Err(error) => {
                    let server = self.server.display();
                    tracing::warn!(%error, "no connection to {server}: a client of the serial port is sent away; look at orlop-node-api-serial.socket");
                    self.server_closed();
                }
            },
            PortAction::Disconnect => {
                self.connection = None;
                self.to_server.clear();
            }
            PortAction::Deliver(bytes) => self.to_server.bytes.extend_from_slice(&bytes),
            PortAction::Send(frame) => self.send(&frame),
        }
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        // A full queue is an error at once.
        socket.connect(&SockAddr::unix(&self.server)?)?;
        let stream = UnixStream::from(OwnedFd::from(socket));
        self.epoll.add(&stream, EpollEvent::new(edges(), 1))?;
        Ok(stream)
    }

    fn send(&mut self, frame: &SerialFrame) {
        if self.to_host.is_empty() {
            self.to_host.clear();
            // Ends what an earlier client may have left.
            self.to_host.bytes.push(0);
        }
        frame.encode(&mut self.to_host.bytes);
    }

    fn server_closed(&mut self) {
        self.connection = None;
        self.to_server.clear();
        if let Some(frame) = self.session.server_closed() {
            self.send(&frame);
        }
    }

    fn read_server(&mut self) -> bool {
        let (Some(connection), Some(session)) = (&self.connection, self.session.open()) else { return false };
        let mut bytes = [0; DATA_MAX];
        match read(connection, &mut bytes) {
            Ok(length @ 1..) => {
                let bytes = bytes.get(..length).unwrap_or_default().to_vec();
                self.send(&SerialFrame::Data { session, bytes });
                true
            }
            Err(Errno::EAGAIN | Errno::EINTR) => false,
            Ok(0) | Err(_) => {
                self.server_closed();
                true
            }
        }
    }
}

fn of_port(operation: &'static str) -> impl Fn(Errno) -> SerialPortError {
    move |errno| SerialPortError { operation, source: io::Error::from(errno) }
}

/// Whether a failure of [`serve_port`] means that the machine has the port no more.
#[must_use]
pub fn is_unplugged(error: &SerialPortError) -> bool {
    error.source.raw_os_error() == Some(Errno::ENODEV as i32)
}
