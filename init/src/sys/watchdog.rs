//! The timeout of a hardware watchdog (linux/watchdog.h).
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::libc;
use std::fs::File;
use std::os::fd::AsRawFd;

/// Sets the time without a beat after which it resets the machine, seconds. Out: the time that the driver has taken.
///
/// # Errors
/// The kernel's answer: `EINVAL` if the time is out of its range, `EOPNOTSUPP` if it cannot be set.
pub fn set_timeout(device: &File, seconds: u32) -> Result<u32, Errno> {
    let mut timeout = libc::c_int::try_from(seconds).map_err(|_| Errno::EINVAL)?;
    // WDIOC_SETTIMEOUT
    let code = nix::request_code_readwrite!(b'W', 6, size_of::<libc::c_int>());
    // SAFETY: the kernel reads and writes an int behind the pointer, which lives until the call returns.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), code, &raw mut timeout) })?;
    u32::try_from(timeout).map_err(|_| Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_refuse() {
        let file = tempfile::tempfile().expect("temporary file");
        assert_eq!(set_timeout(&file, 180), Err(Errno::ENOTTY));
        assert_eq!(set_timeout(&file, u32::MAX), Err(Errno::EINVAL));
    }
}
