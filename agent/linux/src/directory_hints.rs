//! One inotify instance for any number of watched directories: says that something in a directory changed.
//!
//! ```text
//! subscribe(dir) ─► Hint ◄─ counts up ─ run() ◄─ kernel
//! ```
//! In: directories. Out: hints, never facts. Invariants: hints coalesce; a directory is watched while a [`Hint`] of it
//! exists; if the kernel lost events, every hint counts up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_types::lock::Lock;
use futures_util::StreamExt;
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::sync::watch;

use crate::files::FilesError;

/// One event with the longest name takes 272 bytes.
const BUFFER_BYTES: usize = 4096;

struct Watched {
    path: PathBuf,
    descriptor: WatchDescriptor,
    count: watch::Sender<u64>,
}

struct DirectoryHintsInner {
    /// `None` if no inotify instance was free.
    watches: Option<Watches>,
    directories: Vec<Watched>,
}

/// Watches directories; clones share the instance.
#[derive(Clone)]
pub struct DirectoryHints(Arc<Lock<DirectoryHintsInner>>);

/// One subscriber's interest in a directory; ends when dropped.
pub struct Hint {
    path: PathBuf,
    count: watch::Receiver<u64>,
    of: DirectoryHints,
}

impl DirectoryHints {
    /// An instance, and the future that reads it: there are no hints while that does not run. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// No inotify instance is to be had (`fs.inotify.max_user_instances`).
    pub fn new() -> Result<(DirectoryHints, impl Future<Output = FilesError> + Send + 'static), FilesError> {
        let at = || FilesError::at("inotify_init", Path::new("directories"));
        let inotify = Inotify::init().map_err(at())?;
        let watches = inotify.watches();
        let mut stream = inotify.into_event_stream([0u8; BUFFER_BYTES]).map_err(at())?;
        let hints = DirectoryHints(Arc::new(Lock::new(DirectoryHintsInner {
            watches: Some(watches),
            directories: Vec::new(),
        })));
        let told = hints.clone();
        let reader = async move {
            let failed = || FilesError::at("read inotify of", Path::new("directories"));
            loop {
                match stream.next().await {
                    Some(Ok(event)) => told.tell(&event.wd, event.mask),
                    Some(Err(error)) => return failed()(error),
                    None => return failed()(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
                }
            }
        };
        Ok((hints, reader))
    }

    /// Hints without an inotify instance: each subscription fails. Containers whose users are not mapped share the number of
    /// instances with the agent, so an agent begins without one.
    #[must_use]
    pub fn none() -> DirectoryHints {
        DirectoryHints(Arc::new(Lock::new(DirectoryHintsInner { watches: None, directories: Vec::new() })))
    }

    /// Begins to watch. The hint reports changes from now on.
    ///
    /// # Errors
    /// The directory is not there, there are too many watches, or there is no inotify instance.
    pub fn subscribe(&self, directory: &Path) -> Result<Hint, FilesError> {
        let mut shared = self.0.lock();
        let known = shared.directories.iter().find(|w| w.path == directory).map(|w| w.count.subscribe());
        let count = match known {
            Some(count) => count,
            None => {
                let mask = WatchMask::MODIFY
                    | WatchMask::CREATE
                    | WatchMask::MOVED_TO
                    | WatchMask::MOVED_FROM
                    | WatchMask::DELETE
                    | WatchMask::ONLYDIR;
                let added = match &mut shared.watches {
                    Some(watches) => watches.add(directory, mask),
                    None => Err(std::io::Error::other("the agent began without an inotify instance")),
                };
                let descriptor = added.map_err(FilesError::at("inotify_add_watch", directory))?;
                let (sender, count) = watch::channel(0);
                shared.directories.push(Watched { path: directory.to_owned(), descriptor, count: sender });
                count
            }
        };
        Ok(Hint { path: directory.to_owned(), count, of: self.clone() })
    }

    fn tell(&self, descriptor: &WatchDescriptor, mask: EventMask) {
        let mut shared = self.0.lock();
        let lost = mask.contains(EventMask::Q_OVERFLOW);
        for watched in shared.directories.iter().filter(|w| lost || w.descriptor == *descriptor) {
            watched.count.send_modify(|count| *count += 1);
        }
        if mask.contains(EventMask::IGNORED) {
            // The directory is gone; who still holds a hint hears that its sender is.
            shared.directories.retain(|w| w.descriptor != *descriptor);
        }
    }
}

impl Hint {
    /// Returns once something may have changed since the last call; false if the directory is gone. Cancel-safe.
    pub async fn changed(&mut self) -> bool {
        self.count.changed().await.is_ok()
    }
}

impl Drop for Hint {
    fn drop(&mut self) {
        let mut shared = self.of.0.lock();
        let last = |w: &Watched| w.path == self.path && w.count.receiver_count() <= 1;
        if let Some(index) = shared.directories.iter().position(last) {
            let watched = shared.directories.swap_remove(index);
            // Fails if the kernel removed it already, which is as good.
            let _ = shared.watches.as_mut().map(|watches| watches.remove(watched.descriptor));
        }
    }
}

/// How many directories are watched, for tests and figures.
#[must_use]
pub fn watched(hints: &DirectoryHints) -> BTreeMap<PathBuf, usize> {
    hints.0.lock().directories.iter().map(|w| (w.path.clone(), w.count.receiver_count())).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Runs `test` while the reader runs.
    async fn with<F: Future<Output = ()>>(test: impl FnOnce(DirectoryHints) -> F) {
        let (hints, reader) = DirectoryHints::new().unwrap();
        tokio::select! {
            error = reader => panic!("{error}"),
            () = test(hints) => {}
        }
    }

    async fn soon(hint: &mut Hint) -> bool {
        tokio::time::timeout(Duration::from_secs(10), hint.changed()).await.expect("no hint")
    }

    #[test]
    fn without_an_instance_a_subscription_fails() {
        let dir = tempfile::tempdir().unwrap();
        let error = DirectoryHints::none().subscribe(dir.path()).err().expect("nothing watches");
        assert!(error.to_string().contains("inotify_add_watch"), "{error}");
    }

    #[tokio::test]
    async fn everybody_who_watches_a_directory_is_told() {
        let dir = tempfile::tempdir().unwrap();
        with(|hints| async move {
            let mut first = hints.subscribe(dir.path()).unwrap();
            let mut second = hints.subscribe(dir.path()).unwrap();
            assert_eq!(watched(&hints)[dir.path()], 2);
            std::fs::write(dir.path().join("0.log"), "x").unwrap();
            assert!(soon(&mut first).await && soon(&mut second).await);
            std::fs::rename(dir.path().join("0.log"), dir.path().join("1.log")).unwrap();
            assert!(soon(&mut first).await);
            drop(first);
            assert_eq!(watched(&hints)[dir.path()], 1);
            drop(second);
            assert!(watched(&hints).is_empty());
        })
        .await;
    }

    #[tokio::test]
    async fn a_directory_that_goes_is_told_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c");
        std::fs::create_dir(&path).unwrap();
        with(|hints| async move {
            let mut hint = hints.subscribe(&path).unwrap();
            std::fs::remove_dir(&path).unwrap();
            while soon(&mut hint).await {}
            assert!(watched(&hints).is_empty());
            assert!(hints.subscribe(&path).is_err());
        })
        .await;
    }
}
