//! QEMU's command line for a test VM. Pure.

use std::path::PathBuf;

use super::accelerator::{MACHINE, cpu};

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
    /// OVMF, systemd-boot, UKI: the truth.
    Uefi {
        /// Firmware code, read-only.
        code: PathBuf,
        /// This VM's own copy of the variables.
        vars: PathBuf,
    },
}

/// A disk of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Image file.
    pub file: PathBuf,
    /// `raw` or `qcow2`.
    pub format: &'static str,
}

/// Everything about one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// `kvm` or `tcg,thread=multi`.
    pub accelerator: String,
    /// MiB.
    pub memory_mib: u32,
    /// Kernel source.
    pub boot: Boot,
    /// In the guest's order.
    pub disks: Vec<Disk>,
    /// fw_cfg entries: name and file.
    pub fw_cfg: Vec<(String, PathBuf)>,
    /// Directory with the listening sockets `console`, `shell`, `host`, `qmp`.
    pub sockets: PathBuf,
    /// QEMU ends instead of resetting the guest.
    pub no_reboot: bool,
}

/// Sockets that the harness listens on, by their file names.
pub const SOCKETS: [&str; 4] = ["console", "shell", "host", "qmp"];

/// Commas separate options: a literal one is doubled.
fn escape(path: &std::path::Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Arguments of `qemu-system-x86_64`.
#[must_use]
pub fn arguments(spec: &Spec) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut add = |flag: &str, value: String| {
        args.push(flag.into());
        if !value.is_empty() {
            args.push(value);
        }
    };
    add("-nodefaults", String::new());
    add("-no-user-config", String::new());
    if spec.no_reboot {
        add("-no-reboot", String::new());
    }
    add("-display", "none".into());
    add("-machine", MACHINE.into());
    add("-accel", spec.accelerator.clone());
    add("-cpu", cpu(&spec.accelerator).into());
    add("-smp", "2".into());
    add("-m", format!("{}M", spec.memory_mib));
    for name in SOCKETS {
        add("-chardev", format!("socket,id={name},path={},server=off", escape(&spec.sockets.join(name))));
    }
    add("-mon", "chardev=qmp,mode=control".into());
    add("-serial", "chardev:console".into());
    add("-serial", "chardev:shell".into());
    add("-device", "virtio-serial-pci".into());
    add("-device", "virtserialport,chardev=host,name=org.orlop.host.0".into());
    add("-device", "virtio-rng-pci".into());
    add("-netdev", "user,id=net0,restrict=on".into());
    add("-device", "virtio-net-pci,netdev=net0,romfile=".into());
    for (n, disk) in spec.disks.iter().enumerate() {
        let file = escape(&disk.file);
        // 0 is the kernel's that QEMU hands over itself.
        add("-drive", format!("if=none,id=disk{n},format={},cache=unsafe,file={file}", disk.format));
        add("-device", format!("virtio-blk-pci,drive=disk{n},bootindex={}", n + 1));
    }
    for (name, file) in &spec.fw_cfg {
        add("-fw_cfg", format!("name={name},file={}", escape(file)));
    }
    match &spec.boot {
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
    fn every_socket_and_disk_is_named() {
        let spec = Spec {
            accelerator: "tcg,thread=multi".into(),
            memory_mib: 1024,
            boot: Boot::Uefi { code: "/c".into(), vars: "/v,w".into() },
            disks: vec![Disk { file: "/d.qcow2".into(), format: "qcow2" }],
            fw_cfg: vec![("opt/org.orlop/config".into(), "/f".into())],
            sockets: "/s".into(),
            no_reboot: true,
        };
        let args = arguments(&spec).join(" ");
        for part in [
            "-accel tcg,thread=multi",
            "-cpu max",
            "-no-reboot",
            "id=host,path=/s/host,server=off",
            "name=org.orlop.host.0",
            "format=qcow2,cache=unsafe,file=/d.qcow2",
            "file=/v,,w",
            "-fw_cfg name=opt/org.orlop/config,file=/f",
        ] {
            assert!(args.contains(part), "{part}: {args}");
        }
        assert!(!args.contains("-kernel"));
    }
}
