//! Stamps entries into the boot ledger (docs/internals/architecture.md, "Run-time files").
//!
//! In: an [`LedgerEntry`]. Out: the ledger file, rewritten atomically under an exclusive lock, because init,
//! bringup and agent write it in turn. Invariant: entries of others are kept, in order.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use orlop_config::ledger::{Ledger, LedgerEntry};

use crate::files::{Durability, FilesError, make_dir, read_capped, write_atomic};

/// A ledger has some tens of entries; more is a defect of a writer.
const LEDGER_BYTES_MAX: u64 = 1 << 20;

/// Where the ledger lives.
#[derive(Clone, Debug)]
pub struct LedgerFile {
    ledger: PathBuf,
    lock: PathBuf,
    /// Directory of the copy.
    copy: Option<PathBuf>,
}

/// The ledger's name in its directories.
const NAME: &str = "boot.json";

impl LedgerFile {
    /// The ledger in `directory` (`/run/orlop` on a node).
    #[must_use]
    pub fn in_directory(directory: &Path) -> LedgerFile {
        LedgerFile { ledger: directory.join(NAME), lock: directory.join("boot.lock"), copy: None }
    }

    /// Has a copy of the ledger in `directory` after each entry: the node's logs can be read from outside.
    #[must_use]
    pub fn copied_to(mut self, directory: &Path) -> LedgerFile {
        self.copy = Some(directory.to_owned());
        self
    }

    /// Appends an entry unless the ledger has one of the same phase and detail; false if nothing was written,
    /// also where there is no ledger (the machine was not booted by orlop-initrd).
    /// Blocks for as long as another writer holds the lock: call it where blocking is allowed.
    ///
    /// # Errors
    /// The step that failed, with its path; a damaged ledger is named and left as it is.
    pub fn stamp(&self, entry: &LedgerEntry) -> Result<bool, FilesError> {
        if !self.ledger.exists() {
            return Ok(false);
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o644)
            .open(&self.lock)
            .map_err(FilesError::at("open", &self.lock))?;
        let _held = Flock::lock(lock, FlockArg::LockExclusive)
            .map_err(|(_, e)| FilesError::at("flock", &self.lock)(e.into()))?;
        let bytes = read_capped(&self.ledger, LEDGER_BYTES_MAX)?;
        let invalid =
            |e: String| FilesError::at("parse", &self.ledger)(io::Error::new(io::ErrorKind::InvalidData, e));
        let text = String::from_utf8(bytes).map_err(|e| invalid(e.to_string()))?;
        let mut ledger = Ledger::parse(&text).map_err(|e| invalid(e.to_string()))?;
        if ledger.entries.iter().any(|e| e.phase == entry.phase && e.detail == entry.detail) {
            return Ok(false);
        }
        ledger.entries.push(entry.clone());
        let text = ledger.render();
        write_atomic(&self.ledger, text.as_bytes(), 0o644, Durability::Rebuildable)?;
        if let Some(copy) = &self.copy {
            // The ledger itself is written: a full disk must not keep its entry from the host.
            let made = make_dir(copy, 0o755);
            let _ = made.and_then(|()| {
                write_atomic(&copy.join(NAME), text.as_bytes(), 0o644, Durability::Rebuildable)
            });
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(phase: &str) -> LedgerEntry {
        LedgerEntry { phase: phase.to_owned(), at_ms: 1, took_ms: None, detail: String::new(), ok: true }
    }

    #[test]
    fn no_ledger_no_stamp() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!LedgerFile::in_directory(dir.path()).stamp(&entry("agent.started")).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn writers_in_parallel_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let first = Ledger { boot_id: "b".to_owned(), entries: vec![entry("kernel")] };
        std::fs::write(dir.path().join("boot.json"), first.render()).unwrap();
        let file = LedgerFile::in_directory(dir.path());
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let file = &file;
                scope.spawn(move || {
                    for n in 0..25 {
                        assert!(file.stamp(&entry(&format!("w{writer}.{n}"))).unwrap());
                    }
                });
            }
        });
        let text = std::fs::read_to_string(dir.path().join("boot.json")).unwrap();
        let ledger = Ledger::parse(&text).unwrap();
        assert_eq!(ledger.boot_id, "b");
        assert_eq!(ledger.entries.len(), 101);
        assert_eq!(ledger.entries[0].phase, "kernel");
    }

    #[test]
    fn a_phase_is_stamped_once_a_boot() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("boot.json"), "").unwrap();
        let file = LedgerFile::in_directory(dir.path());
        let running = |detail: &str| LedgerEntry { detail: detail.to_owned(), ..entry("pod.running") };
        assert!(file.stamp(&running("default/a")).unwrap());
        assert!(file.stamp(&running("default/b")).unwrap());
        assert!(!file.stamp(&LedgerEntry { at_ms: 9, ..running("default/a") }).unwrap());
    }

    #[test]
    fn the_copy_follows_and_cannot_stop_the_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = dir.path().join("boot.json");
        std::fs::write(&ledger, "").unwrap();
        let logs = dir.path().join("log/orlop");
        let file = LedgerFile::in_directory(dir.path()).copied_to(&logs);
        for phase in ["agent.started", "agent.ready"] {
            assert!(file.stamp(&entry(phase)).unwrap());
            let read = |path: &Path| std::fs::read_to_string(path).unwrap();
            assert_eq!(read(&ledger), read(&logs.join("boot.json")));
        }
        std::fs::write(dir.path().join("file"), "").unwrap();
        let nowhere = LedgerFile::in_directory(dir.path()).copied_to(&dir.path().join("file/orlop"));
        assert!(nowhere.stamp(&entry("node.ready")).unwrap());
    }

    #[test]
    fn a_damaged_ledger_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("boot.json"), "{").unwrap();
        let e = LedgerFile::in_directory(dir.path()).stamp(&entry("agent.started")).unwrap_err();
        assert!(e.to_string().contains("boot.json"), "{e}");
        assert_eq!(std::fs::read_to_string(dir.path().join("boot.json")).unwrap(), "{");
    }
}
