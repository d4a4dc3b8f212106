//! One VM: start, observation, reset, end.
//!
//! The guest reports its readiness on the host channel. The VM keeps all messages, so a case can wait for a phase that
//! is already past. Dropping the VM ends QEMU.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use orlop_config::ledger::{HostMessage, LedgerEntry};
use orlop_image::arch::Arch;
use orlop_image::qemu::{Accelerator, Machine, Qmp, SOCKETS, arguments};

use super::feed::Feed;
use super::screen::{Picture, TextScreen};
use super::shell::Shell;
use crate::process::Guarded;
use crate::run::Run;
use crate::say;

/// The kernel's last message before it starts init.
pub(super) const KERNEL_STARTS_INIT: &str = "Run /init as init process";

/// Looks at a screen before it counts as one that changes all the time.
const SCREEN_LOOKS: u32 = 10;

/// Looks for a route of a network card, a second apart.
const NETWORK_LIMIT_S: u64 = 90;

static VMS: AtomicU32 = AtomicU32::new(0);

/// The guest's kernel crashed because of a fault of the emulator: emulating two processors, QEMU 7.2 sometimes executes
/// a breakpoint of the kernel's self-modifying code after the kernel has removed it. The crash proves nothing about the
/// tested product, so the runner repeats the case, with processors that take turns. The console message ends every wait
/// for the guest, and a file next to the guest's logs records the fault: the case may fail far from the VM, for example
/// at a node that does not become Ready.
#[derive(Clone, Copy, Debug)]
pub struct EmulatorFault;

impl EmulatorFault {
    const MARK: &str = "emulator-fault";
    const PAST: &str = "emulator-fault-before";

    fn is_in(line: &str) -> bool {
        line.contains("Oops: int3")
    }

    /// Records the fault among the logs of a guest.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn note(self, logs: &Path) -> std::io::Result<()> {
        File::create(logs.join(Self::MARK)).map(drop)
    }

    /// Marks the faults that are recorded below `artefacts` as past; true if there were any.
    #[must_use]
    pub fn pass(self, artefacts: &Path) -> bool {
        let mut found = fs::rename(artefacts.join(Self::MARK), artefacts.join(Self::PAST)).is_ok();
        for entry in fs::read_dir(artefacts).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found |= self.pass(&entry.path());
            }
        }
        found
    }

    /// The accelerator for a guest with these logs: processors take turns if an earlier guest crashed.
    #[must_use]
    pub fn mind(self, logs: &Path, accelerator: Accelerator) -> Accelerator {
        if logs.join(Self::PAST).exists() { accelerator.in_turn() } else { accelerator }
    }
}

impl fmt::Display for EmulatorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the emulator tripped over the kernel's own code patching (Oops: int3)")
    }
}

/// A running VM.
pub struct Vm {
    /// Its QMP connection.
    pub qmp: Qmp,
    /// Its console.
    pub console: Feed,
    host: Feed,
    shell: Shell,
    shell_is_up: bool,
    qemu: Guarded,
    /// Position in the host channel from which messages belong to the current boot.
    boot_from: usize,
}

