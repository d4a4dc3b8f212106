//! The boot loader's EFI variables (systemd's boot loader interface), and the firmware's for Secure Boot. They are mounted only while
//! init reads them: systemd mounts them itself.

use super::drivers::Drivers;
use super::sources::read_at_most;
use super::steps::apply;
use crate::plan::disk::{is_kexec, parse_loader_partuuid};
use crate::plan::guid::Guid;
use crate::plan::mounts::{EFI_VARIABLES, firmware, writable_firmware};
use crate::sys::inode;
use nix::mount::{MntFlags, umount2};
use orlop_config::boot_trust::{EFI_VARIABLE_BYTES_MAX, FirmwareTrust};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Under which the kernel would ask for their file system's module.
pub const FILE_SYSTEM: &str = "fs-efivarfs";
/// PARTUUID of the ESP that was booted from; systemd's EFI stub sets it as well.
const ESP: &str = "LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// Only there if the tries of the booted entry are counted.
const COUNTED: &str = "LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// By these the loader chooses another entry than the first of its order.
const CHOICES: [&str; 4] = [
    "LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f",
    "LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f",
    "LoaderEntryPreferred-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f",
    "LoaderEntrySysFail-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f",
];

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

/// Reads the variables, and what the firmware trusts; that is none where its variables are not read, and in a firmware without
/// Secure Boot.
pub fn read(drivers: &mut Drivers) -> (Loader, Option<FirmwareTrust>) {
    let by_kernel = fs::read_to_string("/proc/sys/kernel/bootloader_type").is_ok_and(|kind| is_kexec(&kind));
    if !is_efi() || by_kernel {
        return (Loader::default(), None);
    }
    drivers.need(FILE_SYSTEM);
    if apply(&firmware()).is_err() {
        return (Loader::default(), None);
    }
    let variable =
        |name: &str| read_at_most(&Path::new(EFI_VARIABLES).join(name), EFI_VARIABLE_BYTES_MAX).ok();
    let trust = FirmwareTrust::read(variable);
    let esp = variable(ESP).and_then(|bytes| parse_loader_partuuid(&bytes));
    let counts_tries = variable(COUNTED).is_some();
    let _ = umount2(EFI_VARIABLES, MntFlags::MNT_DETACH);
    (Loader { esp, counts_tries }, trust)
}

/// Deletes the variables that choose an entry: they are of another installation, or wrong. Returns the names of those that
/// were there.
///
/// # Errors
/// One of them cannot be deleted.
pub fn clear_choices(drivers: &mut Drivers) -> io::Result<Vec<&'static str>> {
    if !is_efi() {
        return Ok(Vec::new());
    }
    drivers.need(FILE_SYSTEM);
    apply(&writable_firmware())?;
    let cleared = remove_choices(Path::new(EFI_VARIABLES));
    let _ = umount2(EFI_VARIABLES, MntFlags::MNT_DETACH);
    cleared
}

fn remove_choices(variables: &Path) -> io::Result<Vec<&'static str>> {
    let mut cleared = Vec::new();
    for name in CHOICES {
        let path = variables.join(name);
        match File::open(&path) {
            Ok(file) => {
                // Where there is no such flag, the removal says whether it works.
                let _ = inode::clear_immutable(&file);
                fs::remove_file(&path)?;
                cleared.push(name.split('-').next().unwrap_or(name));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(cleared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_choices_are_deleted() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for name in [CHOICES[0], CHOICES[1], ESP, "BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c"] {
            fs::write(dir.path().join(name), b"x").expect("fixture");
        }
        let cleared = remove_choices(dir.path()).expect("deleted");
        assert_eq!(cleared, ["LoaderEntryDefault", "LoaderEntryOneShot"]);
        assert_eq!(fs::read_dir(dir.path()).expect("directory").count(), 2);
        assert_eq!(remove_choices(dir.path()).expect("nothing"), Vec::<&str>::new());
    }
}
