//! Programs of another architecture, run on the build machine by QEMU's user mode: the scripts of packages, and the
//! programs of the image that the build asks something.
//!
//! In: an emulator's file (static, from the package `qemu-user`). Out: the kernel starts it for every ELF file of the
//! architecture, in any root, until the [`Emulation`] is dropped. See binfmt_misc of the kernel's documentation
//! (admin-guide, binfmt-misc).

use super::tools;
use crate::arch::Arch;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the kernel takes registrations.
const BINFMT: &str = "/proc/sys/fs/binfmt_misc";
/// Of the header, bytes: identification, type and machine.
const HEADER: usize = 20;

/// A registration of the kernel.
#[derive(Debug)]
pub struct Emulation {
    entry: PathBuf,
}

impl Emulation {
    /// Registers `emulator` for the programs of `arch`. The kernel opens the file now, so that it is found from any root.
    ///
    /// # Errors
    /// We are not root, the kernel has no binfmt_misc, or it refuses.
    pub fn of(arch: Arch, emulator: &Path) -> Result<Emulation> {
        let shown = emulator.display();
        if !emulator.is_file() {
            bail!("there is no emulator at {shown}");
        }
        if !tools::is_root() {
            bail!(
                "the image's programs are for {}, and only root can let the kernel start an emulator for them: run the \
                 build as root",
                arch.name()
            );
        }
        let register = Path::new(BINFMT).join("register");
        if !register.exists() {
            let mounted = Command::new("mount").args(["-t", "binfmt_misc", "binfmt_misc", BINFMT]).output();
            let mounted = mounted.context("running mount")?;
            if !mounted.status.success() {
                let said = String::from_utf8_lossy(&mounted.stderr);
                bail!("mounting {BINFMT}: {}; has the kernel binfmt_misc?", said.trim());
            }
        }
        let emulation = Emulation { entry: Path::new(BINFMT).join(name(arch)) };
        // One of a build that was killed.
        emulation.remove();
        fs::write(&register, registration(arch, emulator))
            .with_context(|| format!("registering {shown} in {BINFMT}"))?;
        Ok(emulation)
    }

    fn remove(&self) {
        // There may be none.
        let _ = fs::write(&self.entry, "-1");
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        self.remove();
    }
}

fn name(arch: Arch) -> String {
    format!("orlop-{}", arch.name())
}

/// The line that the kernel takes: `:name:type:offset:magic:mask:interpreter:flags`. `F`: the file is opened at once.
fn registration(arch: Arch, emulator: &Path) -> String {
    let machine = arch.facts().elf_machine.to_le_bytes();
    // 64 bits, little-endian, version 1; executable (2); the machine.
    let mut magic = [0u8; HEADER];
    magic[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    magic[16] = 2;
    magic[18..].copy_from_slice(&machine);
    // Any system (byte 7); an executable without or with a fixed address (3, 2).
    let mut mask = [0xff; HEADER];
    (mask[7], mask[16]) = (0, 0xfe);
    let hex = |bytes: [u8; HEADER]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    format!(":{}:M::{}:{}:{}:F", name(arch), hex(magic), hex(mask), emulator.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As QEMU's own `qemu-binfmt-conf.sh` has it for aarch64.
    #[test]
    fn the_kernel_knows_a_program_of_arm64_by_its_header() {
        let line = registration(Arch::Arm64, Path::new("/q"));
        assert_eq!(
            line,
            ":orlop-arm64:M::\
             \\x7f\\x45\\x4c\\x46\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00:\
             \\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:\
             /q:F"
        );
        // The kernel takes lines of up to 1920 bytes.
        assert!(line.len() < 400);
    }

    #[test]
    fn an_emulator_that_is_not_there_is_named() {
        let why =
            Emulation::of(Arch::Arm64, Path::new("/none/qemu-aarch64")).expect_err("no file").to_string();
        assert!(why.contains("/none/qemu-aarch64"), "{why}");
    }
}
