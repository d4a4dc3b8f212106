//! Disks of the node with file systems of volumes: what one looks like, where it is mounted, and when that ends.
//!
//! In: a disk, the directory it goes to. Out: [`Seen`], directories. Invariants: what is on a disk is read and never written
//! here; a disk that a pod has mounted stays mounted; that formatting has begun is on the node's disk before it does.
//! Upstream: pkg/volume/local MountDevice, UnmountDevice.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use agent_volumes::bind::Bind;
use agent_volumes::disk::{self, LOOKED_AT, Seen};
use agent_volumes::plugin::Plugin;
use nix::mount::{MntFlags, umount2};

use super::device::entries;
use super::{VOLUMES, VolumeError, device_of, make_way, mounts, no_way_up};
use crate::files::{self, Durability, FilesError};

/// The source is a disk; nothing of it is read.
#[must_use]
pub fn is_one(of: &Bind) -> bool {
    fs::metadata(&of.source).is_ok_and(|found| found.file_type().is_block_device())
}

/// What there is of the disk; `None`: the source is none (it may be a directory, or not there).
///
/// # Errors
/// It, or where it goes, cannot be read.
pub fn look(root: &Path, of: &Bind) -> Result<Option<Seen>, VolumeError> {
    let source = Path::new(&of.source);
    let found = match fs::metadata(source) {
        Ok(found) if found.file_type().is_block_device() => found,
        // A directory's set-up says what is wrong.
        _ => return Ok(None),
    };
    no_way_up(source)?;
    let at = FilesError::at("read", source);
    let (head, tail) = File::open(source).and_then(|mut disk| ends(&mut disk)).map_err(at)?;
    let content = disk::content(&head, &tail);
    let mounted = mounted_at(Path::new(&of.disk.global))?;
    // Others than these have device numbers of their own.
    let by_number = matches!(content, disk::Content::FileSystem(_));
    let mounted = mounted.map(|device| !by_number || device == found.rdev());
    let begun = fs::read_to_string(marker(root, of)).is_ok_and(|text| text == which(of, found.rdev()));
    Ok(Some(Seen { mounted, content, begun }))
}

/// The first and the last bytes.
fn ends(disk: &mut File) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let part = LOOKED_AT as u64;
    let length = disk.seek(SeekFrom::End(0))?;
    let mut read = |from: u64| {
        let mut bytes = Vec::new();
        disk.seek(SeekFrom::Start(from))?;
        disk.take(part).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    Ok((read(0)?, read(length.saturating_sub(part))?))
}

/// The device of the file system that is mounted there, if one is.
fn mounted_at(path: &Path) -> Result<Option<u64>, FilesError> {
    let above = path.parent().map(device_of).transpose()?.flatten();
    Ok(device_of(path)?.filter(|device| above.is_some_and(|above| above != *device)))
}

fn marker(root: &Path, of: &Bind) -> PathBuf {
    let name = Path::new(&of.disk.global).file_name().unwrap_or_default();
    Path::new(&disk::begun_directory(&root.to_string_lossy())).join(name)
}

/// This disk, as long as the machine runs: after the next start another one may have its name and its number.
fn which(of: &Bind, number: u64) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{} {number} {}\n", boot.trim(), of.source)
}

/// It is about to be formatted: an agent that comes after one that was killed may do it again.
///
/// # Errors
/// The step that failed.
pub fn begin(root: &Path, of: &Bind) -> Result<(), FilesError> {
    let marker = marker(root, of);
    let source = Path::new(&of.source);
    let number = fs::metadata(source).map_err(FilesError::at("stat", source))?.rdev();
    marker.parent().map_or(Ok(()), |directory| make_way(root, directory))?;
    files::write_atomic(&marker, which(of, number).as_bytes(), 0o600, Durability::Rebuildable)
}

/// It is formatted.
///
/// # Errors
/// The step that failed.
pub fn finish(root: &Path, of: &Bind) -> Result<(), FilesError> {
    let marker = marker(root, of);
    super::device::gone(fs::remove_file(&marker), &marker)?;
    let directory = marker.parent().unwrap_or(root);
    File::open(directory).and_then(|d| d.sync_all()).map_err(FilesError::at("sync", directory))
}

