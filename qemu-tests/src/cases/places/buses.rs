//! The image starts from a disk at every controller that QEMU has, to a running pod, and finds a configuration drive
//! there, as disk or as CD-ROM.
//!
//! Cases: `places/virtio-scsi`, `places/nvme`, `places/nvme-4k`, `places/ahci`, `places/ide`, `places/pvscsi`,
//! `places/megasas`, `places/mptsas1068`, `places/lsi`, `places/usb-ehci`, `places/usb-xhci`, `places/usb-drive`,
//! `places/sd`. One boot each, in a machine with the image's disk and the drive alone. UEFI where Debian's OVMF
//! has a driver for the controller. For the others (PVSCSI, MegaRAID, LSI, memory cards) QEMU passes the kernel: real
//! controllers bring their own driver, which QEMU's do not have. What QEMU does not have at all (Hyper-V, Xen, Intel VMD,
//! newer RAID controllers) is checked when the image is built, by lists of modules and devices.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::{fat, iso};
use orlop_image::qemu::{Bus, Disk};

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, config_with_pod};

/// A boot to the running pod, seconds: emulated sticks and IDE disks give some megabytes a second.
const LIMIT_S: u64 = 2 * BOOT_LIMIT_S;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    ALONE.case("places/virtio-scsi", 90, "boots from virtio SCSI, configured by a CD-ROM there", |cx| {
        boots(cx, &VIRTIO_SCSI)
    }),
    ALONE.case("places/nvme", 90, "boots from NVMe, configured by another NVMe disk", |cx| boots(cx, &NVME)),
    ALONE.case(
        "places/nvme-4k",
        90,
        "boots from NVMe with sectors of 4096 bytes, configured by a CD-ROM",
        |cx| boots(cx, &NVME_4K),
    ),
    ALONE.case("places/ahci", 90, "boots from SATA, configured by a SATA CD-ROM", |cx| boots(cx, &AHCI)),
    ALONE.case("places/ide", 120, "boots from IDE of an older board, configured by an IDE CD-ROM", |cx| {
        boots(cx, &IDE)
    }),
    ALONE.case("places/pvscsi", 60, "boots from VMware's PVSCSI, configured by another disk there", |cx| {
        boots(cx, &PVSCSI)
    }),
    ALONE.case("places/megasas", 60, "boots from a MegaRAID SAS, configured by another disk there", |cx| {
        boots(cx, &MEGASAS)
    }),
    ALONE.case(
        "places/mptsas1068",
        60,
        "boots from VMware's LSI Logic SAS, configured by a SCSI CD-ROM",
        |cx| boots(cx, &MPTSAS1068),
    ),
    ALONE.case("places/lsi", 60, "boots from an LSI 53C895A, configured by another disk there", |cx| {
        boots(cx, &LSI)
    }),
    ALONE.case("places/usb-ehci", 150, "boots from a stick at USB 2, configured by another stick", |cx| {
        boots(cx, &USB_EHCI)
    }),
    ALONE.case("places/usb-xhci", 120, "boots from a stick at USB 3, configured by another stick", |cx| {
        boots(cx, &USB_XHCI)
    }),
    ALONE.case("places/usb-drive", 90, "boots from NVMe, configured by a slower stick at USB 3", |cx| {
        boots(cx, &USB_DRIVE)
    }),
    ALONE.case("places/sd", 90, "boots from a memory card, configured by a SATA CD-ROM", |cx| boots(cx, &SD)),
];

/// A machine of one kind.
struct BootBus {
    /// The node's name, which only the drive says.
    name: &'static str,
    /// Where the image's disk is.
    disk: Bus,
    /// Where the configuration drive is.
    drive: Bus,
    firmware: Firmware,
    /// The driver of the disk's controller or of the drive, as `/proc/modules` has it.
    driver: &'static str,
    /// What the disk's name begins with.
    device: &'static str,
}

/// A machine whose firmware starts from the disk.
const fn by_firmware(
    name: &'static str,
    disk: Bus,
    drive: Bus,
    driver: &'static str,
    device: &'static str,
) -> BootBus {
    BootBus { name, disk, drive, firmware: Firmware::Uefi, driver, device }
}

/// The same, with a controller that OVMF does not know.
const fn by_qemu(place: BootBus) -> BootBus {
    BootBus { firmware: Firmware::Direct, ..place }
}

