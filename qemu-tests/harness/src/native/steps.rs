//! Kills a node's agent before its n-th step: the n-th system call that changes a volume or its mounts, or that gives a pod processors
//! or devices.
//!
//! ```text
//! StepKiller ── pipe ── orlop-e2e kill-before-step ── ptrace(2) ── every thread of the agent
//! ```
//! In: a process, a kind of steps, a number. Out: the step that the kill prevented. Invariants: the tracer is a process
//! of its own, because a wait for all children would reap other children of the harness; when it ends, the agent goes
//! on untraced.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::process::Guarded;
use crate::resource::await_end;
use crate::run::Run;

/// The tracer's message when all threads are traced.
const WATCHES: &str = "watches";
/// The step of a kill that the tracer could not name any more.
const UNNAMED: &str = "a step without a name";
/// Limit for a killed process to end.
const ENDS: Duration = Duration::from_secs(2);
/// Name of its verb.
pub const VERB: &str = "kill-before-step";

/// The system calls that count as steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Steps {
    /// Those that change a pod's volumes or their mounts.
    Volumes,
    /// Those that change a file in the kubelet's directory or in that of device plugins, and calls of the runtime and of plugins.
    Resources,
}

impl Steps {
    /// The name on the command line.
    fn name(self) -> &'static str {
        match self {
            Steps::Volumes => "volumes",
            Steps::Resources => "resources",
        }
    }

    /// True if a change of this path is a step. Pure.
    fn has(self, path: &str) -> bool {
        match self {
            Steps::Volumes => is_of_volumes(path),
            Steps::Resources => is_of_resources(path),
        }
    }
}

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

/// The calls that send a request over a connection; their first argument is its descriptor.
const SENDS: [libc::c_long; 4] = [libc::SYS_write, libc::SYS_writev, libc::SYS_sendto, libc::SYS_sendmsg];

/// True if the path is one of the directories of the resource managers' files, or directly in one. Pure.
fn is_of_resources(path: &str) -> bool {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    [path, directory].iter().any(|at| at.ends_with("/kubelet") || at.ends_with("/kubelet/device-plugins"))
}

/// True if the socket is the client's end of a stream: `table` is the kernel's list of Unix sockets. Pure.
fn is_client(table: &str, inode: &str) -> bool {
    // Num RefCount Protocol Flags Type St Inode Path: type and state are "stream" and "connected", and the server's end has the path.
    table.lines().any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        matches!(columns[..], [_, _, _, _, "0001", "03", number] if number == inode)
    })
}

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
    tracer: Guarded,
    /// The traced process.
    pid: i32,
}

