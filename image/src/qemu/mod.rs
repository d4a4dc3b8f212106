//! QEMU for `boot` and for the harness: its command line as data (pure), the accelerator that works on this
//! machine, and control of a running one.

mod disks;
mod forward;
mod probe;
mod qmp;

pub use disks::{Bus, Disk};
pub use forward::PortForward;
pub use probe::{Accelerator, Guest, probe};
pub use qmp::Qmp;

use crate::arch::Arch;
use std::path::{Path, PathBuf};
use std::process::Command;

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
    /// Firmware, systemd-boot, UKI: as on a real machine.
    Uefi {
        /// Firmware code, read-only.
        code: PathBuf,
        /// This machine's own copy of the variables.
        vars: PathBuf,
    },
    /// The emulator's BIOS, from the first disk.
    Bios,
}

/// What the guest's network card is plugged into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// A network of its own that leads nowhere.
    Nowhere,
    /// A network of its own in which this machine's loopback is at 10.0.2.2.
    Host,
    /// A TAP device that is there already, in the network namespace that QEMU is started in.
    Tap {
        /// Name of the device.
        device: String,
        /// The guest's hardware address; two guests on one bridge must not share it.
        mac: String,
    },
}

/// A further network card whose cable leads to another guest, without a bridge between them: a bridge passes no frames of
/// LACP. Each frame is a packet of UDP on the loopback of QEMU's network namespace. What nobody takes is lost, as on a cable
/// that is not plugged in; a socket of a file would make the sender wait, and QEMU waits without a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The guest's hardware address.
    pub mac: String,
    /// UDP port of this end.
    pub local: u16,
    /// UDP port of the other end.
    pub peer: u16,
}

/// The firmware's facts about the machine for the guest (SMBIOS, clock).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firmware {
    /// System UUID; without one the guest finds none.
    pub uuid: Option<String>,
    /// Manufacturer of the machine (type 1), if it is not to be the emulator's own.
    pub manufacturer: Option<String>,
    /// What its clock shows when it is switched on (`2001-01-01T00:00:00`, UTC); the host's time without.
    pub clock: Option<String>,
    /// Files that are an OEM string (type 11) each, to their last byte. Not on the command line: it can be read by
    /// everybody, and such a string may hold a secret.
    pub oem_strings: Vec<PathBuf>,
    /// File of [`ERST_BYTES`] in which a kernel that dies leaves its log (ACPI ERST); without one there is no such place.
    pub erst: Option<PathBuf>,
    /// The board has a watchdog (Intel's 6300ESB) that resets the machine.
    pub watchdog: bool,
    /// A screen is plugged in, at a VGA adapter; QMP's `screendump` shows its picture.
    pub screen: bool,
    /// Socket of swtpm's control channel; without one the board has no TPM.
    pub tpm: Option<PathBuf>,
}

/// Size of the place for last words, bytes.
pub const ERST_BYTES: u64 = 64 << 10;

/// Sockets with cores and threads. Each socket is a NUMA node with its share of the processors and of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Physical packages.
    pub sockets: u32,
    /// Cores of a socket.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
}

impl Topology {
    /// Number of processors.
    #[must_use]
    pub fn processors(self) -> u32 {
        self.sockets * self.cores * self.threads
    }

    /// QEMU's arguments. Siblings have adjacent numbers; processors are numbered socket by socket.
    fn arguments(self, memory_mib: u32) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        let (of_socket, memory) = (self.cores * self.threads, memory_mib / self.sockets);
        for node in 0..self.sockets {
            let first = node * of_socket;
            // The nodes' sum must be the machine's memory.
            let size = if node == 0 { memory_mib - memory * (self.sockets - 1) } else { memory };
            all.push(("-object", format!("memory-backend-ram,id=node{node},size={size}M")));
            let cpus = format!("cpus={first}-{}", first + of_socket - 1);
            all.push(("-numa", format!("node,nodeid={node},{cpus},memdev=node{node}")));
        }
        all
    }
}

