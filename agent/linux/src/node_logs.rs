//! Files of the node's log directory, for `/logs/`.
//!
//! In: a path below the directory. Out: an open file, or the names in a directory. Invariant: an opened file
//! is below the directory, also if links lead to it and another process changes them in the meantime: the
//! kernel reports the path of the open descriptor, and only regular files are read. Links that stay inside
//! are followed: `containers/` is full of them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};

/// What a path leads to.
#[derive(Debug)]
pub enum NodeLog {
    /// A regular file, from its beginning.
    File(File),
    /// Names in a directory, sorted; those of directories end in a slash.
    Directory(Vec<String>),
}

/// Why there is nothing to read.
#[derive(Debug, thiserror::Error)]
pub enum NodeLogError {
    /// Nothing of that name.
    #[error("{0}: no such file or directory")]
    NotFound(String),
    /// It is somewhere else, or no file.
    #[error("{0}: path escapes from the log directory, or is no regular file")]
    Refused(String),
    /// The disk's words.
    #[error("{path}: {source}")]
    Io {
        /// What was read.
        path: String,
        /// Why it cannot be.
        source: io::Error,
    },
}

/// Opens `path` below `root`; `..` and slashes at its ends count for nothing.
///
/// # Errors
/// See [`NodeLogError`].
pub fn look(root: &Path, path: &str) -> Result<NodeLog, NodeLogError> {
    look_in(open(root, directory(), Mode::empty()), path, ResolveFlag::empty(), usize::MAX)
}

/// As [`look`], for a directory that others may move: `root` itself must be one, and no part of it a link. What is mounted below it, which
/// may be a file system of a pod that never answers, is not looked at. A directory has at most `names_max` names.
///
/// # Errors
/// See [`NodeLogError`]; a `root` with a link is refused.
pub fn look_without_links(root: &Path, path: &str, names_max: usize) -> Result<NodeLog, NodeLogError> {
    let how = OpenHow::new().flags(directory()).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    look_in(openat2(AT_FDCWD, root, how), path, ResolveFlag::RESOLVE_NO_XDEV, names_max)
}

fn directory() -> OFlag {
    OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC
}

fn look_in(
    root: nix::Result<OwnedFd>,
    path: &str,
    further: ResolveFlag,
    names_max: usize,
) -> Result<NodeLog, NodeLogError> {
    let failed = |source: io::Error| match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR) => NodeLogError::NotFound(path.to_owned()),
        Some(Errno::ELOOP | Errno::EXDEV) => NodeLogError::Refused(path.to_owned()),
        _ => NodeLogError::Io { path: path.to_owned(), source },
    };
    let root_fd = root.map_err(|e| failed(e.into()))?;
    let root = place(root_fd.as_raw_fd()).map_err(failed)?;
    let resolve = ResolveFlag::RESOLVE_NO_MAGICLINKS | further;
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve);
    let found = openat2(&root_fd, &cleaned(path), how).map_err(|e| failed(e.into()))?;
    if !place(found.as_raw_fd()).map_err(failed)?.starts_with(&root) {
        return Err(NodeLogError::Refused(path.to_owned()));
    }
    let kind =
        SFlag::from_bits_truncate(fstat(&found).map_err(|e| failed(e.into()))?.st_mode) & SFlag::S_IFMT;
    // The descriptor itself is opened again, for reading: no path is walked a second time.
    let itself = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    match kind {
        SFlag::S_IFREG => Ok(NodeLog::File(File::open(itself).map_err(failed)?)),
        SFlag::S_IFDIR => Ok(NodeLog::Directory(names(&itself, names_max).map_err(failed)?)),
        _ => Err(NodeLogError::Refused(path.to_owned())),
    }
}

/// Whether the first bytes of a file look like text; the file is read from its beginning afterwards.
///
/// # Errors
/// The disk's.
pub fn is_text(file: &mut File) -> io::Result<bool> {
    let mut head = Vec::with_capacity(512);
    io::Seek::rewind(file)?;
    file.take(512).read_to_end(&mut head)?;
    io::Seek::rewind(file)?;
    Ok(!head.iter().any(|b| *b < b' ' && !b"\t\n\r\x0c\x1b".contains(b)))
}

/// Where an open descriptor is, as the kernel has it.
fn place(descriptor: i32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{descriptor}"))
}