impl StepKiller {
    /// Watches the process and kills it before its `nth` step, counted from 1.
    ///
    /// # Errors
    /// If the process cannot be traced.
    pub fn set(run: &Arc<Run>, pid: i32, steps: Steps, nth: usize) -> Result<StepKiller> {
        let own = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(own);
        command.arg(VERB).arg(pid.to_string()).arg(steps.name()).arg(nth.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut tracer = Guarded::spawn(run, &mut command)?;
        let lines = lines_of(&mut tracer)?;
        let first = lines.recv_timeout(Duration::from_secs(10)).context("the tracer does not begin")?;
        ensure!(first == WATCHES, "the tracer says {first:?}");
        Ok(StepKiller { lines, tracer, pid })
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

    /// Ends the tracer; returns the step before which it had killed by then. A process that ended counts as killed: the tracer may have
    /// ended between the kill and its message.
    #[must_use]
    pub fn end(self) -> Option<String> {
        let StepKiller { lines, tracer, pid } = self;
        drop(tracer);
        // The pipe ends with the tracer, and the thread that reads it ends with the pipe: these are all messages.
        let said = lines.iter().last();
        said.or_else(|| await_end(pid, ENDS).then(|| UNNAMED.to_owned()))
    }
}

/// The lines of a program's output, read by a thread that ends with the output.
fn lines_of(program: &mut Guarded) -> Result<Receiver<String>> {
    let output = program.child.stdout.take().context("the tracer has no output")?;
    let (send, lines) = channel();
    let read = move || {
        let _ = BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| send.send(line));
    };
    std::thread::Builder::new().name("steps".into()).spawn(read).context("start a thread")?;
    Ok(lines)
}

/// The tracer itself: ends when it has killed, or when nothing is left of the process.
///
/// # Errors
/// If the process cannot be traced.
pub fn kill_before(pid: i32, steps: Steps, nth: usize) -> Result<()> {
    let process = Pid::from_raw(pid);
    let mut tracer = Tracer { process, steps, sockets: BTreeMap::new() };
    trace_all(process)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{WATCHES}").and_then(|()| out.flush())?;
    let mut seen = 0;
    loop {
        let goes_on = match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::PtraceSyscall(thread)) => {
                if let Some(step) = tracer.step(thread)? {
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

/// What the tracer knows.
struct Tracer {
    process: Pid,
    steps: Steps,
    /// Inodes of sockets; true if the process sends requests there.
    sockets: BTreeMap<String, bool>,
}

impl Tracer {
    /// The step that the stopped thread is about to make, if it is at the beginning of one.
    #[cfg(target_arch = "x86_64")]
    fn step(&mut self, thread: Pid) -> Result<Option<String>> {
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
        if let Some(step) = self.by_descriptor(number, regs.rdi, regs.rsi)? {
            return Ok(Some(step));
        }
        let Some((_, name, of)) = CALLS.iter().find(|(call, ..)| *call == number) else { return Ok(None) };
        let arguments = [regs.rdi, regs.rsi, regs.rdx, regs.r10];
        let path = resolve(self.process, &arguments, *of)?;
        Ok(self.steps.has(&path).then(|| format!("{name} {path}")))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn step(&mut self, _: Pid) -> Result<Option<String>> {
        bail!("steps are known on x86-64 only: elsewhere calls have other registers")
    }

    /// The step of a call whose first argument is a descriptor; `second` is its second argument.
    fn by_descriptor(&mut self, call: libc::c_long, first: u64, second: u64) -> Result<Option<String>> {
        match self.steps {
            Steps::Volumes if call == libc::SYS_ioctl => {
                let Some((_, name)) = LOOPS.iter().find(|(request, _)| *request == second) else {
                    return Ok(None);
                };
                Ok(Some(format!("{name} {}", opened(self.process, first)?)))
            }
            Steps::Resources if call == libc::SYS_fsync || SENDS.contains(&call) => {
                // Another thread may have closed it meanwhile.
                let Ok(path) = opened(self.process, first) else { return Ok(None) };
                if call == libc::SYS_fsync {
                    return Ok(self.steps.has(&path).then(|| format!("fsync {path}")));
                }
                Ok(self.sends_requests(&path)?.then(|| "a call of the runtime or of a plugin".to_owned()))
            }
            _ => Ok(None),
        }
    }

    /// True if this is the process's end of a connection to the runtime or to a plugin.
    fn sends_requests(&mut self, opened: &str) -> Result<bool> {
        let inode = opened.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        let Some(inode) = inode else { return Ok(false) };
        if let Some(known) = self.sockets.get(inode) {
            return Ok(*known);
        }
        let table = format!("/proc/{}/net/unix", self.process);
        let table = fs::read(&table).with_context(|| format!("read {table}"))?;
        let is = is_client(&String::from_utf8_lossy(&table), inode);
        self.sockets.insert(inode.to_owned(), is);
        Ok(is)
    }
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
    #[test]
    fn steps_for_resources_are_those_on_the_managers_files_and_their_directories() {
        for (path, is) in [
            ("/var/lib/kubelet/cpu_manager_state", true),
            ("/var/lib/kubelet/.orlop-new-0123456789abcdef", true),
            ("/var/lib/kubelet", true),
            ("/n/root/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", true),
            ("/var/lib/kubelet/device-plugins", true),
            ("/var/lib/kubelet/pods/u/etc-hosts", false),
            ("/var/lib/kubelet/plugins/d/dra.sock", false),
            ("kubelet", false),
        ] {
            assert_eq!(Steps::Resources.has(path), is, "{path}");
        }
    }

    #[test]
    fn requests_go_over_connected_streams_whose_path_the_other_end_has() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            ffff8880: 00000003 00000000 00000000 0001 03 101\n\
            ffff8881: 00000003 00000000 00000000 0001 03 102 /run/containerd/containerd.sock\n\
            ffff8882: 00000002 00000000 00000000 0002 03 103\n\
            ffff8883: 00000002 00000000 00010000 0001 01 104\n";
        for (inode, is) in [("101", true), ("102", false), ("103", false), ("104", false), ("10", false)] {
            assert_eq!(is_client(table, inode), is, "{inode}");
        }
    }

    /// A program that has run to its end; its output is not read yet.
    fn ended(run: &Arc<Run>, script: &str) -> Guarded {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut program = Guarded::spawn(run, &mut command).unwrap();
        assert!(program.wait(Duration::from_secs(10)).unwrap().is_some());
        program
    }

    #[test]
    fn a_kill_that_nobody_has_looked_for_yet_counts() {
        let run = Run::start().unwrap();
        let own = std::process::id().cast_signed();
        let mut tracer = ended(&run, "echo mkdir /kubelet/pods/u");
        let lines = lines_of(&mut tracer).unwrap();
        assert_eq!(StepKiller { lines, tracer, pid: own }.end().as_deref(), Some("mkdir /kubelet/pods/u"));
        // The tracer has ended before its message.
        let pid = ended(&run, "true").pid();
        let mut tracer = ended(&run, "true");
        let lines = lines_of(&mut tracer).unwrap();
        assert_eq!(StepKiller { lines, tracer, pid }.end().as_deref(), Some(UNNAMED));
    }

    #[test]
    fn the_names_of_kinds_are_those_of_the_command_line() {
        for steps in [Steps::Volumes, Steps::Resources] {
            assert_eq!(Steps::from_str(steps.name(), false), Ok(steps));
        }
    }
}
