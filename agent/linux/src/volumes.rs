//! Volumes on disk: brings one volume to where its set-up says, and takes a pod's volumes away.
//!
//! In: a [`SetUp`] with its files. Out: directories, tmpfs mounts, files. Invariants: what is there already is left alone
//! (a mounted tmpfs, an emptyDir that is ready, files with the same bytes); nothing outside of the pod's own directory is
//! unmounted or removed. Upstream: pkg/volume/emptydir, secret, configmap, projected.

mod atomic_writer;
mod bind;
pub mod csi;
pub mod csi_block;
pub mod device;
pub mod disk;
pub mod env_file;
pub mod flex;
mod host_path;
pub mod network_disk;
pub mod nfs;
pub mod ownership;
pub mod shared_root;
pub mod sub_path;
mod within;

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};
use std::sync::Once;

use agent_types::time::Wall;
use agent_volumes::bind::Bind;
use agent_volumes::device::DEVICES;
use agent_volumes::mount_table::{self, MountPoint};
use agent_volumes::payload::Payload;
use agent_volumes::project::NoProjectReason;
use agent_volumes::{Medium, SetUp, Work};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, TMPFS_MAGIC, statfs};

use ownership::Progress;

use crate::files::{self, Durability, FilesError};
use crate::project_quota::{self, ProjectError};
use crate::remove_tree::remove_tree;

/// emptyDir is for every user of the pod, and so is what is made like one.
const VOLUME_MODE: u32 = 0o777;
/// Mode of the directories on the way.
const DIR_MODE: u32 = 0o750;
/// Mode of directories that other volumes are mounted on.
const NESTED_MODE: u32 = 0o755;
/// Says that a volume's directory was made and is its group's.
const READY: &str = "ready";
/// Below a pod's directory.
const VOLUMES: &str = agent_volumes::VOLUMES_DIR;

/// Why a volume cannot be set up: in words that people know, or a step on the disk.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Something of the host's is not what the pod says.
    #[error("{0}")]
    Refused(String),
    /// A step failed.
    #[error(transparent)]
    Files(#[from] FilesError),
}

/// Makes everything in a directory a group's, which may write to it: [`ownership::give`], which takes as long as there are files.
pub type SetFsGroup<'g> = &'g dyn Fn(&Path, u32) -> Result<(), FilesError>;

/// Gives a directory that is empty, or nearly.
fn give(path: &Path, group: u32) -> Result<(), FilesError> {
    ownership::give(path, group, false, &Progress::default())
}

/// Sets a volume up that is a directory of this node, or a disk that is mounted; `give` gives what is in it.
///
/// # Errors
/// The step that failed; calling again goes on.
pub fn set_up_bind(
    pod_dir: &Path,
    volume: &SetUp,
    work: &Bind,
    give: SetFsGroup<'_>,
) -> Result<Option<String>, VolumeError> {
    bind::mount_at(pod_dir, volume, work, give)
}

/// Sets a volume up. `files` are those of [`Work::Files`]. What people should know about it is the answer.
///
/// # Errors
/// The step that failed; calling again goes on.
pub fn set_up(
    pod_dir: &Path,
    volume: &SetUp,
    files: &Payload,
    now: Wall,
) -> Result<Option<String>, VolumeError> {
    let path = Path::new(&volume.path);
    match &volume.work {
        Work::HostPath(kind) => host_path::check(path, *kind)?,
        // Its driver's, or the server's; what becomes of a disk is a directory or a device.
        Work::Csi(_) | Work::Nfs(_) | Work::NetworkDisk(_) | Work::Flex(_) => {}
        Work::Device(work) => device::set_up(pod_dir, volume, work)?,
        Work::Bind(work) => return bind::mount_at(pod_dir, volume, work, &give),
        Work::EmptyDir { medium, marker, counted } => {
            let made = make(pod_dir, path, *medium, Path::new(marker))?;
            if made && *counted {
                count(path);
            }
            if made && let Some(group) = volume.fs_group {
                give(path, group)?;
            }
            ready(Path::new(marker))?;
        }
        Work::Files { medium, marker, .. } => {
            make(pod_dir, path, *medium, Path::new(marker))?;
            ready(Path::new(marker))?;
            for nested in &volume.nested {
                make_below(path, &path.join(nested))?;
            }
            let group = volume.fs_group;
            let own = |written: &Path| match group {
                // The node wrote all of it a moment ago.
                Some(group) => ownership::give(written, group, true, &Progress::default()),
                None => Ok(()),
            };
            atomic_writer::write(path, files, now, own, || sub_path::mounted(pod_dir, &volume.name))?;
        }
    }
    Ok(None)
}