/// A machine to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Architecture.
    pub arch: Arch,
    /// Accelerator.
    pub accelerator: Accelerator,
    /// MiB.
    pub memory_mib: u32,
    /// How many processors it has.
    pub processors: u32,
    /// Their sockets and NUMA nodes, which decide about the number then; `None`: one socket for each processor, one node.
    pub topology: Option<Topology>,
    /// Kernel source.
    pub boot: Boot,
    /// In the guest's order.
    pub disks: Vec<Disk>,
    /// Log of all writes to the first disk, which is raw then: a file that is there, in the format of Linux' dm-log-writes.
    pub write_log: Option<PathBuf>,
    /// fw_cfg entries: name and file.
    pub fw_cfg: Vec<(String, PathBuf)>,
    /// SMBIOS.
    pub firmware: Firmware,
    /// The network card's other end.
    pub network: Network,
    /// Ports of this machine that lead to the guest; not with a TAP device.
    pub forwards: Vec<PortForward>,
    /// Further network cards.
    pub ports: Vec<Port>,
    /// Socket on which QEMU listens for clients of the management API, at a virtio-serial port.
    pub api_port: Option<PathBuf>,
    /// Directory of the sockets [`SOCKETS`].
    pub sockets: PathBuf,
    /// Those of them on which QEMU listens; on the others the caller does, before QEMU starts.
    pub qemu_listens: &'static [&'static str],
    /// QEMU ends instead of resetting the guest.
    pub no_reboot: bool,
}

/// First serial port, second serial port (a virtio console on a board without), host channel, control: by their file names.
pub const SOCKETS: [&str; 4] = ["console", "shell", "host", "qmp"];

/// Where the guest finds its configuration in fw_cfg.
pub const FW_CFG_CONFIG: &str = "opt/org.orlop/config";

/// The TPM of a board of x86-64.
const TPM: &str = "tpm-crb";

/// The older board of x86-64, for IDE.
const OLDER_MACHINE: &str = "pc,hpet=off";

/// QEMU's program for an architecture, which ends with the thread that starts it, even if that is killed.
#[must_use]
pub fn command(arch: Arch) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", arch.facts().emulator.program]);
    command
}

// Commas separate options: a literal one is doubled.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// The part of the command line that decides whether an accelerator works: the probe uses it too.
fn hardware(arch: Arch, accelerator: Accelerator, processors: u32, memory_mib: u32) -> Vec<String> {
    let mut args: Vec<String> =
        ["-nodefaults", "-no-user-config", "-display", "none"].map(String::from).into();
    for (flag, value) in [
        ("-machine", arch.facts().emulator.board.to_owned()),
        ("-accel", accelerator.argument().to_owned()),
        ("-cpu", accelerator.cpu(arch).to_owned()),
        ("-smp", processors.to_string()),
        ("-m", format!("{memory_mib}M")),
    ] {
        args.extend([flag.to_owned(), value]);
    }
    args
}

/// The same with sockets, cores, threads and NUMA nodes.
fn with_topology(arch: Arch, accelerator: Accelerator, topology: Topology, memory_mib: u32) -> Vec<String> {
    let mut args = hardware(arch, accelerator, topology.processors(), memory_mib);
    let Topology { sockets, cores, threads } = topology;
    for pair in 0..args.len().saturating_sub(1) {
        match args[pair].as_str() {
            "-smp" => args[pair + 1].push_str(&format!(",sockets={sockets},cores={cores},threads={threads}")),
            "-cpu" => accelerator.cpu_with_threads(arch).clone_into(&mut args[pair + 1]),
            _ => {}
        }
    }
    let nodes = topology.arguments(memory_mib).into_iter();
    args.extend(nodes.flat_map(|(flag, value)| [flag.to_owned(), value]));
    args
}

