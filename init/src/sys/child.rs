//! Runs one program of the verified root in a chroot and waits for it.
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
