//! Waits until containerd answers CRI on its socket. The event is the socket appearing in its directory.

use super::clock::boottime_ms;
use super::error::InitError;
use crate::plan::cri_version::{Call, Progress, Version, request};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const SOCKET: &str = "/run/containerd/containerd.sock";
/// containerd needs some seconds on a slow machine; longer means that it will not come.
const DEADLINE_MS: u64 = 120_000;
/// One that serves, but has no CRI this long, has failed to load it: it registers everything before it serves.
const REFUSED_MS: u64 = 15_000;
/// A runtime that accepted the connection answers within this, or is asked again.
const ANSWER: Duration = Duration::from_secs(10);
/// Without an event the socket is tried again after this: a listener may be there but not serve yet.
const AGAIN_MS: u64 = 1000;
/// One that serves says so by no event when its CRI is there, which follows within a second: it is asked often.
const REFUSED_AGAIN_MS: u64 = 50;

/// Waits.
///
/// # Errors
/// It did not answer before the deadline; says what it did instead.
pub fn await_ready() -> Result<Version, InitError> {
    await_version(Path::new(SOCKET), DEADLINE_MS)
}

fn await_version(socket: &Path, limit_ms: u64) -> Result<Version, InitError> {
    let started = boottime_ms();
    let dir = socket.parent().unwrap_or(Path::new("/"));
    // Watched before the first attempt: a socket that appears in between is an event that waits.
    fs::create_dir_all(dir).map_err(|source| file(dir, source))?;
    let kernel = |e| InitError::Kernel("watch the directory of containerd's socket", e);
    let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(kernel)?;
    let events = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ATTRIB;
    watch.add_watch(dir, events).map_err(kernel)?;
    let mut refused_since = None;
    loop {
        let answer = ask(socket);
        let again = if matches!(answer, Ok(Progress::Refused(_))) {
            REFUSED_AGAIN_MS
        } else {
            refused_since = None;
            AGAIN_MS
        };
        let why = match answer {
            Ok(Progress::Answered(version)) => return Ok(version),
            Ok(Progress::Refused(why)) => {
                refused_since.get_or_insert_with(boottime_ms);
                why.to_string()
            }
            Ok(Progress::More(_)) => "it closed the connection".to_string(),
            Err(e) => e.to_string(),
        };
        let deadline = refused_since.map_or(u64::MAX, |at| at + REFUSED_MS).min(started + limit_ms);
        let now = boottime_ms();
        let left = deadline.saturating_sub(now);
        if left == 0 {
            return Err(InitError::Refused(format!(
                "containerd does not answer on {} after {} s: {why}. `orlopctl logs containerd` shows its messages",
                socket.display(),
                (now - started) / 1000
            )));
        }
        let timeout = PollTimeout::from(u16::try_from(left.min(again)).unwrap_or(1000));
        match poll(&mut [PollFd::new(watch.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(kernel(e)),
        }
        // Emptied; what they say is known from the next attempt.
        while watch.read_events().is_ok_and(|events| !events.is_empty()) {}
    }
}

fn file(path: &Path, source: io::Error) -> InitError {
    InitError::File { action: "make", path: path.display().to_string(), source }
}

fn ask(socket: &Path) -> io::Result<Progress> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    stream.write_all(&request())?;
    let mut call = Call::default();
    let mut buffer = [0; 4096];
    loop {
        let n = stream.read(&mut buffer)?;
        match call.receive(&buffer[..n]) {
            Progress::More(reply) if n > 0 => stream.write_all(&reply)?,
            other => return Ok(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_that_appears_late_is_asked() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let socket = dir.path().join("run/c.sock");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| await_version(&socket, 20_000));
            // The directory is made by the waiter, so seeing it means that it is on watch or about to be.
            while !socket.parent().expect("parent").is_dir() {
                std::thread::yield_now();
            }
            let listener = UnixListener::bind(&socket).expect("bind");
            let (mut stream, _) = listener.accept().expect("accept");
            let mut preface = [0; 24];
            stream.read_exact(&mut preface).expect("preface");
            assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            let body = b"\x12\x02cd\x1a\x021.\x22\x02v1";
            let mut answer = vec![0, 0, 17, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 12];
            answer.extend_from_slice(body);
            stream.write_all(&answer).expect("answer");
            let version = waiting.join().expect("thread").expect("version");
            assert_eq!(version.to_string(), "cd 1., CRI v1");
        });
    }

    #[test]
    fn nobody_there_is_an_error_at_the_deadline() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let error = await_version(&dir.path().join("c.sock"), 30).expect_err("nobody");
        assert!(error.to_string().contains("does not answer on"), "{error}");
    }
}
