//! Reads one container's log for a client: from where it asked, through rotations, for as long as it grows.
//!
//! ```text
//! file ─► Selector ─► pieces ─► client (slow clients slow the reading down)
//!   ▲ at its end: a hint, or the container ended
//! ```
//! In: a path, [`LogOptions`]. Out: pieces. Decisions are in [`agent_kubelet_api::logs`]. Invariants: the rest of a
//! file that was rotated away is read before the next file; nothing is read on a timer; one piece is in memory at a
//! time, in addition to those that wait for the client.

use std::future::Future;
use std::io::SeekFrom;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agent_kubelet_api::logs::{LogOptions, Selector, TailScan};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

use crate::directory_hints::{DirectoryHints, Hint};
use crate::files::FilesError;

/// Bytes read at once.
const PIECE_BYTES: usize = 32 * 1024;
/// Bytes read at once on the way from the end to where the tail begins.
const SCAN_BYTES: usize = 16 * 1024;

/// A log that was opened.
pub struct ContainerLog {
    path: PathBuf,
    file: File,
    selector: Selector,
    /// Present if the log is followed.
    hint: Option<Hint>,
}

impl ContainerLog {
    /// Opens it and finds where to begin.
    ///
    /// # Errors
    /// The file cannot be opened, read or watched.
    pub async fn open(
        path: &Path,
        options: &LogOptions,
        hints: &DirectoryHints,
    ) -> Result<ContainerLog, FilesError> {
        // A link would hide a rotation of what it leads to.
        let path = tokio::fs::canonicalize(path).await.map_err(FilesError::at("open", path))?;
        let hint = match (options.follow, path.parent()) {
            (true, Some(directory)) => Some(hints.subscribe(directory)?),
            _ => None,
        };
        let mut file = File::open(&path).await.map_err(FilesError::at("open", &path))?;
        if let Some(records) = options.tail {
            let start = tail_start(&mut file, records).await.map_err(FilesError::at("read", &path))?;
            file.seek(SeekFrom::Start(start)).await.map_err(FilesError::at("seek", &path))?;
        }
        Ok(ContainerLog { path, file, selector: Selector::new(options), hint })
    }

    /// Sends everything to `to`; returns when it is sent, when the receiver is gone, or for a followed log some
    /// time after `ended` (the container runs no more) when all is read.
    ///
    /// # Errors
    /// The file cannot be read on.
    pub async fn send<T: Send>(
        mut self,
        to: &mpsc::Sender<T>,
        wrap: impl Fn(Vec<u8>) -> T,
        ended: impl Future<Output = ()>,
    ) -> Result<(), FilesError> {
        let mut ended = std::pin::pin!(ended);
        let mut over = self.hint.is_none();
        loop {
            if !self.send_rest(to, &wrap).await? || self.selector.is_done() {
                return Ok(());
            }
            if self.is_rotated().await {
                // What came between the last read and the rotation.
                if !self.send_rest(to, &wrap).await? || !self.next_file(to, &wrap).await? {
                    return Ok(());
                }
                continue;
            }
            let Some(hint) = self.hint.as_mut().filter(|_| !over) else { break };
            tokio::select! {
                // All of them only wait.
                there = hint.changed() => over = !there,
                () = ended.as_mut() => over = true,
                () = to.closed() => return Ok(()),
            }
        }
        let mut out = Vec::new();
        self.selector.finish(&mut out);
        if !out.is_empty() {
            // A receiver that is gone is no failure.
            let _ = to.send(wrap(out)).await;
        }
        if self.selector.malformed() > 0 {
            tracing::debug!(path = %self.path.display(), records = self.selector.malformed(), "records of a log left out");
        }
        Ok(())
    }

    /// Reads to the file's present end; false if the receiver is gone.
    async fn send_rest<T: Send>(
        &mut self,
        to: &mpsc::Sender<T>,
        wrap: impl Fn(Vec<u8>) -> T,
    ) -> Result<bool, FilesError> {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let count = self.file.read(&mut buffer).await.map_err(FilesError::at("read", &self.path))?;
            let mut out = Vec::with_capacity(count);
            self.selector.push(&buffer[..count], &mut out);
            if !out.is_empty() && to.send(wrap(out)).await.is_err() {
                return Ok(false);
            }
            if count == 0 || self.selector.is_done() {
                return Ok(true);
            }
        }
    }

    /// True if another file has the path now. A path without file is a rotation that is not over.
    async fn is_rotated(&self) -> bool {
        if self.hint.is_none() {
            return false;
        }
        let (there, open) = tokio::join!(tokio::fs::metadata(&self.path), self.file.metadata());
        match (there, open) {
            (Ok(there), Ok(open)) => (there.dev(), there.ino()) != (open.dev(), open.ino()),
            _ => false,
        }
    }

    async fn next_file<T: Send>(
        &mut self,
        to: &mpsc::Sender<T>,
        wrap: impl Fn(Vec<u8>) -> T,
    ) -> Result<bool, FilesError> {
        let mut out = Vec::new();
        self.selector.finish(&mut out);
        self.file = File::open(&self.path).await.map_err(FilesError::at("open", &self.path))?;
        Ok(out.is_empty() || to.send(wrap(out)).await.is_ok())
    }
}

