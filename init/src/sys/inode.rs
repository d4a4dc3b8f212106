//! Flags of files: efivarfs protects most variables by the flag "immutable".
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::libc;
use std::fs::File;
use std::os::fd::AsRawFd;

/// `FS_IMMUTABLE_FL` of linux/fs.h.
const IMMUTABLE: libc::c_int = 0x10;

/// Takes the flag away, so that the file can be removed.
///
/// # Errors
/// The kernel's answer.
pub fn clear_immutable(file: &File) -> Result<(), Errno> {
    let mut flags: libc::c_int = 0;
    // FS_IOC_GETFLAGS and FS_IOC_SETFLAGS are declared with a long, and are about an int.
    let get = nix::request_code_read!(b'f', 1, size_of::<libc::c_long>());
    let set = nix::request_code_write!(b'f', 2, size_of::<libc::c_long>());
    // SAFETY: the kernel writes an int behind the pointer, which lives until the call returns.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), get, &raw mut flags) })?;
    if flags & IMMUTABLE == 0 {
        return Ok(());
    }
    flags &= !IMMUTABLE;
    // SAFETY: the kernel reads an int behind the pointer, which lives until the call returns.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), set, &raw const flags) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_the_flag_stays_as_it_is() {
        let file = tempfile::tempfile().expect("temporary file");
        // tmpfs has flags since Linux 6.0.
        assert!(matches!(clear_immutable(&file), Ok(()) | Err(Errno::ENOTTY)));
    }
}
