//! Disks of the node with file systems of volumes: what one looks like, where it is mounted, and when that ends.
//!
//! In: a disk, the directory it goes to. Out: [`DiskState`], directories. Invariants: what is on a disk is read and never written
//! here; a disk that a pod has mounted stays mounted; that formatting has begun is on the node's disk before it does, for as
//! long as mkfs runs or was killed, and for one disk as it is attached now (`identity`). Volumes of every type whose file
//! system the node makes go this way: `local`, `iscsi`, `fc`, `flexVolume`. Upstream: pkg/volume/local MountDevice,
//! UnmountDevice.

mod identity;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use agent_volumes::bind::Bind;
use agent_volumes::disk::{self, DiskState, LOOKED_AT};
use agent_volumes::plugin::Plugin;
use nix::mount::{MntFlags, umount2};

use super::device::entries;
use super::{VOLUMES, VolumeError, device_of, make_way, mounts, no_way_up};
use crate::files::{self, Durability, FilesError};
use crate::process::boot_id;

/// The source is a disk; nothing of it is read.
#[must_use]
pub fn is_one(of: &Bind) -> bool {
    fs::metadata(&of.source).is_ok_and(|found| found.file_type().is_block_device())
}

/// What there is of the disk; `None`: the source is none (it may be a directory, or not there).
///
/// # Errors
/// It, or where it goes, cannot be read.
pub fn look(root: &Path, of: &Bind) -> Result<Option<DiskState>, VolumeError> {
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
    let by_number = matches!(content, disk::Content::FileSystem(_) | disk::Content::Unused(_));
    let mounted = mounted.map(|device| !by_number || device == found.rdev());
    let global = Path::new(&of.disk.global);
    let begun = match fs::read_to_string(marker(root, global)) {
        Ok(text) => which(global, found.rdev())?.is_some_and(|this| text == this),
        Err(_) => false,
    };
    Ok(Some(DiskState { mounted, content, begun }))
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

fn marker(root: &Path, global: &Path) -> PathBuf {
    let name = global.file_name().unwrap_or_default();
    Path::new(&disk::begun_directory(&root.to_string_lossy())).join(name)
}

/// This disk, as it is attached now, and where it goes; `None` if the kernel has no name for it but one that another disk may
/// get.
fn which(global: &Path, number: u64) -> Result<Option<String>, FilesError> {
    let (first, boot) = (first_line(global), boot_id()?);
    Ok(identity::of(Path::new("/sys"), number).map(|disk| format!("{first}\nboot {boot}\n{disk}")))
}

/// Volumes of several types may have the same last part.
fn first_line(global: &Path) -> String {
    format!("for {}", global.display())
}

fn is_of(marker: &Path, global: &Path) -> bool {
    let text = fs::read_to_string(marker).unwrap_or_default();
    text.lines().next() == Some(first_line(global).as_str())
}

/// It is about to be formatted: if mkfs or the agent is killed, what mkfs has left there may be formatted again. Of a disk
/// without a name nothing is noted: it is formatted while it is blank, and only then.
///
/// # Errors
/// The step that failed.
pub fn begin(root: &Path, of: &Bind) -> Result<(), FilesError> {
    let global = Path::new(&of.disk.global);
    let source = Path::new(&of.source);
    let number = fs::metadata(source).map_err(FilesError::at("stat", source))?.rdev();
    let Some(text) = which(global, number)? else { return forget(root, global) };
    let marker = marker(root, global);
    marker.parent().map_or(Ok(()), |directory| make_way(root, directory))?;
    files::write_atomic(&marker, text.as_bytes(), 0o600, Durability::Rebuildable)
}

/// mkfs has ended, well or not.
///
/// # Errors
/// The step that failed.
pub fn finish(root: &Path, of: &Bind) -> Result<(), FilesError> {
    forget(root, Path::new(&of.disk.global))
}

/// Nothing that was begun with the disk that goes there counts any more: mkfs has ended, or the volume was unmounted or
/// detached, and another node may have it now.
///
/// # Errors
/// The step that failed.
pub fn forget(root: &Path, global: &Path) -> Result<(), FilesError> {
    let marker = marker(root, global);
    if !is_of(&marker, global) {
        return Ok(());
    }
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

/// Volumes of the node's own disks that the node began to format: names.
///
/// # Errors
/// The directory cannot be read.
pub fn all_begun(root: &Path) -> Result<Vec<String>, FilesError> {
    let text = root.to_string_lossy();
    let directory = disk::begun_directory(&text);
    let mut names = entries(Path::new(&directory))?;
    names.retain(|name| is_of(&Path::new(&directory).join(name), Path::new(&disk::global(&text, name))));
    Ok(names)
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

    #[test]
    fn what_mkfs_makes_is_unused_until_a_file_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, files) = (dir.path().join("disk"), dir.path().join("files"));
        fs::create_dir(&files).unwrap();
        fs::write(files.join("precious"), "x").unwrap();
        let with = files.to_string_lossy().into_owned();
        for kind in ["ext2", "ext3", "ext4"] {
            for (more, expected) in [
                (&[][..], Content::Unused(kind)),
                (&["-O", "orphan_file"], Content::Unused(kind)),
                (&["-d", &with], Content::FileSystem(kind)),
            ] {
                File::create(&path).and_then(|disk| disk.set_len(16 << 20)).unwrap();
                let mut mkfs = std::process::Command::new(format!("mkfs.{kind}"));
                let made = mkfs.args(more).arg("-qF").arg(&path).output().unwrap();
                if !made.status.success() {
                    // An older one does not know the orphan file; all know the others.
                    assert_eq!(
                        more.first(),
                        Some(&"-O"),
                        "{kind}: {}",
                        String::from_utf8_lossy(&made.stderr)
                    );
                    continue;
                }
                let (head, tail) = ends(&mut File::open(&path).unwrap()).unwrap();
                assert_eq!(disk::content(&head, &tail), expected, "{kind} {more:?}");
            }
        }
    }

    fn look_at(root: &Path, of: &Bind) -> Option<DiskState> {
        look(root, of).unwrap()
    }

    #[test]
    fn what_has_begun_is_known_until_mkfs_has_ended_or_the_volume_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("kubelet");
        fs::create_dir(&root).unwrap();
        let of = of(&root, Path::new("/dev/null"));
        let marker = marker(&root, Path::new(&of.disk.global));
        // A device without a name: what is noted of it would count for another one, too.
        fs::create_dir_all(marker.parent().unwrap()).unwrap();
        let text = format!("{}\nboot 1\nof another disk\n", first_line(Path::new(&of.disk.global)));
        fs::write(&marker, &text).unwrap();
        begin(&root, &of).unwrap();
        assert!(!marker.exists());
        // A volume of another type with the same last part has it now.
        fs::write(&marker, "for /elsewhere/pv\n").unwrap();
        finish(&root, &of).unwrap();
        assert!(marker.exists() && all_begun(&root).unwrap().is_empty());
        for end in [finish, |root: &Path, of: &Bind| forget(root, Path::new(&of.disk.global))] {
            fs::write(&marker, &text).unwrap();
            assert_eq!(all_begun(&root).unwrap(), ["pv"]);
            end(&root, &of).unwrap();
            end(&root, &of).unwrap();
            assert!(!marker.exists());
        }
        make_place(&root, &of).unwrap();
        assert_eq!(all(&root).unwrap(), ["pv"]);
        assert_eq!(mounted_at(Path::new(&of.disk.global)).unwrap(), None);
        // An agent that starts takes away what no pod has: what it was killed at is not over for that.
        fs::write(&marker, &text).unwrap();
        assert!(release(&root, "pv").unwrap() && release(&root, "pv").unwrap());
        assert!(all(&root).unwrap().is_empty() && marker.exists());
    }
}
