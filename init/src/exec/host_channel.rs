//! The host channel: newline-delimited JSON on the virtio-serial port `org.orlop.host.0`.
//!
//! Seam: docs/internals/architecture.md, "Host channel". Nothing here may delay a boot: the port is opened without
//! blocking, what it does not take waits in a bounded queue, and a machine without the port costs one look.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use orlop_config::ledger::HostMessage;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Name of the port.
const PORT: &str = "org.orlop.host.0";
/// A boot has some twenty messages; beyond this the oldest are dropped.
const QUEUE_MAX: usize = 256;
/// How long the last flush waits for the host to read, milliseconds.
const FLUSH_MS: u16 = 200;
/// How often a busy port is tried again, milliseconds.
const BUSY_TICK_MS: u16 = 10;

/// The channel, possibly absent.
#[derive(Debug, Default)]
pub struct HostChannel {
    queue: VecDeque<Vec<u8>>,
}

impl HostChannel {
    /// Queues a message and sends what the port takes now.
    pub fn send(&mut self, message: &HostMessage) {
        self.push(message.render_line().into_bytes());
        self.drain(None);
    }

    fn push(&mut self, line: Vec<u8>) {
        if self.queue.len() == QUEUE_MAX {
            self.queue.pop_front();
        }
        self.queue.push_back(line);
    }

    /// Sends the rest, waiting a moment for the host to take it: before another process takes over.
    pub fn flush(&mut self) {
        self.drain(Some(FLUSH_MS));
    }

    // Opened for each batch: one writer at a time has the port (EBUSY for a second), and the next stage of
    // the boot must find it free.
    fn drain(&mut self, wait_ms: Option<u16>) {
        if self.queue.is_empty() {
            return;
        }
        let Some(mut port) = open(wait_ms.unwrap_or(0)) else { return };
        while let Some(line) = self.queue.front_mut() {
            match port.write(line) {
                Ok(n) if n >= line.len() => {
                    self.queue.pop_front();
                }
                Ok(n) => {
                    line.drain(..n);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && wait_writable(&port, wait_ms) => {}
                Err(_) => return,
            }
        }
    }
}

/// Opens the port. Another writer has it for a few milliseconds at a time, so `busy_ms` is spent on it.
fn open(busy_ms: u16) -> Option<File> {
    let device = find("/sys/class/virtio-ports")?;
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY);
    let mut left = busy_ms;
    loop {
        match options.open(&device) {
            // No event reports when a port is free again; a short timer stands in for it.
            Err(e) if e.kind() == ErrorKind::ResourceBusy && left > 0 => {
                let tick = left.min(BUSY_TICK_MS);
                left -= tick;
                let _ = poll(&mut [], PollTimeout::from(tick));
            }
            other => return other.ok(),
        }
    }
}

fn find(class: &str) -> Option<PathBuf> {
    let ports = std::fs::read_dir(class).ok()?;
    let mut ports = ports
        .flatten()
        .filter(|p| std::fs::read_to_string(p.path().join("name")).is_ok_and(|name| name.trim_end() == PORT));
    ports.next().map(|p| PathBuf::from("/dev").join(p.file_name()))
}

fn wait_writable(port: &File, wait_ms: Option<u16>) -> bool {
    let Some(ms) = wait_ms else { return false };
    let mut fds = [PollFd::new(port.as_fd(), PollFlags::POLLOUT)];
    let ready = poll(&mut fds, PollTimeout::from(ms)).unwrap_or(0) > 0;
    ready
        && fds[0].revents().is_some_and(|r| r.contains(PollFlags::POLLOUT) && !r.contains(PollFlags::POLLHUP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_found_by_name() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (port, name) in [("vport0p0", "console.0\n"), ("vport0p3", "org.orlop.host.0\n")] {
            let at = dir.path().join(port);
            std::fs::create_dir(&at).and_then(|()| std::fs::write(at.join("name"), name)).expect("fixture");
        }
        assert_eq!(find(&dir.path().to_string_lossy()), Some(PathBuf::from("/dev/vport0p3")));
        assert_eq!(find("/nonexistent"), None);
    }

    #[test]
    fn queue_keeps_the_newest() {
        let mut channel = HostChannel::default();
        for i in 0..QUEUE_MAX + 3 {
            channel.push(i.to_string().into_bytes());
        }
        assert_eq!((channel.queue.len(), channel.queue.front()), (QUEUE_MAX, Some(&b"3".to_vec())));
    }
}
