//! Kills a node's agent before its n-th step on a volume: the n-th system call that changes a volume or its mounts.
//!
//! ```text
//! StepKiller ── pipe ── orlop-e2e kill-before-step ── ptrace(2) ── every thread of the agent
//! ```
//! What comes in: a process and a number. What goes out: the step that the kill prevented. Invariants: the tracer is a
//! process of its own, because a wait for all children would reap other children of the harness; when it ends, the
//! agent goes on untraced.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::process::Guarded;
use crate::run::Run;

/// The tracer's message when all threads are traced.
const WATCHES: &str = "watches";
/// Name of its verb.
pub const VERB: &str = "kill-before-step";

/// The argument of a call that is a path, and the directory that the path is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PathAt {
    /// Number of the argument that is a descriptor of the directory; none: the path is absolute.
    dir: Option<usize>,
    path: usize,
}

const fn alone(path: usize) -> PathAt {
    PathAt { dir: None, path }
}

const fn at(dir: usize) -> PathAt {
    PathAt { dir: Some(dir), path: dir + 1 }
}

/// The calls that count as steps, and the argument that names the changed path.
const CALLS: [(libc::c_long, &str, PathAt); 14] = [
    (libc::SYS_mount, "mount", alone(1)),
    (libc::SYS_umount2, "umount2", alone(0)),
    (libc::SYS_move_mount, "move_mount", at(2)),
    (libc::SYS_mkdir, "mkdir", alone(0)),
    (libc::SYS_mkdirat, "mkdirat", at(0)),
    (libc::SYS_rmdir, "rmdir", alone(0)),
    (libc::SYS_rename, "rename", alone(1)),
    (libc::SYS_renameat, "renameat", at(2)),
    (libc::SYS_renameat2, "renameat2", at(2)),
    (libc::SYS_unlink, "unlink", alone(0)),
    (libc::SYS_unlinkat, "unlinkat", at(0)),
    (libc::SYS_symlink, "symlink", alone(1)),
    (libc::SYS_symlinkat, "symlinkat", at(1)),
    (libc::SYS_fchownat, "fchownat", at(0)),
];

/// Requests of linux/loop.h that change a device's backing file.
const LOOPS: [(u64, &str); 2] = [(0x4C00, "LOOP_SET_FD"), (0x4C01, "LOOP_CLR_FD")];

/// True if the path belongs to a pod's volumes or to a driver's. Pure.
fn is_of_volumes(path: &str) -> bool {
    let of_pod = path.split_once("/kubelet/pods/").is_some_and(|(_, rest)| {
        ["/volumes", "/volume-subpaths", "/volumeDevices", "/plugins"].iter().any(|part| rest.contains(part))
    });
    of_pod || path.contains("/kubelet/plugins/kubernetes.io/")
}

/// A tracer at work.
pub struct StepKiller {
    lines: Receiver<String>,
    _tracer: Guarded,
}

impl StepKiller {
    /// Watches the process and kills it before its `nth` step, counted from 1.
    ///
    /// # Errors
    /// If the process cannot be traced.
    pub fn set(run: &Arc<Run>, pid: i32, nth: usize) -> Result<StepKiller> {
        let own = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(own);
        command.arg(VERB).arg(pid.to_string()).arg(nth.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut tracer = Guarded::spawn(run, &mut command)?;
        let output = tracer.child.stdout.take().context("the tracer has no output")?;
        let (send, lines) = channel();
        let read = move || {
            let _ = BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| send.send(line));
        };
        std::thread::Builder::new().name("steps".into()).spawn(read).context("start a thread")?;
        let first = lines.recv_timeout(Duration::from_secs(10)).context("the tracer does not begin")?;
        ensure!(first == WATCHES, "the tracer says {first:?}");
        Ok(StepKiller { lines, _tracer: tracer })
    }

    /// The step before which it killed, if it does so within `limit`.
    ///
    /// # Errors
    /// If the tracer ended without it.
    pub fn killed(&self, limit: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(limit) {
            Ok(step) => Ok(Some(step)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the traced process ended before the step"),
        }
    }
}

/// The tracer itself: ends when it has killed, or when nothing is left of the process.
///
/// # Errors
/// If the process cannot be traced.
pub fn kill_before(pid: i32, nth: usize) -> Result<()> {
    let process = Pid::from_raw(pid);
    trace_all(process)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{WATCHES}").and_then(|()| out.flush())?;
    let mut seen = 0;
    loop {
        let goes_on = match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::PtraceSyscall(thread)) => {
                if let Some(step) = step(process, thread)? {
                    seen += 1;
                    if seen == nth {
                        kill(process, Signal::SIGKILL).context("kill the process")?;
                        return writeln!(out, "{step}").context("say so");
                    }
                }
                ptrace::syscall(thread, None)
            }
            Ok(WaitStatus::PtraceEvent(thread, ..)) => ptrace::syscall(thread, None),
            Ok(WaitStatus::Stopped(thread, signal)) => ptrace::syscall(thread, signal),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(Errno::ECHILD) => return Ok(()),
            Err(error) => Err(error),
        };
        match goes_on {
            // A thread that ended meanwhile.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).context("trace the process"),
        }
    }
}

