//! Directories of NFS servers: the work on the disk before and after mount(8), and the end of such mounts.
//!
//! In: a [`SetUp`], its [`Nfs`]. Out: a directory to mount at; no mount of a server that is away. Invariants: the mount
//! table says whether something is mounted: nothing here looks at a file of the server, which may never answer; the end
//! of a mount takes a limited time. Upstream: pkg/volume/nfs, CleanupMountWithForce.

use std::io;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use agent_volumes::mount_table::{self, MountPoint};
use agent_volumes::nfs::{Nfs, NfsMounter};
use agent_volumes::{SetUp, VOLUMES_DIR};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use super::{DIR_MODE, VolumeError, mounts, refused};
use crate::files::{self, FilesError};

/// What the kernel calls its file systems.
const KINDS: [&str; 2] = ["nfs", "nfs4"];
/// Where mount(8) looks for its helper.
const HELPERS: [&str; 2] = ["/sbin/mount.nfs", "/usr/sbin/mount.nfs"];
/// Port of the service; only resolvers want to know.
const PORT: u16 = 2049;
/// How long the server may take to let go of a mount before it is forced.
pub const UNMOUNT_LIMIT: Duration = Duration::from_secs(60);

/// Makes the directory. The answer is how mount(8) is to be asked, attempt by attempt; none if it is mounted already.
///
/// # Errors
/// The server's name has no address, an option cannot be had, or a step on the disk.
pub fn prepare(pod_dir: &Path, volume: &SetUp, work: &Nfs) -> Result<Vec<Vec<String>>, VolumeError> {
    if is_mounted(&volume.path)? {
        return Ok(Vec::new());
    }
    let path = Path::new(&volume.path);
    let way = if HELPERS.iter().any(|helper| Path::new(helper).exists()) {
        NfsMounter::Helper
    } else {
        NfsMounter::Kernel(address(work.host())?)
    };
    let attempts = work.arguments(way, &volume.path).map_err(refused)?;
    for directory in [Some(pod_dir), Some(&pod_dir.join(VOLUMES_DIR)), path.parent(), Some(path)] {
        directory.map_or(Ok(()), |directory| files::make_dir(directory, DIR_MODE))?;
    }
    Ok(attempts)
}

fn address(host: &str) -> Result<std::net::IpAddr, VolumeError> {
    let found = (host, PORT).to_socket_addrs();
    let mut found =
        found.map_err(|e| refused(format!("the NFS server {host:?} cannot be looked up: {e}")))?;
    let first = found.next().ok_or_else(|| refused(format!("the NFS server {host:?} has no address")))?;
    Ok(first.ip())
}

/// Something is mounted at the path.
///
/// # Errors
/// The mount table cannot be read.
pub fn is_mounted(path: &str) -> Result<bool, FilesError> {
    Ok(mount_table::kind_at(&mounts()?, path).is_some())
}

/// A mount failed, or was given up: what it left is taken away.
///
/// # Errors
/// It came about and cannot be undone, or the directory stays.
pub fn abandon(path: &Path) -> Result<(), FilesError> {
    if is_mounted(&path.to_string_lossy())? {
        end(path, UNMOUNT_LIMIT)?;
    }
    match std::fs::remove_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(FilesError::at("rmdir", path)(e)),
        _ => Ok(()),
    }
}

/// Ends the mounts of NFS servers below a directory, the newest first; others stay.
///
/// # Errors
/// The first that stays.
pub fn end_below(directory: &Path, limit: Duration) -> Result<(), FilesError> {
    remote_below(&mounts()?, directory).iter().try_for_each(|path| end(Path::new(path), limit))
}

/// Mounts of servers below a directory, with all mounts on or in them.
fn remote_below(table: &[MountPoint], directory: &Path) -> Vec<String> {
    let remote: Vec<&str> =
        table.iter().filter(|m| KINDS.contains(&m.kind.as_str())).map(|m| m.path.as_str()).collect();
    let mut all = mount_table::below(table, &directory.to_string_lossy());
    all.retain(|path| {
        remote.iter().any(|r| path == r || path.strip_prefix(r).is_some_and(|rest| rest.starts_with('/')))
    });
    all
}

