//! Which system calls change a file system, and what of it.
//!
//! In: a call that waits. Out: its name and the path of what it would change; nothing if it is no file's.

use std::fs;
use std::io::IoSliceMut;
use std::path::{Path, PathBuf};

use nix::libc::{self, c_long};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::seccomp::Notification;

/// Where a call says what it changes.
#[derive(Clone, Copy)]
enum Object {
    /// An open file, by the number of the argument.
    File(usize),
    /// A path from a directory: numbers of the arguments.
    At(usize, usize),
    /// A path.
    Path(usize),
    /// A path from a directory, if the flags ask for writing.
    Opened,
}

struct SyscallEntry {
    number: c_long,
    name: &'static str,
    object: Object,
}

const fn known(number: c_long, name: &'static str, object: Object) -> SyscallEntry {
    SyscallEntry { number, name, object }
}

/// The C library's ways on this architecture; older calls below.
const KNOWN: &[SyscallEntry] = &[
    known(libc::SYS_openat, "openat", Object::Opened),
    known(libc::SYS_write, "write", Object::File(0)),
    known(libc::SYS_writev, "writev", Object::File(0)),
    known(libc::SYS_pwrite64, "pwrite", Object::File(0)),
    known(libc::SYS_copy_file_range, "copy_file_range", Object::File(2)),
    known(libc::SYS_sendfile, "sendfile", Object::File(0)),
    known(libc::SYS_fsync, "fsync", Object::File(0)),
    known(libc::SYS_fdatasync, "fdatasync", Object::File(0)),
    known(libc::SYS_ftruncate, "ftruncate", Object::File(0)),
    known(libc::SYS_fallocate, "fallocate", Object::File(0)),
    known(libc::SYS_fchmod, "chmod", Object::File(0)),
    known(libc::SYS_fchmodat, "chmod", Object::At(0, 1)),
    known(libc::SYS_fchown, "chown", Object::File(0)),
    known(libc::SYS_fchownat, "chown", Object::At(0, 1)),
    known(libc::SYS_mkdirat, "mkdir", Object::At(0, 1)),
    known(libc::SYS_renameat, "rename", Object::At(2, 3)),
    known(libc::SYS_renameat2, "rename", Object::At(2, 3)),
    known(libc::SYS_unlinkat, "unlink", Object::At(0, 1)),
    known(libc::SYS_symlinkat, "symlink", Object::At(1, 2)),
    known(libc::SYS_linkat, "link", Object::At(2, 3)),
    known(libc::SYS_mount, "mount", Object::Path(1)),
    known(libc::SYS_umount2, "umount", Object::Path(0)),
    #[cfg(target_arch = "x86_64")]
    known(libc::SYS_chmod, "chmod", Object::Path(0)),
    #[cfg(target_arch = "x86_64")]
    known(libc::SYS_chown, "chown", Object::Path(0)),
    #[cfg(target_arch = "x86_64")]
    known(libc::SYS_lchown, "chown", Object::Path(0)),
    #[cfg(target_arch = "x86_64")]
    known(libc::SYS_mkdir, "mkdir", Object::Path(0)),
    #[cfg(target_arch = "x86_64")]
    known(libc::SYS_rename, "rename", Object::Path(1)),
    #[cfg(target_arch = "x86_64")]
    known(libc::SYS_unlink, "unlink", Object::Path(0)),
    #[cfg(target_arch = "x86_64")]
    known(libc::SYS_rmdir, "rmdir", Object::Path(0)),
    #[cfg(target_arch = "x86_64")]
    known(libc::SYS_symlink, "symlink", Object::Path(1)),
    #[cfg(target_arch = "x86_64")]
    known(libc::SYS_link, "link", Object::Path(1)),
];

/// Numbers of the calls to listen to.
pub(crate) const NUMBERS: &[c_long] = &{
    let mut numbers = [0; KNOWN.len()];
    let mut at = 0;
    while at < KNOWN.len() {
        numbers[at] = KNOWN[at].number;
        at += 1;
    }
    numbers
};

/// Longest path of the kernel's, bytes.
const PATH_MAX: usize = 4096;

/// Name of the call and what it would change, if that is a file.
pub(crate) fn changes(call: &Notification) -> Option<(&'static str, PathBuf)> {
    let known = KNOWN.iter().find(|known| known.number == call.number)?;
    let path = match known.object {
        Object::File(file) => open_file(call, file)?,
        Object::Path(path) => text(call, path)?,
        Object::At(directory, path) => at(call, directory, path)?,
        Object::Opened => {
            let flags = i32::try_from(call.arguments[2] & 0x7fff_ffff).ok()?;
            let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_CREAT != 0;
            at(call, 0, 1).filter(|_| writes)?
        }
    };
    Some((known.name, path))
}

/// The call opens a file, and neither makes nor empties it.
pub(crate) fn only_opens(call: &Notification) -> bool {
    let changing = u64::from((libc::O_CREAT | libc::O_TRUNC).unsigned_abs());
    call.number == libc::SYS_openat && call.arguments[2] & changing == 0
}

/// Place and bytes of a write that names its place (pwrite64).
pub(crate) fn placed(call: &Notification) -> Option<(u64, Vec<u8>)> {
    if call.number != libc::SYS_pwrite64 {
        return None;
    }
    let [_, base, length, offset, ..] = call.arguments;
    let (base, length) = (usize::try_from(base).ok()?, usize::try_from(length).ok()?);
    let mut bytes = vec![0; length];
    let remote = [RemoteIoVec { base, len: length }];
    let mut local = [IoSliceMut::new(&mut bytes)];
    let read = process_vm_readv(Pid::from_raw(call.pid), &mut local, &remote).ok()?;
    (read == length).then_some((offset, bytes))
}

fn at(call: &Notification, directory: usize, path: usize) -> Option<PathBuf> {
    let path = text(call, path)?;
    if path.is_absolute() {
        return Some(path);
    }
    Some(open_file(call, directory)?.join(path))
}

/// The path of an open file of the thread's.
fn open_file(call: &Notification, argument: usize) -> Option<PathBuf> {
    // The kernel looks at 32 bits of it.
    let number = call.arguments[argument] & 0xffff_ffff;
    fs::read_link(format!("/proc/{}/fd/{number}", call.pid)).ok()
}

/// A path in the thread's memory.
fn text(call: &Notification, argument: usize) -> Option<PathBuf> {
    let mut bytes = vec![0; PATH_MAX];
    let base = usize::try_from(call.arguments[argument]).ok()?;
    let mut length = 0;
    // To the end of a page at a time: what is behind may not be there.
    while length < PATH_MAX && !bytes[..length].contains(&0) {
        let part = (PATH_MAX - (base + length) % PATH_MAX).min(PATH_MAX - length);
        let remote = [RemoteIoVec { base: base + length, len: part }];
        let mut local = [IoSliceMut::new(&mut bytes[length..length + part])];
        length += process_vm_readv(Pid::from_raw(call.pid), &mut local, &remote).ok().filter(|n| *n > 0)?;
    }
    let end = bytes[..length].iter().position(|b| *b == 0)?;
    Some(Path::new(std::str::from_utf8(&bytes[..end]).ok()?).to_owned())
}
