//! Files that the node's configuration brings, on the state partition.
//!
//! In: a path below the state partition, content, mode and owner. Out: the file, whole, or the old one. Pods may have
//! written to the state partition in earlier boots. Invariant: each directory is opened by its name in the one above and
//! no symbolic link is followed, so nothing outside of the path is written, removed or read.

use super::sources::read_at_most;
use crate::plan::files::{BYTES_MAX, LIST, parse};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::libc::{S_IFMT, S_IFREG};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use orlop_config::node::PlacedFile;
use orlop_files::temporary_name;
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Directories of a path that are there without any file of a configuration: `lib/orlop/files`, `lib/orlop/kubernetes`.
const PLACE_DEPTH: usize = 3;

/// Writes the file; one that is so already is left alone. Directories that are missing are made, mode 0755.
///
/// # Errors
/// The kernel's: no room, or something else has the place of the file or of a directory (`ELOOP`, `ENOTDIR`, `EISDIR`).
pub fn place(var: &Path, file: &PlacedFile) -> io::Result<()> {
    let (directories, name) = split(&file.below_var)?;
    let mut directory = open(var, directory_flags(), Mode::empty())?;
    for part in directories {
        directory = match enter(&directory, part) {
            Err(Errno::ENOENT) => {
                mkdirat(&directory, part, Mode::from_bits_truncate(0o755))?;
                enter(&directory, part)?
            }
            entered => entered?,
        };
    }
    if is_written(&directory, name, file) {
        return Ok(());
    }
    let temporary = temporary_name(name.as_ref());
    // A leftover of a crash.
    unlink(&directory, &temporary)?;
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let new = openat(&directory, temporary.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let written = fill(File::from(new), file)
        .and_then(|()| Ok(renameat(&directory, temporary.as_str(), &directory, name)?));
    if written.is_err() {
        // Best effort: the next boot starts by removing it.
        let _ = unlink(&directory, &temporary);
    }
    written
}

/// Removes the file, and the directories of its own that are empty then; one that is absent is fine.
///
/// # Errors
/// The kernel's: something else has the place of the file or of a directory.
pub fn remove(var: &Path, below_var: &str) -> io::Result<()> {
    let (directories, name) = split(below_var)?;
    let mut opened = vec![open(var, directory_flags(), Mode::empty())?];
    for part in &directories {
        let entered = match opened.last().map(|above| enter(above, part)) {
            Some(Err(Errno::ENOENT)) | None => return Ok(()),
            Some(entered) => entered?,
        };
        opened.push(entered);
    }
    if let Some(directory) = opened.last() {
        unlink(directory, name)?;
    }
    // `opened[n]` is the directory in which `directories[n]` is.
    for (above, part) in opened.iter().zip(&directories).skip(PLACE_DEPTH).rev() {
        if unlinkat(above, *part, UnlinkatFlags::RemoveDir).is_err() {
            break;
        }
    }
    Ok(())
}

/// The list of the files that earlier boots wrote; none if there is no list.
///
/// # Errors
/// What is wrong with it, for a person.
pub fn written(var: &Path) -> Result<Vec<String>, String> {
    let unusable =
        |why: String| format!("/var/{LIST}: {why}; files that the configuration has no more are not removed");
    match read_at_most(&var.join(LIST), BYTES_MAX) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(unusable(format!("it cannot be read: {e}"))),
        Ok(bytes) => parse(&String::from_utf8_lossy(&bytes)).map_err(unusable),
    }
}

fn directory_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

fn enter(above: &OwnedFd, name: &str) -> nix::Result<OwnedFd> {
    openat(above, name, directory_flags(), Mode::empty())
}

fn unlink(directory: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// Directories and name of a path. The configuration's check has refused others; nothing is done with one all the same.
fn split(path: &str) -> io::Result<(Vec<&str>, &str)> {
    let mut parts: Vec<&str> = path.split('/').collect();
    let plain = parts.iter().all(|part| !matches!(*part, "" | "." | ".."));
    match parts.pop() {
        Some(name) if plain => Ok((parts, name)),
        _ => Err(ErrorKind::InvalidInput.into()),
    }
}

/// The file is there as it is wanted: on a full disk it must not fail for want of a copy of itself.
fn is_written(directory: &OwnedFd, name: &str, file: &PlacedFile) -> bool {
    // Looked at before it is opened: to open a device may do something.
    let Ok(found) = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return false };
    let same = found.st_mode & S_IFMT == S_IFREG
        && found.st_mode & 0o7777 == file.mode
        && (found.st_uid, found.st_gid, found.st_nlink) == (file.uid, file.gid, 1)
        && u64::try_from(found.st_size) == Ok(file.content.len() as u64);
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut content = Vec::new();
    same && openat(directory, name, flags, Mode::empty())
        .is_ok_and(|found| File::from(found).read_to_end(&mut content).is_ok())
        && content == file.content
}

