//! The guest's disks and the controllers that they are plugged into, as QEMU's arguments (pure).

use super::escape;
use std::path::{Path, PathBuf};

/// The controller of a disk of the guest, and what kind of drive it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bus {
    /// virtio, the fastest to appear.
    #[default]
    Virtio,
    /// The board's SATA controller (AHCI), which appears later.
    Sata,
    /// The same, a CD-ROM.
    SataCd,
    /// virtio SCSI.
    VirtioScsi,
    /// A CD-ROM at a virtio SCSI controller of its own.
    ScsiCd,
    /// NVMe.
    Nvme,
    /// NVMe with sectors of 4096 bytes.
    Nvme4k,
    /// The IDE controller of an older board (i440fx).
    Ide,
    /// The same, a CD-ROM.
    IdeCd,
    /// VMware's paravirtual SCSI.
    Pvscsi,
    /// LSI MegaRAID SAS 1078.
    MegaRaid,
    /// LSI SAS1068 (VMware's LSI Logic SAS).
    MptSas,
    /// LSI 53C895A.
    Lsi,
    /// A stick at USB 2.
    UsbEhci,
    /// A stick at USB 3.
    UsbXhci,
    /// A stick at USB 3 that speaks USB attached SCSI.
    Uas,
    /// A memory card.
    Sd,
}

/// A disk of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Image file; QEMU writes it, unless it is a CD-ROM.
    pub file: PathBuf,
    /// `raw` or `qcow2`.
    pub format: &'static str,
    /// Where it is plugged in.
    pub bus: Bus,
}

impl Bus {
    fn is_cd(self) -> bool {
        matches!(self, Bus::SataCd | Bus::ScsiCd | Bus::IdeCd)
    }

    /// What the n-th disk's own controller is called in QEMU, if the board has none.
    fn controller(self) -> Option<&'static str> {
        match self {
            Bus::Virtio | Bus::Sata | Bus::SataCd | Bus::Nvme | Bus::Nvme4k | Bus::Ide | Bus::IdeCd => None,
            Bus::VirtioScsi | Bus::ScsiCd => Some("virtio-scsi-pci"),
            Bus::Pvscsi => Some("pvscsi"),
            Bus::MegaRaid => Some("megasas"),
            Bus::MptSas => Some("mptsas1068"),
            Bus::Lsi => Some("lsi53c895a"),
            Bus::UsbEhci => Some("usb-ehci"),
            Bus::UsbXhci | Bus::Uas => Some("qemu-xhci"),
            Bus::Sd => Some("sdhci-pci"),
        }
    }

    /// The devices of the n-th disk behind its controller; the last one has the drive.
    fn devices(self, n: usize) -> Vec<String> {
        let scsi = |kind: &str, bus: &str| format!("scsi-{kind},bus={bus}{n}.0,drive=disk{n}");
        // Two at each cable.
        let (cable, unit) = (n / 2, n % 2);
        let one = match self {
            Bus::Virtio => format!("virtio-blk-pci,drive=disk{n}"),
            Bus::Sata => format!("ide-hd,bus=ide.{n},drive=disk{n}"),
            Bus::SataCd => format!("ide-cd,bus=ide.{n},drive=disk{n}"),
            Bus::Ide => format!("ide-hd,bus=ide.{cable},unit={unit},drive=disk{n}"),
            Bus::IdeCd => format!("ide-cd,bus=ide.{cable},unit={unit},drive=disk{n}"),
            Bus::Nvme => format!("nvme,serial=orlop{n},drive=disk{n}"),
            Bus::Nvme4k => {
                let sectors = "logical_block_size=4096,physical_block_size=4096";
                format!("nvme,serial=orlop{n},drive=disk{n},{sectors}")
            }
            Bus::ScsiCd => scsi("cd", "bus"),
            // QEMU gives the disk's WWN as its SAS address, and Linux shows no disk whose address is 0.
            Bus::MptSas => format!("{},wwn=0x5000c50000000{n:03x}", scsi("hd", "bus")),
            Bus::VirtioScsi | Bus::Pvscsi | Bus::MegaRaid | Bus::Lsi => scsi("hd", "bus"),
            Bus::UsbEhci | Bus::UsbXhci => format!("usb-storage,bus=bus{n}.0,drive=disk{n}"),
            Bus::Uas => return vec![format!("usb-uas,id=uas{n},bus=bus{n}.0"), scsi("hd", "uas")],
            Bus::Sd => format!("sd-card,drive=disk{n}"),
        };
        vec![one]
    }
}

/// Whether one of the disks needs the older board.
pub(super) fn on_older_board(disks: &[Disk]) -> bool {
    disks.iter().any(|disk| matches!(disk.bus, Bus::Ide | Bus::IdeCd))
}

