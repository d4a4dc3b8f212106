//! Which files a platform takes (pure): a table of platforms, the architectures of their machines, the forms of a disk, its
//! sectors, and what each form needs of the host.

use crate::arch::Arch;
use clap::ValueEnum;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Where a disk is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Platform {
    /// Amazon EC2.
    Aws,
    /// Google Compute Engine.
    Gce,
    /// Microsoft Azure, machines of generation 2.
    Azure,
    /// OpenStack (Glance).
    Openstack,
    /// Oracle Cloud Infrastructure.
    Oracle,
    /// DigitalOcean.
    Digitalocean,
    /// Vultr.
    Vultr,
    /// Hetzner Cloud.
    Hetzner,
    /// VMware vSphere, ESXi, Workstation.
    Vmware,
    /// Hyper-V, machines of generation 2.
    Hyperv,
    /// Proxmox VE.
    Proxmox,
    /// QEMU by itself, libvirt.
    Qemu,
    /// A disk or a stick of a machine.
    Metal,
}

/// A file that holds a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskForm {
    /// Sector by sector.
    Raw,
    /// The same, compressed by gzip.
    Gzip,
    /// The same, compressed by zstd.
    Zstd,
    /// QEMU's format, version 3.
    Qcow2,
    /// Sector by sector with a footer of 512 bytes.
    FixedVhd,
    /// Hyper-V's newer format, with blocks that are there only when they have content.
    Vhdx,
    /// VMware's format for transport: compressed, written once.
    Vmdk,
    /// A virtual machine with that disk: descriptor, digests, disk, in a tar archive.
    Ova,
    /// `disk.raw` in a sparse tar archive of the old GNU format, compressed by gzip.
    GceTar,
}

/// Logical sectors of the drive that the disk is for. Firmware and kernel read a partition table in the drive's own sectors
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum DiskSectors {
    /// 512 bytes, and drives that show such sectors (512e).
    #[value(name = "512")]
    B512,
    /// 4096 bytes (4Kn).
    #[value(name = "4096")]
    B4096,
}

impl DiskSectors {
    /// Bytes of a sector.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            DiskSectors::B512 => 512,
            DiskSectors::B4096 => 4096,
        }
    }

    /// What stands after the platform's name in names of files and directories.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            DiskSectors::B512 => "",
            DiskSectors::B4096 => "-4096",
        }
    }
}

/// Programs by file and Debian package, as `host::tools` takes them.
type HostPrograms = &'static [(&'static str, &'static str)];

const QEMU_IMG: HostPrograms = &[("/usr/bin/qemu-img", "qemu-utils")];
const GZIP: HostPrograms = &[("/usr/bin/gzip", "gzip")];
const TAR: HostPrograms = &[("/usr/bin/tar", "tar")];
const TAR_GZIP: HostPrograms = &[("/usr/bin/tar", "tar"), ("/usr/bin/gzip", "gzip")];
const ZSTD: HostPrograms = &[("/usr/bin/zstd", "zstd")];
/// What puts a configuration on the ESP.
pub(super) const ESP_PROGRAMS: HostPrograms = &[("/usr/bin/mcopy", "mtools"), ("/usr/bin/mmd", "mtools")];

