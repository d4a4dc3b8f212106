//! Loop devices that hold a block device: the kernel does not reuse the name of a device while a loop device
//! is over it.
//!
//! In: the path of a block device. Out: a loop device over it, which outlives this process. Invariant: only
//! loop devices over the given path are detached. See loop(4). Upstream: `AttachFileDevice` of
//! pkg/volume/util/volumepathhandler/volume_path_handler_linux.go.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;

use crate::files::FilesError;

const CONTROL: &str = "/dev/loop-control";
const BLOCKS: &str = "/sys/class/block";
/// Requests of linux/loop.h.
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_SET_FD: libc::c_ulong = 0x4C00;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
/// How often another process may take a free device first.
const TRIES: usize = 16;

/// Calls a request whose argument is a number.
fn request(file: &File, code: libc::c_ulong, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the loop driver takes the argument of these
    // requests as a number: it reads and writes no memory of ours.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), code as _, argument) };
    Errno::result(result).map_err(io::Error::from)
}

/// The loop device that lies over `path`, if there is one.
///
/// # Errors
/// The kernel's devices cannot be read.
pub fn over(path: &Path) -> Result<Option<PathBuf>, FilesError> {
    let all = fs::read_dir(BLOCKS).map_err(FilesError::at("readdir", Path::new(BLOCKS)))?;
    for entry in all {
        let entry = entry.map_err(FilesError::at("readdir", Path::new(BLOCKS)))?;
        // One that is free, or gone meanwhile, has no such file.
        let Ok(backing) = fs::read(entry.path().join("loop/backing_file")) else { continue };
        if backing.trim_ascii_end() == path.as_os_str().as_encoded_bytes() {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

/// Puts a loop device over `path`, unless one lies there.
///
/// # Errors
/// The kernel has no loop devices, or refuses.
pub fn attach(path: &Path) -> Result<(), FilesError> {
    if over(path)?.is_some() {
        return Ok(());
    }
    let backing = match OpenOptions::new().read(true).write(true).open(path) {
        // One that cannot be written to is held too.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EROFS | libc::EACCES)) => File::open(path),
        opened => opened,
    };
    let backing = backing.map_err(FilesError::at("open", path))?;
    let at = |what| FilesError::at(what, Path::new(CONTROL));
    let control = OpenOptions::new().read(true).write(true).open(CONTROL).map_err(at("open"))?;
    for _ in 0..TRIES {
        let free = request(&control, LOOP_CTL_GET_FREE, 0).map_err(at("ask for a loop device"))?;
        let device = PathBuf::from(format!("/dev/loop{free}"));
        let open = OpenOptions::new().read(true).write(true).open(&device);
        let open = open.map_err(FilesError::at("open", &device))?;
        match request(&open, LOOP_SET_FD, backing.as_raw_fd()) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            done => return done.map(drop).map_err(FilesError::at("hold", path)),
        }
    }
    Err(FilesError::at("hold", path)(Errno::EBUSY.into()))
}

/// Takes the loop device away that lies over `path`, if one does.
///
/// # Errors
/// The kernel refuses.
pub fn detach(path: &Path) -> Result<(), FilesError> {
    let Some(device) = over(path)? else { return Ok(()) };
    let open = File::open(&device).map_err(FilesError::at("open", &device))?;
    match request(&open, LOOP_CLR_FD, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        done => done.map(drop).map_err(FilesError::at("let go of", path)),
    }
}
