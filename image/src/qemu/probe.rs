//! Which accelerator works here. A device node proves nothing: a guest of eight bytes is booted with a time limit.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Hardware virtualisation.
    Kvm,
    /// QEMU's translation: works everywhere, about ten times slower.
    Tcg,
}

impl Accelerator {
    /// Value of `-accel`.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg,thread=multi",
        }
    }

    /// Value of `-cpu`.
    #[must_use]
    pub fn cpu(self) -> &'static str {
        match self {
            Accelerator::Kvm => "host",
            Accelerator::Tcg => "max",
        }
    }
}

/// What the guest writes to the exit port; QEMU then ends with `2 * VALUE + 1`.
const VALUE: u8 = 0x31;
/// A guest that boots does so at once.
const WITHIN: Duration = Duration::from_secs(10);

/// A boot sector: `mov al, VALUE; out 0xf4, al; hlt`, and back to the halt.
fn boot_sector() -> [u8; 512] {
    let mut sector = [0; 512];
    sector[..8].copy_from_slice(&[0xb0, VALUE, 0xe6, 0xf4, 0xfa, 0xf4, 0xeb, 0xfd]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// KVM if a guest boots with it within ten seconds, else TCG. `dir` is scratch space.
///
/// # Errors
/// QEMU cannot be started or the scratch file cannot be written.
pub fn probe(dir: &Path) -> Result<Accelerator> {
    let usable = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    let works = usable && boots(dir, Accelerator::Kvm)?;
    Ok(if works { Accelerator::Kvm } else { Accelerator::Tcg })
}

fn boots(dir: &Path, accelerator: Accelerator) -> Result<bool> {
    let disk = dir.join("probe.img");
    std::fs::write(&disk, boot_sector()).with_context(|| format!("writing {}", disk.display()))?;
    // The firmware passes over a disk of a single sector.
    std::fs::File::options().write(true).open(&disk)?.set_len(1 << 20)?;
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-m", "32M"]);
    command.args(["-machine", super::MACHINE, "-accel", accelerator.argument(), "-cpu", accelerator.cpu()]);
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-drive"]);
    command.arg(format!("if=ide,format=raw,file={}", super::escape(&disk)));
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting qemu-system-x86_64")?;
    Ok(wait(child)? == Some(i32::from(VALUE) * 2 + 1))
}

// The exit code, or none if it had to be killed.
fn wait(mut child: Child) -> Result<Option<i32>> {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).context("a process id")?);
    let (done, waiter) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let status = child.wait();
        // Nobody listens any more after the time limit.
        let _ = done.send(());
        status
    });
    let late = waiter.recv_timeout(WITHIN).is_err();
    if late {
        // Its process is not reaped yet, so the id is still its own.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
    let status = thread.join().map_err(|_| anyhow::anyhow!("the waiting thread ended early"))??;
    Ok(if late { None } else { status.code() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sector_is_bootable_and_leaves_through_the_exit_port() {
        let sector = boot_sector();
        assert_eq!(sector[510..], [0x55, 0xaa]);
        assert_eq!(sector[1], VALUE);
    }
}
