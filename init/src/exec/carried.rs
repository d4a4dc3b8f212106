//! What a factory reset keeps, read from the old state partition and written to the new one (`plan::carried_files`).

use super::error::InitError;
use super::sources::read_at_most;
use super::steps::{apply, remove_file};
use crate::plan::carried_files::{
    CARRIED_BYTES_MAX, CarriedContent, CarriedFile, FILES_MAX, KEPT_PLACES, OPERATIONS_PLACE,
};
use crate::plan::step::{BootStep, Mount};
use nix::mount::{MntFlags, MsFlags, umount2};
use orlop_files::Durability;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;

/// Where the old state partition is mounted while it is read.
const MOUNT_POINT: &str = "/run/orlop/old-state";

/// Mounts the state partition on this device read-only, and reads what is kept. The kernel may replay its journal first: the last
/// boot may have ended by a power cut.
///
/// # Errors
/// It cannot be mounted, read or let go of, or it has more than there is room for.
pub fn read_from(device: &str) -> Result<Vec<CarriedFile>, InitError> {
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let (source, target) = (device.to_owned(), MOUNT_POINT.to_owned());
    let mount = BootStep::Mount(Mount {
        source,
        target,
        fstype: "ext4",
        flags,
        data: String::new(),
        optional: false,
    });
    apply(&mount).map_err(|source| InitError::Step { step: mount.describe(), source })?;
    let files = read_below(Path::new(MOUNT_POINT));
    // Still in use, it must not be erased.
    umount2(MOUNT_POINT, MntFlags::empty()).map_err(|e| InitError::Kernel("let go of the old state", e))?;
    let _ = fs::remove_dir(MOUNT_POINT);
    files
}

fn read_below(var: &Path) -> Result<Vec<CarriedFile>, InitError> {
    let mut reader = KeptReader { var, files: Vec::new(), bytes: 0 };
    KEPT_PLACES.iter().try_for_each(|place| reader.add(place))?;
    let identity = reader.files.len();
    if reader.add(OPERATIONS_PLACE).is_err() || reader.bytes > CARRIED_BYTES_MAX / 2 {
        reader.files.truncate(identity);
    }
    Ok(reader.files)
}

struct KeptReader<'a> {
    var: &'a Path,
    files: Vec<CarriedFile>,
    bytes: usize,
}

impl KeptReader<'_> {
    /// A path that is not there is fine. Sockets and devices are not kept.
    fn add(&mut self, path: &str) -> Result<(), InitError> {
        let at = self.var.join(path);
        let failed = |source| InitError::File { action: "read", path: format!("/var/{path}"), source };
        let metadata = match fs::symlink_metadata(&at) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            found => found.map_err(failed)?,
        };
        let kind = metadata.file_type();
        let content = if kind.is_dir() {
            CarriedContent::Directory
        } else if kind.is_symlink() {
            let target = fs::read_link(&at).map_err(failed)?.into_os_string();
            CarriedContent::Link(target.into_string().map_err(|_| failed(ErrorKind::InvalidData.into()))?)
        } else if kind.is_file() {
            if metadata.len() > CARRIED_BYTES_MAX as u64 {
                return Err(failed(no_room()));
            }
            let bytes = read_at_most(&at, CARRIED_BYTES_MAX as u64).map_err(failed)?;
            self.bytes += bytes.len();
            CarriedContent::File(bytes)
        } else {
            return Ok(());
        };
        let is_dir = content == CarriedContent::Directory;
        let (mode, owner) = (metadata.permissions().mode() & 0o7777, (metadata.uid(), metadata.gid()));
        self.files.push(CarriedFile { path: path.to_owned(), mode, owner, content });
        if self.files.len() > FILES_MAX || self.bytes > CARRIED_BYTES_MAX {
            return Err(failed(no_room()));
        }
        if is_dir { self.add_directory(path) } else { Ok(()) }
    }

    fn add_directory(&mut self, path: &str) -> Result<(), InitError> {
        let failed = |source| InitError::File { action: "read", path: format!("/var/{path}"), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(self.var.join(path)).map_err(failed)?.take(FILES_MAX + 1) {
            let name = entry.map_err(failed)?.file_name().into_string();
            names.push(name.map_err(|_| failed(ErrorKind::InvalidData.into()))?);
        }
        names.sort_unstable();
        names.iter().try_for_each(|name| self.add(&format!("{path}/{name}")))
    }
}

fn no_room() -> io::Error {
    io::Error::other("with it there is more than there is room for")
}

