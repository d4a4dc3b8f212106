//! swapon(2).
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::libc;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The kernel takes a swap area into use, with the priority that it gives by itself.
///
/// # Errors
/// The kernel's answer: `EINVAL` without a header or with holes, `EBUSY` if it is in use.
pub fn on(path: &Path) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the path is NUL-terminated and the kernel only reads it.
    Errno::result(unsafe { libc::swapon(path.as_ptr(), 0) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_swap_area_is_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert!(on(&dir.path().join("none")).is_err());
        assert!(on(Path::new("a\0b")).is_err());
    }
}
