//! Children of PID 1: a program of the verified root in a chroot, waited for; work next to the boot, not waited for.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

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

fn in_child(nice: i32, work: impl FnOnce()) -> io::Result<nix::unistd::Pid> {
    // SAFETY: init is a single thread, so no lock is held by another in the child's copy of the memory.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { child } => Ok(child),
        nix::unistd::ForkResult::Child => {
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

impl Drop for Alongside {
    fn drop(&mut self) {
        while matches!(nix::sys::wait::waitpid(self.0, None), Err(nix::errno::Errno::EINTR)) {}
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
}
