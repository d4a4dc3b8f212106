//! What differs between the architectures that an image is built for, as data: names, paths, firmware, emulator.
//!
//! In: nothing. Out: one table for each architecture. Invariant: but for tests no other file of this crate names an
//! architecture's paths; text files of the image do by the marks that [`Arch::fill`] replaces. init has its own table, of partition
//! types (`orlop_init::plan::guid`). See docs/internals/arm64.md.

use object::elf::{EM_AARCH64, EM_X86_64};
use orlop_init::plan::guid::{ROOT_TYPES_ARM64, ROOT_TYPES_X86_64, RootTypes};

/// An architecture, by the name that Debian, OCI and Go have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Arch {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

/// Facts of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchFacts {
    /// Debian's, OCI's and Go's name; on the command line and in text files too.
    pub name: &'static str,
    /// Rust's target.
    pub rust_target: &'static str,
    /// systemd's and mkosi's name.
    pub systemd: &'static str,
    /// The kernel's name, as `uname -m` says it and QEMU calls its programs.
    pub machine: &'static str,
    /// `e_machine` of its ELF files.
    pub elf_machine: u16,
    /// Directory of the kernel's own modules: `kernel/arch/<this>/crypto`.
    pub kernel_dir: &'static str,
    /// Debian's kernel.
    pub kernel_package: &'static str,
    /// Packages with microcode, which the kernel takes from the initrd's beginning. Empty: the machine's firmware alone has
    /// some.
    pub microcode_packages: &'static [&'static str],
    /// Machines may start a disk by BIOS, so the disk says that it needs UEFI (`format::mbr`).
    pub has_bios: bool,
    /// Directory of libraries below `usr/lib`.
    pub multiarch: &'static str,
    /// Suffix of EFI programs: `systemd-boot<this>.efi`, `linux<this>.efi.stub`.
    pub efi: &'static str,
    /// What a firmware starts from a disk without a boot entry.
    pub removable_loader: &'static str,
    /// Partition types of a slot.
    pub root_types: RootTypes,
    /// The first serial port, as the kernel's `console=` has it.
    pub console: &'static str,
    /// Device of the debug shell of the test profile, the second line to the host.
    pub shell_device: &'static str,
    /// The image's lock below the checkout.
    pub lock: &'static str,
    /// Whether systemd's libraries are bound to themselves at build (`format::bind` knows this architecture).
    pub binds_ahead: bool,
    /// The C library for static programs: file of the host and package, where this is the host's architecture.
    pub libc: (&'static str, &'static str),
    /// Program of the package `qemu-user` that runs programs of this architecture on another one.
    pub user_emulator: &'static str,
    /// C compiler for this architecture on a host of another one.
    pub cross_compiler: &'static str,
    /// What the host needs to compile for this architecture, on a host of another one: files and packages.
    pub cross_tools: &'static [(&'static str, &'static str)],
    /// The emulator of machines.
    pub emulator: EmulatorFacts,
}

/// Facts of QEMU's machine of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatorFacts {
    /// QEMU's program.
    pub program: &'static str,
    /// Value of `-machine`.
    pub board: &'static str,
    /// Value of `-cpu` where QEMU translates.
    pub cpu: &'static str,
    /// The same for a guest that is to see threads of a core.
    pub cpu_with_threads: &'static str,
    /// The firmware's code and the template of its variables.
    pub firmware: (&'static str, &'static str),
    /// What people call this firmware.
    pub firmware_name: &'static str,
    /// The board has a second serial port; else the second line is a virtio console.
    pub second_serial: bool,
    /// Type of the screen's adapter.
    pub screen: &'static str,
    /// What the host needs to boot: files and packages.
    pub host_tools: &'static [(&'static str, &'static str)],
}

const OVMF_CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const AAVMF_CODE: &str = "/usr/share/AAVMF/AAVMF_CODE.fd";
const QEMU_IMG: (&str, &str) = ("/usr/bin/qemu-img", "qemu-utils");

