//! Children of PID 1: a program of the verified root in a chroot, waited for; work next to the boot, not waited for; work that may hang,
//! waited for as long as the boot has time; work that goes on next to a step of init.
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use std::ffi::CString;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The descriptor that no child keeps; negative: there is none. A fork hands on all of them, whatever their flags.
static KEPT_BACK: AtomicI32 = AtomicI32::new(-1);

/// No child that begins from now on has this descriptor: its device counts as open until the last process has closed it.
pub fn keep_back(descriptor: Option<BorrowedFd<'_>>) {
    KEPT_BACK.store(descriptor.map_or(-1, |descriptor| descriptor.as_raw_fd()), Ordering::Relaxed);
}

/// Runs `program` with `args` inside `root`, with an empty environment, and collects its output.
///
/// # Errors
/// It could not be started.
pub fn run_in_root(root: &str, program: &str, args: &[&str]) -> io::Result<Output> {
    let root = CString::new(root)?;
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", "/usr/sbin:/usr/bin").stdin(Stdio::null());
    let enter = move || {
        nix::unistd::chroot(root.as_c_str())?;
        nix::unistd::chdir(c"/")?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls on strings made beforehand; it does
    // not allocate and takes no lock.
    unsafe { command.pre_exec(enter) };
    command.output()
}

/// Does `work` in a child without waiting for it, behind everything else; systemd reaps it.
///
/// # Errors
/// There can be no further process.
pub fn beside(work: impl FnOnce()) -> io::Result<()> {
    in_child(19, work).map(|_| ())
}

/// A child that does a part of the work; it is waited for when this is dropped.
#[derive(Debug)]
pub struct Alongside(nix::unistd::Pid);

/// Does `work` in a child with that niceness, at the same time as the caller goes on.
///
/// # Errors
/// There can be no further process.
pub fn alongside(nice: i32, work: impl FnOnce()) -> io::Result<Alongside> {
    in_child(nice, work).map(Alongside)
}

/// A child that works next to a step of init; it is killed when this is dropped.
#[derive(Debug)]
pub struct Companion(nix::unistd::Pid);

/// Does `work` in a child until the caller drops what this returns, or `work` ends.
///
/// # Errors
/// There can be no further process.
pub fn companion(work: impl FnOnce()) -> io::Result<Companion> {
    in_child(0, work).map(Companion)
}

/// Does `work` in a child, and waits at most `limit` for the words with which it ends. `None`: there were none in time, and the child is
/// killed. If a call of the kernel holds it, it ends with that call, and systemd reaps it. No words: it has died.
///
/// # Errors
/// There can be no further process, or init cannot wait for its words.
pub fn words_within(limit: Duration, work: impl FnOnce() -> String) -> io::Result<Option<String>> {
    let until = Instant::now() + limit;
    let (reader, mut writer) = io::pipe()?;
    // The writing end goes into the closure, and ends with it in both processes: the child's end is the end of the words.
    let child = in_child(0, move || {
        // The parent may have given up.
        let _ = writer.write_all(work().as_bytes());
    })?;
    let words = read_until(reader, until);
    if matches!(words, Ok(Some(_))) {
        drop(Alongside(child));
    } else {
        let _ = kill(child, Signal::SIGKILL);
        let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
    }
    words
}

/// All that comes; `None` if that has no end in time.
fn read_until(mut reader: PipeReader, until: Instant) -> io::Result<Option<String>> {
    let (mut words, mut piece) = (Vec::new(), [0; 256]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        // A wait of less than a millisecond is none.
        let timeout = PollTimeout::try_from(left.as_millis().max(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        match reader.read(&mut piece)? {
            0 => return Ok(Some(String::from_utf8_lossy(&words).into_owned())),
            read => words.extend_from_slice(&piece[..read]),
        }
    }
}

fn in_child(nice: i32, work: impl FnOnce()) -> io::Result<nix::unistd::Pid> {
    // SAFETY: init is a single thread, so no lock is held by another in the child's copy of the memory.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { child } => Ok(child),
        nix::unistd::ForkResult::Child => {
            let kept_back = KEPT_BACK.load(Ordering::Relaxed);
            if kept_back >= 0 {
                // SAFETY: a plain system call. The value in this process that owns the descriptor is never dropped: it ends by `_exit`.
                unsafe { nix::libc::close(kept_back) };
            }
            // SAFETY: a plain system call.
            unsafe {
                nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, nice);
            }
            work();
            // SAFETY: a plain system call. The child must not run what its parent has left to do.
            unsafe { nix::libc::_exit(0) }
        }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill(self.0, Signal::SIGKILL);
        while matches!(waitpid(self.0, None), Err(Errno::EINTR)) {}
    }
}

impl Drop for Alongside {
    fn drop(&mut self) {
        while matches!(waitpid(self.0, None), Err(Errno::EINTR)) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_sees_the_root_and_no_environment() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let out = run_in_root("/", "/usr/bin/env", &[]).expect("env runs");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "PATH=/usr/sbin:/usr/bin\n");
        let dir = tempfile::tempdir().expect("temporary directory");
        let missing = run_in_root(&dir.path().to_string_lossy(), "/usr/bin/env", &[]);
        assert_eq!(missing.map(|_| ()).map_err(|e| e.kind()), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn a_companion_ends_with_its_step() {
        let began = Instant::now();
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        let companion = companion(move || {
            let _ = writer.write_all(b"here");
            loop {
                nix::unistd::pause();
            }
        });
        let mut words = [0; 4];
        reader.read_exact(&mut words).expect("its words");
        drop(companion.expect("a child"));
        assert_eq!(&words, b"here");
        // Its end of the pipe is closed.
        assert_eq!(reader.read(&mut words).expect("the end"), 0);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn words_come_in_time_or_not_at_all() {
        let limit = Duration::from_secs(30);
        let said = |work: fn() -> String| words_within(limit, work).expect("a child");
        assert_eq!(said(|| "done".to_owned()).as_deref(), Some("done"));
        assert_eq!(said(|| "x".repeat(5000)).map(|words| words.len()), Some(5000));
        assert_eq!(said(String::new).as_deref(), Some(""));
        let hangs = || -> String {
            loop {
                nix::unistd::pause();
            }
        };
        let began = Instant::now();
        assert_eq!(words_within(Duration::from_millis(50), hangs).expect("a child"), None);
        assert!(began.elapsed() < limit);
    }
}