/// As a file server reads a path: below its root, `..` never leads above it.
fn cleaned(path: &str) -> PathBuf {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    if parts.is_empty() { PathBuf::from(".") } else { parts.iter().collect() }
}

fn names(directory: &Path, names_max: usize) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)?.take(names_max) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        names.push(if entry.file_type()?.is_dir() { format!("{name}/") } else { name });
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::create_dir_all(log.join("pods/a")).unwrap();
        fs::create_dir(log.join("containers")).unwrap();
        fs::write(log.join("pods/a/0.log"), "inside\n").unwrap();
        fs::write(log.join("cron.log"), "cron\n").unwrap();
        fs::write(dir.path().join("secret"), "outside\n").unwrap();
        fs::create_dir(dir.path().join("log-of-others")).unwrap();
        fs::write(dir.path().join("log-of-others/x"), "outside\n").unwrap();
        symlink(log.join("pods/a/0.log"), log.join("containers/a.log")).unwrap();
        symlink("../../secret", log.join("containers/relative")).unwrap();
        symlink(dir.path().join("secret"), log.join("absolute")).unwrap();
        symlink(dir.path(), log.join("up")).unwrap();
        symlink("self", log.join("self")).unwrap();
        symlink("/proc/self/fd", log.join("fds")).unwrap();
        nix::unistd::mkfifo(&log.join("fifo"), Mode::S_IRWXU).unwrap();
        dir
    }

    fn read(root: &Path, path: &str) -> Result<String, String> {
        match look(root, path) {
            Ok(NodeLog::File(mut file)) => {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                Ok(text)
            }
            Ok(NodeLog::Directory(names)) => Ok(names.join(" ")),
            Err(NodeLogError::NotFound(_)) => Err("not found".to_owned()),
            Err(NodeLogError::Refused(_)) => Err("refused".to_owned()),
            Err(other) => Err(other.to_string()),
        }
    }

    #[test]
    fn a_directory_that_was_moved_is_not_looked_at() {
        let dir = tree();
        let root = fs::canonicalize(dir.path()).unwrap();
        let refused = |path: &Path| matches!(look_without_links(path, "x", 9), Err(NodeLogError::Refused(_)));
        symlink(root.join("log-of-others"), root.join("moved")).unwrap();
        symlink(&root, root.join("around")).unwrap();
        assert!(refused(&root.join("moved")) && refused(&root.join("around/log-of-others")));
        let found = look_without_links(&root.join("log-of-others"), "x", 9);
        assert!(matches!(found, Ok(NodeLog::File(_))), "{found:?}");
        let listed = look_without_links(&root.join("log"), "", 2);
        assert!(matches!(&listed, Ok(NodeLog::Directory(names)) if names.len() == 2), "{listed:?}");
    }

    #[test]
    fn nothing_leads_out_and_links_inside_are_followed() {
        let dir = tree();
        let root = dir.path().join("log");
        for (path, expected) in [
            ("cron.log", Ok("cron\n")),
            ("/cron.log", Ok("cron\n")),
            ("pods/a/0.log", Ok("inside\n")),
            ("containers/a.log", Ok("inside\n")),
            ("pods/../cron.log", Ok("cron\n")),
            ("../../../../log/cron.log", Err("not found")),
            ("../secret", Err("not found")),
            ("containers/relative", Err("refused")),
            ("absolute", Err("refused")),
            ("up/secret", Err("refused")),
            ("up", Err("refused")),
            ("up/log-of-others/x", Err("refused")),
            ("up/log/cron.log", Ok("cron\n")),
            ("self", Err("refused")),
            ("fds/0", Err("refused")),
            ("fifo", Err("refused")),
            ("cron.log/x", Err("not found")),
            ("none", Err("not found")),
            ("", Ok("absolute containers/ cron.log fds fifo pods/ self up")),
            ("pods/", Ok("a/")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(read(&root, path), expected, "{path:?}");
        }
    }

    #[test]
    fn text_is_told_from_the_rest_and_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        for (bytes, text) in
            [(&b"a line\n\x1b[1m"[..], true), (&b"LPKSHHRH\0\0"[..], false), (&b""[..], true)]
        {
            let path = dir.path().join("file");
            fs::write(&path, bytes).unwrap();
            let mut file = File::open(&path).unwrap();
            assert_eq!(is_text(&mut file).unwrap(), text, "{bytes:?}");
            let mut all = Vec::new();
            file.read_to_end(&mut all).unwrap();
            assert_eq!(all, bytes);
        }
    }
}
