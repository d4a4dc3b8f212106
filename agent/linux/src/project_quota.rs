//! Project quotas of the kernel: which project a directory has, what a project takes, and a project of its own for a volume.
//!
//! ```text
//! directory ──FS_IOC_FSGETXATTR──► its project ──Q_GETQUOTA──► bytes, inodes
//!     ▲                                 ids in use ◄──Q_GETNEXTQUOTA
//!     └──FS_IOC_FSSETXATTR── the first free one
//! ```
//! In: paths of directories. Out: ids and amounts. [`agent_volumes::project`] decides what is to be done. Invariants:
//! one call sets the project of a directory and of everything below it, so a kill leaves it with or without one; no
//! limit is ever set, so an id whose last file is gone is free, and the file system forgets it by itself. Needs
//! quotactl_fd(2), Linux 5.14. See ioctl_xfs_fsgetxattr(2), quotactl(2). Why no crate: nix and rustix have no
//! quotactl_fd.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use agent_types::lock::Lock;
use agent_volumes::project::{self, Attributes, NoProjectReason, ProjectAction};
use nix::errno::Errno;
use nix::libc;

use crate::files::FilesError;

/// `fsx_xflags` of linux/fs.h: what is made in the directory has its project.
const PROJINHERIT: u32 = 0x200;
/// Of linux/quota.h.
const PRJQUOTA: libc::c_uint = 2;
const Q_GETQUOTA: libc::c_uint = 0x0080_0007;
const Q_GETNEXTQUOTA: libc::c_uint = 0x0080_0009;
/// What others have named, if the node has such files.
const NAMES: [&str; 2] = ["/etc/projects", "/etc/projid"];

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Fsxattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// `struct if_nextdqblk` of linux/quota.h, which is a `struct if_dqblk` with the id in its padding.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct NextDqblk {
    block_hard_limit: u64,
    block_soft_limit: u64,
    /// Bytes.
    space: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
    id: u32,
}

mod requests {
    use super::Fsxattr;

    nix::ioctl_read!(get, b'X', 31, Fsxattr);
    nix::ioctl_write_ptr!(set, b'X', 32, Fsxattr);
}

fn get(file: &File) -> io::Result<Fsxattr> {
    let mut found = Fsxattr::default();
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the kernel writes one `struct fsxattr`, whose
    // layout `Fsxattr` has, to where `found` lives until after the call.
    unsafe { requests::get(file.as_raw_fd(), &raw mut found) }?;
    Ok(found)
}

fn set(file: &File, to: &Fsxattr) -> io::Result<()> {
    // SAFETY: as above; the kernel only reads.
    unsafe { requests::set(file.as_raw_fd(), to) }?;
    Ok(())
}

/// Asks the file system that `file` is on about a project.
fn quota(file: &File, command: libc::c_uint, id: u32) -> Result<NextDqblk, Errno> {
    let mut found = NextDqblk::default();
    let command = command << 8 | PRJQUOTA;
    // SAFETY: the descriptor is open for as long as `file` is borrowed. Both commands that this module has make the kernel
    // write 72 bytes, one `NextDqblk`, to where `found` lives until after the call, and it reads nothing of ours.
    let result =
        unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, id, &raw mut found) };
    Errno::result(result).map(|_| found)
}

/// Why a directory has no project of its own.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// It is not to have one, or cannot.
    #[error(transparent)]
    Left(#[from] NoProjectReason),
    /// A step failed.
    #[error(transparent)]
    Files(#[from] FilesError),
}

/// What a project takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectUsage {
    /// Blocks, as bytes; also of files that have no name any more.
    pub bytes: u64,
    /// Inodes, that of the volume's own directory among them.
    pub inodes: u64,
}

/// Two that choose at the same time would choose the same id.
static CHOOSING: Lock<()> = Lock::new(());

/// Gives the directory of a volume that no container has seen yet a project of its own, unless it has one; its id is the
/// answer.
///
/// # Errors
/// Why it is to have none, or a step that failed; nothing was changed.
pub fn give(directory: &Path) -> Result<u32, ProjectError> {
    let own = open(directory)?;
    let _alone = CHOOSING.lock();
    // Without quotas a project is a number that says nothing.
    next_used(&own, directory, project::FIRST)?;
    let mut raw = get(&own).map_err(FilesError::at("ask for the project of", directory))?;
    match project::next(attributes(&raw), above(directory)?, is_empty(directory)?) {
        ProjectAction::Keep(id) => Ok(id),
        ProjectAction::Leave(why) => Err(why.into()),
        ProjectAction::Give => {
            let free = project::choose(&named(), |id| next_used(&own, directory, id))?;
            let id = free.ok_or(NoProjectReason::NoneFree)?;
            raw.projid = id;
            raw.xflags |= PROJINHERIT;
            set(&own, &raw).map_err(FilesError::at("give a project to", directory))?;
            Ok(id)
        }
    }
}

/// What the project takes that the directory has for itself; `None` if it has none.
///
/// # Errors
/// The directory cannot be asked, or the file system not about the project.
pub fn counted(directory: &Path) -> Result<Option<ProjectUsage>, FilesError> {
    let own = open(directory)?;
    let Some(found) = attributes_of(&own, directory)?.own(above(directory)?) else { return Ok(None) };
    match quota(&own, Q_GETQUOTA, found) {
        Ok(found) => Ok(Some(ProjectUsage { bytes: found.space, inodes: found.inodes })),
        // Quotas are off since it was given.
        Err(e) if is_unsupported(e) => Ok(None),
        Err(e) => Err(FilesError::at("ask for the quota of", directory)(e.into())),
    }
}

fn open(directory: &Path) -> Result<File, FilesError> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW);
    options.open(directory).map_err(FilesError::at("open", directory))
}

fn attributes(raw: &Fsxattr) -> Attributes {
    Attributes { project: raw.projid, inherited: raw.xflags & PROJINHERIT != 0 }
}

/// A file system that has no such attributes has no projects.
fn attributes_of(file: &File, path: &Path) -> Result<Attributes, FilesError> {
    match get(file) {
        Ok(raw) => Ok(attributes(&raw)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS)) => {
            Ok(Attributes::default())
        }
        Err(e) => Err(FilesError::at("ask for the project of", path)(e)),
    }
}

fn above(directory: &Path) -> Result<Attributes, FilesError> {
    let Some(parent) = directory.parent() else { return Ok(Attributes::default()) };
    attributes_of(&open(parent)?, parent)
}

fn is_empty(directory: &Path) -> Result<bool, FilesError> {
    let mut entries = fs::read_dir(directory).map_err(FilesError::at("readdir", directory))?;
    Ok(entries.next().is_none())
}

/// The least id from this one on that the file system knows.
fn next_used(file: &File, path: &Path, from: u32) -> Result<Option<u32>, ProjectError> {
    match quota(file, Q_GETNEXTQUOTA, from) {
        Ok(found) => Ok(Some(found.id)),
        Err(Errno::ENOENT) => Ok(None),
        Err(e) if is_unsupported(e) => Err(NoProjectReason::Unsupported.into()),
        Err(e) => Err(FilesError::at("ask for project quotas of", path)(e.into()).into()),
    }
}

/// Off (ESRCH), or unknown to the kernel or the file system.
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::ESRCH | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// Ids that others have named on this node.
fn named() -> BTreeSet<u32> {
    let [projects, projid] = NAMES.map(|path| fs::read_to_string(path).unwrap_or_default());
    project::reserved(&projects, &projid)
}

#[cfg(test)]
mod tests;
