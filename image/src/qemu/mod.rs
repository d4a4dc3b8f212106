//! QEMU: its command line as data (pure), the accelerator that really works, and control of a running one.

mod probe;
mod qmp;

pub use probe::{Accelerator, probe};
pub use qmp::Qmp;

use std::path::{Path, PathBuf};

/// How the guest gets its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// Kernel, initrd and command line handed over by QEMU: fast.
    Direct {
        /// Kernel image.
        kernel: PathBuf,
        /// Initrd.
        initrd: PathBuf,
        /// Command line.
        cmdline: String,
    },
    /// OVMF, systemd-boot, UKI: as on a real machine.
    Uefi {
        /// Firmware code, read-only.
        code: PathBuf,
        /// This machine's own copy of the variables.
        vars: PathBuf,
    },
}

/// A machine to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Accelerator.
    pub accelerator: Accelerator,
    /// MiB.
    pub memory_mib: u32,
    /// Kernel source.
    pub boot: Boot,
    /// A qcow2 overlay: the built image is never written.
    pub disk: PathBuf,
    /// File passed as fw_cfg `opt/org.orlop/config`.
    pub config: PathBuf,
    /// Directory of the sockets `console`, `host` (we listen), `shell`, `qmp` (QEMU listens).
    pub sockets: PathBuf,
}

/// The fixed part of every machine.
pub const MACHINE: &str = "q35,hpet=off";

// Commas separate options: a literal one is doubled.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Arguments of `qemu-system-x86_64`.
#[must_use]
pub fn arguments(machine: &Machine) -> Vec<String> {
    let socket = |name: &str| escape(&machine.sockets.join(name));
    let mut args: Vec<String> = vec!["-nodefaults".into(), "-no-user-config".into(), "-no-reboot".into()];
    let mut add = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
    add("-display", "none".into());
    add("-machine", MACHINE.into());
    add("-accel", machine.accelerator.argument().into());
    add("-cpu", machine.accelerator.cpu().into());
    add("-smp", "2".into());
    add("-m", format!("{}M", machine.memory_mib));
    for name in ["console", "host"] {
        add("-chardev", format!("socket,id={name},path={},server=off", socket(name)));
    }
    for name in ["shell", "qmp"] {
        add("-chardev", format!("socket,id={name},path={},server=on,wait=off", socket(name)));
    }
    add("-mon", "chardev=qmp,mode=control".into());
    add("-serial", "chardev:console".into());
    add("-serial", "chardev:shell".into());
    add("-device", "virtio-serial-pci".into());
    add("-device", "virtserialport,chardev=host,name=org.orlop.host.0".into());
    add("-device", "virtio-rng-pci".into());
    add("-netdev", "user,id=net0,restrict=on".into());
    add("-device", "virtio-net-pci,netdev=net0,romfile=".into());
    add("-drive", format!("if=none,id=disk,format=qcow2,cache=unsafe,file={}", escape(&machine.disk)));
    add("-device", "virtio-blk-pci,drive=disk,bootindex=1".into());
    add("-fw_cfg", format!("name=opt/org.orlop/config,file={}", escape(&machine.config)));
    match &machine.boot {
        Boot::Direct { kernel, initrd, cmdline } => {
            add("-kernel", kernel.display().to_string());
            add("-initrd", initrd.display().to_string());
            add("-append", cmdline.clone());
        }
        Boot::Uefi { code, vars } => {
            add("-drive", format!("if=pflash,format=raw,readonly=on,file={}", escape(code)));
            add("-drive", format!("if=pflash,format=raw,file={}", escape(vars)));
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_boot_are_complete() {
        let mut machine = Machine {
            accelerator: Accelerator::Tcg,
            memory_mib: 1024,
            boot: Boot::Uefi { code: "/c".into(), vars: "/v,w".into() },
            disk: "/d".into(),
            config: "/f".into(),
            sockets: "/s".into(),
        };
        let uefi = arguments(&machine).join(" ");
        for part in
            ["-accel tcg,thread=multi", "-cpu max", "restrict=on", "file=/v,,w", "path=/s/host,server=off"]
        {
            assert!(uefi.contains(part), "{part}: {uefi}");
        }
        machine.boot = Boot::Direct { kernel: "/k".into(), initrd: "/i".into(), cmdline: "a b".into() };
        let args = arguments(&machine);
        let at = args.iter().position(|a| a == "-append").expect("has a command line");
        assert_eq!(args[at + 1], "a b");
    }
}
