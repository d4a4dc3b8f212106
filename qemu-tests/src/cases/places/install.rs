//! The installer: a stick copies itself to the disk that the configuration names, and to no other.
//!
//! Case: `places/install`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::disk::digest;
use orlop_harness::vm::fat;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_image::qemu::{Bus, Disk};

use crate::cases::boot::refused::await_problem;
use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, config_with_pod};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "places/install",
    480,
    "a USB stick installs itself to the NVMe disk that its configuration names, which then boots alone to a pod; a disk \
     with content is refused by name and stays as it is",
    install,
)];

/// Room for the image's partitions and the state partition.
const TARGET_BYTES: u64 = 2 << 30;
const WITNESS_BYTES: u64 = 2 << 30;
/// Two readings of 776 MiB from an emulated stick, half a GiB of them through dm-verity.
const COPY_LIMIT_S: u64 = 900;

/// What another system has left: a file system's superblock, and bytes further on.
fn witness(path: &Path) -> Result<()> {
    let file = File::create(path).with_context(|| format!("make {}", path.display()))?;
    file.set_len(WITNESS_BYTES)?;
    let left: [(u64, &[u8]); 3] =
        [(1080, &[0x53, 0xef]), (WITNESS_BYTES / 2, b"somebody's data"), (WITNESS_BYTES - 9, b"their end")];
    for (at, bytes) in left {
        file.write_all_at(bytes, at).context("write the other disk")?;
    }
    Ok(())
}

/// The stick first, which the firmware starts; QEMU gives NVMe disks the serial numbers `orlop1` and `orlop2` by their places.
fn machine(lab: &Lab, target: &Path, witness: &Path, drive: &Path) -> Vec<Disk> {
    let disk = |file: PathBuf, bus| Disk { file, format: "raw", bus };
    vec![
        disk(lab.disk(), Bus::UsbXhci),
        disk(target.to_owned(), Bus::Nvme),
        disk(witness.to_owned(), Bus::Nvme),
        disk(drive.to_owned(), Bus::Virtio),
    ]
}

/// A configuration drive that asks for an installation to the disk with this name.
fn ask(drive: &Path, name: &str) -> Result<()> {
    let text = format!("#orlop\n{}install:\n  disk: {name}\nnode:\n  name: installed\n", config_with_pod());
    fat::write(drive, "CIDATA", "user-data", &text)
}

fn install(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let [target, other, drive] = ["target.raw", "witness.raw", "cidata"].map(|name| lab.dir().join(name));
    File::create(&target).and_then(|file| file.set_len(TARGET_BYTES)).context("make the target")?;
    witness(&other)?;
    let untouched = digest(&other, 0, WITNESS_BYTES)?;
    let disks = machine(&lab, &target, &other, &drive);

    ask(&drive, "nvme-QEMU_NVMe_Ctrl_orlop2")?;
    let vm = lab.boot_from(Firmware::Uefi, &disks)?;
    let problem = await_problem(&vm, "the refusal of a disk with content", |m| m.starts_with("install: "))?;
    for part in ["is not empty", "ext4 on the whole disk", "orlop2", "nothing was changed", "install.wipe"] {
        ensure!(problem.contains(part), "{part} is not in: {problem}");
    }
    drop(vm);
    ensure!(digest(&other, 0, WITNESS_BYTES)? == untouched, "the refused disk was written");
    ensure!(lab.partition("orlop-state").is_err(), "a stick that cannot install has become a node");

    ask(&drive, "ORLOP1")?;
    let vm = lab.boot_from(Firmware::Uefi, &disks)?;
    let entry = vm.await_phase("init.install", COPY_LIMIT_S)?;
    ensure!(entry.ok, "the installation failed: {}", entry.detail);
    say::line(format!("  {} ms: {}", entry.took_ms.unwrap_or_default(), entry.detail));
    vm.await_console(10, "the end on the console", |l| l.contains("install: DONE"))?;
    vm.ended(60).context("after the installation")?;
    ensure!(digest(&other, 0, WITNESS_BYTES)? == untouched, "the other disk was written");
    ensure!(lab.partition("orlop-state").is_err(), "the stick has become a node");

    let alone = [Disk { file: target, format: "raw", bus: Bus::Nvme }];
    let mut vm = lab.boot_from(Firmware::Uefi, &alone)?;
    let entry = vm.await_phase("pod.running", BOOT_LIMIT_S).context("from the installed disk alone")?;
    ensure!(entry.detail.contains("hello"), "pod.running says {:?}", entry.detail);
    let config = vm.shell()?.must("cat /run/orlop/node-config.json")?;
    ensure!(config.contains("\"name\": \"installed\"") && config.contains("\"esp\""), "{config}");
    ensure!(!config.contains("\"install\""), "the installed disk is to install itself: {config}");
    vm.power_off(120)
}