/// Writes the files below a new /var. On disk when this returns. What an interrupted call has left is written again.
///
/// # Errors
/// A part may be there.
pub fn write_to(var: &Path, files: &[CarriedFile]) -> Result<(), InitError> {
    for file in files {
        place(&var.join(&file.path), file).map_err(|source| InitError::File {
            action: "put back",
            path: format!("/var/{}", file.path),
            source,
        })?;
    }
    let failed = |source| InitError::File { action: "write", path: var.display().to_string(), source };
    let root = File::open(var).map_err(failed)?;
    nix::unistd::syncfs(&root).map_err(|e| failed(e.into()))
}

fn place(path: &Path, file: &CarriedFile) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let (uid, gid) = (Some(file.owner.0), Some(file.owner.1));
    match &file.content {
        CarriedContent::Directory => {
            fs::create_dir_all(path)?;
            fs::set_permissions(path, Permissions::from_mode(file.mode))?;
            chown(path, uid, gid)
        }
        CarriedContent::File(bytes) => {
            orlop_files::replace(path, bytes, file.mode, Durability::Rebuildable).map_err(|e| e.source)?;
            chown(path, uid, gid)
        }
        CarriedContent::Link(target) => {
            remove_file(path)?;
            symlink(target, path)?;
            lchown(path, uid, gid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A /var with an identity, and with things that are not kept.
    fn var(root: &Path) {
        let write = |path: &str, text: &str, mode: u32| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("directory");
            fs::write(&path, text).expect("fixture");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("mode");
        };
        write("lib/orlop/machine-id", "0123\n", 0o644);
        write("lib/orlop/config/first-boot.json", "token", 0o600);
        write("lib/kubelet/pki/kubelet-client-1.pem", "key", 0o600);
        write("lib/kubelet/pods/1/volumes/secret", "secret", 0o600);
        write("lib/orlop/api/operations/1.json", "{}", 0o600);
        write("lib/orlop/files/a", "made again", 0o644);
        symlink("kubelet-client-1.pem", root.join("lib/kubelet/pki/kubelet-client-current.pem"))
            .expect("link");
        fs::set_permissions(root.join("lib/kubelet/pki"), Permissions::from_mode(0o700)).expect("mode");
    }

    #[test]
    fn the_identity_comes_over_and_nothing_else() {
        let (old, new) = (tempfile::tempdir().expect("old"), tempfile::tempdir().expect("new"));
        var(old.path());
        let files = read_below(old.path()).expect("read");
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "lib/orlop/machine-id",
                "lib/orlop/config",
                "lib/orlop/config/first-boot.json",
                "lib/kubelet/pki",
                "lib/kubelet/pki/kubelet-client-1.pem",
                "lib/kubelet/pki/kubelet-client-current.pem",
                "lib/orlop/api/operations",
                "lib/orlop/api/operations/1.json",
            ]
        );
        // Twice: the first call may have been cut off.
        for _ in 0..2 {
            write_to(new.path(), &files).expect("written");
        }
        assert_eq!(read_below(new.path()).expect("read"), files);
        assert!(
            !new.path().join("lib/kubelet/pods").exists() && !new.path().join("lib/orlop/files").exists()
        );
        let current = new.path().join("lib/kubelet/pki/kubelet-client-current.pem");
        assert_eq!(fs::read(current).expect("through the link"), b"key");
    }

    #[test]
    fn records_that_are_large_are_left_behind() {
        let dir = tempfile::tempdir().expect("temporary directory");
        var(dir.path());
        let large = dir.path().join("lib/orlop/api/operations/2.json");
        fs::write(large, vec![1; CARRIED_BYTES_MAX / 2]).expect("fixture");
        let files = read_below(dir.path()).expect("read");
        assert!(files.iter().all(|file| !file.path.contains("operations")), "{files:?}");
        assert!(files.iter().any(|file| file.path == "lib/orlop/machine-id"));
    }

    #[test]
    fn an_empty_state_has_nothing_to_keep_and_a_large_one_is_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert!(read_below(dir.path()).expect("read").is_empty());
        let config = dir.path().join("lib/orlop/config");
        fs::create_dir_all(&config).expect("directory");
        for n in 0..2 {
            fs::write(config.join(format!("{n}")), vec![1; CARRIED_BYTES_MAX / 2 + 1]).expect("fixture");
        }
        let why = read_below(dir.path()).expect_err("too large");
        assert!(orlop_config::error_chain::chain(&why).contains("/var/lib/orlop/config/1"), "{why}");
    }
}
