//! Sockets that the service manager passes to a service that it starts for them (sd_listen_fds(3)).
//!
//! In: `LISTEN_PID` and `LISTEN_FDS`, read once by main and passed as values. Out: the sockets, which child processes do not inherit.
//! Invariant: each descriptor has one owner, because they are taken once. Why no crate: it is one line of unsafe code, which
//! `listenfd` and its like have, too.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// The first descriptor that is passed (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// More sockets have no unit of ours.
const COUNT_MAX: RawFd = 16;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    /// `LISTEN_FDS` is no number of sockets.
    #[error("LISTEN_FDS={0:?} is not a number from 1 to {COUNT_MAX}")]
    Count(String),
    /// A descriptor is not open.
    #[error("descriptor {number} of LISTEN_FDS is not open")]
    Descriptor {
        /// Its number.
        number: RawFd,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// They have an owner already.
    #[error("the sockets of LISTEN_FDS were taken before")]
    Twice,
}

/// The passed sockets; none if no service manager passed any to this process.
///
/// # Errors
/// See [`ActivationError`].
pub fn take(listen_pid: Option<&str>, listen_fds: Option<&str>) -> Result<Vec<OwnedFd>, ActivationError> {
    let count = count(listen_pid, std::process::id(), listen_fds)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(ActivationError::Twice);
    }
    (FIRST..FIRST + count).map(adopt).collect()
}

/// The number of sockets for the process `own`.
fn count(pid: Option<&str>, own: u32, count: Option<&str>) -> Result<RawFd, ActivationError> {
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(0) };
    if pid.parse() != Ok(own) {
        // Meant for the parent, from which this process has its environment.
        return Ok(0);
    }
    let number = count.parse().ok().filter(|number| (1..=COUNT_MAX).contains(number));
    number.ok_or_else(|| ActivationError::Count(count.to_owned()))
}

fn adopt(number: RawFd) -> Result<OwnedFd, ActivationError> {
    let failed = |source| ActivationError::Descriptor { number, source };
    // It is open: a closed one must not get an owner.
    std::fs::read_link(format!("/proc/self/fd/{number}")).map_err(failed)?;
    // JUSTIFICATION: a number is all that the service manager passes.
    // SAFETY: the descriptor is open, and the service manager opened it for this process alone. `take` runs to its end once in
    // a process (TAKEN), so nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|error| failed(error.into()))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_for_another_process_and_none_are_none() {
        for (pid, fds) in [
            (None, None),
            (Some("7"), None),
            (None, Some("2")),
            (Some("8"), Some("2")),
            (Some(""), Some("x")),
        ] {
            assert_eq!(count(pid, 7, fds).unwrap(), 0, "{pid:?} {fds:?}");
        }
        assert_eq!(count(Some("7"), 7, Some("2")).unwrap(), 2);
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        for fds in ["0", "17", "-1", "x", "", "99999999999"] {
            let error = count(Some("7"), 7, Some(fds)).unwrap_err().to_string();
            assert!(error.contains(&format!("{fds:?}")), "{error}");
        }
    }

    #[test]
    fn a_closed_descriptor_gets_no_owner() {
        assert!(matches!(adopt(RawFd::MAX), Err(ActivationError::Descriptor { .. })));
    }
}