/// Unmounts; a server that does not let go in time is not asked any more.
fn end(path: &Path, limit: Duration) -> Result<(), FilesError> {
    let (told, hears) = mpsc::channel();
    let at = path.to_owned();
    // It may wait for the server for ever; its own thread ends when the kernel gives the requests up, below.
    let asked = std::thread::Builder::new().name("umount".to_owned()).spawn(move || {
        let _ = told.send(umount2(&at, MntFlags::UMOUNT_NOFOLLOW));
    });
    asked.map_err(FilesError::at("start a thread to unmount", path))?;
    let ended = match hears.recv_timeout(limit) {
        Ok(ended) => ended,
        Err(_) => {
            tracing::warn!(path = %path.display(), limit_s = limit.as_secs(), "the server does not let go; it is forced");
            umount2(path, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW)
        }
    };
    let ended = match ended {
        // Requests of a process are still under way: the mount ends with them.
        Err(Errno::EBUSY | Errno::EIO | Errno::EAGAIN) if is_mounted(&path.to_string_lossy())? => {
            umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
        }
        ended => ended,
    };
    match ended {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(e) => Err(FilesError::at("umount", path)(e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_remote_and_below_the_pod() {
        let table = mount_table::parse(
            "1 1 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 / /k/pods/u/volumes/kubernetes.io~nfs/a rw - nfs4 s:/ rw\n\
             3 1 0:3 / /k/pods/u/volumes/kubernetes.io~secret/b rw - tmpfs tmpfs rw\n\
             4 2 0:4 / /k/pods/u/volumes/kubernetes.io~nfs/a/sub rw - tmpfs tmpfs rw\n\
             5 1 0:2 /x /k/pods/u/volume-subpaths/a/c/0 rw - nfs4 s:/ rw\n\
             6 1 0:5 / /k/pods/v/volumes/kubernetes.io~nfs/a rw - nfs s:/ rw\n",
        );
        let found = remote_below(&table, Path::new("/k/pods/u"));
        let expected =
            ["volume-subpaths/a/c/0", "volumes/kubernetes.io~nfs/a/sub", "volumes/kubernetes.io~nfs/a"];
        assert_eq!(found, expected.map(|below| format!("/k/pods/u/{below}")));
    }

    #[test]
    fn a_directory_is_made_once_and_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pods/u");
        let path = pod.join("volumes/kubernetes.io~nfs/v");
        let work =
            Nfs { server: "127.0.0.1".to_owned(), path: "/x".to_owned(), read_only: false, options: vec![] };
        let volume = SetUp {
            name: "v".to_owned(),
            plugin: agent_volumes::plugin::Plugin::Nfs,
            path: path.display().to_string(),
            work: agent_volumes::Work::Nfs(work.clone()),
            nested: Vec::new(),
            fs_group: None,
        };
        for _ in 0..2 {
            let attempts = prepare(&pod, &volume, &work).unwrap();
            assert!(!attempts.is_empty() && attempts[0].contains(&"127.0.0.1:/x".to_owned()), "{attempts:?}");
            assert!(path.is_dir());
        }
        for _ in 0..2 {
            abandon(&path).unwrap();
            assert!(!path.exists());
        }
        let odd = Nfs { server: "no such host".to_owned(), ..work };
        let helper = HELPERS.iter().any(|helper| Path::new(helper).exists());
        let error = prepare(&pod, &volume, &odd);
        assert!(helper || error.unwrap_err().to_string().contains("\"no such host\""));
    }

    #[test]
    fn a_mount_that_was_used_meanwhile_is_detached() {
        use nix::mount::{MsFlags, mount};
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        std::fs::create_dir(&path).unwrap();
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let held = std::fs::File::create(path.join("held")).unwrap();
        end(&path, Duration::from_secs(5)).unwrap();
        assert!(!is_mounted(&path.to_string_lossy()).unwrap());
        drop(held);
        end(&path, Duration::from_secs(5)).unwrap();
    }
}
