//! Signals that a directory (or a single file) may have changed; the reader then reads it again.
//!
//! In: inotify on the path, or on its nearest existing ancestor while the path is missing. Out: a hint, never
//! a fact. The watch follows a directory that is created, replaced or re-linked. Invariant: every user of
//! this module also rescans by a timer (fileCheckFrequency), because inotify can overflow and cannot see
//! every change (a link changed further up).

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures_util::{FutureExt, StreamExt};
use inotify::{Event, EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};

/// One kernel event with the longest name takes 272 bytes; a burst is drained in several reads.
const BUFFER_BYTES: usize = 2048;

/// Watching failed; the caller falls back to its timer.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}", path.display())]
pub struct WatchError {
    /// `inotify_init`, `inotify_add_watch` or `read`.
    pub operation: &'static str,
    /// What was to be watched.
    pub path: PathBuf,
    /// The system's words.
    #[source]
    pub source: io::Error,
}

/// What may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Files of the directory, by name.
    pub names: BTreeSet<String>,
    /// Those that were removed or moved away, also if there is one of the name again.
    pub removed: BTreeSet<String>,
    /// Anything: the path itself came or went, or the kernel lost events.
    pub everything: bool,
}

/// A watch that survives the disappearance of what it watches.
pub struct PathWatch {
    path: PathBuf,
    stream: EventStream<[u8; BUFFER_BYTES]>,
    watches: Watches,
    armed: Vec<Armed>,
}

/// One inotify watch and what is expected of it.
struct Armed {
    descriptor: WatchDescriptor,
    directory: PathBuf,
    role: Role,
}

#[derive(Debug, PartialEq, Eq)]
enum Role {
    /// The watched directory: every event in it counts.
    Content,
    /// A directory above: only this name in it counts, and the watches are made again.
    Ancestor(OsString),
}

impl PathWatch {
    /// Watches `path`, which need not exist. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// No inotify instance is to be had (`fs.inotify.max_user_instances`).
    pub fn new(path: &Path) -> Result<PathWatch, WatchError> {
        let at = |source| WatchError { operation: "inotify_init", path: path.to_owned(), source };
        let inotify = Inotify::init().map_err(at)?;
        let watches = inotify.watches();
        let stream = inotify.into_event_stream([0u8; BUFFER_BYTES]).map_err(at)?;
        let mut watch = PathWatch { path: path.to_owned(), stream, watches, armed: Vec::new() };
        watch.arm()?;
        Ok(watch)
    }

    /// Returns once something may have changed. Cancel-safe: an event that was not returned is returned by
    /// the next call.
    ///
    /// # Errors
    /// The kernel's; the watch may be dropped and made again.
    pub async fn changed(&mut self) -> Result<Change, WatchError> {
        loop {
            let mut change = Change::default();
            let first = self.stream.next().await;
            self.absorb(first, &mut change)?;
            // The rest of the burst makes no second hint.
            while let Some(more) = self.stream.next().now_or_never() {
                self.absorb(more, &mut change)?;
            }
            if change.everything {
                self.arm()?;
            }
            if change != Change::default() {
                return Ok(change);
            }
        }
    }

    fn absorb(
        &self,
        event: Option<io::Result<Event<OsString>>>,
        change: &mut Change,
    ) -> Result<(), WatchError> {
        let at = |source| WatchError { operation: "read inotify of", path: self.path.clone(), source };
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(e)) => return Err(at(e)),
            None => return Err(at(io::Error::from(io::ErrorKind::UnexpectedEof))),
        };
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            change.everything = true;
            return Ok(());
        }
        let Some(armed) = self.armed.iter().find(|a| a.descriptor == event.wd) else {
            return Ok(()); // of a watch that was removed meanwhile
        };
        if event.mask.intersects(
            EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::UNMOUNT | EventMask::IGNORED,
        ) {
            change.everything = true;
            return Ok(());
        }
        match &armed.role {
            Role::Content if content_counts(&armed.directory, &event) => match &event.name {
                Some(name) => {
                    let gone = event.mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM);
                    let names = if gone { &mut change.removed } else { &mut change.names };
                    names.insert(name.to_string_lossy().into_owned());
                }
                None => change.everything = true,
            },
            Role::Content => {}
            Role::Ancestor(name) => change.everything |= event.name.as_deref() == Some(name.as_os_str()),
        }
        Ok(())
    }

    /// Makes the watches again from the directories that exist now.
    fn arm(&mut self) -> Result<(), WatchError> {
        for old in self.armed.drain(..) {
            // Fails if the kernel removed it already, which is as good.
            let _ = self.watches.remove(old.descriptor);
        }
        // The content watch first: what happens between the two is then seen by one of them.
        let content = self.path.is_dir() && self.add(self.path.clone(), Role::Content)?;
        let mut below = self.path.clone();
        loop {
            let Some((parent, name)) = split(&below) else { return Ok(()) };
            let exists = below.symlink_metadata().is_ok();
            if self.add(parent.clone(), Role::Ancestor(name))? {
                // It may have appeared between the two looks.
                let appeared = !exists && below.symlink_metadata().is_ok();
                if appeared || (!content && self.path.is_dir()) {
                    return self.arm_again();
                }
                return Ok(());
            }
            below = parent;
        }
    }

    fn arm_again(&mut self) -> Result<(), WatchError> {
        // Bounded: each round has seen another component of the path come into being.
        self.arm()
    }

    /// Adds one watch; false if the directory is not there.
    fn add(&mut self, directory: PathBuf, role: Role) -> Result<bool, WatchError> {
        let mask = match role {
            Role::Content => {
                WatchMask::CREATE
                    | WatchMask::CLOSE_WRITE
                    | WatchMask::MOVED_TO
                    | WatchMask::MOVED_FROM
                    | WatchMask::DELETE
                    | WatchMask::ATTRIB
                    | WatchMask::DELETE_SELF
                    | WatchMask::MOVE_SELF
            }
            Role::Ancestor(_) => {
                WatchMask::CREATE
                    | WatchMask::CLOSE_WRITE
                    | WatchMask::MOVED_TO
                    | WatchMask::MOVED_FROM
                    | WatchMask::DELETE
                    | WatchMask::DELETE_SELF
                    | WatchMask::MOVE_SELF
            }
        };
        match self.watches.add(&directory, mask | WatchMask::ONLYDIR) {
            Ok(descriptor) => {
                self.armed.push(Armed { descriptor, directory, role });
                Ok(true)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(source) => Err(WatchError { operation: "inotify_add_watch", path: directory, source }),
        }
    }
}