async fn tail_start(file: &mut File, records: u64) -> std::io::Result<u64> {
    let mut scan = TailScan::new(records);
    let mut end = file.seek(SeekFrom::End(0)).await?;
    let mut buffer = vec![0; SCAN_BYTES];
    while end > 0 {
        let start = end.saturating_sub(SCAN_BYTES as u64);
        let block = &mut buffer[..usize::try_from(end - start).unwrap_or(SCAN_BYTES)];
        file.seek(SeekFrom::Start(start)).await?;
        file.read_exact(block).await?;
        if let Some(found) = scan.block(start, block) {
            return Ok(found);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    fn record(text: &str) -> String {
        format!("2026-11-21T04:00:00Z stdout F {text}\n")
    }

    fn append(path: &Path, text: &str) {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(record(text).as_bytes()).unwrap();
    }

    /// Runs `test` while the hints' reader runs.
    async fn with<F: Future<Output = ()>>(test: impl FnOnce(DirectoryHints) -> F) {
        let (hints, reader) = DirectoryHints::new().unwrap();
        tokio::select! {
            error = reader => panic!("{error}"),
            done = tokio::time::timeout(Duration::from_secs(20), test(hints)) => done.expect("stuck"),
        }
    }

    async fn next(pieces: &mut mpsc::Receiver<Vec<u8>>) -> Option<String> {
        pieces.recv().await.map(|piece| String::from_utf8(piece).unwrap())
    }

    #[tokio::test]
    async fn what_is_there_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        for n in 0..5000 {
            append(&path, &n.to_string());
        }
        with(|hints| async move {
            for (tail, first) in [(None, 0), (Some(3), 4997), (Some(9000), 0), (Some(0), 5000)] {
                let options = LogOptions { tail, ..LogOptions::default() };
                let log = ContainerLog::open(&path, &options, &hints).await.unwrap();
                let (to, mut pieces) = mpsc::channel(1000);
                log.send(&to, |piece| piece, std::future::pending()).await.unwrap();
                drop(to);
                let mut all = String::new();
                while let Some(piece) = next(&mut pieces).await {
                    all.push_str(&piece);
                }
                let expected: String = (first..5000).map(|n| format!("{n}\n")).collect();
                assert_eq!(all, expected, "{tail:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_followed_log_goes_on_through_rotation_until_its_container_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        append(&path, "one");
        with(|hints| async move {
            let options = LogOptions { follow: true, ..LogOptions::default() };
            let log = ContainerLog::open(&path, &options, &hints).await.unwrap();
            let (to, mut pieces) = mpsc::channel(1);
            let (end, ended) = oneshot::channel::<()>();
            let sending = async {
                log.send(&to, |piece| piece, async {
                    let _ = ended.await;
                })
                .await
                .unwrap();
                drop(to);
            };
            let client = async {
                assert_eq!(next(&mut pieces).await.unwrap(), "one\n");
                append(&path, "two");
                assert_eq!(next(&mut pieces).await.unwrap(), "two\n");
                // As logs are rotated: moved away, still written to, made again.
                std::fs::rename(&path, dir.path().join("0.log.20261121")).unwrap();
                append(&dir.path().join("0.log.20261121"), "late");
                append(&path, "three");
                let mut rest = String::new();
                while !rest.ends_with("three\n") {
                    rest.push_str(&next(&mut pieces).await.unwrap());
                }
                assert_eq!(rest, "late\nthree\n");
                append(&path, "last");
                end.send(()).unwrap();
                assert_eq!(next(&mut pieces).await.unwrap(), "last\n");
                assert_eq!(next(&mut pieces).await, None);
            };
            tokio::join!(sending, client);
        })
        .await;
    }

    #[tokio::test]
    async fn a_client_that_goes_away_ends_the_reading() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        append(&path, "one");
        with(|hints| async move {
            let options = LogOptions { follow: true, ..LogOptions::default() };
            let log = ContainerLog::open(&path, &options, &hints).await.unwrap();
            let (to, mut pieces) = mpsc::channel(1);
            let client = async {
                next(&mut pieces).await;
                drop(pieces);
            };
            let (sent, ()) = tokio::join!(log.send(&to, |piece| piece, std::future::pending()), client);
            sent.unwrap();
            let missing = ContainerLog::open(Path::new("/nonexistent/0.log"), &options, &hints).await;
            assert!(missing.err().unwrap().to_string().contains("/nonexistent/0.log"));
        })
        .await;
    }
}
