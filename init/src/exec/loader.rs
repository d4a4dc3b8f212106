//! The boot loader's EFI variables (systemd's boot loader interface). They are mounted only while init reads them: systemd
//! mounts them itself.

use super::drivers::Drivers;
use super::steps::apply;
use crate::plan::disk::{is_kexec, parse_loader_partuuid};
use crate::plan::guid::Guid;
use crate::plan::mounts::{EFI_VARIABLES, firmware};
use nix::mount::{MntFlags, umount2};
use std::fs;
use std::path::Path;

/// Under which the kernel would ask for their file system's module.
pub const FILE_SYSTEM: &str = "fs-efivarfs";
/// PARTUUID of the ESP that was booted from; systemd's EFI stub sets it as well.
const ESP: &str = "LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// Only there if the tries of the booted entry are counted.
const COUNTED: &str = "LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// The loader's variables; none on a machine without EFI, and in a kernel that another kernel started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loader {
    /// PARTUUID of the ESP that the firmware booted from.
    pub esp: Option<Guid>,
    /// It counts the tries of the entry that was booted.
    pub counts_tries: bool,
}

/// True on a machine with EFI variables.
#[must_use]
pub fn is_efi() -> bool {
    Path::new(EFI_VARIABLES).exists()
}

/// Reads the variables.
pub fn read(drivers: &mut Drivers) -> Loader {
    let by_kernel = fs::read_to_string("/proc/sys/kernel/bootloader_type").is_ok_and(|kind| is_kexec(&kind));
    if !is_efi() || by_kernel {
        return Loader::default();
    }
    drivers.need(FILE_SYSTEM);
    if apply(&firmware()).is_err() {
        return Loader::default();
    }
    let variable = |name: &str| fs::read(Path::new(EFI_VARIABLES).join(name)).ok();
    let esp = variable(ESP).and_then(|bytes| parse_loader_partuuid(&bytes));
    let counts_tries = variable(COUNTED).is_some();
    let _ = umount2(EFI_VARIABLES, MntFlags::MNT_DETACH);
    Loader { esp, counts_tries }
}