/// A new regular file counts when its writer closes it, not when its name appears: a reader in between would
/// see half a manifest. A link has no such second event.
fn content_counts(directory: &Path, event: &Event<OsString>) -> bool {
    let hidden = event.name.as_deref().is_some_and(|n| n.as_encoded_bytes().first() == Some(&b'.'));
    if hidden {
        return false;
    }
    if !event.mask.contains(EventMask::CREATE) {
        return true;
    }
    let Some(name) = &event.name else { return true };
    match directory.join(name).symlink_metadata() {
        Ok(metadata) => !metadata.is_file() || metadata.nlink() > 1,
        Err(_) => true,
    }
}

/// Parent and last name of an absolute path; `None` at the root.
fn split(path: &Path) -> Option<(PathBuf, OsString)> {
    let name: &OsStr = path.file_name()?;
    Some((path.parent()?.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn soon(watch: &mut PathWatch) -> Change {
        tokio::time::timeout(Duration::from_secs(10), watch.changed()).await.expect("no hint").unwrap()
    }

    /// True if nothing is pending. inotify queues before the system call that caused it returns.
    async fn quiet(watch: &mut PathWatch) -> bool {
        tokio::time::timeout(Duration::from_millis(50), watch.changed()).await.is_err()
    }

    #[tokio::test]
    async fn content_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = PathWatch::new(dir.path()).unwrap();
        let file = dir.path().join("a.yaml");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(soon(&mut watch).await.names.into_iter().collect::<Vec<_>>(), ["a.yaml"]);
        std::fs::rename(&file, dir.path().join("b.yaml")).unwrap();
        let named = |name: &str| BTreeSet::from([name.to_owned()]);
        let moved = Change { names: named("b.yaml"), removed: named("a.yaml"), everything: false };
        assert_eq!(soon(&mut watch).await, moved);
        std::os::unix::fs::symlink("b.yaml", &file).unwrap();
        soon(&mut watch).await;
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "x").unwrap();
        let replaced = Change { names: named("a.yaml"), removed: named("a.yaml"), everything: false };
        assert_eq!(soon(&mut watch).await, replaced, "both are told");
        std::fs::write(dir.path().join(".b.yaml.swp"), "x").unwrap();
        assert!(quiet(&mut watch).await, "dot-files do not count");
    }

    #[tokio::test]
    async fn a_file_counts_when_its_writer_closes_it() {
        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let mut watch = PathWatch::new(dir.path()).unwrap();
        let mut file = std::fs::File::create(dir.path().join("slow.yaml")).unwrap();
        file.write_all(b"half").unwrap();
        assert!(quiet(&mut watch).await);
        drop(file);
        soon(&mut watch).await;
    }

    #[tokio::test]
    async fn a_missing_directory_is_found_when_it_comes_and_when_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubernetes/manifests");
        let mut watch = PathWatch::new(&path).unwrap();
        std::fs::create_dir_all(&path).unwrap();
        soon(&mut watch).await;
        std::fs::write(path.join("a.yaml"), "x").unwrap();
        soon(&mut watch).await;
        std::fs::rename(&path, dir.path().join("kubernetes/old")).unwrap();
        soon(&mut watch).await;
        std::fs::create_dir(&path).unwrap();
        soon(&mut watch).await;
        while !quiet(&mut watch).await {}
        std::fs::write(path.join("b.yaml"), "x").unwrap();
        soon(&mut watch).await;
        std::fs::remove_dir_all(dir.path().join("kubernetes")).unwrap();
        soon(&mut watch).await;
        while !quiet(&mut watch).await {}
        std::fs::create_dir_all(&path).unwrap();
        soon(&mut watch).await;
        while !quiet(&mut watch).await {}
        std::fs::write(path.join("c.yaml"), "x").unwrap();
        soon(&mut watch).await;
    }

    #[tokio::test]
    async fn a_single_file_is_watched_through_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod.yaml");
        let mut watch = PathWatch::new(&path).unwrap();
        std::fs::write(dir.path().join("other"), "x").unwrap();
        assert!(quiet(&mut watch).await, "a neighbour does not count");
        std::fs::write(&path, "x").unwrap();
        soon(&mut watch).await;
        while !quiet(&mut watch).await {}
        std::fs::write(&path, "y").unwrap();
        soon(&mut watch).await;
    }
}
