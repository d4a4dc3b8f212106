//! Extended attributes of a file itself (not of what a link points to): file capabilities, overlay marks.
#![allow(unsafe_code)]

use nix::errno::Errno;
use nix::libc;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Linux's limit for the list of names and for one value, bytes.
const SIZE_MAX: usize = 65_536;

/// Copies every extended attribute from one file to another.
///
/// # Errors
/// The first that could not be read or set. A file system without attributes has none to copy.
pub fn copy(from: &Path, to: &Path) -> Result<(), Errno> {
    let (from, to) = (path(from)?, path(to)?);
    let mut buffer = vec![0u8; SIZE_MAX];
    // SAFETY: the path is NUL-terminated and the kernel writes at most `len` bytes into the buffer.
    let listed = unsafe { libc::llistxattr(from.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    let names = match Errno::result(listed) {
        Err(Errno::EOPNOTSUPP) => return Ok(()),
        other => buffer[..usize::try_from(other?).unwrap_or(0)].to_vec(),
    };
    for name in names.split_inclusive(|b| *b == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        // SAFETY: both strings are NUL-terminated and the kernel writes at most `len` bytes into the buffer.
        let got = unsafe {
            libc::lgetxattr(from.as_ptr(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
        };
        let length = usize::try_from(Errno::result(got)?).unwrap_or(0);
        // SAFETY: both strings are NUL-terminated and the kernel reads `length` initialised bytes.
        let set = unsafe { libc::lsetxattr(to.as_ptr(), name.as_ptr(), buffer.as_ptr().cast(), length, 0) };
        Errno::result(set)?;
    }
    Ok(())
}

fn path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_travel() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "").and_then(|()| std::fs::write(&b, "")).expect("fixture");
        let set = |p: &Path, value: &[u8]| {
            let p = path(p).expect("path");
            // SAFETY: NUL-terminated strings and a slice with its length.
            Errno::result(unsafe {
                libc::lsetxattr(p.as_ptr(), c"user.orlop".as_ptr(), value.as_ptr().cast(), value.len(), 0)
            })
        };
        if set(&a, b"value") == Err(Errno::EOPNOTSUPP) {
            return;
        }
        copy(&a, &b).expect("copied");
        let p = path(&b).expect("path");
        let mut buffer = [0u8; 16];
        // SAFETY: NUL-terminated strings and a buffer with its length.
        let n =
            unsafe { libc::lgetxattr(p.as_ptr(), c"user.orlop".as_ptr(), buffer.as_mut_ptr().cast(), 16) };
        assert_eq!(&buffer[..usize::try_from(n).expect("length")], b"value");
    }
}
