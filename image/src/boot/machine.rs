//! A QEMU under way: its scratch directory, sockets, threads that turn its output into events, and its end.
//!
//! We listen on the sockets of console and host channel before QEMU starts, so nothing is lost. Signals that end us
//! become an event; QEMU, in a process group of its own, does not get those of the terminal, but a parent death signal:
//! it never outlives us. Dropping a [`Running`] ends it, waits for its end and removes the scratch directory.

use crate::arch::Arch;
use crate::host::run;
use crate::qemu::{
    self, Boot, Bus, Disk, FW_CFG_CONFIG, Firmware, Guest, Machine, Network, PortForward, Qmp,
};
use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, kill};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Processors of a machine that a person looks at.
const PROCESSORS: u32 = 2;
/// Lines that may wait: the screen is slower than the console for a moment only.
const QUEUE: usize = 1024;
/// Lines of the console that are shown when something went wrong.
const LAST_WORDS: usize = 30;

/// What to start.
pub(super) struct Setup {
    /// Architecture of the image and of the machine.
    pub(super) arch: Arch,
    /// Directory of the published image.
    pub(super) image: PathBuf,
    /// Where the scratch directory is made.
    pub(super) scratch: PathBuf,
    /// Without firmware.
    pub(super) direct: bool,
    /// MiB.
    pub(super) memory_mib: u32,
    /// Where its network leads.
    pub(super) network: Network,
    /// Ports of this machine that lead to it.
    pub(super) forwards: Vec<PortForward>,
    /// NodeConfig document.
    pub(super) config: String,
}

/// What happened.
pub(super) enum Event {
    /// A line of the host channel.
    Host(String),
    /// A line of the console, once it is followed.
    Console(String),
    /// QEMU ended.
    Ended(ExitStatus),
    /// We are asked to end: Ctrl-C, a closed terminal, SIGTERM.
    Asked,
}

/// How long QEMU may take to end after the request.
const QUIT_WITHIN: Duration = Duration::from_secs(5);

/// A running machine.
pub(super) struct Running {
    dir: PathBuf,
    how: String,
    pid: nix::unistd::Pid,
    ended: bool,
    events: Receiver<Event>,
    follow: Arc<AtomicBool>,
    last: Arc<Mutex<VecDeque<String>>>,
}

