//! What QEMU starts a VM with: the image's kernel, or the firmware of the VM's architecture.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use orlop_image::arch::Arch;
use orlop_image::qemu::Boot;

/// The kernel that QEMU passes, from the lab's directory; `arguments` come behind those of the image.
pub(super) fn direct(dir: &Path, arguments: &str) -> Result<Boot> {
    let cmdline = dir.join("cmdline");
    let text = fs::read_to_string(&cmdline).with_context(|| format!("read {}", cmdline.display()))?;
    let (kernel, initrd) = (dir.join("vmlinuz"), dir.join("initrd"));
    let cmdline = format!("{}{arguments}", text.trim());
    Ok(Boot::Direct { kernel, initrd, cmdline })
}

/// The firmware, with variables of the lab's own.
pub(super) fn uefi(arch: Arch, dir: &Path) -> Result<Boot> {
    if arch != Arch::Amd64 {
        return uefi_of_arch(arch, dir);
    }
    let find = |names: &[&str]| {
        names
            .iter()
            .flat_map(|n| [Path::new("/usr/share/OVMF").join(n), Path::new("/usr/share/edk2/x64").join(n)])
            .find(|p| p.exists())
            .with_context(|| format!("no {} on this machine: install ovmf", names[0]))
    };
    let vars = dir.join("vars.fd");
    if !vars.exists() {
        fs::copy(find(&["OVMF_VARS_4M.fd", "OVMF_VARS.fd"])?, &vars)
            .context("copy the firmware's variables")?;
    }
    Ok(Boot::Uefi { code: find(&["OVMF_CODE_4M.fd", "OVMF_CODE.fd"])?, vars })
}

/// The firmware as the architecture's package has it.
fn uefi_of_arch(arch: Arch, dir: &Path) -> Result<Boot> {
    let (code, template) = arch.facts().emulator.firmware;
    let vars = dir.join("vars.fd");
    if !vars.exists() {
        fs::copy(template, &vars).with_context(|| format!("copy {template}"))?;
    }
    Ok(Boot::Uefi { code: code.into(), vars })
}