const AMD64: ArchFacts = ArchFacts {
    name: "amd64",
    rust_target: "x86_64-unknown-linux-gnu",
    systemd: "x86-64",
    machine: "x86_64",
    elf_machine: EM_X86_64,
    kernel_dir: "x86",
    kernel_package: "linux-image-amd64",
    microcode_packages: &["amd64-microcode", "intel-microcode"],
    has_bios: true,
    multiarch: "x86_64-linux-gnu",
    efi: "x64",
    removable_loader: "EFI/BOOT/BOOTX64.EFI",
    root_types: ROOT_TYPES_X86_64,
    console: "ttyS0,115200",
    shell_device: "ttyS1",
    lock: "image/image.lock",
    binds_ahead: true,
    libc: ("/usr/lib/x86_64-linux-gnu/libc.a", "libc6-dev"),
    user_emulator: "usr/bin/qemu-x86_64",
    cross_compiler: "x86_64-linux-gnu-gcc",
    cross_tools: &[
        ("/usr/bin/x86_64-linux-gnu-gcc", "gcc-x86-64-linux-gnu"),
        ("/usr/x86_64-linux-gnu/lib/libc.a", "libc6-dev-amd64-cross"),
    ],
    emulator: EmulatorFacts {
        program: "qemu-system-x86_64",
        // Without the HPET: the guest does not need this timer, which is the most expensive one without KVM.
        board: "q35,hpet=off",
        // Translated, an instruction that repeats itself byte by byte takes as long for each byte as another one for
        // eight: a kernel that sees fast strings (ERMS, FSRM) fills a page eight times slower.
        cpu: "max,-erms,-fsrm",
        // The translated `max` shows each thread as a core.
        cpu_with_threads: "Skylake-Server-v1,-erms",
        firmware: (OVMF_CODE, "/usr/share/OVMF/OVMF_VARS_4M.fd"),
        firmware_name: "OVMF",
        second_serial: true,
        screen: "VGA",
        host_tools: &[("/usr/bin/qemu-system-x86_64", "qemu-system-x86"), QEMU_IMG, (OVMF_CODE, "ovmf")],
    },
};

const ARM64: ArchFacts = ArchFacts {
    name: "arm64",
    rust_target: "aarch64-unknown-linux-gnu",
    systemd: "arm64",
    machine: "aarch64",
    elf_machine: EM_AARCH64,
    kernel_dir: "arm64",
    kernel_package: "linux-image-arm64",
    microcode_packages: &[],
    has_bios: false,
    multiarch: "aarch64-linux-gnu",
    efi: "aa64",
    removable_loader: "EFI/BOOT/BOOTAA64.EFI",
    root_types: ROOT_TYPES_ARM64,
    console: "ttyAMA0,115200",
    shell_device: "hvc0",
    lock: "image/image-arm64.lock",
    binds_ahead: false,
    libc: ("/usr/lib/aarch64-linux-gnu/libc.a", "libc6-dev"),
    user_emulator: "usr/bin/qemu-aarch64",
    cross_compiler: "aarch64-linux-gnu-gcc",
    cross_tools: &[
        ("/usr/bin/aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
        ("/usr/aarch64-linux-gnu/lib/libc.a", "libc6-dev-arm64-cross"),
    ],
    emulator: EmulatorFacts {
        program: "qemu-system-aarch64",
        board: "virt,gic-version=3",
        // The architecture's own signature of pointers is the most expensive thing to translate.
        cpu: "max,pauth-impdef=on",
        cpu_with_threads: "max,pauth-impdef=on",
        firmware: (AAVMF_CODE, "/usr/share/AAVMF/AAVMF_VARS.fd"),
        firmware_name: "AAVMF",
        second_serial: false,
        screen: "virtio-gpu-pci",
        host_tools: &[
            ("/usr/bin/qemu-system-aarch64", "qemu-system-arm"),
            QEMU_IMG,
            (AAVMF_CODE, "qemu-efi-aarch64"),
        ],
    },
};

impl ArchFacts {
    /// Packages of the image that are for this architecture alone. `mkosi/base/mkosi.conf` has the others.
    pub fn packages(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.kernel_package).chain(self.microcode_packages.iter().copied())
    }
}

impl Arch {
    /// All of them.
    pub const ALL: [Arch; 2] = [Arch::Amd64, Arch::Arm64];

    /// That of the machine that this program runs on.
    pub const HOST: Arch = if cfg!(target_arch = "aarch64") { Arch::Arm64 } else { Arch::Amd64 };