const VIRTIO_SCSI: BootBus =
    by_firmware("on-virtio-scsi", Bus::VirtioScsi, Bus::ScsiCd, "virtio_scsi", "/dev/sd");
const NVME: BootBus = by_firmware("on-nvme", Bus::Nvme, Bus::Nvme, "nvme", "/dev/nvme");
const NVME_4K: BootBus = by_firmware("on-nvme-4k", Bus::Nvme4k, Bus::SataCd, "nvme", "/dev/nvme");
const AHCI: BootBus = by_firmware("on-ahci", Bus::Sata, Bus::SataCd, "ahci", "/dev/sd");
const IDE: BootBus = by_firmware("on-ide", Bus::Ide, Bus::IdeCd, "ata_piix", "/dev/sd");
const PVSCSI: BootBus = by_qemu(by_firmware("on-pvscsi", Bus::Pvscsi, Bus::Pvscsi, "vmw_pvscsi", "/dev/sd"));
const MEGASAS: BootBus =
    by_qemu(by_firmware("on-megasas", Bus::MegaRaid, Bus::MegaRaid, "megaraid_sas", "/dev/sd"));
const MPTSAS1068: BootBus = by_qemu(by_firmware("on-mptsas", Bus::MptSas, Bus::ScsiCd, "mptsas", "/dev/sd"));
const LSI: BootBus = by_qemu(by_firmware("on-lsi", Bus::Lsi, Bus::Lsi, "sym53c8xx", "/dev/sd"));
const USB_EHCI: BootBus = by_firmware("on-usb-ehci", Bus::UsbEhci, Bus::UsbEhci, "ehci_pci", "/dev/sd");
const USB_XHCI: BootBus = by_firmware("on-usb-xhci", Bus::UsbXhci, Bus::UsbXhci, "xhci_pci", "/dev/sd");
const USB_DRIVE: BootBus = by_firmware("on-usb-drive", Bus::Nvme, Bus::UsbXhci, "usb_storage", "/dev/nvme");
const SD: BootBus = by_qemu(by_firmware("on-sd", Bus::Sd, Bus::SataCd, "sdhci_pci", "/dev/mmcblk"));

/// Writes a configuration drive that names the node.
fn write_drive(path: &Path, place: &BootBus) -> Result<()> {
    let text = format!("#orlop\n{}node:\n  name: {}\n", config_with_pod(), place.name);
    match place.drive {
        Bus::SataCd | Bus::ScsiCd | Bus::IdeCd => iso::write(path, "cidata", "user-data", &text),
        _ => fat::write(path, "CIDATA", "user-data", &text),
    }
}

fn boots(cx: &mut CaseContext<'_>, place: &BootBus) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    if place.disk == Bus::Nvme4k {
        lab.give_large_sectors()?;
    }
    let drive = lab.dir().join("cidata");
    write_drive(&drive, place)?;
    let disks = [(lab.disk(), place.disk), (drive, place.drive)];
    let disks = disks.map(|(file, bus)| Disk { file, format: "raw", bus });
    let mut vm = lab.boot_from(place.firmware, &disks)?;

    let disk = vm.await_phase("init.disk", LIMIT_S)?;
    ensure!(disk.detail.contains(place.device), "the root's disk is another one: {}", disk.detail);
    let pod = vm.await_phase("pod.running", LIMIT_S).context("with the drive's configuration")?;
    ensure!(pod.detail.contains("hello"), "pod.running says {:?}", pod.detail);
    say::line(format!("  {}; pod running after {} ms", disk.detail, pod.at_ms));
    vm.await_message("the pod's output", LIMIT_S, |message| match message {
        HostMessage::PodOutput { pod, .. } if pod.starts_with("default/hello") => Some(()),
        _ => None,
    })?;

    let shell = vm.shell()?;
    let config = shell.must("cat /run/orlop/node-config.json")?;
    let name = format!("\"name\": \"{}\"", place.name);
    ensure!(config.contains(&name) && config.contains("\"node.name\": \"drive\""), "{config}");
    let pods = shell.must("ls /var/log/pods")?;
    ensure!(pods.contains(&format!("default_hello-{}_", place.name)), "no pod of {}: {pods}", place.name);
    let modules = shell.must("cut -d' ' -f1 /proc/modules")?;
    ensure!(
        modules.lines().any(|module| module.trim() == place.driver),
        "without {}: {modules}",
        place.driver
    );
    shell.must("test ! -e /run/orlop/degraded").context("the state partition is not used")?;
    Ok(())
}
