//! The kernel reports that tasks wait for memory: a trigger on pressure stall information.
//!
//! In: how long tasks may wait within a window. Out: a hint each time that they waited longer, at most one a window.
//! Invariant: the user of this module also looks by itself, because not every kernel has the triggers, and memory
//! can run short before a task waits. Linux: Documentation/accounting/psi.rst.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::files::FilesError;

/// Memory of the whole machine.
pub const MEMORY: &str = "/proc/pressure/memory";

/// A trigger; the kernel forgets it with its file.
pub struct Trigger {
    /// What the trigger is set on.
    _file: File,
    /// Has an event when the trigger fires. tokio cannot wait for the trigger's event (`EPOLLPRI`) without unsafe code,
    /// but it can wait until this is readable.
    epoll: Epoll,
    /// The same, in the clothes of a socket, as in [`crate::network_changes`]: nothing but readiness is used.
    ready: UnixDatagram,
    path: PathBuf,
}

impl Trigger {
    /// Opens a trigger that fires when some task waited for `stall` within `window` (0.5 to 10 s).
    ///
    /// # Errors
    /// The kernel has no such information, or allows no triggers on it.
    pub fn open(path: &Path, stall: Duration, window: Duration) -> Result<Trigger, FilesError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let mut file = options.open(path).map_err(FilesError::at("open", path))?;
        let words = format!("some {} {}\0", stall.as_micros(), window.as_micros());
        file.write_all(words.as_bytes()).map_err(FilesError::at("set a trigger on", path))?;
        let waiting = || FilesError::at("wait on", path);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| waiting()(e.into()))?;
        let event = EpollEvent::new(EpollFlags::EPOLLPRI, 0);
        epoll.add(&file, event).map_err(|e| waiting()(e.into()))?;
        let readable: OwnedFd = epoll.0.try_clone().map_err(waiting())?;
        fcntl(&readable, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|e| waiting()(e.into()))?;
        let ready = UnixDatagram::from_std(readable.into()).map_err(waiting())?;
        Ok(Trigger { _file: file, epoll, ready, path: path.to_owned() })
    }

    /// Waits until tasks wait.
    ///
    /// # Errors
    /// The kernel no longer reports.
    pub async fn pressed(&self) -> Result<(), FilesError> {
        loop {
            self.ready.readable().await.map_err(FilesError::at("wait on", &self.path))?;
            let mut events = [EpollEvent::empty()];
            let told = self.ready.try_io(Interest::READABLE, || {
                match self.epoll.wait(&mut events, EpollTimeout::ZERO)? {
                    0 => Err(io::ErrorKind::WouldBlock.into()),
                    _ => Ok(()),
                }
            });
            match told {
                Ok(()) if events[0].events().contains(EpollFlags::EPOLLERR) => {
                    let gone = io::Error::new(io::ErrorKind::UnexpectedEof, "the trigger is gone");
                    return Err(FilesError::at("wait on", &self.path)(gone));
                }
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(FilesError::at("wait on", &self.path)(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kernel_that_has_it_takes_a_trigger_and_another_one_says_so() {
        let window = Duration::from_secs(1);
        let missing = Trigger::open(Path::new("/proc/pressure/none"), window, window);
        assert_eq!(missing.err().unwrap().operation, "open");
        match Trigger::open(Path::new(MEMORY), Duration::from_millis(900), window) {
            Ok(trigger) => {
                // No task waits that long here; the test shows that the call waits and does not fail.
                let waited = tokio::time::timeout(Duration::from_millis(50), trigger.pressed()).await;
                assert!(waited.is_err() || waited.is_ok_and(|pressed| pressed.is_ok()));
            }
            Err(error) => assert!(error.to_string().contains(MEMORY), "{error}"),
        }
    }
}