/// Traces all threads, also those that begin meanwhile.
fn trace_all(process: Pid) -> Result<()> {
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE;
    let mut traced = BTreeSet::new();
    loop {
        let tasks = format!("/proc/{process}/task");
        let mut found = false;
        for entry in fs::read_dir(&tasks).with_context(|| format!("read {tasks}"))? {
            let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if !traced.insert(id) {
                continue;
            }
            found = true;
            let thread = Pid::from_raw(id);
            match ptrace::seize(thread, options).and_then(|()| ptrace::interrupt(thread)) {
                Ok(()) => {}
                // The thread has ended, or a traced thread started it, so it is traced already.
                Err(Errno::ESRCH | Errno::EPERM) if thread != process => {}
                Err(error) => return Err(error).with_context(|| format!("trace thread {thread}")),
            }
        }
        if !found {
            return Ok(());
        }
    }
}

/// The step that the stopped thread is about to make, if it is at the beginning of one.
#[cfg(target_arch = "x86_64")]
fn step(process: Pid, thread: Pid) -> Result<Option<String>> {
    let regs = match ptrace::getregs(thread) {
        Ok(regs) => regs,
        Err(Errno::ESRCH) => return Ok(None),
        Err(error) => return Err(error).context("read registers"),
    };
    // The kernel sets this value before it carries out a call.
    if regs.rax.cast_signed() != -i64::from(libc::ENOSYS) {
        return Ok(None);
    }
    let number = regs.orig_rax.cast_signed();
    if number == libc::SYS_ioctl {
        let Some((_, name)) = LOOPS.iter().find(|(request, _)| *request == regs.rsi) else { return Ok(None) };
        return Ok(Some(format!("{name} {}", opened(process, regs.rdi)?)));
    }
    let Some((_, name, of)) = CALLS.iter().find(|(call, ..)| *call == number) else { return Ok(None) };
    let arguments = [regs.rdi, regs.rsi, regs.rdx, regs.r10];
    let path = resolve(process, &arguments, *of)?;
    Ok(is_of_volumes(&path).then(|| format!("{name} {path}")))
}

#[cfg(not(target_arch = "x86_64"))]
fn step(_: Pid, _: Pid) -> Result<Option<String>> {
    bail!("steps are known on x86-64 only: elsewhere calls have other registers")
}

/// The whole path of a call's argument.
fn resolve(process: Pid, arguments: &[u64; 4], of: PathAt) -> Result<String> {
    let path = text_at(process, arguments[of.path])?;
    let Some(dir) = of.dir.filter(|_| !path.starts_with('/')) else { return Ok(path) };
    if descriptor(arguments[dir]) == libc::AT_FDCWD {
        return Ok(path);
    }
    Ok(format!("{}/{path}", opened(process, arguments[dir])?))
}

/// A descriptor is the lower half of its register.
fn descriptor(register: u64) -> libc::c_int {
    u32::try_from(register & u64::from(u32::MAX)).unwrap_or_default().cast_signed()
}

/// The path that a descriptor was opened at.
fn opened(process: Pid, register: u64) -> Result<String> {
    let link = format!("/proc/{process}/fd/{}", descriptor(register));
    let path = fs::read_link(&link).with_context(|| format!("read {link}"))?;
    Ok(path.display().to_string())
}

/// The string at this address of the process.
fn text_at(process: Pid, address: u64) -> Result<String> {
    let memory = format!("/proc/{process}/mem");
    let file = File::open(&memory).with_context(|| format!("open {memory}"))?;
    let mut text = vec![0; libc::PATH_MAX as usize];
    // The page after the string may not be mapped.
    let page = 4096 - usize::try_from(address % 4096).unwrap_or_default();
    let mut read = file.read_at(&mut text[..page], address).context("read a path")?;
    if !text[..read].contains(&0) {
        read += file.read_at(&mut text[read..], address + read as u64).unwrap_or_default();
    }
    let end = text[..read].iter().position(|byte| *byte == 0).unwrap_or(read);
    Ok(String::from_utf8_lossy(&text[..end]).into_owned())
}

// `volumes/killed-steps` tests that the tracer kills. A test of this package that runs its program would make cargo
// rebuild the program under the running harness.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_on_volumes() {
        for (path, is) in [
            ("/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/s/..data", true),
            ("/var/lib/kubelet/pods/u/volume-subpaths/v/c/0", true),
            ("/var/lib/kubelet/plugins/kubernetes.io/csi/d/h/globalmount", true),
            ("/n/root/var/lib/kubelet/pods/u/volumes", true),
            ("/var/lib/kubelet/pods/u/etc-hosts", false),
            ("/var/lib/kubelet/pods/u", false),
            ("/var/lib/kubelet/plugins_registry/d.sock", false),
            ("/var/log/pods/n_p_u/volumes", false),
        ] {
            assert_eq!(is_of_volumes(path), is, "{path}");
        }
    }
}