impl Running {
    /// Starts it.
    pub(super) fn start(setup: &Setup) -> Result<Running> {
        let (send, events) = mpsc::sync_channel(QUEUE);
        await_signals(&send)?;
        let dir = setup.scratch.join(format!("boot-{}", std::process::id()));
        remove_stale(&setup.scratch);
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let (kernel, initrd) = (setup.image.join("vmlinuz"), setup.image.join("initrd"));
        let accelerator =
            qemu::probe(&Guest { arch: setup.arch, kernel, initrd, memory_mib: setup.memory_mib })?;
        let machine = prepare(setup, &dir, accelerator)?;
        let follow = Arc::new(AtomicBool::new(false));
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let console = UnixListener::bind(dir.join("console"))?;
        let host = UnixListener::bind(dir.join("host"))?;
        let log = File::create(setup.scratch.join("console.log"))?;
        let mut child = qemu::command(setup.arch)
            .args(qemu::arguments(&machine))
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", setup.arch.facts().emulator.program))?;
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).context("a process id")?);
        let (to_host, to_console) = (send.clone(), send.clone());
        std::thread::spawn(move || read_host(&host, &to_host));
        let (following, lines) = (Arc::clone(&follow), Arc::clone(&last));
        std::thread::spawn(move || read_console(&console, log, &to_console, &following, &lines));
        std::thread::spawn(move || {
            if let Ok(status) = child.wait() {
                // The receiver is gone when this program is about to end.
                let _ = send.send(Event::Ended(status));
            }
        });
        let boot = if setup.direct {
            "direct kernel boot".to_owned()
        } else {
            format!("{}, systemd-boot", setup.arch.facts().emulator.firmware_name)
        };
        let how = format!("{}, {boot}", accelerator.argument());
        Ok(Running { dir, how, pid, ended: false, events, follow, last })
    }

    /// The next event, or none at the deadline.
    pub(super) fn next(&mut self, deadline: Instant) -> Option<Event> {
        let event = self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        self.note(event)
    }

    /// The next event. QEMU's end is one, so there always is a next.
    pub(super) fn next_ever(&mut self) -> Event {
        let event = self.events.recv().ok();
        self.note(event).unwrap_or(Event::Ended(ExitStatus::default()))
    }

    fn ends_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        // What it still says on its way out is of no interest.
        while !self.ended && self.next(deadline).is_some() {}
        self.ended
    }

    fn note(&mut self, event: Option<Event>) -> Option<Event> {
        self.ended |= matches!(event, Some(Event::Ended(_)));
        event
    }

    /// Console lines become events from now on.
    pub(super) fn follow_console(&self) {
        self.follow.store(true, Ordering::Relaxed);
    }

    /// Accelerator and way to boot.
    pub(super) fn how(&self) -> &str {
        &self.how
    }

    /// Where the console is logged.
    pub(super) fn console_log(&self) -> String {
        self.dir.with_file_name("console.log").display().to_string()
    }

    /// Socket of the second serial port.
    pub(super) fn shell(&self) -> String {
        self.dir.join("shell").display().to_string()
    }

    /// The console's last lines.
    pub(super) fn last_words(&self) -> String {
        let lines = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let text: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!("the console's last lines:\n{}", text.join("\n"))
    }

    /// Presses the power button.
    pub(super) fn power_button(&self) -> Result<()> {
        Qmp::connect(&self.dir.join("qmp"))?.execute("system_powerdown").map(|_| ())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let asked = Qmp::connect(&self.dir.join("qmp")).and_then(|mut q| q.execute("quit"));
            if asked.is_err() || !self.ends_within(QUIT_WITHIN) {
                // Not reaped as far as we know: the waiting thread would have said so.
                let _ = kill(self.pid, Signal::SIGKILL);
                self.ends_within(QUIT_WITHIN);
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// From here on, signals that end a process are events. Children start with none blocked.
fn await_signals(send: &SyncSender<Event>) -> Result<()> {
    let signals = ending(&fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?);
    // Before any other thread exists: all of them inherit it.
    signals.thread_block().context("blocking signals")?;
    let send = send.clone();
    std::thread::spawn(move || {
        while signals.wait().is_ok() {
            // The receiver is gone when this program is about to end.
            let _ = send.send(Event::Asked);
        }
    });
    Ok(())
}

/// The signals that end this process, whose `/proc/self/status` this is. Those it was started with as ignored
/// (`nohup`, a script's background job) are not among them: a blocked signal would arrive all the same.
fn ending(status: &str) -> SigSet {
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    let all = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    all.into_iter().filter(|s| ignored & (1 << (*s as i32 - 1)) == 0).collect()
}

fn prepare(setup: &Setup, dir: &Path, accelerator: qemu::Accelerator) -> Result<Machine> {
    let disk = dir.join("disk.qcow2");
    let raw = setup.image.join("orlop.raw");
    anyhow::ensure!(raw.is_file(), "no image at {}; build one first", raw.display());
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(&raw).arg(&disk).arg("8G");
    run::output(&mut create, "making the disk overlay")?;
    let config = dir.join("node-config.yaml");
    fs::write(&config, &setup.config)?;
    let boot = if setup.direct {
        let cmdline = fs::read_to_string(setup.image.join("cmdline"))?.trim().to_owned();
        Boot::Direct { kernel: setup.image.join("vmlinuz"), initrd: setup.image.join("initrd"), cmdline }
    } else {
        let vars = dir.join("vars.fd");
        let (code, template) = setup.arch.facts().emulator.firmware;
        fs::copy(template, &vars).context("copying the firmware's variables")?;
        Boot::Uefi { code: code.into(), vars }
    };
    Ok(Machine {
        arch: setup.arch,
        accelerator,
        memory_mib: setup.memory_mib,
        processors: PROCESSORS,
        topology: None,
        boot,
        disks: vec![Disk { file: disk, format: "qcow2", bus: Bus::Virtio }],
        write_log: None,
        fw_cfg: vec![(FW_CFG_CONFIG.to_owned(), config)],
        firmware: Firmware::default(),
        network: setup.network.clone(),
        forwards: setup.forwards.clone(),
        ports: Vec::new(),
        api_port: None,
        sockets: dir.to_path_buf(),
        qemu_listens: &["shell", "qmp"],
        no_reboot: true,
    })
}

// Directories of boots whose process is gone.
fn remove_stale(scratch: &Path) {
    let Ok(entries) = fs::read_dir(scratch) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(pid) = name.strip_prefix("boot-").and_then(|p| p.parse::<u32>().ok())
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn lines(listener: &UnixListener) -> Option<BufReader<UnixStream>> {
    listener.accept().ok().map(|(stream, _)| BufReader::new(stream))
}

fn read_host(listener: &UnixListener, send: &SyncSender<Event>) {
    let Some(reader) = lines(listener) else { return };
    for line in reader.lines().map_while(Result::ok) {
        if send.send(Event::Host(line)).is_err() {
            return;
        }
    }
}

fn read_console(
    listener: &UnixListener,
    mut log: File,
    send: &SyncSender<Event>,
    follow: &AtomicBool,
    last: &Mutex<VecDeque<String>>,
) {
    let Some(mut reader) = lines(listener) else { return };
    let mut raw = Vec::new();
    // Firmware writes what is no UTF-8.
    while reader.read_until(b'\n', &mut raw).is_ok_and(|n| n > 0) {
        // A full disk must not end the boot.
        let _ = log.write_all(&raw);
        let line = String::from_utf8_lossy(&raw).trim_end().to_owned();
        raw.clear();
        {
            let mut lines = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if lines.len() == LAST_WORDS {
                lines.pop_front();
            }
            lines.push_back(line.clone());
        }
        if follow.load(Ordering::Relaxed) && send.send(Event::Console(line)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ignored_from_the_start_stays_ignored() {
        let end = |mask: &str| ending(&format!("Name:\tx\nSigBlk:\tffff\nSigIgn:\t{mask}\nSigCgt:\tffff\n"));
        let (plain, nohup, background) =
            (end("0000000000001000"), end("0000000000000001"), end("0000000000000006"));
        // SIGHUP, SIGINT, SIGTERM.
        let has = |set: &SigSet| [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM].map(|s| set.contains(s));
        assert_eq!(has(&plain), [true, true, true]);
        assert_eq!(has(&nohup), [false, true, true]);
        assert_eq!(has(&background), [true, false, true]);
    }
}
