//! Standard error for a process that answers while the reader of its log does not.
//!
//! In: lines. Out: the same, unless the reader (journald, at the other end of a socket) has left no room: such a line is lost, and the
//! next one that has room says how many were. Invariant: a write never waits and never fails.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Lines that were lost since the last one that was written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The writer: each write is one line.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossyStderr;

impl Write for LossyStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_now(io::stderr(), &LOST, line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_now(mut to: impl Write + AsFd, lost: &AtomicU64, line: &[u8]) {
    // A socket is ready when three quarters of its buffer are free: far more than a line.
    let ready = poll(&mut [PollFd::new(to.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO);
    if !ready.is_ok_and(|ready| ready > 0) {
        lost.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // A reader that is gone has no use for lines.
    match lost.swap(0, Ordering::Relaxed) {
        0 => {}
        number => {
            let _ = writeln!(to, "{number} lines of this log were lost: nobody read them");
        }
    }
    let _ = to.write_all(line);
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_reader_that_stands_still_costs_lines_and_no_time() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let lost = AtomicU64::new(0);
        let line = [b'x'; 1000];
        for _ in 0..100_000 {
            write_now(&near, &lost, &line);
        }
        let number = lost.load(Ordering::Relaxed);
        assert!(number > 0 && number < 100_000, "{number}");
        far.set_nonblocking(true).unwrap();
        let mut read = Vec::new();
        // It ends with an error: there is no more.
        let _ = far.read_to_end(&mut read);
        write_now(&near, &lost, b"after\n");
        read.clear();
        let _ = far.read_to_end(&mut read);
        let expected = format!("{number} lines of this log were lost: nobody read them\nafter\n");
        assert_eq!(String::from_utf8_lossy(&read), expected);
        assert_eq!(lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_reader_that_is_gone_is_no_failure() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        write_now(&near, &AtomicU64::new(3), b"line\n");
    }
}
