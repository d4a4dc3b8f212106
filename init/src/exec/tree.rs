//! Copies a directory tree with everything a container image layer can hold: owners, modes, times, hard links,
//! symbolic links, device nodes (overlay white-outs) and extended attributes.

use crate::sys::xattr;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, mknod, utimensat};
use nix::sys::time::TimeSpec;
use std::collections::BTreeMap;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Everything but directories.
    pub files: u64,
    /// Bytes of regular files.
    pub bytes: u64,
}

/// An entry that could not be copied.
#[derive(Debug, thiserror::Error)]
#[error("cannot copy {path}")]
pub struct TreeError {
    /// The source.
    pub path: PathBuf,
    /// Error of the operating system.
    #[source]
    pub source: io::Error,
}

/// Copies the directory `from` to `to`, which must not exist.
///
/// # Errors
/// The first entry that could not be copied; what was copied until then stays.
pub fn copy(from: &Path, to: &Path) -> Result<Copied, TreeError> {
    let mut copier = Copier { links: BTreeMap::new(), copied: Copied::default() };
    copier.entry(from, to)?;
    Ok(copier.copied)
}

struct Copier {
    /// Files with more than one name, by device and inode, and where they were copied to first.
    links: BTreeMap<(u64, u64), PathBuf>,
    copied: Copied,
}

impl Copier {
    fn entry(&mut self, from: &Path, to: &Path) -> Result<(), TreeError> {
        let fail = |source| TreeError { path: from.to_path_buf(), source };
        let metadata = fs::symlink_metadata(from).map_err(fail)?;
        if metadata.is_dir() {
            fs::create_dir(to).map_err(fail)?;
            let mut names: Vec<_> = fs::read_dir(from)
                .and_then(|d| d.map(|e| e.map(|e| e.file_name())).collect())
                .map_err(fail)?;
            names.sort();
            for name in names {
                self.entry(&from.join(&name), &to.join(&name))?;
            }
        } else if self.file(from, to, &metadata).map_err(fail)? {
            return Ok(());
        }
        attributes(from, to, &metadata).map_err(fail)
    }

    /// True if it is another name of a file that was copied before.
    fn file(&mut self, from: &Path, to: &Path, metadata: &Metadata) -> io::Result<bool> {
        self.copied.files += 1;
        if metadata.nlink() > 1 {
            let key = (metadata.dev(), metadata.ino());
            if let Some(first) = self.links.get(&key) {
                fs::hard_link(first, to)?;
                return Ok(true);
            }
            self.links.insert(key, to.to_path_buf());
        }
        let kind = metadata.file_type();
        if kind.is_symlink() {
            symlink(fs::read_link(from)?, to)?;
        } else if kind.is_file() {
            self.copied.bytes += fs::copy(from, to)?;
        } else {
            let node = match () {
                () if kind.is_char_device() => SFlag::S_IFCHR,
                () if kind.is_block_device() => SFlag::S_IFBLK,
                () if kind.is_fifo() => SFlag::S_IFIFO,
                () => SFlag::S_IFSOCK,
            };
            mknod(to, node, Mode::empty(), metadata.rdev())?;
        }
        Ok(false)
    }
}

/// Owner first: changing it clears set-user-ID bits and file capabilities.
fn attributes(from: &Path, to: &Path, metadata: &Metadata) -> io::Result<()> {
    lchown(to, Some(metadata.uid()), Some(metadata.gid()))?;
    if !metadata.is_symlink() {
        fs::set_permissions(to, Permissions::from_mode(metadata.mode() & 0o7777))?;
    }
    xattr::copy(from, to)?;
    let time = TimeSpec::new(metadata.mtime(), metadata.mtime_nsec());
    Ok(utimensat(AT_FDCWD, to, &time, &time, UtimensatFlags::NoFollowSymlink)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_layer_can_hold() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir_all(a.join("d/e")).expect("fixture");
        fs::write(a.join("d/suid"), "12345").expect("fixture");
        fs::set_permissions(a.join("d/suid"), Permissions::from_mode(0o4755)).expect("fixture");
        fs::set_permissions(a.join("d/e"), Permissions::from_mode(0o1777)).expect("fixture");
        fs::hard_link(a.join("d/suid"), a.join("z")).expect("fixture");
        symlink("nowhere", a.join("link")).expect("fixture");
        let root = nix::unistd::geteuid().is_root();
        if root {
            mknod(&a.join("whiteout"), SFlag::S_IFCHR, Mode::empty(), 0).expect("fixture");
        }
        let copied = copy(&a, &b).expect("copied");
        assert_eq!(copied, Copied { files: 3 + u64::from(root), bytes: 5 });
        let stat = |p: &str| fs::symlink_metadata(b.join(p)).expect(p);
        assert_eq!(stat("d/suid").mode() & 0o7777, 0o4755);
        assert_eq!(stat("d/e").mode() & 0o7777, 0o1777);
        assert_eq!((stat("z").ino(), stat("z").nlink()), (stat("d/suid").ino(), 2));
        assert_eq!(stat("z").mtime_nsec(), fs::metadata(a.join("z")).expect("z").mtime_nsec());
        assert_eq!(fs::read_link(b.join("link")).expect("link"), Path::new("nowhere"));
        if root {
            assert!(stat("whiteout").file_type().is_char_device());
        }
    }

    #[test]
    fn an_existing_target_is_not_touched() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let error = copy(dir.path(), dir.path()).expect_err("exists");
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
    }
}
