//! Follows container log files and gives their lines as they are written.
//!
//! In: log files to follow, by a key of the caller's. Out: (key, lines). The kernel says when a file grew
//! (inotify); nothing is read on a timer. Invariants: one answer holds the lines of `PART_BYTES` at most, and files take
//! turns, so a container that writes faster than it is read keeps neither memory nor others' lines back; a file that
//! disappears ends silently after its last line.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

use crate::cri_log::LineAssembler;
use crate::files::FilesError;

/// Bytes read at once.
const READ_BYTES: usize = 8 * 1024;
/// Bytes of one file that are read before another one has its turn.
const PART_BYTES: usize = 64 * 1024;

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
    /// Whose turn it is, among those that have something to read.
    turn: usize,
}

struct Followed<K> {
    key: K,
    path: PathBuf,
    file: File,
    assembler: LineAssembler,
    descriptor: WatchDescriptor,
    /// There may be more to read.
    unread: bool,
    /// Nothing more is written: once all is read it is followed no longer.
    ending: bool,
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
        Ok(LogFollower { stream, watches, files: Vec::new(), turn: 0 })
    }

    /// Starts following; what the file holds already comes first (nothing with [`StartAt::End`]).
    ///
    /// # Errors
    /// Opening or watching the file; `NotFound` if it is not there yet.
    pub fn follow(&mut self, key: K, path: &Path, from: StartAt) -> Result<(), FilesError> {
        let mut file = File::open(path).map_err(FilesError::at("open", path))?;
        if from == StartAt::End {
            file.seek(SeekFrom::End(0)).map_err(FilesError::at("seek", path))?;
        }
        // Watched before the first read: what is written in between shows up as an event.
        let descriptor = self
            .watches
            .add(path, WatchMask::MODIFY | WatchMask::DELETE_SELF)
            .map_err(FilesError::at("inotify_add_watch", path))?;
        self.files.push(Followed {
            key,
            path: path.to_owned(),
            file,
            assembler: LineAssembler::default(),
            descriptor,
            unread: true,
            ending: false,
        });
        Ok(())
    }

    /// Nothing more is written to it: its last lines come, then it is followed no longer.
    pub fn end(&mut self, key: &K) {
        if let Some(followed) = self.files.iter_mut().find(|f| f.key == *key) {
            (followed.unread, followed.ending) = (true, true);
            // Fails if the file is gone, and its watch with it.
            let _ = self.watches.remove(followed.descriptor.clone());
        }
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
            let due = self.due();
            // Both are cancel-safe. Events come first: their queue has an end.
            let event = tokio::select! {
                biased;
                event = self.stream.next() => Some(event),
                () = tokio::task::yield_now(), if due.is_some() => None,
            };
            match (event, due) {
                (Some(event), _) => self.note(event)?,
                (None, Some(index)) => {
                    let (key, lines) = self.read(index)?;
                    if !lines.is_empty() {
                        return Ok((key, lines));
                    }
                }
                (None, None) => {}
            }
        }
    }

    fn note(&mut self, event: Option<io::Result<EventOwned>>) -> Result<(), FilesError> {
        let broken = FilesError::at("read inotify of", Path::new("log files"));
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(e)) => return Err(broken(e)),
            None => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
        };
        let all = event.mask.contains(EventMask::Q_OVERFLOW);
        for followed in self.files.iter_mut().filter(|f| all || f.descriptor == event.wd) {
            followed.unread = true;
            // The file is gone.
            followed.ending |= event.mask.contains(EventMask::IGNORED);
        }
        Ok(())
    }

    /// The next file that has something to read.
    fn due(&self) -> Option<usize> {
        let turn = self.turn.min(self.files.len());
        let mut order = (turn..self.files.len()).chain(0..turn);
        order.find(|index| self.files[*index].unread)
    }

    fn read(&mut self, index: usize) -> Result<(K, Vec<String>), FilesError> {
        self.turn = index + 1;
        let followed = &mut self.files[index];
        let key = followed.key.clone();
        match followed.read() {
            Ok(lines) => {
                if followed.ending && !followed.unread {
                    self.files.swap_remove(index);
                }
                Ok((key, lines))
            }
            Err(e) => {
                let path = self.files.swap_remove(index).path;
                Err(FilesError::at("read", &path)(e))
            }
        }
    }
}

impl<K> Followed<K> {
    /// The lines of the next part.
    fn read(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut buffer = [0u8; READ_BYTES];
        let mut left = PART_BYTES;
        while left > 0 {
            match self.file.read(&mut buffer) {
                Ok(0) => {
                    self.unread = false;
                    break;
                }
                Ok(n) => {
                    self.assembler.push(&buffer[..n], &mut lines);
                    left = left.saturating_sub(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(lines)
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
        follower.follow(1, &a, StartAt::Beginning).unwrap();
        follower.follow(2, &b, StartAt::End).unwrap();
        assert_eq!(soon(&mut follower).await, (1, vec!["first".to_owned()]));
        let append = |path: &Path, text: &str| {
            let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        append(&a, "ond\n");
        assert_eq!(soon(&mut follower).await, (1, vec!["second".to_owned()]));
        append(&b, "2026 stdout F new\n");
        assert_eq!(soon(&mut follower).await, (2, vec!["new".to_owned()]));
        append(&a, "2026 stdout F last\n");
        follower.end(&1);
        assert_eq!(soon(&mut follower).await, (1, vec!["last".to_owned()]));
        append(&b, "2026 stdout F more\n");
        std::fs::remove_file(&b).unwrap();
        follower.end(&2);
        assert_eq!(soon(&mut follower).await, (2, vec!["more".to_owned()]));
        assert_eq!(follower.keys().count(), 0);
    }

    #[tokio::test]
    async fn a_file_that_holds_much_comes_in_parts_and_others_have_their_turn() {
        const RECORD: usize = 1024;
        let dir = tempfile::tempdir().unwrap();
        let (long, short) = (dir.path().join("0.log"), dir.path().join("1.log"));
        let line = |n: usize| format!("{n:08}{}", "x".repeat(RECORD - 23));
        let text: String = (0..1000).map(|n| format!("2026 stdout F {}\n", line(n))).collect();
        assert_eq!(text.len(), 1000 * RECORD);
        std::fs::write(&long, text).unwrap();
        std::fs::write(&short, "2026 stdout F short\n").unwrap();
        let mut follower = LogFollower::new().unwrap();
        follower.follow(1, &long, StartAt::Beginning).unwrap();
        follower.follow(2, &short, StartAt::Beginning).unwrap();
        // The text at the end is read in parts, too.
        follower.end(&1);
        let (mut lines, mut answers) = (Vec::new(), Vec::new());
        while lines.len() < 1000 {
            let (key, more) = soon(&mut follower).await;
            answers.push(key);
            if key == 1 {
                assert!(more.len() * RECORD <= PART_BYTES + READ_BYTES, "{} lines at once", more.len());
                lines.extend(more);
            }
        }
        assert_eq!(answers[..3], [1, 2, 1]);
        assert!(lines.iter().enumerate().all(|(n, said)| *said == line(n)));
    }

    #[tokio::test]
    async fn a_missing_file_is_named() {
        let mut follower = LogFollower::<u8>::new().unwrap();
        let e = follower.follow(1, Path::new("/nonexistent/0.log"), StartAt::Beginning).unwrap_err();
        assert!(e.to_string().contains("/nonexistent/0.log"), "{e}");
    }
}
