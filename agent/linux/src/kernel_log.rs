//! The kernel's log: records from now on, and records of the agent, which the kernel shows on every console.
//!
//! In: /dev/kmsg. Out: records as the kernel writes them. Invariants: earlier records are not read unless they are asked for, so that
//! no record is reported twice after a restart; records that were overwritten before they were read are skipped. Linux:
//! Documentation/ABI/testing/dev-kmsg.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
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
/// Longest record that is written, bytes: the kernel refuses one of 1024 bytes with its prefix.
const WRITTEN_MAX: usize = 900;

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
        KernelLog::open_from(path, SeekFrom::End(0))
    }

    /// A reader of all that is still there, and of what is said from now on.
    ///
    /// # Errors
    /// There is no such file, or it may not be read.
    pub fn open_whole(path: &Path) -> Result<KernelLog, FilesError> {
        KernelLog::open_from(path, SeekFrom::Start(0))
    }

    fn open_from(path: &Path, from: SeekFrom) -> Result<KernelLog, FilesError> {
        let flags = OFlag::O_NONBLOCK.bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let mut file = file.map_err(FilesError::at("open", path))?;
        file.seek(from).map_err(FilesError::at("seek", path))?;
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

/// A writer of records. Who only writes needs no right to read the log (`dmesg_restrict`).
#[derive(Debug)]
pub struct KernelLogWriter {
    file: File,
    path: PathBuf,
}

impl KernelLogWriter {
    /// Opens the log for writing.
    ///
    /// # Errors
    /// There is no such file, or it may not be written.
    pub fn open(path: &Path) -> Result<KernelLogWriter, FilesError> {
        let file = OpenOptions::new().write(true).open(path).map_err(FilesError::at("open", path))?;
        Ok(KernelLogWriter { file, path: path.to_owned() })
    }

    /// Writes one record of a kernel level (4 warning, 5 notice, 6 info). Blocks while the consoles take it.
    ///
    /// # Errors
    /// The kernel does not take it.
    pub fn write(&mut self, level: u8, text: &str) -> Result<(), FilesError> {
        // One write is one record; a line end inside would make a second one, of another level.
        let mut record = format!("<{level}>orlop-agent: {}", text.replace('\n', " "));
        record.truncate(record.floor_char_boundary(WRITTEN_MAX));
        record.push('\n');
        self.file.write_all(record.as_bytes()).map_err(FilesError::at("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_of_bounded_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        assert_eq!(KernelLogWriter::open(&path).err().unwrap().operation, "open");
        std::fs::write(&path, "").unwrap();
        let mut log = KernelLogWriter::open(&path).unwrap();
        log.write(5, "two\nlines").unwrap();
        log.write(4, &"é".repeat(1000)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "<5>orlop-agent: two lines");
        assert!(
            lines.len() == 2 && lines[1].len() <= WRITTEN_MAX && lines[1].starts_with("<4>orlop-agent: é")
        );
    }

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
