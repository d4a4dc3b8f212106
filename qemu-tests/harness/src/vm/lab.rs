//! Surroundings of a VM case: the built image, a disk of its own, a configuration, boots.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use orlop_image::arch::Arch;
use orlop_image::format::sectors::to_4096;
use orlop_image::qemu::{
    self, Accelerator, Boot, Bus, Disk, FW_CFG_CONFIG, Machine, Network, Port, Topology,
};

use super::boot_files;
use super::disk::{self, Partition};
pub use super::image::Image;
use super::machine::{EmulatorFault, KERNEL_STARTS_INIT, Vm, socket_dir};
use super::tpm::SoftTpm;
use crate::resource::Resource;
use crate::run::Run;
use crate::say;

/// Memory of a test VM.
pub const MEMORY_MIB: u32 = 1024;

/// Size of a test VM's disk, GiB.
pub(super) const DISK_GIB: u64 = 4;

/// The kernel that QEMU passes, on a slow machine.
const KERNEL_LIMIT_S: u64 = 90;

/// The same behind firmware and boot loader: they read the UKI from sticks and IDE disks a sector or a packet at a time, and with
/// keys to enrol the machine starts twice.
const FIRMWARE_LIMIT_S: u64 = 240;

/// The same for another architecture than the machine's.
const FOREIGN_KERNEL_LIMIT_S: u64 = 240;

/// Largest number of starts of QEMU for one boot.
const STARTS_MAX: u32 = 3;

/// A disk and the VMs that are booted from it, one after another.
pub struct Lab {
    arch: Arch,
    run: Arc<Run>,
    dir: PathBuf,
    artefacts: PathBuf,
    accelerator: Accelerator,
    processors: u32,
    memory_mib: u32,
    topology: Option<Topology>,
    /// Arguments of the kernel in addition to those of the image.
    arguments: String,
    /// Bus of its own disk.
    bus: Bus,
    /// Further raw disks.
    attached: Vec<PathBuf>,
    /// Log of all writes to its own disk.
    write_log: Option<PathBuf>,
    /// Further network cards.
    ports: Vec<Port>,
    /// Its VMs have a screen.
    screen: bool,
    /// Its VMs reach this machine.
    reaches_host: bool,
    /// Its VMs' board has a hardware watchdog.
    has_watchdog: bool,
    /// Socket of its VMs' TPM.
    tpm: Option<PathBuf>,
    /// Socket of its VMs' port of the management API.
    api_port: Option<PathBuf>,
}

/// Kernel source of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// Kernel handed over by QEMU.
    Direct,
    /// Firmware, and the boot loader on the disk.
    Uefi,
}

/// The free end of a cable in a cluster.
#[derive(Clone, Debug)]
pub struct Cable {
    /// A process, by its PID on the host, in whose network namespace the TAP device is.
    pub namespace_of: i32,
    /// The TAP device.
    pub device: String,
    /// The guest's hardware address.
    pub mac: String,
}

/// Hardware of one machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineHardware<'a> {
    /// System UUID.
    pub uuid: &'a str,
    /// The manufacturer that its firmware names, if not the emulator.
    pub manufacturer: Option<&'a str>,
    /// The clock's value at power-on, if not the present time.
    pub clock: Option<&'a str>,
    /// A second disk, raw, for programs that the image has not.
    pub disk: Option<&'a Path>,
    /// The firmware keeps the last messages of a crashing kernel over boots.
    pub keeps_last_words: bool,
    /// It has a hardware watchdog.
    pub watchdog: bool,
    /// Its memory, MiB, if not [`MEMORY_MIB`].
    pub memory_mib: Option<u32>,
    /// Source of its kernel.
    pub firmware: Firmware,
}

/// Result of the kernel's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelStart {
    /// The kernel runs init.
    Init,
    /// The kernel panicked.
    Panic,
}

