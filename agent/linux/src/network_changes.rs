//! Reports when an interface, an address or a route may have changed; the reader then looks for itself.
//!
//! In: rtnetlink's multicast groups. Out: a hint, never a fact: the messages are not even decoded. Invariants: hints
//! coalesce in the kernel's socket buffer, so a flood of routes costs no memory of ours; a buffer that overflowed is a
//! hint too. The user of this module also looks by a timer. A socket of our own instead of the `rtnetlink` crate: that
//! one decodes every message into an unbounded queue behind a task of its own, and we would throw the decoded messages
//! away.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket};
use tokio::net::UnixDatagram;

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
    /// A netlink socket in the clothes of another datagram socket: nothing but recv(2) and readiness is used, which
    /// are the same, and tokio's plain `AsyncFd` cannot be had without unsafe code.
    socket: UnixDatagram,
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
        let socket = UnixDatagram::from_std(raw.into())
            .map_err(|source| NetworkChangesError { operation: "register", source })?;
        Ok(NetworkChanges { socket, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Waits until something may have changed since the last call. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The socket broke: open another one.
    pub async fn changed(&mut self) -> Result<(), NetworkChangesError> {
        let failed = |source| NetworkChangesError { operation: "recv", source };
        loop {
            self.socket.readable().await.map_err(failed)?;
            if drain(&self.socket, &mut self.buffer).map_err(failed)? {
                return Ok(());
            }
        }
    }
}

/// Takes what is there, some of it if it is very much; false if there was nothing.
fn drain(socket: &UnixDatagram, buffer: &mut [u8]) -> io::Result<bool> {
    for count in 0..DATAGRAMS_MAX {
        match socket.try_recv(buffer) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count > 0),
            // The kernel dropped messages, which is news as well.
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
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
