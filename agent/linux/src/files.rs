//! Small files and directories of the node: atomic writes (of orlop-files), directories with modes, bounded reads.
//!
//! Removal of whole trees is [`crate::remove_tree`]. Every error names the operation and the path, and maps
//! to a [`Class`] for core. Invariant: a reader never sees half of a file that was written here.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use agent_types::failure::{Class, DriverError};
use orlop_files::ReplaceError;
pub use orlop_files::{Durability, temporary_name};

/// A failed operation on a path.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}", path.display())]
pub struct FilesError {
    /// System call or step.
    pub operation: &'static str,
    /// On what.
    pub path: PathBuf,
    /// The system's words.
    #[source]
    pub source: io::Error,
}

impl FilesError {
    pub(crate) fn at(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FilesError + use<> {
        let path = path.to_owned();
        move |source| FilesError { operation, path, source }
    }

    /// What core may do about it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self.source.kind() {
            io::ErrorKind::NotFound => Class::NotFound,
            io::ErrorKind::AlreadyExists => Class::AlreadyExists,
            io::ErrorKind::ResourceBusy
            | io::ErrorKind::CrossesDevices
            | io::ErrorKind::DirectoryNotEmpty => Class::Conflict,
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename | io::ErrorKind::FileTooLarge => {
                Class::Invalid
            }
            _ => Class::Retryable { after_ms: 0 },
        }
    }
}

impl From<FilesError> for DriverError {
    fn from(e: FilesError) -> DriverError {
        DriverError {
            operation: e.operation,
            object: e.path.display().to_string(),
            class: e.class(),
            message: e.source.to_string(),
        }
    }
}

/// Replaces `path` with `contents` ([`orlop_files::replace`]).
///
/// # Errors
/// The step that failed; the old file is then untouched.
pub fn write_atomic(
    path: &Path,
    contents: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<(), FilesError> {
    orlop_files::replace(path, contents, mode, durability)
        .map_err(|ReplaceError { operation, path, source }| FilesError { operation, path, source })
}

/// Makes `path` and its missing parents (0755); `path` itself ends with exactly `mode`. Idempotent.
///
/// # Errors
/// `mkdir` or `chmod` with the path; `AlreadyExists` if something that is no directory is in the way.
pub fn make_dir(path: &Path, mode: u32) -> Result<(), FilesError> {
    if let Some(parent) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)
            .map_err(FilesError::at("mkdir", parent))?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        Err(e) => return Err(FilesError::at("mkdir", path)(e)),
    }
    // The umask may have taken bits away, and an older agent may have chosen others.
    std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(FilesError::at("chmod", path))
}

/// Reads a whole file of at most `bytes_max` bytes.
///
/// # Errors
/// `open` or `read`; a larger file is `FileTooLarge`.
pub fn read_capped(path: &Path, bytes_max: u64) -> Result<Vec<u8>, FilesError> {
    let (file, length) = open_regular(path, 0)?;
    let mut contents = Vec::with_capacity(usize::try_from(length.min(bytes_max)).unwrap_or(0));
    file.take(bytes_max + 1).read_to_end(&mut contents).map_err(FilesError::at("read", path))?;
    if contents.len() as u64 > bytes_max {
        let e = io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {bytes_max} bytes"));
        return Err(FilesError::at("read", path)(e));
    }
    Ok(contents)
}

/// Reads at most the last `bytes_max` bytes of a file, and says whether that is all of it. A link is not followed.
///
/// # Errors
/// `open`, `seek` or `read`; what is no regular file is `InvalidInput`.
pub fn read_end(path: &Path, bytes_max: u64) -> Result<(Vec<u8>, bool), FilesError> {
    let (mut file, length) = open_regular(path, nix::libc::O_NOFOLLOW)?;
    let start = length.saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(start)).map_err(FilesError::at("seek", path))?;
    let mut end = Vec::with_capacity(usize::try_from(length - start).unwrap_or(0));
    file.take(bytes_max).read_to_end(&mut end).map_err(FilesError::at("read", path))?;
    Ok((end, start == 0))
}