/// There is a directory to mount it at.
///
/// # Errors
/// The step that failed.
pub fn make_place(root: &Path, of: &Bind) -> Result<(), FilesError> {
    make_way(root, Path::new(&of.disk.global))
}

/// Volumes whose disks the node has mounted, or had: names.
///
/// # Errors
/// The directory cannot be read.
pub fn all(root: &Path) -> Result<Vec<String>, FilesError> {
    entries(Path::new(&disk::directory(&root.to_string_lossy())))
}

/// Unmounts a volume's disk if no pod has it mounted; true if it is gone.
///
/// # Errors
/// The mount table cannot be read, or the step that failed.
pub fn release(root: &Path, volume: &str) -> Result<bool, FilesError> {
    let pods = root.join("pods");
    let below = Path::new(VOLUMES).join(Plugin::Local.directory()).join(volume);
    let is_pods = |mounted: &str| {
        let rest = Path::new(mounted).strip_prefix(&pods).map(|rest| rest.components());
        rest.is_ok_and(|mut rest| rest.next().is_some() && rest.as_path() == below)
    };
    if mounts()?.iter().any(|mount| is_pods(&mount.path)) {
        return Ok(false);
    }
    let global = PathBuf::from(disk::global(&root.to_string_lossy(), volume));
    match umount2(&global, MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => {}
        Err(e) => return Err(FilesError::at("umount", &global)(e.into())),
    }
    match fs::remove_dir(&global) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(FilesError::at("rmdir", &global)(e)),
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use agent_volumes::bind::Disk;
    use agent_volumes::disk::Content;

    use super::*;

    fn of(root: &Path, source: &Path) -> Bind {
        let global = disk::global(&root.to_string_lossy(), "pv");
        let disk = Disk { global, fs_type: String::new() };
        Bind { source: source.to_string_lossy().into_owned(), disk, ..Bind::default() }
    }

    #[test]
    fn the_ends_of_a_disk_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let look = |length: u64, end: &[u8]| {
            let disk = File::create(&path).unwrap();
            disk.set_len(length - end.len() as u64).unwrap();
            io::Write::write_all(&mut fs::OpenOptions::new().append(true).open(&path).unwrap(), end).unwrap();
            let (head, tail) = ends(&mut File::open(&path).unwrap()).unwrap();
            (head.len(), tail.len(), disk::content(&head, &tail))
        };
        assert_eq!(look(3 << 20, b""), (LOOKED_AT, LOOKED_AT, Content::Blank));
        assert_eq!(look(3 << 20, b"EFI PART"), (LOOKED_AT, LOOKED_AT, Content::Unknown));
        assert_eq!(look(512, b""), (512, 512, Content::Blank));
        let file = of(dir.path(), &path);
        assert_eq!(look_at(dir.path(), &file), None, "a file is no disk");
        assert_eq!(look_at(dir.path(), &of(dir.path(), &dir.path().join("none"))), None);
    }

    fn look_at(root: &Path, of: &Bind) -> Option<Seen> {
        look(root, of).unwrap()
    }

    #[test]
    fn what_has_begun_is_known_until_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("kubelet");
        fs::create_dir(&root).unwrap();
        let of = of(&root, Path::new("/dev/null"));
        begin(&root, &of).unwrap();
        begin(&root, &of).unwrap();
        let told = fs::read_to_string(marker(&root, &of)).unwrap();
        assert_eq!(told, which(&of, fs::metadata("/dev/null").unwrap().rdev()));
        assert_ne!(told, which(&of, 7), "another disk of that name");
        finish(&root, &of).unwrap();
        finish(&root, &of).unwrap();
        assert!(!marker(&root, &of).exists());
        make_place(&root, &of).unwrap();
        assert_eq!(all(&root).unwrap(), ["pv"]);
        assert_eq!(mounted_at(Path::new(&of.disk.global)).unwrap(), None);
        assert!(release(&root, "pv").unwrap() && release(&root, "pv").unwrap());
        assert!(all(&root).unwrap().is_empty());
    }
}