/// A short directory of its own for a VM's sockets.
///
/// # Errors
/// If it cannot be made.
pub fn socket_dir(run: &Run) -> Result<PathBuf> {
    let dir = run.sockets().join(format!("vm{}", VMS.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    Ok(dir)
}

impl Vm {
    /// Starts QEMU, in the network namespace of process `place` if one is given; logs go to `artefacts`.
    ///
    /// # Errors
    /// If QEMU does not start: its message.
    pub fn start(run: &Arc<Run>, artefacts: &Path, spec: &Machine, place: Option<i32>) -> Result<Vm> {
        let mut listeners = Vec::new();
        for name in SOCKETS {
            let path = spec.sockets.join(name);
            listeners
                .push(UnixListener::bind(&path).with_context(|| format!("listen on {}", path.display()))?);
        }
        let log = artefacts.join("qemu.log");
        let errors = File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let mut command = qemu_in(place, spec.arch);
        command.args(arguments(spec)).stdin(Stdio::null()).stdout(errors.try_clone()?).stderr(errors);
        let mut qemu = Guarded::spawn(run, &mut command)?;
        let mut streams = Vec::new();
        for listener in &listeners {
            match accept(listener, &mut qemu)? {
                Some(stream) => streams.push(stream),
                None => bail!("QEMU ended at once: {}", fs::read_to_string(&log).unwrap_or_default()),
            }
        }
        let [console, shell, host, qmp] = <[UnixStream; 4]>::try_from(streams)
            .map_err(|s| anyhow::anyhow!("{} of {} sockets were connected", s.len(), SOCKETS.len()))?;
        let log = |name: &str| {
            let path = artefacts.join(format!("{name}.log"));
            let file = File::options().create(true).append(true).open(&path);
            file.with_context(|| format!("open {}", path.display()))
        };
        let feed =
            |name: &str, stream: &UnixStream| Feed::read(name, stream.try_clone()?, log(name)?, |_| ());
        let (shell_feed, host) = (feed("shell", &shell)?, feed("host-channel", &host)?);
        let (emulated, logs) = (spec.accelerator != Accelerator::Kvm, artefacts.to_owned());
        let others = [shell_feed.clone(), host.clone()];
        let look = move |line: &str| {
            if emulated && EmulatorFault::is_in(line) {
                if let Err(e) = EmulatorFault.note(&logs) {
                    say::line(format!("  {EmulatorFault}, and {}: {e}", logs.display()));
                }
                others.iter().for_each(Feed::end);
            }
        };
        Ok(Vm {
            console: Feed::read("serial", console.try_clone()?, log("serial")?, look)?,
            host,
            shell: Shell::new(shell, shell_feed),
            shell_is_up: false,
            qmp: Qmp::new(qmp)?,
            qemu,
            boot_from: 0,
        })
    }

    /// QEMU's process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.qemu.pid()
    }

    /// Waits for a ledger phase of the current boot (`agent.ready`); returns its entry.
    ///
    /// # Errors
    /// At the deadline: the last messages of channel and console.
    pub fn await_phase(&self, phase: &str, limit_s: u64) -> Result<LedgerEntry> {
        self.await_message(&format!("the phase {phase}"), limit_s, |m| match m {
            HostMessage::Ledger(e) if e.phase == phase => Some(e),
            _ => None,
        })
    }

    /// Waits for a message of the current boot on the host channel.
    ///
    /// # Errors
    /// At the deadline: the last messages of channel and console.
    pub fn await_message<T>(
        &self,
        what: &str,
        limit_s: u64,
        mut pick: impl FnMut(HostMessage) -> Option<T>,
    ) -> Result<T> {
        self.host
            .wait(self.boot_from, Duration::from_secs(limit_s), what, |line| {
                serde_json::from_str(line).ok().and_then(&mut pick)
            })
            .map(|(_, found)| found)
            .map_err(|e| {
                let console = self.console.since(self.console.len().saturating_sub(15)).join("\n");
                anyhow::anyhow!("{e:#}\nconsole:\n{console}")
            })
    }

    /// Messages of the current boot so far.
    #[must_use]
    pub fn messages(&self) -> Vec<HostMessage> {
        self.host.since(self.boot_from).iter().filter_map(|l| serde_json::from_str(l).ok()).collect()
    }

    /// All lines of the host channel, of every boot: for a thread that notes when they come.
    #[must_use]
    pub fn host_feed(&self) -> Feed {
        self.host.clone()
    }

    /// Waits for a line on the console.
    ///
    /// # Errors
    /// At the deadline: the last lines.
    pub fn await_console(&self, limit_s: u64, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        self.console
            .wait(0, Duration::from_secs(limit_s), what, |l| wanted(l).then(|| l.to_owned()))
            .map(|(_, line)| line)
    }

    /// The debug shell; the first use waits for it to answer.
    ///
    /// # Errors
    /// If it stays silent for a minute.
    pub fn shell(&mut self) -> Result<&mut Shell> {
        if !self.shell_is_up {
            self.shell.rouse(Duration::from_secs(60))?;
            self.shell_is_up = true;
        }
        Ok(&mut self.shell)
    }

    /// Waits until a network card of the machine has a route, so its driver is loaded and it has an address; returns the card's name.
    /// Cards load after the agent is ready, and no agent of a standalone node waits for one.
    ///
    /// # Errors
    /// If none has one after a minute and a half.
    pub fn await_network(&mut self) -> Result<String> {
        // Interfaces of pods and bridges have other first letters.
        let routes = "grep '^e' /proc/net/route";
        let asked =
            format!("(for n in $(seq {NETWORK_LIMIT_S}); do {routes} && exit 0; sleep 1; done; exit 1)");
        // Under emulation a look takes longer than its pause.
        let output = self.shell()?.run(&asked, Duration::from_secs(3 * NETWORK_LIMIT_S))?;
        ensure!(output.status == 0, "no network card has a route after {NETWORK_LIMIT_S} looks");
        let card = output.text.split_whitespace().next().context("a route without a card")?;
        Ok(card.to_owned())
    }

    /// What the screen shows: the kernel's text of its first virtual terminal, once the picture that QEMU draws shows the same
    /// characters. `dir` is for the picture, whose size on a text screen is a few megabytes at most.
    ///
    /// # Errors
    /// If the picture differs from the text, or the text changes all the time.
    pub fn screen(&mut self, dir: &Path) -> Result<TextScreen> {
        let file = dir.join("screen.ppm");
        for _ in 0..SCREEN_LOOKS {
            let before = self.terminal()?;
            self.qmp.screendump(&file)?;
            let after = self.terminal()?;
            if before != after {
                continue;
            }
            let ppm = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
            let picture = Picture::parse(&ppm).context("the picture is no PPM")?;
            picture.shows(&after).map_err(anyhow::Error::msg)?;
            return Ok(after);
        }
        bail!("the screen changed during each of {SCREEN_LOOKS} looks")
    }

    /// The kernel's characters and attributes of the first virtual terminal (vcs(4)).
    fn terminal(&mut self) -> Result<TextScreen> {
        let text = self.shell()?.must("base64 /dev/vcsa1")?;
        let bytes = orlop_config::base64::decode(&text).context("the terminal is no base64")?;
        TextScreen::parse(&bytes).with_context(|| format!("{} bytes are no terminal", bytes.len()))
    }

    /// Resets the machine like the reset button, without the guest's cooperation. Later messages belong to the next
    /// boot.
    ///
    /// # Errors
    /// QEMU's.
    pub fn reset(&mut self) -> Result<()> {
        self.qmp.forget_events()?;
        // Stopped first: the old boot must not send messages after the mark.
        self.qmp.execute("stop")?;
        self.boot_from = self.host.len();
        self.shell_is_up = false;
        self.qmp.execute("system_reset")?;
        self.qmp.execute("cont")?;
        self.qmp.await_event("RESET", Duration::from_secs(10))
    }

    /// Presses the power button: the guest decides on its reaction. [`Vm::ended`] waits for it.
    ///
    /// # Errors
    /// QEMU's.
    pub fn press_power_button(&mut self) -> Result<()> {
        self.qmp.execute("system_powerdown").map(drop)
    }

    /// Reboots the guest in order, from inside. Later messages belong to the next boot.
    ///
    /// # Errors
    /// If the reset does not happen.
    pub fn reboot(&mut self, limit_s: u64) -> Result<()> {
        self.restarts("systemctl reboot", limit_s)
    }

    /// Runs a command that ends in a restart of the machine. Later messages belong to the next boot.
    ///
    /// # Errors
    /// If the reset does not happen.
    pub fn restarts(&mut self, command: &str, limit_s: u64) -> Result<()> {
        self.expect_restart()?;
        self.shell()?.tell(command)?;
        self.restarted(limit_s)
    }

    /// From now on a restart of the machine by itself is noted; [`Vm::restarted`] waits for it.
    ///
    /// # Errors
    /// QEMU's.
    pub fn expect_restart(&mut self) -> Result<()> {
        self.qmp.forget_events()
    }

    /// Waits for the restart that [`Vm::expect_restart`] expects. Later messages belong to the next boot.
    ///
    /// # Errors
    /// If the reset does not happen.
    pub fn restarted(&mut self, limit_s: u64) -> Result<()> {
        self.qmp.await_event("RESET", Duration::from_secs(limit_s))?;
        // The next boot needs a second to its first word.
        self.boot_from = self.host.len();
        self.shell_is_up = false;
        Ok(())
    }

    /// Soft-reboots the guest: all but the kernel starts again. Later messages belong to the next start, as soon as the
    /// old one has ended.
    ///
    /// # Errors
    /// If the shell does not accept the command.
    pub fn soft_reboot(&mut self) -> Result<()> {
        self.shell()?.tell("systemctl soft-reboot")?;
        self.boot_from = self.host.len();
        self.shell_is_up = false;
        Ok(())
    }

    /// Starts the guest's next kernel, which is loaded already, without the firmware. Later messages belong to the next
    /// boot.
    ///
    /// # Errors
    /// If the next kernel does not start, or the machine was reset.
    pub fn kexec(&mut self, limit_s: u64) -> Result<()> {
        self.qmp.forget_events()?;
        let from = self.console.len();
        self.shell()?.tell("systemctl kexec")?;
        let limit = Duration::from_secs(limit_s);
        self.console.wait(from, limit, "the next kernel to start init", |line| {
            line.contains(KERNEL_STARTS_INIT).then_some(())
        })?;
        // Init needs a moment to its first word.
        self.boot_from = self.host.len();
        self.shell_is_up = false;
        let reset = self.qmp.await_event("RESET", Duration::from_millis(100));
        ensure!(reset.is_err(), "the machine was reset: its firmware started the kernel");
        Ok(())
    }

    /// Powers the guest off in order, from inside, and waits for QEMU's end.
    ///
    /// # Errors
    /// If the guest does not power off.
    pub fn power_off(mut self, limit_s: u64) -> Result<()> {
        self.shell()?.tell("systemctl poweroff")?;
        self.ended(limit_s)
    }

    /// Waits for QEMU's end after the guest powers off.
    ///
    /// # Errors
    /// If QEMU does not end.
    pub fn ended(mut self, limit_s: u64) -> Result<()> {
        match self.qemu.wait(Duration::from_secs(limit_s))? {
            Some(_) => Ok(()),
            None => bail!(
                "the guest did not power off within {limit_s} s:\n{}",
                self.console.since(self.console.len().saturating_sub(15)).join("\n")
            ),
        }
    }
}

/// QEMU, in another network namespace if `place` names a process there. nsenter becomes QEMU: the process that is
/// recorded and killed is QEMU itself.
fn qemu_in(place: Option<i32>, arch: Arch) -> Command {
    let qemu = arch.facts().emulator.program;
    let Some(pid) = place else { return Command::new(qemu) };
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string(), "--net", "--", qemu]);
    command
}

/// Accepts QEMU's connection; `None` if QEMU ends first.
fn accept(listener: &UnixListener, qemu: &mut Guarded) -> Result<Option<UnixStream>> {
    use std::os::fd::AsFd;
    let ended = crate::process::pidfd(qemu.pid())?;
    let mut fds =
        [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
    let ready = poll(&mut fds, PollTimeout::from(30_000_u16)).context("poll")?;
    anyhow::ensure!(ready > 0, "QEMU did not connect its sockets within 30 s");
    if fds[0].revents().is_some_and(|r| r.contains(PollFlags::POLLIN)) {
        return Ok(Some(listener.accept().context("accept QEMU's connection")?.0));
    }
    Ok(None)
}
