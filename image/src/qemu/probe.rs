//! Which accelerator works here.
//!
//! Neither a device node nor a tiny guest proves anything: there are hosts whose KVM runs real-mode code and gives up
//! at the first vector instruction of the kernel's own unpacker. So the kernel and initrd that are to run are booted
//! on the very machine they will run on, until init speaks. In: that guest. Out: the accelerator, decided once in the
//! life of a process. Invariant: no QEMU of the probe outlives it.

use super::hardware;
use crate::arch::Arch;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, PipeReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's translation: works everywhere, about ten times slower.
    Tcg,
    /// The same with one thread for all processors, which take turns: slower again, but no processor runs what another
    /// one changes at that moment.
    TcgInTurn,
}

impl Accelerator {
    /// Value of `-accel`.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg,thread=multi",
            Accelerator::TcgInTurn => "tcg,thread=single",
        }
    }

    /// Value of `-cpu`.
    #[must_use]
    pub fn cpu(self, arch: Arch) -> &'static str {
        match self {
            Accelerator::Kvm => "host",
            Accelerator::Tcg | Accelerator::TcgInTurn => arch.facts().emulator.cpu,
        }
    }

    /// Value of `-cpu` for a guest that is to see threads of a core.
    #[must_use]
    pub fn cpu_with_threads(self, arch: Arch) -> &'static str {
        match self {
            Accelerator::Kvm => "host",
            Accelerator::Tcg | Accelerator::TcgInTurn => arch.facts().emulator.cpu_with_threads,
        }
    }

    /// The same, for a guest that fell when its processors ran at once.
    #[must_use]
    pub fn in_turn(self) -> Accelerator {
        match self {
            Accelerator::Kvm => Accelerator::Kvm,
            Accelerator::Tcg | Accelerator::TcgInTurn => Accelerator::TcgInTurn,
        }
    }
}

/// What the probe boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its architecture.
    pub arch: Arch,
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initrd with orlop-initrd.
    pub initrd: PathBuf,
    /// MiB.
    pub memory_mib: u32,
}

/// Init speaks after about a second with KVM and after four with QEMU's translation: what is slower is of no use.
const WITHIN: Duration = Duration::from_secs(15);
/// What the machine has that is to run, or more.
const PROCESSORS: u32 = 2;
/// Lines that may wait to be looked at.
const QUEUE: usize = 64;
/// The answer does not change while this process lives.
static KNOWN: Mutex<Option<Accelerator>> = Mutex::new(None);

/// KVM if the guest's init speaks with it in time, else TCG; a guest of another architecture is translated.
///
/// # Errors
/// QEMU cannot be started.
pub fn probe(guest: &Guest) -> Result<Accelerator> {
    if guest.arch != Arch::HOST {
        return Ok(Accelerator::Tcg);
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(answer) = *known {
        return Ok(answer);
    }
    let usable = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    let works =
        usable && speaks(super::command(guest.arch).args(arguments(guest, Accelerator::Kvm)), WITHIN)?;
    let answer = if works { Accelerator::Kvm } else { Accelerator::Tcg };
    *known = Some(answer);
    Ok(answer)
}

// Without a disk: init speaks before it looks for one.
fn arguments(guest: &Guest, accelerator: Accelerator) -> Vec<String> {
    let mut args = hardware(guest.arch, accelerator, PROCESSORS, guest.memory_mib);
    args.extend(["-no-reboot", "-serial", "stdio"].map(String::from));
    args.extend(["-kernel".into(), guest.kernel.display().to_string()]);
    args.extend(["-initrd".into(), guest.initrd.display().to_string()]);
    // The probe needs the messages that the image's own command line hides.
    let console = guest.arch.facts().console.split(',').next().unwrap_or_default();
    args.extend(["-append".into(), format!("console={console} ignore_loglevel panic=-1")]);
    args
}

/// What a line of the guest or of QEMU says about the question.
fn verdict(line: &str) -> Option<bool> {
    if line.contains("KVM internal error") {
        // QEMU does not end then: it holds the guest for a debugger.
        return Some(false);
    }
    line.contains("orlop-init: ").then_some(true)
}

// Runs the command until a line decides, it ends, or the time is up.
fn speaks(command: &mut Command, within: Duration) -> Result<bool> {
    let deadline = Instant::now() + within;
    let (reader, writer) = std::io::pipe().context("making a pipe")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().context("starting QEMU")?;
    // The command object holds the writing end: as long as it does, the pipe does not end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (send, verdicts) = mpsc::sync_channel(QUEUE);
    let reading = std::thread::spawn(move || read(reader, &send));
    let answer = verdicts.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    // It may have ended already.
    let _ = child.kill();
    child.wait().context("waiting for the probe's QEMU")?;
    drop(verdicts);
    reading.join().map_err(|_| anyhow::anyhow!("the reading thread ended early"))?;
    // The time was up, or it ended without a word.
    Ok(answer.unwrap_or(false))
}

fn read(reader: PipeReader, verdicts: &SyncSender<bool>) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    // Firmware writes what is no UTF-8.
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        if let Some(works) = verdict(&String::from_utf8_lossy(&line)) {
            // The receiver is gone after the time limit.
            let _ = verdicts.send(works);
            return;
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_only_starts_does_not_count() {
        let table = [
            ("KVM internal error. Suberror: 1", Some(false)),
            ("[    0.000000] Linux version 6.12", None),
            ("[    1.1] Run /init as init process", None),
            ("[    1.234567] orlop-init: kernel at 1230 ms: 6.12", Some(true)),
        ];
        for (line, expected) in table {
            assert_eq!(verdict(line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_silent_ends_or_fails_does_not_work() {
        let table = [
            ("echo 'orlop-init: kernel'; exec tail -f /dev/null", true),
            ("echo 'KVM internal error. Suberror: 1' >&2; exec tail -f /dev/null", false),
            ("echo 'Linux version 6.12'", false),
            ("exec tail -f /dev/null", false),
        ];
        for (script, expected) in table {
            let started = Instant::now();
            let limit =
                if script.contains("echo") { Duration::from_secs(60) } else { Duration::from_millis(50) };
            assert_eq!(speaks(Command::new("sh").args(["-c", script]), limit).unwrap(), expected, "{script}");
            assert!(started.elapsed() < Duration::from_secs(50), "{script}: the line decides, not the limit");
        }
    }

    #[test]
    fn a_guest_of_another_architecture_is_translated() {
        let other = Arch::ALL.into_iter().find(|arch| *arch != Arch::HOST).expect("there are two");
        let guest = Guest { arch: other, kernel: "/none".into(), initrd: "/none".into(), memory_mib: 1 };
        assert_eq!(probe(&guest).expect("nothing is started"), Accelerator::Tcg);
    }

    #[test]
    fn the_probe_runs_on_the_machine_that_is_used() {
        let guest = Guest { arch: Arch::Amd64, kernel: "/k".into(), initrd: "/i".into(), memory_mib: 1024 };
        let args = arguments(&guest, Accelerator::Kvm);
        assert!(args.starts_with(&hardware(guest.arch, Accelerator::Kvm, PROCESSORS, 1024)), "{args:?}");
        assert!(args.join(" ").contains("-accel kvm -cpu host -smp 2 -m 1024M"), "{args:?}");
        assert!(args.ends_with(&["console=ttyS0 ignore_loglevel panic=-1".to_owned()]), "{args:?}");
    }
}
