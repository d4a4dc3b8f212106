//! The way out of the machine: a virtio-serial port named `org.orlop.host.0`.
//!
//! In: whole lines of JSON. Out: bytes on the port. One process has the port open at a time (the kernel
//! answers EBUSY to the others), so it is opened for one message batch and closed again. A host that does
//! not read costs a bounded wait, never a hang. Seam: docs/internals/architecture.md, "Host channel".

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The port's name on every Orlop machine.
pub const PORT_NAME: &str = "org.orlop.host.0";

/// Why a message did not get out.
#[derive(Debug, thiserror::Error)]
pub enum HostChannelError {
    /// Another process of the appliance has the port open: try again soon.
    #[error("{} is in use by another writer", .0.display())]
    Busy(PathBuf),
    /// No reader is at the other end.
    #[error("the host does not read from {}", .0.display())]
    NotRead(PathBuf),
    /// Anything else.
    #[error("{operation} {}", port.display())]
    Io {
        /// System call.
        operation: &'static str,
        /// Device node.
        port: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
}

/// The device node of the port, if this machine has one. `sys` is `/sys`, `dev` is `/dev`.
#[must_use]
pub fn find_port(sys: &Path, dev: &Path) -> Option<PathBuf> {
    find_named_port(sys, dev, PORT_NAME)
}

/// The device node of a virtio-serial port of another name.
#[must_use]
pub fn find_named_port(sys: &Path, dev: &Path, wanted: &str) -> Option<PathBuf> {
    let ports = std::fs::read_dir(sys.join("class/virtio-ports")).ok()?;
    ports.flatten().find_map(|port| {
        let name = std::fs::read_to_string(port.path().join("name")).ok()?;
        (name.trim_end() == wanted).then(|| dev.join(port.file_name()))
    })
}

/// Opens the port, writes everything, closes it. Blocks for at most `wait` for the host to read.
///
/// # Errors
/// [`HostChannelError::Busy`] at once if the port is open elsewhere; the rest as named.
pub fn send(port: &Path, lines: &[u8], wait: Duration) -> Result<(), HostChannelError> {
    let failed =
        |operation, source: io::Error| HostChannelError::Io { operation, port: port.to_owned(), source };
    let mut file = match OpenOptions::new()
        .write(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC | nix::libc::O_NOCTTY)
        .open(port)
    {
        Ok(file) => file,
        Err(e) if e.raw_os_error() == Some(Errno::EBUSY as i32) => {
            return Err(HostChannelError::Busy(port.to_owned()));
        }
        Err(e) => return Err(failed("open", e)),
    };
    let deadline = crate::clock::boottime().after(wait);
    let mut rest = lines;
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(n) => rest = &rest[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.since(crate::clock::boottime());
                if left.is_zero() || !writable(&file, left).map_err(|e| failed("poll", e))? {
                    return Err(HostChannelError::NotRead(port.to_owned()));
                }
            }
            Err(e) => return Err(failed("write", e)),
        }
    }
    Ok(())
}

fn writable(file: &File, within: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
    let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(n) => Ok(n > 0),
        Err(Errno::EINTR) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_port_is_found_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find_port(dir.path(), Path::new("/dev")), None);
        for (node, name) in [("vport1p1", "org.qemu.guest_agent.0\n"), ("vport1p2", "org.orlop.host.0\n")] {
            let port = dir.path().join("class/virtio-ports").join(node);
            std::fs::create_dir_all(&port).unwrap();
            std::fs::write(port.join("name"), name).unwrap();
        }
        assert_eq!(find_port(dir.path(), Path::new("/dev")), Some(PathBuf::from("/dev/vport1p2")));
        let other = find_named_port(dir.path(), Path::new("/dev"), "org.qemu.guest_agent.0");
        assert_eq!(other, Some(PathBuf::from("/dev/vport1p1")));
    }

    #[test]
    fn lines_go_out_and_a_host_that_does_not_read_costs_a_bounded_wait() {
        let dir = tempfile::tempdir().unwrap();
        let port = dir.path().join("port");
        nix::unistd::mkfifo(&port, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        // A FIFO without a reader refuses to open, as a port without a device does.
        assert!(matches!(send(&port, b"x\n", Duration::ZERO), Err(HostChannelError::Io { .. })));
        let mut host = OpenOptions::new().read(true).write(true).open(&port).unwrap();
        send(&port, b"one\ntwo\n", Duration::ZERO).unwrap();
        let mut buffer = [0u8; 8];
        host.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"one\ntwo\n");
        let more_than_a_pipe_holds = vec![b'x'; 1 << 20];
        let e = send(&port, &more_than_a_pipe_holds, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(e, HostChannelError::NotRead(_)), "{e}");
    }
}
