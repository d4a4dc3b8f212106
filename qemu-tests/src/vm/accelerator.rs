//! Which accelerator really works here: a device node proves nothing, so a guest of eight bytes is booted.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::Guarded;
use crate::run::Run;

/// Works everywhere.
pub const TCG: &str = "tcg,thread=multi";

/// The machine of every test VM; the probe uses the same, because nested KVM may fail on one and not on another.
pub const MACHINE: &str = "q35,hpet=off";

/// The CPU model that goes with an accelerator.
#[must_use]
pub fn cpu(accelerator: &str) -> &'static str {
    if accelerator == "kvm" { "host" } else { "max" }
}

/// What the guest writes to the exit port; QEMU ends with `2 * VALUE + 1`.
const VALUE: u8 = 0x31;

/// The answer does not change while this process lives.
static KNOWN: Mutex<Option<String>> = Mutex::new(None);

/// A boot sector: `mov al, VALUE; out 0xf4, al; hlt; jmp` back to the halt.
#[must_use]
pub fn boot_sector() -> [u8; 512] {
    let mut sector = [0; 512];
    sector[..8].copy_from_slice(&[0xb0, VALUE, 0xe6, 0xf4, 0xfa, 0xf4, 0xeb, 0xfd]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// `kvm` if a guest boots with it within ten seconds, else TCG.
///
/// # Errors
/// If QEMU is not installed.
pub fn probe(run: &Arc<Run>) -> Result<String> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(answer) = &*known {
        return Ok(answer.clone());
    }
    let works = fs::File::options().read(true).write(true).open("/dev/kvm").is_ok() && boots(run, "kvm")?;
    let answer = if works { "kvm" } else { TCG }.to_owned();
    *known = Some(answer.clone());
    Ok(answer)
}

fn boots(run: &Arc<Run>, accelerator: &str) -> Result<bool> {
    let sector = run.sockets().join("probe.img");
    fs::write(&sector, boot_sector()).with_context(|| format!("write {}", sector.display()))?;
    // The firmware passes over a disk of a single sector.
    fs::File::options().write(true).open(&sector)?.set_len(1 << 20).context("grow the probe's disk")?;
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", MACHINE])
        .args(["-smp", "2", "-m", "256M", "-accel", accelerator, "-cpu", cpu(accelerator)])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04", "-drive"])
        .arg(format!("if=ide,format=raw,snapshot=on,file={}", sector.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut qemu = Guarded::spawn(run, &mut command)?;
    let status = qemu.wait(Duration::from_secs(10))?;
    Ok(status.and_then(|s| s.code()) == Some(2 * i32::from(VALUE) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tiny_guest_boots_where_qemu_is_installed() {
        if Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status().is_err() {
            // Without QEMU there is nothing to probe; the cases that need it say so themselves.
            return;
        }
        let run = Run::start().unwrap();
        assert!(boots(&run, TCG).unwrap());
        assert!(!boots(&run, "no-such-accelerator").unwrap());
        assert!(run.close().is_empty());
    }
}