impl Platform {
    /// Name in paths and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Platform::Aws => "aws",
            Platform::Gce => "gce",
            Platform::Azure => "azure",
            Platform::Openstack => "openstack",
            Platform::Oracle => "oracle",
            Platform::Digitalocean => "digitalocean",
            Platform::Vultr => "vultr",
            Platform::Hetzner => "hetzner",
            Platform::Vmware => "vmware",
            Platform::Hyperv => "hyperv",
            Platform::Proxmox => "proxmox",
            Platform::Qemu => "qemu",
            Platform::Metal => "metal",
        }
    }

    /// The files that are written for it, in the order in which they are made.
    #[must_use]
    pub fn forms(self) -> &'static [DiskForm] {
        match self {
            Platform::Aws | Platform::Vultr => &[DiskForm::Raw],
            Platform::Gce => &[DiskForm::GceTar],
            Platform::Azure => &[DiskForm::FixedVhd],
            Platform::Openstack | Platform::Oracle | Platform::Proxmox | Platform::Qemu => &[DiskForm::Qcow2],
            Platform::Digitalocean => &[DiskForm::Gzip],
            Platform::Hetzner | Platform::Metal => &[DiskForm::Zstd],
            // The archive holds the disk that was made before it.
            Platform::Vmware => &[DiskForm::Vmdk, DiskForm::Ova],
            Platform::Hyperv => &[DiskForm::Vhdx],
        }
    }

    /// Why it takes no disk of this architecture with such sectors; `None`: it takes one.
    #[must_use]
    pub fn refusal(self, arch: Arch, sectors: DiskSectors) -> Option<String> {
        self.refusal_of_arch(arch).or_else(|| self.refusal_of_sectors(sectors))
    }

    /// The same for the architecture alone. Every platform has machines for x86-64.
    fn refusal_of_arch(self, arch: Arch) -> Option<String> {
        if arch == Arch::Amd64 {
            return None;
        }
        let why = match self {
            Platform::Aws
            | Platform::Gce
            | Platform::Azure
            | Platform::Openstack
            | Platform::Oracle
            | Platform::Hetzner
            | Platform::Hyperv
            | Platform::Qemu
            | Platform::Metal => return None,
            Platform::Digitalocean | Platform::Vultr | Platform::Proxmox => {
                "its machines are x86-64 machines"
            }
            // Debian's kernel for arm64 has no driver for PVSCSI, and the descriptor asks for no other guest.
            Platform::Vmware => "its archive describes an x86-64 machine with a PVSCSI controller",
        };
        Some(format!("{} takes no disk for {}: {why}", self.name(), arch.name()))
    }

    /// The same for sectors alone.
    fn refusal_of_sectors(self, sectors: DiskSectors) -> Option<String> {
        if sectors == DiskSectors::B512 {
            return None;
        }
        let why = match self {
            Platform::Metal => return None,
            Platform::Hyperv | Platform::Vmware => {
                "the format of its disks is written with sectors of 512 bytes"
            }
            Platform::Openstack | Platform::Proxmox | Platform::Qemu => {
                "QEMU gives a machine's disk sectors of 512 bytes there"
            }
            Platform::Aws
            | Platform::Gce
            | Platform::Azure
            | Platform::Oracle
            | Platform::Digitalocean
            | Platform::Vultr
            | Platform::Hetzner => "its machines start from disks with sectors of 512 bytes",
        };
        let (name, bytes) = (self.name(), sectors.bytes());
        Some(format!("{name} takes no disk with sectors of {bytes} bytes: {why}; only metal has such drives"))
    }

    /// The disk's size is a multiple of this, bytes.
    #[must_use]
    pub fn granule(self) -> u64 {
        match self {
            Platform::Gce => GIB,
            // Azure refuses other sizes; the others round up by themselves, and then the backup table is not at the end.
            _ => MIB,
        }
    }
}