/// Opens a regular file for reading, with more flags of open(2); answers its length, bytes, too.
fn open_regular(path: &Path, flags: i32) -> Result<(File, u64), FilesError> {
    // O_NONBLOCK: a FIFO in the directory must not hang the reader. It changes nothing for regular files.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC | flags)
        .open(path)
        .map_err(FilesError::at("open", path))?;
    let metadata = file.metadata().map_err(FilesError::at("stat", path))?;
    if !metadata.is_file() {
        let e = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(FilesError::at("read", path)(e));
    }
    Ok((file, metadata.len()))
}

/// The names in a directory that do not begin with a dot, in byte order. Names that are not UTF-8 are
/// given with replacement characters (and will then fail to open, with that name in the error).
///
/// # Errors
/// `readdir` with the path.
pub fn visible_names(path: &Path) -> Result<Vec<String>, FilesError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(FilesError::at("readdir", path))? {
        let entry = entry.map_err(FilesError::at("readdir", path))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn write_replaces_whole_and_sets_the_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etc-hosts");
        let leftover = dir.path().join(temporary_name("etc-hosts".as_ref()));
        std::fs::write(leftover, "left by a crash, longer than the new one").unwrap();
        for (text, mode, durability) in
            [("one", 0o644, Durability::Rebuildable), ("second", 0o600, Durability::Synced)]
        {
            write_atomic(&path, text.as_bytes(), mode, durability).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(mode_of(&path), mode);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary is left");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_names_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("directory-in-the-way");
        std::fs::create_dir(&target).unwrap();
        let e = write_atomic(&target, b"x", 0o644, Durability::Rebuildable).unwrap_err();
        assert!(e.to_string().contains("directory-in-the-way"), "{e}");
        assert!(target.is_dir());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let missing = dir.path().join("no/such/dir/file");
        assert_eq!(
            write_atomic(&missing, b"x", 0o644, Durability::Rebuildable).unwrap_err().class(),
            Class::NotFound
        );
    }

    #[test]
    fn directories_get_their_mode_whatever_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pods/uid/volumes");
        make_dir(&path, 0o750).unwrap();
        assert_eq!(mode_of(&path), 0o750);
        assert_eq!(mode_of(&dir.path().join("pods")), 0o755);
        make_dir(&path, 0o755).unwrap();
        assert_eq!(mode_of(&path), 0o755);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(make_dir(&file, 0o755).unwrap_err().class(), Class::AlreadyExists);
    }

    #[test]
    fn reads_are_bounded_and_refuse_what_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_capped(&path, 5).unwrap(), b"12345");
        assert_eq!(read_capped(&path, 4).unwrap_err().class(), Class::Invalid);
        assert_eq!(read_capped(dir.path(), 4).unwrap_err().class(), Class::Invalid);
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(read_capped(&fifo, 4).unwrap_err().class(), Class::Invalid);
    }

    #[test]
    fn the_end_of_a_file_and_of_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_end(&path, 5).unwrap(), (b"12345".to_vec(), true));
        assert_eq!(read_end(&path, 2).unwrap(), (b"45".to_vec(), false));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        for refused in [&link, &fifo, dir.path()] {
            assert!(read_end(refused, 5).is_err(), "{}", refused.display());
        }
        assert_eq!(read_end(&dir.path().join("gone"), 5).unwrap_err().class(), Class::NotFound);
    }

    #[test]
    fn names_are_sorted_and_dot_files_are_hidden() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.yaml", ".hidden", "a.yaml"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(visible_names(dir.path()).unwrap(), ["a.yaml", "b.yaml"]);
        assert_eq!(visible_names(&dir.path().join("gone")).unwrap_err().class(), Class::NotFound);
    }
}