/// Name of a lab's directory: artefacts of two lanes may end in the same name.
fn directory(run: &str, artefacts: &Path) -> String {
    static LABS: AtomicU32 = AtomicU32::new(0);
    let number = LABS.fetch_add(1, Ordering::Relaxed);
    format!("vm-{run}-{number}-{}", artefacts.file_name().unwrap_or_default().display())
}

/// Number of processors of a test VM. Under emulation each processor costs work that the others wait for: with one
/// processor a boot takes a quarter less of the host's time (docs/internals/testing.md), and the host has two processors for two
/// VMs.
fn processors(accelerator: Accelerator) -> u32 {
    match accelerator {
        Accelerator::Kvm => 2,
        Accelerator::Tcg | Accelerator::TcgInTurn => 1,
    }
}

/// Kernel arguments of a test VM in addition to the image's. QEMU translates code again for each address at which it
/// runs: programs with fixed addresses cost an eighth less in a case with pods (docs/internals/testing.md).
fn arguments(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Kvm => "",
        Accelerator::Tcg | Accelerator::TcgInTurn => " norandmaps",
    }
}

/// Time from QEMU's start to init.
fn kernel_limit_s(arch: Arch, boot: &Boot) -> u64 {
    match boot {
        _ if arch != Arch::HOST => FOREIGN_KERNEL_LIMIT_S,
        Boot::Uefi { .. } => FIRMWARE_LIMIT_S,
        Boot::Direct { .. } | Boot::Bios => KERNEL_LIMIT_S,
    }
}

fn start_of_kernel(line: &str) -> Option<KernelStart> {
    if line.contains(KERNEL_STARTS_INIT) {
        return Some(KernelStart::Init);
    }
    line.contains("Kernel panic - not syncing").then_some(KernelStart::Panic)
}

impl Lab {
    /// A fresh disk from the test image.
    ///
    /// # Errors
    /// If the image was not built, or the disk cannot be copied.
    pub fn new(run: &Arc<Run>, artefacts: &Path) -> Result<Lab> {
        Lab::of(run, artefacts, &Image::test()?)
    }

    /// A fresh disk from an image.
    ///
    /// # Errors
    /// If the disk cannot be copied.
    pub fn of(run: &Arc<Run>, artefacts: &Path, image: &Image) -> Result<Lab> {
        let arch = image.arch;
        let dir = run.dir().join(directory(run.id(), artefacts));
        run.record(Resource::Dir { path: dir.clone() })?;
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let accelerator = image.accelerator()?;
        image.copy_to(run, &dir)?;
        let (processors, arguments) = (processors(accelerator), arguments(accelerator).to_owned());
        let (run, artefacts, bus, attached) = (run.clone(), artefacts.to_owned(), Bus::Virtio, Vec::new());
        let (topology, ports, screen, reaches_host) = (None, Vec::new(), false, false);
        Ok(Lab {
            arch,
            run,
            dir,
            artefacts,
            accelerator,
            processors,
            memory_mib: MEMORY_MIB,
            topology,
            arguments,
            bus,
            attached,
            write_log: None,
            ports,
            screen,
            reaches_host,
            has_watchdog: false,
            tpm: None,
            api_port: None,
        })
    }

    /// Makes the VMs like those of `cargo boot`: two processors, and only the image's kernel arguments.
    #[must_use]
    pub fn as_shipped(mut self) -> Lab {
        (self.processors, self.arguments) = (2, String::new());
        self
    }

    /// Sets the number of the VMs' processors, from the next boot on.
    pub fn give_processors(&mut self, number: u32) {
        self.processors = number;
    }

    /// Sets the VMs' memory, MiB, from the next boot on.
    pub fn give_memory(&mut self, mebi: u32) {
        self.memory_mib = mebi;
    }

    /// Its VMs have these sockets and NUMA nodes, from the next boot on.
    pub fn give_topology(&mut self, topology: Topology) {
        self.topology = Some(topology);
    }

