//! Signs what is on a built disk: every EFI program of its ESP.

use super::keys::EnrolmentFile;
use super::sign::BootSigner;
use super::volume::{put_enrolment, sign_programs};
use crate::build::rewrite_esp;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::Path;

/// Gives a program a signature.
pub type SignProgram<'a> = dyn FnMut(&[u8]) -> Result<Vec<u8>> + 'a;

/// Signs the boot loader and the UKI of a disk, and puts the enrolment on its ESP. `disk` must be readable and writable.
///
/// # Errors
/// The disk has no ESP with a boot loader and a UKI, a program cannot be signed, or the disk cannot be read or written.
pub fn sign_disk(disk: &File, sign: &mut SignProgram<'_>, enrolment: &[EnrolmentFile]) -> Result<()> {
    rewrite_esp(disk, |mut volume| {
        let signed = sign_programs(&mut volume, sign)?;
        ensure!(signed >= 2, "the ESP has {signed} EFI programs, not a boot loader and a UKI");
        put_enrolment(&mut volume, enrolment)?;
        Ok(volume)
    })
}

/// Signs a disk and the file of its UKI, which has the same bytes on both.
///
/// # Errors
/// The same, and a file that cannot be read or written.
pub fn sign_build(signer: &BootSigner, disk: &File, uki: &Path, enrolment: &[EnrolmentFile]) -> Result<()> {
    let shown = uki.display();
    let unsigned = fs::read(uki).with_context(|| format!("reading {shown}"))?;
    let signed = signer.sign(&unsigned)?;
    let mut on_disk = 0;
    let mut sign = |program: &[u8]| {
        if program == unsigned {
            on_disk += 1;
            Ok(signed.clone())
        } else {
            signer.sign(program)
        }
    };
    sign_disk(disk, &mut sign, enrolment)?;
    ensure!(on_disk == 1, "the ESP has the UKI {on_disk} times, not once");
    // The file may have other names.
    fs::remove_file(uki).with_context(|| format!("removing {shown}"))?;
    fs::write(uki, signed).with_context(|| format!("writing {shown}"))
}
