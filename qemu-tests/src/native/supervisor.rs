//! First process of a native node: builds it, starts and signals its programs, reaps, reports.
//!
//! ```text
//! harness ── requests (stdin) ──► poll loop ──► programs
//!         ◄── events (stdout) ──┘    ▲  ▲
//!                       SIGCHLD ─────┘  └── notify sockets
//! ```
//! Invariants: one thread decides; end of input ends this process, and with it (PID namespace) the node.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::protocol::{Event, NodeSpec, Request};
use super::{cgroups, mounts, registry};

/// First step, still outside the namespaces: join the node's cgroups, then become `unshare`, which starts
/// the supervisor as the first process of the new ones. Only returns on failure.
///
/// # Errors
/// If a cgroup or `unshare` refuses.
pub fn launch(cgroups: &[PathBuf]) -> Result<()> {
    cgroups::join(cgroups)?;
    let own = std::env::current_exe().context("find this program")?;
    let error = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--propagation", "private"])
        .args(["--fork", "--kill-child=SIGKILL", "--"])
        .arg(own)
        .arg("node-supervisor")
        .exec();
    Err(error).context("run unshare (package util-linux)")
}

struct Program {
    pid: i32,
    notify: UnixDatagram,
    socket: PathBuf,
}

struct Supervisor {
    programs: BTreeMap<String, Program>,
    /// Bytes read after the last whole line.
    pending: Vec<u8>,
}

/// The supervisor's main: runs until its input ends.
///
/// # Errors
/// If the node cannot be built; the harness sees it as a `Failed` event too.
pub fn main() -> Result<()> {
    let result = build().and_then(|()| serve());
    if let Err(e) = &result {
        emit(&Event::Failed { message: format!("{e:#}") });
    }
    result
}

fn emit(event: &Event) {
    let mut out = std::io::stdout().lock();
    if let Ok(text) = serde_json::to_string(event) {
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }
}

fn build() -> Result<()> {
    let mut line = String::new();
    // The harness sends nothing more before `Ready`, so nothing is lost in this handle's buffer.
    let n = std::io::stdin().read_line(&mut line).context("read standard input")?;
    anyhow::ensure!(n > 0, "no layout on standard input");
    let spec: NodeSpec = serde_json::from_str(&line).context("read the node's layout")?;
    nix::unistd::sethostname("orlop-native").context("set the host name")?;
    // The host's ip: the image has none.
    for args in [
        &["link", "set", "lo", "up"][..],
        &["link", "add", "node0", "type", "bridge"],
        &["addr", "add", "172.30.0.1/24", "dev", "node0"],
        &["link", "set", "node0", "up"],
    ] {
        let status =
            Command::new("ip").args(args).stdout(Stdio::null()).status().context("run ip (iproute2)")?;
        anyhow::ensure!(status.success(), "ip {}: {status}", args.join(" "));
    }
    let hierarchies = cgroups::host_hierarchies()?;
    // The host's /proc is still mounted here, and in it our number is the host's.
    let pid = fs::read_link("/proc/self").context("read /proc/self")?;
    let pid = pid.to_string_lossy().parse().context("own process id")?;
    mounts::enter(&spec, &hierarchies)?;
    registry::serve(Path::new("/run/e2e/registry"))?;
    emit(&Event::Ready { pid });
    Ok(())
}

fn serve() -> Result<()> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block().context("block SIGCHLD")?;
    let signals =
        SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).context("signalfd")?;
    let mut supervisor = Supervisor { programs: BTreeMap::new(), pending: Vec::new() };
    loop {
        match supervisor.wait(&signals)? {
            Woken::Input => {
                if !supervisor.read_requests()? {
                    return Ok(());
                }
            }
            Woken::Child => {
                while signals.read_signal().context("read signalfd")?.is_some() {}
                // What a program said before it ended is told before its end.
                supervisor.read_notifications();
                supervisor.reap();
            }
            Woken::Notify => supervisor.read_notifications(),
        }
    }
}

enum Woken {
    Input,
    Child,
    Notify,
}

impl Supervisor {
    fn wait(&self, signals: &SignalFd) -> Result<Woken> {
        let stdin = std::io::stdin();
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        fds.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
        fds.extend(self.programs.values().map(|p| PollFd::new(p.notify.as_fd(), PollFlags::POLLIN)));
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => break,
                Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(e).context("poll"),
            }
        }
        let ready = |n: usize| fds[n].revents().is_some_and(|r| !r.is_empty());
        Ok(if ready(1) {
            Woken::Child
        } else if ready(0) {
            Woken::Input
        } else {
            Woken::Notify
        })
    }

    /// Reads what is there and does the whole lines of it; false at the end of input.
    fn read_requests(&mut self) -> Result<bool> {
        let stdin = std::io::stdin();
        let mut chunk = [0_u8; 4096];
        let n = nix::unistd::read(stdin.as_fd(), &mut chunk).context("read standard input")?;
        if n == 0 {
            return Ok(false);
        }
        self.pending.extend_from_slice(&chunk[..n]);
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let done = serde_json::from_slice::<Request>(&line)
                .context("read a request")
                .and_then(|r| self.perform(r));
            if let Err(e) = done {
                emit(&Event::Failed { message: format!("{e:#}") });
            }
        }
        Ok(true)
    }

    fn perform(&mut self, request: Request) -> Result<()> {
        match request {
            Request::Start { name, argv, env } => self.start(name, &argv, &env),
            Request::Signal { name, signal } => {
                // A program that has just ended is no error: its `Exited` is on the way or was read.
                let Some(program) = self.programs.get(&name) else { return Ok(()) };
                let signal = Signal::try_from(signal).context("signal number")?;
                kill(Pid::from_raw(program.pid), signal).with_context(|| format!("send {signal} to {name}"))
            }
        }
    }

    fn start(&mut self, name: String, argv: &[String], env: &BTreeMap<String, String>) -> Result<()> {
        anyhow::ensure!(!self.programs.contains_key(&name), "{name} runs already");
        let (program, args) = argv.split_first().context("nothing to start")?;
        let log = format!("/var/log/{name}.log");
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {log}"))?;
        let socket = PathBuf::from(format!("/run/e2e/notify-{name}"));
        let _ = fs::remove_file(&socket);
        let notify = UnixDatagram::bind(&socket).with_context(|| format!("bind {}", socket.display()))?;
        notify.set_nonblocking(true)?;
        let child = Command::new(program)
            .args(args)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .env("NOTIFY_SOCKET", &socket)
            .envs(env)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let pid = child.id().cast_signed();
        emit(&Event::Started { name: name.clone(), pid });
        self.programs.insert(name, Program { pid, notify, socket });
        Ok(())
    }

    fn read_notifications(&self) {
        let mut buffer = [0_u8; 4096];
        for (name, program) in &self.programs {
            while let Ok(n) = program.notify.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
                emit(&Event::Notified { name: name.clone(), text });
            }
        }
    }

    /// Reaps every ended child: our programs, and the orphans that shims leave to us.
    fn reap(&mut self) {
        loop {
            let (pid, status) = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => continue,
            };
            let name = self.programs.iter().find(|(_, p)| p.pid == pid).map(|(n, _)| n.clone());
            if let Some(name) = name {
                if let Some(program) = self.programs.remove(&name) {
                    let _ = fs::remove_file(&program.socket);
                }
                emit(&Event::Exited { name, status });
            }
        }
    }
}
