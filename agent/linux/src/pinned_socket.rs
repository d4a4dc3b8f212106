//! A UNIX socket that is looked up once, so that a connection goes to the socket that was judged.
//!
//! In: a path in a directory whose entries others may change, such as a plugin in a container. Out: a path that leads to that very socket.
//! Invariant: the last component is no symbolic link.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};

use crate::files::FilesError;

/// A socket, held by its inode.
#[derive(Debug)]
pub struct PinnedSocket(OwnedFd);

impl PinnedSocket {
    /// Looks the socket up.
    ///
    /// # Errors
    /// `path` does not exist, or is no socket.
    pub fn at(path: &Path) -> Result<PinnedSocket, FilesError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = open(path, flags, Mode::empty()).map_err(|e| FilesError::at("open", path)(e.into()))?;
        let stat = fstat(&found).map_err(|e| FilesError::at("stat", path)(e.into()))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
            return Ok(PinnedSocket(found));
        }
        let kind = io::Error::new(io::ErrorKind::InvalidInput, "this is no socket");
        Err(FilesError::at("open", path)(kind))
    }

    /// A path to connect to while `self` lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_connection_goes_to_the_socket_that_was_looked_up() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        let listener = UnixListener::bind(&path).unwrap();
        let pinned = PinnedSocket::at(&path).unwrap();
        std::fs::rename(&path, &other).unwrap();
        let _stream = UnixStream::connect(pinned.path()).unwrap();
        listener.accept().unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(PinnedSocket::at(&path).is_err(), "a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(PinnedSocket::at(&path).is_err(), "a file");
        assert!(PinnedSocket::at(&dir.path().join("c")).is_err());
    }
}