    /// Its VMs' own disk is at the board's SATA controller.
    #[must_use]
    pub fn on_sata(mut self) -> Lab {
        self.bus = Bus::Sata;
        self
    }

    /// Its VMs have a screen, from the next boot on ([`Vm::screen`]).
    pub fn give_screen(&mut self) {
        self.screen = true;
    }

    /// Its VMs' board has a hardware watchdog, from the next boot on.
    pub fn give_watchdog(&mut self) {
        self.has_watchdog = true;
    }

    /// Its next VM has this TPM.
    pub fn give_tpm(&mut self, tpm: &SoftTpm) {
        self.tpm = Some(tpm.socket().to_owned());
    }

    /// Its VMs have a virtio-serial port of the management API, from the next boot on; returns its socket on this machine.
    ///
    /// # Errors
    /// If the socket's directory cannot be made.
    pub fn give_api_port(&mut self) -> Result<PathBuf> {
        let socket = socket_dir(&self.run)?.join("api");
        self.api_port = Some(socket.clone());
        Ok(socket)
    }

    /// Its VMs reach servers on this machine's loopback at 10.0.2.2, from the next boot on.
    pub fn reach_host(&mut self) {
        self.reaches_host = true;
    }

    /// Logs all writes to its own disk ([`WriteLog`](super::write_log::WriteLog)); returns the log, which each boot begins again.
    ///
    /// # Errors
    /// If the log cannot be made.
    pub fn log_writes(&mut self) -> Result<PathBuf> {
        let path = self.dir.join("writes.log");
        File::create(&path).with_context(|| format!("make {}", path.display()))?;
        self.write_log = Some(path.clone());
        Ok(path)
    }

    /// Logs no writes any more, from the next boot on.
    pub fn log_no_more(&mut self) {
        self.write_log = None;
    }

    /// Adds these raw disks at virtio, from the next boot on.
    pub fn attach(&mut self, disks: &[PathBuf]) {
        self.attached = disks.to_vec();
    }

    /// Adds these network cards to its VMs', from the next boot on.
    pub fn give_ports(&mut self, ports: Vec<Port>) {
        self.ports = ports;
    }

    /// Its directory, for files of a case.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes arguments that [`Lab::tell_kernel`] added.
    pub fn tell_kernel_no_more(&mut self, words: &str) {
        self.arguments = self.arguments.replace(&format!(" {words}"), "");
    }

    /// Adds kernel arguments from the next boot on, if QEMU passes the kernel.
    pub fn tell_kernel(&mut self, words: &str) {
        self.arguments.push(' ');
        self.arguments.push_str(words);
    }