/// Makes the directory of a volume, and its tmpfs; false if all of it is there already.
fn make(pod_dir: &Path, path: &Path, medium: Medium, marker: &Path) -> Result<bool, FilesError> {
    let is_ready = marker.join(READY).exists();
    match medium {
        Medium::Disk if is_ready && path.is_dir() => return Ok(false),
        Medium::Disk => {}
        Medium::Memory(_) if is_mounted_here(path, TMPFS_MAGIC)? => return Ok(!is_ready),
        Medium::HugePages(_) if is_mounted_here(path, HUGETLBFS_MAGIC)? => return Ok(!is_ready),
        Medium::Memory(_) | Medium::HugePages(_) => {}
    }
    for directory in [Some(pod_dir), Some(&pod_dir.join(VOLUMES)), path.parent()].into_iter().flatten() {
        files::make_dir(directory, DIR_MODE)?;
    }
    files::make_dir(path, VOLUME_MODE)?;
    match medium {
        Medium::Disk => {}
        Medium::Memory(bytes) => mount_tmpfs(path, bytes)?,
        Medium::HugePages(bytes) => mount_huge_pages(path, bytes)?,
    }
    Ok(true)
}

/// Has the file system count what will be in the volume. Where it cannot the volume is walked: nothing that a pod should
/// notice.
fn count(path: &Path) {
    static TOLD: Once = Once::new();
    match project_quota::give(path) {
        Ok(project) => tracing::debug!(path = %path.display(), project, "the file system counts a volume"),
        Err(ProjectError::Left(why @ NoProjectReason::Unsupported)) => TOLD.call_once(|| {
            tracing::warn!(path = %path.display(), %why, "no volume is counted by its file system");
        }),
        Err(ProjectError::Left(why)) => {
            tracing::warn!(path = %path.display(), %why, "a volume is not counted by its file system");
        }
        Err(ProjectError::Files(error)) => tracing::warn!(
            path = %error.path.display(), operation = error.operation, error = %error.source,
            "a volume is not counted by its file system"
        ),
    }
}

/// The volume's own file system is mounted there: of this kind, and another one than what is above it. The mount table would
/// say it too, at the price of all mounts of the node for each look at each volume.
fn is_mounted_here(path: &Path, kind: FsType) -> Result<bool, FilesError> {
    let above = path.parent().map(device_of).transpose()?.flatten();
    let own = device_of(path)?;
    if own.is_none() || above.is_none() || own == above {
        return Ok(false);
    }
    let of = statfs(path).map_err(|e| FilesError::at("statfs", path)(e.into()))?;
    Ok(of.filesystem_type() == kind)
}

/// The device of the file system that a path is on; `None`: there is nothing.
fn device_of(path: &Path) -> Result<Option<u64>, FilesError> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found.dev())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(FilesError::at("stat", path)(e)),
    }
}

/// As upstream, its root is root's: others need an `fsGroup`.
fn mount_huge_pages(path: &Path, page_bytes: u64) -> Result<(), FilesError> {
    let options = format!("pagesize={page_bytes}");
    mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|e| FilesError::at("mount huge pages", path)(e.into()))
}

/// `noswap` where the kernel knows it (6.4): what is secret stays in memory.
fn mount_tmpfs(path: &Path, bytes: u64) -> Result<(), FilesError> {
    let size = (bytes > 0).then(|| format!("size={bytes}"));
    let with = |more: Option<&str>| {
        let options = [size.as_deref(), more].into_iter().flatten().collect::<Vec<_>>().join(",");
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
    };
    let mounted = match with(Some("noswap")) {
        Err(nix::errno::Errno::EINVAL) => with(None),
        other => other,
    };
    mounted.map_err(|e| FilesError::at("mount", path)(e.into()))
}

