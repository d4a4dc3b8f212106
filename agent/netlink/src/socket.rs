//! One netlink socket, one request after the other.
//!
//! In: messages. Out: the bodies of what the kernel answered, or its refusal. A socket asks the network namespace in
//! which it was opened, wherever its owner goes later. Invariant: an answer belongs to the request that was sent last;
//! the kernel answers before `send` returns or wakes the reader, so there is no deadline.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};

use crate::wire::{self, Message, answers};

/// The kernel puts no more than 32 KiB into a datagram of a dump.
const BUFFER_BYTES: usize = 32 * 1024;

/// A request that was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetlinkError {
    /// The socket itself.
    #[error("{operation} of a netlink socket")]
    Socket {
        /// `socket`, `bind`, `send`, `recv`.
        operation: &'static str,
        /// The kernel's reason.
        #[source]
        source: Errno,
    },
    /// The kernel does not do it.
    #[error("refused by the kernel: {0}")]
    Refused(Errno),
}

impl NetlinkError {
    /// The kernel's reason, for every kind of request.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            NetlinkError::Socket { source, .. } | NetlinkError::Refused(source) => *source,
        }
    }
}

/// The socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// For links, addresses and routes of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn route() -> Result<Socket, NetlinkError> {
        Socket::open(SockProtocol::NetlinkRoute, 0)
    }

    /// Hears of every change of a link of this thread's network namespace; nothing is asked through it.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn link_changes() -> Result<Socket, NetlinkError> {
        // RTMGRP_LINK
        Socket::open(SockProtocol::NetlinkRoute, 1)
    }

    /// Hears of every change of an IPv6 address of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn address_changes() -> Result<Socket, NetlinkError> {
        // RTMGRP_IPV6_IFADDR
        Socket::open(SockProtocol::NetlinkRoute, 0x100)
    }

    /// Hears of every change of a route of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn route_changes() -> Result<Socket, NetlinkError> {
        // RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE
        Socket::open(SockProtocol::NetlinkRoute, 0x40 | 0x400)
    }

    /// For nftables of this thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn netfilter() -> Result<Socket, NetlinkError> {
        Socket::open(SockProtocol::NetlinkNetFilter, 0)
    }

    fn open(protocol: SockProtocol, groups: u32) -> Result<Socket, NetlinkError> {
        let failed = |operation| move |source| NetlinkError::Socket { operation, source };
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .map_err(failed("socket"))?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups)).map_err(failed("bind"))?;
        Ok(Socket { fd, sequence: 0 })
    }

    /// Sends a request and returns the bodies of the answers of this kind.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn ask(&mut self, request: Message, kind: u16) -> Result<Vec<Vec<u8>>, NetlinkError> {
        self.sequence += 1;
        let sequence = self.sequence;
        self.send(&request.bytes(sequence))?;
        let mut bodies = Vec::new();
        self.receive(sequence, |answer| {
            if answer.kind == kind {
                bodies.push(answer.body.to_vec());
            }
        })?;
        Ok(bodies)
    }

    /// Sends a request that changes something.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn request(&mut self, request: Message) -> Result<(), NetlinkError> {
        // 0 is no kind that the kernel answers with.
        self.ask(request, 0).map(|_| ())
    }

    /// Sends several messages as one transaction (nftables' batches): those that ask for it are acknowledged.
    ///
    /// # Errors
    /// The kernel refuses one of them, and then does none. The socket is of no more use.
    pub fn transaction(&mut self, messages: Vec<Message>) -> Result<(), NetlinkError> {
        let awaited = messages.iter().filter(|message| message.wants_answer()).count();
        let first = self.sequence + 1;
        let mut bytes = Vec::new();
        for message in messages {
            self.sequence += 1;
            bytes.extend(message.bytes(self.sequence));
        }
        self.send(&bytes)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut seen = 0;
        while seen < awaited {
            let length = self.datagram(&mut buffer)?;
            // A batch that is refused as a whole is answered under the number of its frame.
            for answer in answers(&buffer[..length]).filter(|a| a.kind == wire::ERROR && a.sequence >= first)
            {
                match answer.errno() {
                    0 => seen += 1,
                    errno => return Err(NetlinkError::Refused(Errno::from_raw(errno))),
                }
            }
        }
        Ok(())
    }

    /// Waits until something can be read, and reads it; false if nothing could for so long.
    ///
    /// # Errors
    /// The socket broke.
    pub fn changed(&mut self, timeout_ms: u16) -> Result<bool, NetlinkError> {
        let failed = |source| NetlinkError::Socket { operation: "recv", source };
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(timeout_ms)) {
            Ok(0) => return Ok(false),
            // A reason to look is all that is promised.
            Err(Errno::EINTR) => return Ok(true),
            ready => ready.map_err(failed)?,
        };
        let mut buffer = vec![0; BUFFER_BYTES];
        match recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            // More changes than the socket holds: a change, too.
            Ok(_) | Err(Errno::ENOBUFS) => Ok(true),
            Err(source) => Err(failed(source)),
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        let failed = |source| NetlinkError::Socket { operation: "send", source };
        send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()).map(|_| ()).map_err(failed)
    }

    fn datagram(&self, buffer: &mut [u8]) -> Result<usize, NetlinkError> {
        loop {
            match recv(self.fd.as_raw_fd(), buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                other => return other.map_err(|source| NetlinkError::Socket { operation: "recv", source }),
            }
        }
    }

    /// Until the request's end.
    fn receive(
        &self,
        sequence: u32,
        mut each: impl FnMut(wire::KernelMessage<'_>),
    ) -> Result<(), NetlinkError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = self.datagram(&mut buffer)?;
            for answer in answers(&buffer[..length]).filter(|answer| answer.sequence == sequence) {
                match (answer.kind, answer.errno()) {
                    (wire::ERROR | wire::DONE, 0) => return Ok(()),
                    (wire::ERROR | wire::DONE, errno) => {
                        return Err(NetlinkError::Refused(Errno::from_raw(errno)));
                    }
                    _ => each(answer),
                }
            }
        }
    }
}
