//! Follows container log files and gives their lines as they are written.
//!
//! In: log files to follow, by a key of the caller's. Out: (key, lines). The kernel says when a file grew
//! (inotify); nothing is read on a timer. Invariant: memory is bounded by a read's size for each file; a file
//! that disappears ends silently after its last line.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

use crate::cri_log::LineAssembler;
use crate::files::FilesError;

/// Bytes read at once.
const READ_BYTES: usize = 8 * 1024;

/// Where in a log file to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// The first line: the container was started a moment ago.
    Beginning,
    /// What comes from now on: the container ran before we did.
    End,
}

/// Follows any number of log files. `K` names a file for the caller.
pub struct LogFollower<K> {
    stream: EventStream<[u8; 1024]>,
    watches: Watches,
    files: Vec<Followed<K>>,
}

struct Followed<K> {
    key: K,
    path: PathBuf,
    file: File,
    assembler: LineAssembler,
    descriptor: WatchDescriptor,
}

impl<K: Clone + PartialEq> LogFollower<K> {
    /// A follower of nothing yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// No inotify instance is to be had.
    pub fn new() -> Result<LogFollower<K>, FilesError> {
        let at = || FilesError::at("inotify_init", Path::new("log files"));
        let inotify = Inotify::init().map_err(at())?;
        let watches = inotify.watches();
        let stream = inotify.into_event_stream([0u8; 1024]).map_err(at())?;
        Ok(LogFollower { stream, watches, files: Vec::new() })
    }

    /// Starts following; what the file holds already is returned (empty with [`StartAt::End`]).
    ///
    /// # Errors
    /// Opening or watching the file; `NotFound` if it is not there yet.
    pub fn follow(&mut self, key: K, path: &Path, from: StartAt) -> Result<Vec<String>, FilesError> {
        let mut file = File::open(path).map_err(FilesError::at("open", path))?;
        if from == StartAt::End {
            file.seek(SeekFrom::End(0)).map_err(FilesError::at("seek", path))?;
        }
        // Watched before the first read: what is written in between shows up as an event.
        let descriptor = self
            .watches
            .add(path, WatchMask::MODIFY | WatchMask::DELETE_SELF)
            .map_err(FilesError::at("inotify_add_watch", path))?;
        let mut followed =
            Followed { key, path: path.to_owned(), file, assembler: LineAssembler::default(), descriptor };
        let lines = followed.read().map_err(FilesError::at("read", path))?;
        self.files.push(followed);
        Ok(lines)
    }

    /// Stops following; returns the lines that were written last.
    pub fn unfollow(&mut self, key: &K) -> Vec<String> {
        let Some(index) = self.files.iter().position(|f| f.key == *key) else { return Vec::new() };
        let mut followed = self.files.swap_remove(index);
        // Fails if the file is gone, and its watch with it.
        let _ = self.watches.remove(followed.descriptor.clone());
        followed.read().unwrap_or_default()
    }

    /// The keys that are followed.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.files.iter().map(|f| &f.key)
    }

    /// Waits for the next lines of any file. Cancel-safe: bytes are read only after the wait.
    ///
    /// # Errors
    /// Reading the event queue or a log file; a file that fails is no longer followed.
    pub async fn next(&mut self) -> Result<(K, Vec<String>), FilesError> {
        loop {
            let event = match self.stream.next().await {
                Some(Ok(event)) => event,
                Some(Err(e)) => return Err(FilesError::at("read inotify of", Path::new("log files"))(e)),
                None => {
                    let e = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return Err(FilesError::at("read inotify of", Path::new("log files"))(e));
                }
            };
            let Some(index) = self.files.iter().position(|f| f.descriptor == event.wd) else { continue };
            let followed = &mut self.files[index];
            let lines = match followed.read() {
                Ok(lines) => lines,
                Err(e) => {
                    let path = self.files.swap_remove(index).path;
                    return Err(FilesError::at("read", &path)(e));
                }
            };
            let key = followed.key.clone();
            if event.mask.contains(EventMask::IGNORED) {
                self.files.swap_remove(index);
            }
            if !lines.is_empty() {
                return Ok((key, lines));
            }
        }
    }
}

impl<K> Followed<K> {
    fn read(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut buffer = [0u8; READ_BYTES];
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => return Ok(lines),
                Ok(n) => self.assembler.push(&buffer[..n], &mut lines),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    async fn soon(follower: &mut LogFollower<u8>) -> (u8, Vec<String>) {
        tokio::time::timeout(Duration::from_secs(10), follower.next()).await.expect("no line").unwrap()
    }

    #[tokio::test]
    async fn lines_of_two_files_as_they_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("0.log"), dir.path().join("1.log"));
        std::fs::write(&a, "2026 stdout F first\n2026 stdout F sec").unwrap();
        std::fs::write(&b, "2026 stdout F old\n").unwrap();
        let mut follower = LogFollower::new().unwrap();
        assert_eq!(follower.follow(1, &a, StartAt::Beginning).unwrap(), ["first"]);
        assert!(follower.follow(2, &b, StartAt::End).unwrap().is_empty());
        let append = |path: &Path, text: &str| {
            let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        append(&a, "ond\n");
        assert_eq!(soon(&mut follower).await, (1, vec!["second".to_owned()]));
        append(&b, "2026 stdout F new\n");
        assert_eq!(soon(&mut follower).await, (2, vec!["new".to_owned()]));
        append(&a, "2026 stdout F last\n");
        assert_eq!(follower.unfollow(&1), ["last"]);
        assert_eq!(follower.keys().copied().collect::<Vec<_>>(), [2]);
        assert!(follower.unfollow(&1).is_empty());
    }

    #[tokio::test]
    async fn a_missing_file_is_named() {
        let mut follower = LogFollower::<u8>::new().unwrap();
        let e = follower.follow(1, Path::new("/nonexistent/0.log"), StartAt::Beginning).unwrap_err();
        assert!(e.to_string().contains("/nonexistent/0.log"), "{e}");
    }
}
