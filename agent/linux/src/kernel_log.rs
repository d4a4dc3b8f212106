//! The kernel's log from now on, record by record.
//!
//! In: /dev/kmsg. Out: records as the kernel writes them. Invariants: earlier records are not read, so that no record
//! is reported twice after a restart; records that were overwritten before they were read are skipped. Linux:
//! Documentation/ABI/testing/dev-kmsg.

use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::read;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::files::FilesError;

/// Where it is.
pub const PATH: &str = "/dev/kmsg";
/// The kernel's longest record; a shorter buffer is an error to it.
const RECORD_MAX: usize = 8192;

/// A reader of the log.
pub struct KernelLog {
    /// In the clothes of a socket, as in [`crate::network_changes`]: nothing but readiness is used.
    file: UnixDatagram,
    path: PathBuf,
    buffer: Vec<u8>,
}

impl KernelLog {
    /// A reader of what is said from now on.
    ///
    /// # Errors
    /// There is no such file, or it may not be read.
    pub fn open(path: &Path) -> Result<KernelLog, FilesError> {
        let flags = OFlag::O_NONBLOCK.bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let mut file = file.map_err(FilesError::at("open", path))?;
        file.seek(SeekFrom::End(0)).map_err(FilesError::at("seek", path))?;
        let file = UnixDatagram::from_std(OwnedFd::from(file).into());
        let file = file.map_err(FilesError::at("wait on", path))?;
        Ok(KernelLog { file, path: path.to_owned(), buffer: vec![0; RECORD_MAX] })
    }

    /// The next record.
    ///
    /// # Errors
    /// It cannot be read any more.
    pub async fn next(&mut self) -> Result<String, FilesError> {
        loop {
            self.file.readable().await.map_err(FilesError::at("wait on", &self.path))?;
            let (file, buffer) = (&self.file, &mut self.buffer);
            let found = file.try_io(Interest::READABLE, || Ok(read(file, buffer)?));
            match found {
                Ok(0) => {
                    let end = io::Error::new(io::ErrorKind::UnexpectedEof, "the log has an end");
                    return Err(FilesError::at("read", &self.path)(end));
                }
                Ok(length) => {
                    return Ok(String::from_utf8_lossy(self.buffer.get(..length).unwrap_or(&[])).into_owned());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The kernel wrote over what was next: the oldest record that is left is read now.
                Err(error) if error.raw_os_error() == Some(Errno::EPIPE as i32) => {}
                Err(error) => return Err(FilesError::at("read", &self.path)(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_that_is_not_there_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let missing = KernelLog::open(&dir.path().join("kmsg")).err().unwrap();
        assert_eq!(missing.operation, "open");
        // A file that is no log cannot be waited on: that is said, too, and not taken for silence.
        std::fs::write(dir.path().join("file"), "3,1,2,-;text\n").unwrap();
        assert_eq!(KernelLog::open(&dir.path().join("file")).err().unwrap().operation, "wait on");
    }
}