/// The arguments of all disks, in the guest's order. `log`: of all writes to the first one.
pub(super) fn arguments(disks: &[Disk], log: Option<&Path>) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    for (n, disk) in disks.iter().enumerate() {
        let (file, format) = (escape(&disk.file), disk.format);
        let read_only = if disk.bus.is_cd() { ",readonly=on" } else { "" };
        all.push(match log.filter(|_| n == 0) {
            Some(log) => ("-blockdev", logged(&file, &escape(log))),
            None => {
                ("-drive", format!("if=none,id=disk{n},format={format},cache=unsafe{read_only},file={file}"))
            }
        });
        if let Some(controller) = disk.bus.controller() {
            all.push(("-device", format!("{controller},id=bus{n}")));
        }
        let mut devices = disk.bus.devices(n);
        // 0 is the kernel's that QEMU hands over itself. A firmware starts from no memory card.
        if let Some(last) = devices.last_mut().filter(|_| disk.bus != Bus::Sd) {
            last.push_str(&format!(",bootindex={}", n + 1));
        }
        all.extend(devices.into_iter().map(|device| ("-device", device)));
    }
    all
}

/// The first disk, raw, with a log of its writes. The guest's flushes are in the log; no file is synced for them.
fn logged(file: &str, log: &str) -> String {
    let part = |part: &str, file: &str| {
        format!("{part}.driver=file,{part}.filename={file},{part}.cache.no-flush=on")
    };
    format!("driver=blklogwrites,node-name=disk0,{},{}", part("file", file), part("log", log))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(buses: &[Bus]) -> Vec<String> {
        let disk = |bus: &Bus| Disk { file: "/d".into(), format: "raw", bus: *bus };
        let disks: Vec<Disk> = buses.iter().map(disk).collect();
        arguments(&disks, None)
            .into_iter()
            .filter(|(flag, _)| *flag == "-device")
            .map(|(_, value)| value)
            .collect()
    }

    #[test]
    fn disks_are_plugged_in_where_they_are_to_be() {
        assert_eq!(
            devices(&[Bus::Sata, Bus::Virtio]),
            ["ide-hd,bus=ide.0,drive=disk0,bootindex=1", "virtio-blk-pci,drive=disk1,bootindex=2"]
        );
        assert_eq!(
            devices(&[Bus::Pvscsi, Bus::ScsiCd]),
            [
                "pvscsi,id=bus0",
                "scsi-hd,bus=bus0.0,drive=disk0,bootindex=1",
                "virtio-scsi-pci,id=bus1",
                "scsi-cd,bus=bus1.0,drive=disk1,bootindex=2"
            ]
        );
        assert_eq!(
            devices(&[Bus::Uas]),
            ["qemu-xhci,id=bus0", "usb-uas,id=uas0,bus=bus0.0", "scsi-hd,bus=uas0.0,drive=disk0,bootindex=1"]
        );
        assert_eq!(devices(&[Bus::Sd]), ["sdhci-pci,id=bus0", "sd-card,drive=disk0"]);
        let with_address = "scsi-hd,bus=bus1.0,drive=disk1,wwn=0x5000c50000000001,bootindex=2";
        assert_eq!(devices(&[Bus::Sd, Bus::MptSas])[2..], ["mptsas1068,id=bus1", with_address]);
        let sectors =
            "nvme,serial=orlop0,drive=disk0,logical_block_size=4096,physical_block_size=4096,bootindex=1";
        assert_eq!(devices(&[Bus::Nvme4k]), [sectors]);
    }

    #[test]
    fn drives_of_the_older_board_share_its_cables() {
        let unit = |bus: usize, unit: usize, kind: &str, n: usize| {
            format!("ide-{kind},bus=ide.{bus},unit={unit},drive=disk{n},bootindex={}", n + 1)
        };
        let want = [unit(0, 0, "hd", 0), unit(0, 1, "hd", 1), unit(1, 0, "cd", 2)];
        assert_eq!(devices(&[Bus::Ide, Bus::Ide, Bus::IdeCd]), want);
        let disk = |bus| Disk { file: "/d,e".into(), format: "raw", bus };
        assert!(
            on_older_board(&[disk(Bus::Virtio), disk(Bus::IdeCd)]) && !on_older_board(&[disk(Bus::SataCd)])
        );
        let drives = arguments(&[disk(Bus::IdeCd)], None);
        assert_eq!(drives[0].1, "if=none,id=disk0,format=raw,cache=unsafe,readonly=on,file=/d,,e");
    }

    #[test]
    fn the_writes_of_the_first_disk_are_logged() {
        let disk = |file: &str| Disk { file: file.into(), format: "raw", bus: Bus::Virtio };
        let all = arguments(&[disk("/a,b"), disk("/c")], Some(Path::new("/log")));
        let drives: Vec<(&str, &str)> = all
            .iter()
            .filter(|(flag, _)| *flag != "-device")
            .map(|(flag, value)| (*flag, value.as_str()))
            .collect();
        let first = "driver=blklogwrites,node-name=disk0,file.driver=file,file.filename=/a,,b,file.cache.no-flush=on,\
                     log.driver=file,log.filename=/log,log.cache.no-flush=on";
        let second = "if=none,id=disk1,format=raw,cache=unsafe,file=/c";
        assert_eq!(drives, [("-blockdev", first), ("-drive", second)]);
        assert_eq!(all[1].1, "virtio-blk-pci,drive=disk0,bootindex=1");
    }
}