    /// The disk; only to be touched while no VM runs.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk.raw")
    }

    /// The run it belongs to.
    #[must_use]
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// The first partition whose label starts with `label`.
    ///
    /// # Errors
    /// If there is none.
    pub fn partition(&self, label: &str) -> Result<Partition> {
        disk::partitions(&self.disk())?
            .into_iter()
            .find(|p| p.label.starts_with(label))
            .with_context(|| format!("no partition is labelled {label}"))
    }

    /// Boots; `config` is a NodeConfig handed over in fw_cfg.
    ///
    /// # Errors
    /// If QEMU does not start.
    pub fn boot(&self, firmware: Firmware, config: Option<&str>) -> Result<Vm> {
        let fw_cfg = self.handed_over(config)?;
        self.start(None, || Ok(Machine { fw_cfg: fw_cfg.clone(), ..self.machine(firmware)? }))
    }

    /// Boots an overlay (qcow2) in place of its own disk; `config` as with [`Lab::boot`].
    ///
    /// # Errors
    /// If QEMU does not start.
    pub fn boot_overlay(&self, firmware: Firmware, overlay: &Path, config: Option<&str>) -> Result<Vm> {
        let fw_cfg = self.handed_over(config)?;
        let disk = Disk { file: overlay.to_owned(), format: "qcow2", bus: self.bus };
        self.start(None, || {
            let (disks, write_log) = (vec![disk.clone()], None);
            Ok(Machine { fw_cfg: fw_cfg.clone(), disks, write_log, ..self.machine(firmware)? })
        })
    }

    /// fw_cfg entries of a configuration.
    fn handed_over(&self, config: Option<&str>) -> Result<Vec<(String, PathBuf)>> {
        let file = config.map(|text| self.file("node-config.yaml", text)).transpose()?;
        Ok(file.into_iter().map(|file| (FW_CFG_CONFIG.to_owned(), file)).collect())
    }

    /// Boots with these disks alone, in this order.
    ///
    /// # Errors
    /// If QEMU does not start.
    pub fn boot_from(&self, firmware: Firmware, disks: &[Disk]) -> Result<Vm> {
        self.start(None, || Ok(Machine { disks: disks.to_vec(), ..self.machine(firmware)? }))
    }

    /// Starts the disk by BIOS, and waits for nothing: no kernel starts this way.
    ///
    /// # Errors
    /// If QEMU does not start.
    pub fn start_by_bios(&self) -> Result<Vm> {
        let machine = Machine { boot: Boot::Bios, ..self.machine(Firmware::Direct)? };
        Vm::start(&self.run, &self.artefacts, &machine, None)
    }

    /// Starts the disk by the firmware, and waits for nothing: with Secure Boot it may start no kernel.
    ///
    /// # Errors
    /// If QEMU does not start.
    pub fn start_by_firmware(&self) -> Result<Vm> {
        Vm::start(&self.run, &self.artefacts, &self.machine(Firmware::Uefi)?, None)
    }

    /// Gives its disk sectors of 4096 bytes; only while no VM runs.
    ///
    /// # Errors
    /// If the disk is not as the image's build leaves it, or cannot be written.
    pub fn give_large_sectors(&self) -> Result<()> {
        let disk = self.disk();
        let file = File::options().read(true).write(true).open(&disk);
        let file = file.with_context(|| format!("open {}", disk.display()))?;
        to_4096(&file).with_context(|| format!("give {} sectors of 4096 bytes", disk.display()))
    }

    /// Boots as a node of a cluster: plugged in, `config` as an SMBIOS credential, if there is one.
    ///
    /// # Errors
    /// If QEMU does not start.
    pub fn boot_plugged(
        &self,
        cable: &Cable,
        board: MachineHardware<'_>,
        config: Option<&str>,
    ) -> Result<Vm> {
        let credential = config.map(|config| format!("io.systemd.credential:orlop.config={config}"));
        let oem_string = credential.map(|text| self.file("oem-string", &text)).transpose()?;
        let erst = board.keeps_last_words.then(|| self.last_words()).transpose()?;
        let kept = erst.as_ref().map(fs::read).transpose().context("read the last words so far")?;
        self.start(Some(cable.namespace_of), || {
            // A start that ended with a fault of the emulator left messages of no boot of the case.
            if let (Some(file), Some(kept)) = (&erst, &kept) {
                fs::write(file, kept).with_context(|| format!("write {}", file.display()))?;
            }
            let machine = self.machine(board.firmware)?;
            let second =
                board.disk.map(|file| Disk { file: file.to_owned(), format: "raw", bus: Bus::Virtio });
            Ok(Machine {
                disks: machine.disks.into_iter().chain(second).collect(),
                firmware: qemu::Firmware {
                    uuid: Some(board.uuid.to_owned()),
                    clock: board.clock.map(str::to_owned),
                    manufacturer: board.manufacturer.map(str::to_owned),
                    oem_strings: oem_string.iter().cloned().collect(),
                    erst: erst.clone(),
                    watchdog: board.watchdog,
                    screen: self.screen,
                    tpm: self.tpm.clone(),
                },
                network: Network::Tap { device: cable.device.clone(), mac: cable.mac.clone() },
                memory_mib: board.memory_mib.unwrap_or(machine.memory_mib),
                ..machine
            })
        })
    }

    /// The file of the firmware's place for last words.
    fn last_words(&self) -> Result<PathBuf> {
        let path = self.dir.join("erst");
        let made = File::options().create(true).truncate(false).write(true).open(&path);
        let file = made.with_context(|| format!("make {}", path.display()))?;
        file.set_len(qemu::ERST_BYTES).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// Starts QEMU and waits until the kernel starts init. A guest that crashes in the emulator before that, or hangs
    /// because its emulated processors wait for each other, has not written to its disk yet: QEMU starts again.
    fn start(&self, namespace_of: Option<i32>, spec: impl Fn() -> Result<Machine>) -> Result<Vm> {
        let mut why = String::new();
        for _ in 0..STARTS_MAX {
            let machine = spec()?;
            let limit = Duration::from_secs(kernel_limit_s(self.arch, &machine.boot));
            let vm = Vm::start(&self.run, &self.artefacts, &machine, namespace_of)?;
            match vm.console.wait(0, limit, "the kernel to start init", start_of_kernel) {
                Ok((_, KernelStart::Init)) => return Ok(vm),
                Ok((_, KernelStart::Panic)) if !EmulatorFault.pass(&self.artefacts) => return Ok(vm),
                Ok((_, KernelStart::Panic)) => why = EmulatorFault.to_string(),
                Err(stalled) => {
                    EmulatorFault.note(&self.artefacts).context("note that the guest stands still")?;
                    let _ = EmulatorFault.pass(&self.artefacts);
                    why = stalled.to_string();
                }
            }
            say::line(format!("  {}: booting once more", why.lines().next().unwrap_or_default()));
        }
        bail!("the kernel did not get to init in {STARTS_MAX} starts of QEMU: {why}")
    }

    /// Writes a file that QEMU reads; it may hold a token.
    fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.dir.join(name);
        crate::cluster::pki::write_private(&file, text)?;
        Ok(file)
    }

    /// The machine without any configuration.
    fn machine(&self, firmware: Firmware) -> Result<Machine> {
        let boot = match firmware {
            Firmware::Direct => boot_files::direct(&self.dir, &self.arguments)?,
            Firmware::Uefi => boot_files::uefi(self.arch, &self.dir)?,
        };
        let besides = self.attached.iter().map(|file| (file.clone(), Bus::Virtio));
        let disks = std::iter::once((self.disk(), self.bus)).chain(besides);
        let disks = disks.map(|(file, bus)| Disk { file, format: "raw", bus }).collect();
        Ok(Machine {
            arch: self.arch,
            accelerator: EmulatorFault.mind(&self.artefacts, self.accelerator),
            memory_mib: self.memory_mib,
            processors: self.processors,
            topology: self.topology,
            boot,
            disks,
            write_log: self.write_log.clone(),
            fw_cfg: Vec::new(),
            firmware: qemu::Firmware {
                screen: self.screen,
                tpm: self.tpm.clone(),
                watchdog: self.has_watchdog,
                ..qemu::Firmware::default()
            },
            network: if self.reaches_host { Network::Host } else { Network::Nowhere },
            forwards: Vec::new(),
            ports: self.ports.clone(),
            api_port: self.api_port.clone(),
            sockets: socket_dir(&self.run)?,
            qemu_listens: &[],
            no_reboot: false,
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let resource = Resource::Dir { path: self.dir.clone() };
        if let Err(e) = resource.remove(self.run.id()) {
            say::line(format!("left behind: {e:#}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labs_of_two_lanes_have_disks_of_their_own() {
        let name = |artefacts| directory("run", Path::new(artefacts));
        let (case, group) = (name("/c/join/vm/vm"), name("/c/groups/vm"));
        assert_ne!(case, group);
        assert!(case.starts_with("vm-run-") && case.ends_with("-vm"), "{case}");
    }
}
