//! First process of a native node or of a cluster's network: builds it, starts and signals its programs, reaps, reports.
//!
//! ```text
//! harness ── requests (stdin) ──► poll loop ──► programs ──► reaper (waitpid)
//!         ◄── events (stdout) ──┘    ▲                          │
//!         ◄──────────────────────────┼──────────────────────────┘
//!                                    └── notify sockets
//! ```
//! Invariants: end of input ends this process, and with it (PID namespace) the node. No signal is blocked or
//! handled here: programs would inherit that.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::protocol::{Event, Layout, NodeSpec, PlaneSpec, Request};
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
    notify: Arc<UnixDatagram>,
    socket: PathBuf,
}

/// Running programs. Locked while a program is started, so that the reaper knows every child that it finds.
#[derive(Default)]
struct Programs {
    running: BTreeMap<String, Program>,
}

/// The supervisor's main: runs until its input ends.
///
/// # Errors
/// If the node cannot be built; the harness sees it as a `Failed` event too.
pub fn main() -> Result<()> {
    let result = build().and_then(serve);
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

/// Directories of the programs' logs and notification sockets.
struct Dirs {
    logs: PathBuf,
    sockets: PathBuf,
}

fn build() -> Result<Dirs> {
    let mut line = String::new();
    // The harness sends nothing more before `Ready`, so nothing is lost in this handle's buffer.
    let n = std::io::stdin().read_line(&mut line).context("read standard input")?;
    anyhow::ensure!(n > 0, "no layout on standard input");
    // The host's /proc is still mounted here, and has the host's number of this process.
    let pid = fs::read_link("/proc/self").context("read /proc/self")?;
    let pid = pid.to_string_lossy().parse().context("own process id")?;
    let dirs = match serde_json::from_str(&line).context("read the layout")? {
        Layout::Node(spec) => build_node(&spec)?,
        Layout::Plane(spec) => build_plane(spec)?,
    };
    emit(&Event::Ready { pid });
    Ok(dirs)
}

fn build_node(spec: &NodeSpec) -> Result<Dirs> {
    nix::unistd::sethostname(&spec.hostname).context("set the host name")?;
    ip(&["link", "set", "lo", "up"])?;
    if !spec.wired {
        make_bridge("node0", "172.30.0.1/24")?;
    }
    let hierarchies = cgroups::host_hierarchies()?;
    mounts::enter(spec, &hierarchies)?;
    registry::serve(Path::new("/run/e2e/registry"))?;
    Ok(Dirs { logs: "/var/log".into(), sockets: "/run/e2e".into() })
}

fn build_plane(spec: PlaneSpec) -> Result<Dirs> {
    ip(&["link", "set", "lo", "up"])?;
    make_bridge(&spec.bridge, &spec.address)?;
    // Pods of one node reach those of another through the plane. The file is this network namespace's own.
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("let the plane forward")?;
    if let Some(address) = &spec.ipv6_address {
        // `nodad`: it is good at once.
        ip(&["addr", "add", address, "dev", &spec.bridge, "nodad"])?;
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").context("let the plane forward IPv6")?;
    }
    Ok(Dirs { logs: spec.logs, sockets: spec.sockets })
}

fn make_bridge(name: &str, address: &str) -> Result<()> {
    ip(&["link", "add", name, "type", "bridge"])?;
    ip(&["addr", "add", address, "dev", name])?;
    ip(&["link", "set", name, "up"])
}

/// The host's ip: the image has none.
fn ip(args: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(args).stdout(Stdio::null()).status().context("run ip (iproute2)")?;
    anyhow::ensure!(status.success(), "ip {}: {status}", args.join(" "));
    Ok(())
}

/// State that the loop and the reaper share.
struct Supervisor {
    dirs: Dirs,
    programs: Mutex<Programs>,
    /// Notified when a program was started: without children the reaper has nothing to wait for.
    started: Condvar,
}

fn serve(dirs: Dirs) -> Result<()> {
    let supervisor = Arc::new(Supervisor { dirs, programs: Mutex::default(), started: Condvar::default() });
    let reaper = supervisor.clone();
    std::thread::Builder::new()
        .name("reaper".into())
        .spawn(move || reaper.reap())
        .context("start a thread")?;
    // Bytes read after the last whole line.
    let mut pending = Vec::new();
    loop {
        let sockets = supervisor.notify_sockets();
        let stdin = std::io::stdin();
        let mut fds = vec![PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        fds.extend(sockets.iter().map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e).context("poll"),
        }
        supervisor.lock().read_notifications();
        if fds[0].revents().is_some_and(|r| !r.is_empty()) && !supervisor.read_requests(&mut pending)? {
            return Ok(());
        }
    }
}

impl Supervisor {
    fn lock(&self) -> MutexGuard<'_, Programs> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_sockets(&self) -> Vec<Arc<UnixDatagram>> {
        self.lock().running.values().map(|p| p.notify.clone()).collect()
    }

    /// Reads the available input and handles its complete lines; false at the end of input.
    fn read_requests(&self, pending: &mut Vec<u8>) -> Result<bool> {
        let stdin = std::io::stdin();
        let mut chunk = [0_u8; 4096];
        let n = nix::unistd::read(stdin.as_fd(), &mut chunk).context("read standard input")?;
        if n == 0 {
            return Ok(false);
        }
        pending.extend_from_slice(&chunk[..n]);
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let done = serde_json::from_slice(&line).context("read a request").and_then(|r| self.perform(r));
            if let Err(e) = done {
                emit(&Event::Failed { message: format!("{e:#}") });
            }
        }
        Ok(true)
    }

    fn perform(&self, request: Request) -> Result<()> {
        let mut programs = self.lock();
        match request {
            Request::Start { name, argv, env } => {
                programs.start(&self.dirs, name, &argv, &env)?;
                self.started.notify_all();
                Ok(())
            }
            Request::Signal { name, signal } => {
                // A program that has just ended is no error: its `Exited` is on the way or was read.
                let Some(program) = programs.running.get(&name) else { return Ok(()) };
                let signal = Signal::try_from(signal).context("signal number")?;
                kill(Pid::from_raw(program.pid), signal).with_context(|| format!("send {signal} to {name}"))
            }
        }
    }

    /// Reaps every ended child, forever: the supervisor's programs, and the orphans of shims.
    fn reap(&self) {
        loop {
            let (pid, status) = match waitpid(Pid::from_raw(-1), None) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), 128 + signal as i32),
                Ok(_) | Err(nix::errno::Errno::EINTR) => continue,
                Err(_) => {
                    let programs = self.lock();
                    if programs.running.is_empty() {
                        drop(self.started.wait(programs));
                    }
                    continue;
                }
            };
            self.lock().ended(pid, status);
        }
    }
}

impl Programs {
    fn start(
        &mut self,
        dirs: &Dirs,
        name: String,
        argv: &[String],
        env: &BTreeMap<String, String>,
    ) -> Result<()> {
        anyhow::ensure!(!self.running.contains_key(&name), "{name} runs already");
        let (program, args) = argv.split_first().context("nothing to start")?;
        let log = dirs.logs.join(format!("{name}.log"));
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        let socket = dirs.sockets.join(format!("notify-{name}"));
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
        self.running.insert(name, Program { pid, notify: Arc::new(notify), socket });
        Ok(())
    }

    fn read_notifications(&self) {
        let mut buffer = [0_u8; 4096];
        for (name, program) in &self.running {
            while let Ok(n) = program.notify.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
                emit(&Event::Notified { name: name.clone(), text });
            }
        }
    }

    fn ended(&mut self, pid: i32, status: i32) {
        // A program's notifications are reported before its end.
        self.read_notifications();
        let name = self.running.iter().find(|(_, p)| p.pid == pid).map(|(n, _)| n.clone());
        if let Some((name, program)) = name.and_then(|n| self.running.remove(&n).map(|p| (n, p))) {
            let _ = fs::remove_file(&program.socket);
            emit(&Event::Exited { name, status });
        }
    }
}
