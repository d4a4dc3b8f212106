//! Tells when an interface, an address or a route may have changed; the reader then looks for itself.
//!
//! In: rtnetlink's multicast groups. Out: a hint, never a fact: what happened is not even decoded. Invariants: hints
//! coalesce in the kernel's socket buffer, so a flood of routes costs no memory of ours; a buffer that overflowed is
//! a hint too. Whoever uses this also looks by a timer. A socket of our own instead of the `rtnetlink` crate: that one
//! decodes every message into an unbounded queue behind a task of its own, and we would throw the decoded away.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
/// Larger than one datagram of the kernel; what does not fit is cut off, which does not matter.
const BUFFER_BYTES: usize = 16 * 1024;
/// Datagrams that one hint swallows; the rest makes the next one.
const DATAGRAMS_MAX: usize = 256;

/// Listening to the kernel failed; the caller falls back to its timer.
#[derive(Debug, thiserror::Error)]
#[error("{operation} NETLINK_ROUTE")]
pub struct NetworkChangesError {
    /// `socket`, `bind`, `register` or `recv`.
    pub operation: &'static str,
    /// The system's words.
    #[source]
    pub source: io::Error,
}

/// The socket.
pub struct NetworkChanges {
    socket: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl NetworkChanges {
    /// Listens from now on: look once after this, then after each hint. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel refuses the socket.
    pub fn open() -> Result<NetworkChanges, NetworkChangesError> {
        let failed = |operation| move |e: Errno| NetworkChangesError { operation, source: e.into() };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let raw = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)
            .map_err(failed("socket"))?;
        bind(raw.as_raw_fd(), &NetlinkAddr::new(0, GROUPS)).map_err(failed("bind"))?;
        let socket = AsyncFd::with_interest(raw, Interest::READABLE)
            .map_err(|source| NetworkChangesError { operation: "register", source })?;
        Ok(NetworkChanges { socket, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Waits until something may have changed since the last call. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The socket broke: open another one.
    pub async fn changed(&mut self) -> Result<(), NetworkChangesError> {
        loop {
            let failed = |source| NetworkChangesError { operation: "recv", source };
            let mut ready = self.socket.readable().await.map_err(failed)?;
            match drain(ready.get_inner(), &mut self.buffer).map_err(failed)? {
                Drained::Nothing => ready.clear_ready(),
                Drained::All => {
                    ready.clear_ready();
                    return Ok(());
                }
                Drained::Some => return Ok(()),
            }
        }
    }
}

enum Drained {
    /// There was nothing.
    Nothing,
    /// There was something, now there is nothing.
    All,
    /// There may be more.
    Some,
}

fn drain(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Drained> {
    for count in 0..DATAGRAMS_MAX {
        match recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            // ENOBUFS: the kernel dropped messages, which is news as well.
            Ok(_) | Err(Errno::ENOBUFS | Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Ok(if count == 0 { Drained::Nothing } else { Drained::All }),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Drained::Some)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    fn ip(arguments: &[&str]) -> bool {
        Command::new("ip").args(arguments).status().is_ok_and(|status| status.success())
    }

    /// In a network namespace of this thread alone: nothing else happens there.
    #[test]
    fn an_address_that_comes_and_goes_is_told() {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            eprintln!("not tested: no right to make a network namespace");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut changes = NetworkChanges::open().unwrap();
            for arguments in [
                ["link", "set", "dev", "lo", "up"].as_slice(),
                &["addr", "add", "192.0.2.1/32", "dev", "lo"],
                &["addr", "del", "192.0.2.1/32", "dev", "lo"],
            ] {
                if !ip(arguments) {
                    eprintln!("not tested: no ip command");
                    return;
                }
                let told = tokio::time::timeout(Duration::from_secs(5), changes.changed()).await;
                told.expect("the kernel says so within 5 s").unwrap();
            }
            let quiet = tokio::time::timeout(Duration::from_millis(100), changes.changed()).await;
            assert!(quiet.is_err(), "nothing happened");
        });
    }
}