    /// Its facts.
    #[must_use]
    pub const fn facts(self) -> &'static ArchFacts {
        match self {
            Arch::Amd64 => &AMD64,
            Arch::Arm64 => &ARM64,
        }
    }

    /// Debian's, OCI's and Go's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// A text of the image for this architecture: the lines that begin with an architecture's name and a colon are those
    /// of that one alone, and marks are replaced (`@multiarch@`, `@shell-device@`). Every line stays at its number.
    #[must_use]
    pub fn fill(self, text: &str) -> String {
        let facts = self.facts();
        let mut out = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let owner = Arch::ALL.into_iter().find_map(|owner| {
                let own = line.strip_prefix(owner.name())?.strip_prefix(": ")?;
                Some((owner, own))
            });
            match owner {
                Some((owner, own)) if owner == self => out.push_str(own),
                Some(_) => out.push('\n'),
                None => out.push_str(line),
            }
        }
        out.replace("@multiarch@", facts.multiarch).replace("@shell-device@", facts.shell_device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use orlop_init::plan::guid::{TYPE_ROOT, TYPE_ROOT_VERITY};

    /// What images and machines were before there was a table.
    #[test]
    fn x86_64_is_as_it_always_was() {
        let facts = Arch::Amd64.facts();
        for (is, was) in [
            (facts.rust_target, "x86_64-unknown-linux-gnu"),
            (facts.systemd, "x86-64"),
            (facts.kernel_package, "linux-image-amd64"),
            (facts.multiarch, "x86_64-linux-gnu"),
            (facts.console, "ttyS0,115200"),
            (facts.shell_device, "ttyS1"),
            (facts.lock, "image/image.lock"),
            (facts.emulator.program, "qemu-system-x86_64"),
            (facts.emulator.board, "q35,hpet=off"),
            (facts.emulator.cpu, "max,-erms,-fsrm"),
            (facts.emulator.firmware.0, "/usr/share/OVMF/OVMF_CODE_4M.fd"),
            (facts.emulator.firmware.1, "/usr/share/OVMF/OVMF_VARS_4M.fd"),
        ] {
            assert_eq!(is, was);
        }
        assert_eq!(facts.root_types.root.to_string(), "4f68bce3-e8cd-4db1-96e7-fbcaf984b709");
        assert_eq!(facts.root_types.verity.to_string(), "2c7357ed-ebd2-46d9-aec1-23d437ec2bf5");
    }

    #[test]
    fn every_value_is_its_architectures_own() {
        let [one, other] = Arch::ALL.map(Arch::facts);
        for (a, b) in [
            (one.name, other.name),
            (one.rust_target, other.rust_target),
            (one.kernel_dir, other.kernel_dir),
            (one.multiarch, other.multiarch),
            (one.removable_loader, other.removable_loader),
            (one.lock, other.lock),
            (one.emulator.program, other.emulator.program),
        ] {
            assert_ne!(a, b);
        }
        for arch in Arch::ALL {
            let facts = arch.facts();
            assert_eq!(Arch::from_str(facts.name, false), Ok(arch), "the command line's name");
            assert!(
                facts.rust_target.starts_with(facts.machine) && facts.multiarch.starts_with(facts.machine)
            );
            assert_eq!(facts.emulator.program, format!("qemu-system-{}", facts.machine));
            let loader = format!("EFI/BOOT/BOOT{}.EFI", facts.efi.to_uppercase());
            assert_eq!(facts.removable_loader, loader);
        }
    }

    #[test]
    fn what_x86_64_alone_has_is_in_no_other_image() {
        let [amd64, arm64] = [Arch::Amd64, Arch::Arm64].map(Arch::facts);
        let of_amd64: Vec<&str> = amd64.packages().collect();
        assert_eq!(of_amd64, ["linux-image-amd64", "amd64-microcode", "intel-microcode"]);
        let of_arm64: Vec<&str> = arm64.packages().collect();
        assert_eq!(of_arm64, ["linux-image-arm64"]);
        assert!(amd64.has_bios && !arm64.has_bios);
    }

    #[test]
    fn init_of_this_machine_looks_for_its_own_partitions() {
        let own = Arch::HOST.facts().root_types;
        assert_eq!((own.root, own.verity), (TYPE_ROOT, TYPE_ROOT_VERITY));
    }

    #[test]
    fn a_text_is_filled_and_keeps_its_lines() {
        let text = "# both\namd64: a\narm64: b\nusr/lib/@multiarch@/x\narm64:c\nTTYPath=/dev/@shell-device@";
        let amd64 = "# both\na\n\nusr/lib/x86_64-linux-gnu/x\narm64:c\nTTYPath=/dev/ttyS1";
        let arm64 = "# both\n\nb\nusr/lib/aarch64-linux-gnu/x\narm64:c\nTTYPath=/dev/hvc0";
        assert_eq!((Arch::Amd64.fill(text), Arch::Arm64.fill(text)), (amd64.to_owned(), arm64.to_owned()));
        assert_eq!(Arch::Arm64.fill("amd64: last"), "\n");
        assert_eq!(Arch::Arm64.fill(""), "");
    }
}