/// True if a tmpfs may have the option `noswap`: Linux 6.4, and older kernels that were given it, but no user namespace. To
/// know it, this mounts one below `directory` for a moment. Upstream: `IsTmpfsNoswapOptionSupported` of
/// pkg/kubelet/util/swap/swap_util.go.
#[must_use]
pub fn has_tmpfs_noswap(directory: &Path) -> bool {
    let path = directory.join("tmpfs-noswap-test");
    if fs::create_dir(&path).is_err_and(|e| e.kind() != ErrorKind::AlreadyExists) {
        return false;
    }
    let mounted = mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some("noswap")).is_ok();
    // An agent that was killed here left a mount, too.
    while umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).is_ok() {}
    // A directory that stays is used by the next call.
    let _ = fs::remove_dir(&path);
    mounted
}

fn ready(marker: &Path) -> Result<(), FilesError> {
    if marker.join(READY).exists() {
        return Ok(());
    }
    if let Some(parent) = marker.parent() {
        files::make_dir(parent, DIR_MODE)?;
    }
    files::make_dir(marker, DIR_MODE)?;
    files::write_atomic(&marker.join(READY), b"", 0o644, Durability::Rebuildable)
}

/// Makes `path` and all directories between it and `root`, the node's own ones.
fn make_way(root: &Path, path: &Path) -> Result<(), FilesError> {
    let way: Vec<&Path> = path.ancestors().take_while(|p| *p != root).collect();
    way.into_iter().rev().try_for_each(|directory| files::make_dir(directory, DIR_MODE))
}

/// Makes `path` and what is missing between it and `root`, in a volume.
fn make_below(root: &Path, path: &Path) -> Result<(), FilesError> {
    let mut way: Vec<&Path> = path.ancestors().take_while(|p| *p != root).collect();
    way.reverse();
    way.into_iter().filter(|p| !p.is_dir()).try_for_each(|p| files::make_dir(p, NESTED_MODE))
}

/// Unmounts everything below a pod's directory and removes its volumes; its devices, too. What is not there is a success.
///
/// # Errors
/// A mount that is in use, or a directory that cannot be removed.
pub fn tear_down(pod_dir: &Path) -> Result<(), FilesError> {
    unmount_below(pod_dir)?;
    sub_path::remove(pod_dir)?;
    device::tear_down(pod_dir)?;
    remove_tree(&pod_dir.join(DEVICES))?;
    remove_tree(&pod_dir.join(VOLUMES))?;
    remove_tree(&pod_dir.join("plugins"))
}

/// Unmounts everything below a directory, the newest mount first.
///
/// # Errors
/// The first mount that is in use.
pub fn unmount_below(directory: &Path) -> Result<(), FilesError> {
    for path in mount_table::below(&mounts()?, &directory.to_string_lossy()) {
        let path = Path::new(&path);
        match umount2(path, MntFlags::UMOUNT_NOFOLLOW) {
            // Gone already, with the mount that it was on.
            Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => {}
            Err(e) => return Err(FilesError::at("umount", path)(e.into())),
        }
    }
    Ok(())
}

/// The mount table of this process; a test's thread may have one of its own.
fn mounts() -> Result<Vec<MountPoint>, FilesError> {
    let path = Path::new("/proc/thread-self/mountinfo");
    let text = fs::read(path).map_err(FilesError::at("read", path))?;
    Ok(mount_table::parse(&String::from_utf8_lossy(&text)))
}

/// The path is what it says, not by way of another one's parent.
fn no_way_up(path: &Path) -> Result<(), VolumeError> {
    match path.components().any(|c| c == Component::ParentDir) {
        true => Err(refused(format!("invalid path: {} must not contain '..'", path.display()))),
        false => Ok(()),
    }
}

fn refused(text: String) -> VolumeError {
    VolumeError::Refused(text)
}

fn invalid(operation: &'static str, path: &Path, why: String) -> FilesError {
    FilesError::at(operation, path)(io::Error::new(ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests;