/// Arguments of QEMU's program.
#[must_use]
pub fn arguments(machine: &Machine) -> Vec<String> {
    let (arch, emulator) = (machine.arch, &machine.arch.facts().emulator);
    let mut args = match machine.topology {
        None => hardware(arch, machine.accelerator, machine.processors, machine.memory_mib),
        Some(topology) => with_topology(arch, machine.accelerator, topology, machine.memory_mib),
    };
    if disks::on_older_board(&machine.disks) {
        args.iter_mut().filter(|arg| *arg == emulator.board).for_each(|arg| OLDER_MACHINE.clone_into(arg));
    }
    if machine.no_reboot {
        args.push("-no-reboot".into());
    }
    let mut add = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
    for name in SOCKETS {
        let side = if machine.qemu_listens.contains(&name) { "server=on,wait=off" } else { "server=off" };
        let path = escape(&machine.sockets.join(name));
        add("-chardev", format!("socket,id={name},path={path},{side}"));
    }
    add("-mon", "chardev=qmp,mode=control".into());
    add("-serial", "chardev:console".into());
    if emulator.second_serial {
        add("-serial", "chardev:shell".into());
    }
    add("-device", "virtio-serial-pci".into());
    if !emulator.second_serial {
        add("-device", "virtconsole,chardev=shell".into());
    }
    add("-device", "virtserialport,chardev=host,name=org.orlop.host.0".into());
    if let Some(socket) = &machine.api_port {
        add("-chardev", format!("socket,id=api,path={},server=on,wait=off", escape(socket)));
        add("-device", "virtserialport,chardev=api,name=org.orlop.api.0".into());
    }
    add("-device", "virtio-rng-pci".into());
    let forwards = forward::options(&machine.forwards);
    let mut card = "virtio-net-pci,netdev=net0,romfile=".to_owned();
    match &machine.network {
        Network::Nowhere => add("-netdev", format!("user,id=net0,restrict=on{forwards}")),
        Network::Host => add("-netdev", format!("user,id=net0{forwards}")),
        Network::Tap { device, mac } => {
            add("-netdev", format!("tap,id=net0,ifname={device},script=no,downscript=no"));
            card.push_str(&format!(",mac={mac}"));
        }
    }
    add("-device", card);
    for (n, Port { mac, local, peer }) in machine.ports.iter().enumerate() {
        let end =
            |side: &str, port: u16| format!("{side}.type=inet,{side}.host=127.0.0.1,{side}.port={port}");
        add("-netdev", format!("dgram,id=port{n},{},{}", end("local", *local), end("remote", *peer)));
        // A bond of LACP uses no port of unknown speed, which is QEMU's default.
        add("-device", format!("virtio-net-pci,netdev=port{n},romfile=,mac={mac},speed=1000,duplex=full"));
    }
    if let Some(uuid) = &machine.firmware.uuid {
        add("-uuid", uuid.clone());
    }
    if let Some(manufacturer) = &machine.firmware.manufacturer {
        add("-smbios", format!("type=1,manufacturer={}", manufacturer.replace(',', ",,")));
    }
    if let Some(clock) = &machine.firmware.clock {
        add("-rtc", format!("base={clock}"));
    }
    for file in &machine.firmware.oem_strings {
        add("-smbios", format!("type=11,path={}", escape(file)));
    }
    if let Some(file) = &machine.firmware.erst {
        let file = escape(file);
        add("-object", format!("memory-backend-file,id=erst,mem-path={file},size={ERST_BYTES},share=on"));
        add("-device", "acpi-erst,memdev=erst".into());
    }
    if machine.firmware.watchdog {
        add("-device", "i6300esb".into());
        add("-action", "watchdog=reset".into());
    }
    if machine.firmware.screen {
        add("-device", emulator.screen.into());
    }
    if let Some(socket) = &machine.firmware.tpm {
        add("-chardev", format!("socket,id=tpm,path={}", escape(socket)));
        add("-tpmdev", "emulator,id=tpm0,chardev=tpm".into());
        add("-device", format!("{TPM},tpmdev=tpm0"));
    }
    for (flag, value) in disks::arguments(&machine.disks, machine.write_log.as_deref()) {
        add(flag, value);
    }
    for (name, file) in &machine.fw_cfg {
        add("-fw_cfg", format!("name={name},file={}", escape(file)));
    }
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
        Boot::Bios => {}
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            arch: Arch::Amd64,
            accelerator: Accelerator::Tcg,
            memory_mib: 1024,
            processors: 2,
            topology: None,
            boot: Boot::Uefi { code: "/c".into(), vars: "/v,w".into() },
            disks: vec![Disk { file: "/d.qcow2".into(), format: "qcow2", bus: Bus::Virtio }],
            write_log: None,
            fw_cfg: vec![(FW_CFG_CONFIG.into(), "/f".into())],
            firmware: Firmware::default(),
            network: Network::Nowhere,
            forwards: Vec::new(),
            ports: Vec::new(),
            api_port: None,
            sockets: "/s".into(),
            qemu_listens: &["qmp"],
            no_reboot: true,
        }
    }

    #[test]
    fn every_socket_and_disk_is_named() {
        let args = arguments(&machine()).join(" ");
        for part in [
            "-accel tcg,thread=multi",
            "-cpu max,-erms,-fsrm",
            "-no-reboot",
            "restrict=on",
            "id=host,path=/s/host,server=off",
            "id=qmp,path=/s/qmp,server=on,wait=off",
            "name=org.orlop.host.0",
            "format=qcow2,cache=unsafe,file=/d.qcow2",
            "bootindex=1",
            "file=/v,,w",
            "-fw_cfg name=opt/org.orlop/config,file=/f",
        ] {
            assert!(args.contains(part), "{part}: {args}");
        }
        assert!(!args.contains("-kernel"));
    }

    #[test]
    fn a_cable_and_what_the_firmware_says() {
        let mut machine = machine();
        assert!(
            !arguments(&machine)
                .iter()
                .any(|a| ["-smbios", "-uuid", "-rtc", "-action", "VGA"].contains(&a.as_str()))
        );
        machine.ports = vec![Port { mac: "52:54:00:00:01:00".into(), local: 7001, peer: 7002 }];
        machine.network = Network::Tap { device: "tap3".into(), mac: "52:54:00:00:00:03".into() };
        machine.firmware = Firmware {
            uuid: Some("u-1".into()),
            clock: Some("2001-01-01T00:00:00".into()),
            manufacturer: Some("Amazon EC2".into()),
            oem_strings: vec!["/a,b".into()],
            erst: Some("/e".into()),
            watchdog: true,
            screen: true,
            tpm: Some("/t,p".into()),
        };
        let args = arguments(&machine).join(" ");
        for part in [
            "memory-backend-file,id=erst,mem-path=/e,size=65536,share=on",
            "-device acpi-erst,memdev=erst",
            "-device i6300esb",
            "-action watchdog=reset",
            "-device VGA",
            "-chardev socket,id=tpm,path=/t,,p -tpmdev emulator,id=tpm0,chardev=tpm -device tpm-crb,tpmdev=tpm0",
            "-netdev tap,id=net0,ifname=tap3,script=no,downscript=no",
            "netdev=net0,romfile=,mac=52:54:00:00:00:03",
            "-netdev dgram,id=port0,local.type=inet,local.host=127.0.0.1,local.port=7001,remote.type=inet,\
             remote.host=127.0.0.1,remote.port=7002",
            "netdev=port0,romfile=,mac=52:54:00:00:01:00,speed=1000,duplex=full",
            "-uuid u-1",
            "-smbios type=1,manufacturer=Amazon EC2",
            "-rtc base=2001-01-01T00:00:00",
            "-smbios type=11,path=/a,,b",
        ] {
            assert!(args.contains(part), "{part}: {args}");
        }
        assert!(!args.contains("restrict=on"), "{args}");
    }

    #[test]
    fn ports_lead_to_the_guest_in_both_networks_of_qemu() {
        let forwards =
            ["8080:80", "10270:10270"].map(|text| text.parse::<PortForward>().expect("two ports")).to_vec();
        let want = ",hostfwd=tcp:127.0.0.1:8080-:80,hostfwd=tcp:127.0.0.1:10270-:10270";
        for (network, start) in
            [(Network::Nowhere, "user,id=net0,restrict=on"), (Network::Host, "user,id=net0")]
        {
            let args = arguments(&Machine { network, forwards: forwards.clone(), ..machine() });
            assert!(args.contains(&format!("{start}{want}")), "{args:?}");
        }
    }

    #[test]
    fn a_port_of_the_management_api_is_next_to_the_host_channel() {
        let machine = Machine { api_port: Some("/s/api".into()), ..machine() };
        let want = "name=org.orlop.host.0 -chardev socket,id=api,path=/s/api,server=on,wait=off \
            -device virtserialport,chardev=api,name=org.orlop.api.0";
        let args = arguments(&machine).join(" ");
        assert!(args.contains(want), "{args}");
    }

    #[test]
    fn an_ide_disk_brings_the_older_board() {
        let mut machine = machine();
        let board = Arch::Amd64.facts().emulator.board;
        assert!(arguments(&machine).iter().any(|arg| arg == board));
        machine.disks[0].bus = Bus::Ide;
        machine.boot = Boot::Bios;
        let args = arguments(&machine);
        assert!(
            args.iter().any(|arg| arg == OLDER_MACHINE) && !args.iter().any(|arg| arg == board),
            "{args:?}"
        );
        assert!(!args.iter().any(|arg| arg.contains("pflash") || arg == "-kernel"), "{args:?}");
    }

    /// The whole command line of a machine as it was before there were other architectures.
    #[test]
    fn x86_64_has_the_machine_that_it_always_had() {
        let want = "-nodefaults -no-user-config -display none -machine q35,hpet=off -accel tcg,thread=multi \
            -cpu max,-erms,-fsrm -smp 2 -m 1024M -no-reboot \
            -chardev socket,id=console,path=/s/console,server=off \
            -chardev socket,id=shell,path=/s/shell,server=off -chardev socket,id=host,path=/s/host,server=off \
            -chardev socket,id=qmp,path=/s/qmp,server=on,wait=off -mon chardev=qmp,mode=control \
            -serial chardev:console -serial chardev:shell -device virtio-serial-pci \
            -device virtserialport,chardev=host,name=org.orlop.host.0 -device virtio-rng-pci \
            -netdev user,id=net0,restrict=on -device virtio-net-pci,netdev=net0,romfile= \
            -drive if=none,id=disk0,format=qcow2,cache=unsafe,file=/d.qcow2 \
            -device virtio-blk-pci,drive=disk0,bootindex=1 -fw_cfg name=opt/org.orlop/config,file=/f \
            -drive if=pflash,format=raw,readonly=on,file=/c -drive if=pflash,format=raw,file=/v,,w";
        assert_eq!(arguments(&machine()).join(" "), want);
    }

    #[test]
    fn arm64_has_its_board_and_a_console_in_the_second_ports_place() {
        let machine = Machine { arch: Arch::Arm64, ..machine() };
        let args = arguments(&machine).join(" ");
        for part in [
            "-machine virt,gic-version=3",
            "-cpu max,pauth-impdef=on",
            "-serial chardev:console",
            "-device virtio-serial-pci -device virtconsole,chardev=shell",
            "-device virtserialport,chardev=host,name=org.orlop.host.0",
        ] {
            assert!(args.contains(part), "{part}: {args}");
        }
        assert!(!args.contains("-serial chardev:shell"), "{args}");
        let program = command(Arch::Arm64);
        assert!(program.get_args().any(|arg| arg == "qemu-system-aarch64"), "{program:?}");
    }

    #[test]
    fn a_command_line_stays_one_argument() {
        let mut machine = machine();
        machine.no_reboot = false;
        machine.boot = Boot::Direct { kernel: "/k".into(), initrd: "/i".into(), cmdline: "a b".into() };
        let args = arguments(&machine);
        let at = args.iter().position(|a| a == "-append").expect("has a command line");
        assert_eq!(args[at + 1], "a b");
        assert!(!args.contains(&"-no-reboot".to_owned()));
    }
}