impl DiskForm {
    /// What the file's name ends with.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            DiskForm::Raw => "raw",
            DiskForm::Gzip => "raw.gz",
            DiskForm::Zstd => "raw.zst",
            DiskForm::Qcow2 => "qcow2",
            DiskForm::FixedVhd => "vhd",
            DiskForm::Vhdx => "vhdx",
            DiskForm::Vmdk => "vmdk",
            DiskForm::Ova => "ova",
            DiskForm::GceTar => "tar.gz",
        }
    }

    /// Name of its file.
    #[must_use]
    pub fn file_name(self, platform: Platform, sectors: DiskSectors) -> String {
        format!("orlop-{}{}.{}", platform.name(), sectors.suffix(), self.suffix())
    }

    /// What the host needs to write it.
    #[must_use]
    pub fn programs(self) -> HostPrograms {
        match self {
            DiskForm::Raw | DiskForm::FixedVhd => &[],
            DiskForm::Gzip => GZIP,
            DiskForm::Zstd => ZSTD,
            DiskForm::Qcow2 | DiskForm::Vhdx | DiskForm::Vmdk => QEMU_IMG,
            DiskForm::Ova => TAR,
            DiskForm::GceTar => TAR_GZIP,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_platform_has_its_form() {
        let table = [
            ("aws", "orlop-aws.raw"),
            ("gce", "orlop-gce.tar.gz"),
            ("azure", "orlop-azure.vhd"),
            ("openstack", "orlop-openstack.qcow2"),
            ("oracle", "orlop-oracle.qcow2"),
            ("digitalocean", "orlop-digitalocean.raw.gz"),
            ("vultr", "orlop-vultr.raw"),
            ("hetzner", "orlop-hetzner.raw.zst"),
            ("vmware", "orlop-vmware.vmdk orlop-vmware.ova"),
            ("hyperv", "orlop-hyperv.vhdx"),
            ("proxmox", "orlop-proxmox.qcow2"),
            ("qemu", "orlop-qemu.qcow2"),
            ("metal", "orlop-metal.raw.zst"),
        ];
        let platforms = Platform::value_variants();
        assert_eq!(platforms.len(), table.len());
        for (platform, (name, files)) in platforms.iter().zip(table) {
            // The command line's name is the one in paths.
            let value = platform.to_possible_value().expect("a value");
            assert_eq!((value.get_name(), platform.name()), (name, name));
            let name = |form: &DiskForm| form.file_name(*platform, DiskSectors::B512);
            let made: Vec<String> = platform.forms().iter().map(name).collect();
            assert_eq!(made.join(" "), files);
        }
        let large = DiskForm::Zstd.file_name(Platform::Metal, DiskSectors::B4096);
        assert_eq!(large, "orlop-metal-4096.raw.zst");
    }

    #[test]
    fn drives_with_large_sectors_are_in_machines_of_metal_alone() {
        for sectors in DiskSectors::value_variants() {
            let value = sectors.to_possible_value().expect("a value");
            assert_eq!(value.get_name(), sectors.bytes().to_string());
        }
        for platform in Platform::value_variants() {
            assert_eq!(platform.refusal(Arch::Amd64, DiskSectors::B512), None);
            match platform.refusal(Arch::Amd64, DiskSectors::B4096) {
                None => assert_eq!(*platform, Platform::Metal),
                Some(said) => {
                    let start = format!("{} takes no disk with sectors of 4096 bytes: ", platform.name());
                    assert!(*platform != Platform::Metal && said.starts_with(&start), "{said}");
                }
            }
        }
    }

    #[test]
    fn platforms_without_machines_for_arm64_are_refused_by_name() {
        let refused = |platform: &&Platform| platform.refusal(Arch::Arm64, DiskSectors::B512).is_some();
        let names: Vec<&str> =
            Platform::value_variants().iter().filter(refused).map(|platform| platform.name()).collect();
        assert_eq!(names, ["digitalocean", "vultr", "vmware", "proxmox"]);
        let said = Platform::Vultr.refusal(Arch::Arm64, DiskSectors::B512).expect("refused");
        assert!(said.starts_with("vultr takes no disk for arm64: "), "{said}");
        // The architecture is said first, and the rule of sectors is the same for both.
        assert_eq!(Platform::Vultr.refusal(Arch::Arm64, DiskSectors::B4096), Some(said));
        assert_eq!(Platform::Metal.refusal(Arch::Arm64, DiskSectors::B4096), None);
        assert_eq!(Platform::Qemu.refusal(Arch::Arm64, DiskSectors::B512), None);
        let of_sectors = Arch::ALL.map(|arch| Platform::Aws.refusal(arch, DiskSectors::B4096));
        assert!(of_sectors[0].is_some() && of_sectors[0] == of_sectors[1], "{of_sectors:?}");
    }

    #[test]
    fn the_archive_of_a_machine_comes_after_its_disk() {
        assert_eq!(Platform::Vmware.forms(), [DiskForm::Vmdk, DiskForm::Ova]);
        assert_eq!((Platform::Gce.granule(), Platform::Azure.granule()), (1 << 30, 1 << 20));
    }
}