/// On disk before it is renamed: ext4 would keep the name over a power cut and lose what is in the file.
fn fill(mut new: File, file: &PlacedFile) -> io::Result<()> {
    new.write_all(&file.content)?;
    fchown(&new, Some(Uid::from_raw(file.uid)), Some(Gid::from_raw(file.gid)))?;
    new.set_permissions(Permissions::from_mode(file.mode))?;
    new.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    fn file(below_var: &str, mode: u32, content: &[u8]) -> PlacedFile {
        PlacedFile {
            path: format!("/{below_var}"),
            below_var: below_var.to_owned(),
            mode,
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            content: content.to_vec(),
        }
    }

    #[test]
    fn a_file_is_whole_with_its_mode_and_stays_if_nothing_changes() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (var, path) = (dir.path(), dir.path().join("lib/orlop/files/a/b"));
        let inode = || fs::metadata(&path).expect("file").ino();
        place(var, &file("lib/orlop/files/a/b", 0o600, b"one")).expect("written");
        let first = inode();
        fs::write(path.with_file_name(temporary_name("b".as_ref())), "left by a crash").expect("fixture");
        place(var, &file("lib/orlop/files/a/b", 0o600, b"one")).expect("nothing to do");
        assert_eq!(inode(), first);
        for (mode, content) in [(0o600, &b"two"[..]), (0o440, &b"two"[..]), (0o440, &[][..])] {
            place(var, &file("lib/orlop/files/a/b", mode, content)).expect("written");
            let facts = fs::metadata(&path).expect("file");
            assert_eq!((facts.permissions().mode() & 0o7777, facts.len()), (mode, content.len() as u64));
        }
        let names = fs::read_dir(path.parent().expect("parent")).expect("directory").count();
        assert_eq!(names, 1, "no neighbour is left");
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (var, outside) = (dir.path().join("var"), dir.path().join("outside"));
        for made in [&var, &outside] {
            fs::create_dir_all(made.join("sub")).expect("fixture");
        }
        fs::write(outside.join("sub/a"), "theirs").expect("fixture");
        // In the place of a directory: refused.
        symlink(&outside, var.join("lib")).expect("fixture");
        let error = place(&var, &file("lib/sub/a", 0o600, b"ours")).expect_err("a link");
        assert!(matches!(error.raw_os_error(), Some(nix::libc::ENOTDIR | nix::libc::ELOOP)), "{error}");
        assert!(remove(&var, "lib/sub/a").is_err());
        // In the place of the file: replaced, and its target is as it was.
        symlink(outside.join("sub/a"), var.join("sub/a")).expect("fixture");
        place(&var, &file("sub/a", 0o600, b"ours")).expect("written");
        assert!(fs::symlink_metadata(var.join("sub/a")).expect("file").is_file());
        fs::remove_file(var.join("sub/a")).expect("fixture");
        symlink(outside.join("sub/a"), var.join("sub/a")).expect("fixture");
        remove(&var, "sub/a").expect("removed");
        assert!(fs::symlink_metadata(var.join("sub/a")).is_err());
        assert_eq!(fs::read_to_string(outside.join("sub/a")).expect("file"), "theirs");
        // A hard link to a file of another owner gives way to a file of its own.
        fs::hard_link(outside.join("sub/a"), var.join("sub/b")).expect("fixture");
        place(&var, &file("sub/b", 0o600, b"theirs")).expect("written");
        assert_eq!(fs::metadata(outside.join("sub/a")).expect("file").nlink(), 1);
    }

    #[test]
    fn a_file_goes_with_its_empty_directories() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let var = dir.path();
        for path in ["lib/orlop/files/a/b/c", "lib/orlop/files/a/d", "lib/orlop/kubernetes/e"] {
            place(var, &file(path, 0o600, b"x")).expect("written");
        }
        for _ in 0..2 {
            remove(var, "lib/orlop/files/a/b/c").expect("removed, or gone already");
        }
        assert!(!var.join("lib/orlop/files/a/b").exists() && var.join("lib/orlop/files/a/d").exists());
        remove(var, "lib/orlop/files/a/d").expect("removed");
        remove(var, "lib/orlop/kubernetes/e").expect("removed");
        assert!(var.join("lib/orlop/files").is_dir() && var.join("lib/orlop/kubernetes").is_dir());
        assert!(!var.join("lib/orlop/files/a").exists());
        for path in ["", "/a", "a/../b", "a//b", "a/."] {
            assert!(remove(var, path).is_err() && place(var, &file(path, 0o600, b"")).is_err(), "{path}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_used_says_so() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert_eq!(written(dir.path()), Ok(Vec::new()));
        let path = dir.path().join(LIST);
        fs::create_dir_all(path.parent().expect("parent")).expect("fixture");
        fs::write(&path, "{\"version\": 1, \"paths\": [\"/etc/kubernetes/a\"]}").expect("fixture");
        assert_eq!(written(dir.path()), Ok(vec!["/etc/kubernetes/a".to_owned()]));
        fs::write(&path, "{").expect("fixture");
        assert!(
            written(dir.path())
                .expect_err("damaged")
                .starts_with("/var/lib/orlop/config/files.json: it is damaged")
        );
    }
}
