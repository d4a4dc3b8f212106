//! The record of changes of the node's own document, on the state partition.
//!
//! In: a /var, and what is done with the record. Out: the record as it is on disk when the call returns. Invariants: the management
//! API and `orlop-init` change it one after the other, under a lock of its directory; a record that cannot be read is never written
//! over.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use orlop_config::change::{BYTES_MAX, ChangeRecord, FILE};

use crate::{Durability, ReplaceError, replace};

/// It may hold a token.
const MODE: u32 = 0o600;

/// The record of one state partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRecordFile {
    path: PathBuf,
}

/// Why the record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChangeRecordError {
    /// A step of reading it failed.
    #[error("{operation} {}", path.display())]
    Read {
        /// System call or step.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// It is none.
    #[error("{} does not count: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It cannot be written.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
}

impl ChangeRecordFile {
    /// The record below this /var.
    #[must_use]
    pub fn below(var: &Path) -> ChangeRecordFile {
        ChangeRecordFile { path: var.join(FILE) }
    }

    /// Whether the node has ever had a change.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Reads it; a node that has none has never had a change.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn read(&self) -> Result<ChangeRecord, ChangeRecordError> {
        let mut text = String::new();
        let read = File::open(&self.path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
        match read {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(ChangeRecord::default()),
            Err(e) => return Err(failed("read", &self.path)(e)),
            Ok(_) => {}
        }
        if text.len() as u64 > BYTES_MAX {
            return Err(self.damaged(too_large()));
        }
        ChangeRecord::parse(&text).map_err(|why| self.damaged(why))
    }

    fn damaged(&self, why: String) -> ChangeRecordError {
        ChangeRecordError::Damaged { path: self.path.clone(), why }
    }

    /// Does something with it; a record that is another one then is on disk when this returns.
    ///
    /// # Errors
    /// It cannot be read or written, is none, or would be too large to be read again. It is as it was, except after a failed sync of its
    /// directory.
    pub fn update<T>(&self, work: impl FnOnce(&mut ChangeRecord) -> T) -> Result<T, ChangeRecordError> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory).map_err(failed("make", directory))?;
        let lock = File::open(directory).map_err(failed("open", directory))?;
        // Given back when `lock` is dropped; each holder writes one small file.
        lock.lock().map_err(failed("lock", directory))?;
        let before = self.read()?;
        let mut record = before.clone();
        let result = work(&mut record);
        if record != before {
            let text = record.render();
            if text.len() as u64 > BYTES_MAX {
                return Err(self.damaged(too_large()));
            }
            replace(&self.path, text.as_bytes(), MODE, Durability::Synced)?;
        }
        Ok(result)
    }
}

fn too_large() -> String {
    format!("it is larger than {} MiB", BYTES_MAX >> 20)
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ChangeRecordError {
    let path = path.to_owned();
    move |source| ChangeRecordError::Read { operation, path, source }
}

#[cfg(test)]
mod tests {
    use orlop_config::change::{ChangeAuthor, ChangeTime, Confirmation, DocumentText, NewChange};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn change(text: &str) -> NewChange {
        NewChange {
            document: Some(DocumentText(text.to_owned())),
            author: ChangeAuthor::default(),
            keys: Vec::new(),
            window_ms: 1000,
            confirmation: Confirmation::Asked,
            confirm_door: None,
            at_boot: false,
        }
    }

    #[test]
    fn a_record_is_written_for_root_alone_and_read_again() {
        let var = tempfile::tempdir().unwrap();
        let file = ChangeRecordFile::below(var.path());
        assert_eq!((file.read().unwrap(), file.is_there()), (ChangeRecord::default(), false));
        let now = ChangeTime { boot: "b", up_ms: 1, wall_s: 1 };
        assert_eq!(file.update(|record| record.begin(change("secret"), now)).unwrap(), Ok(1));
        assert!(file.is_there());
        let path = var.path().join(FILE);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, MODE);
        assert_eq!(file.read().unwrap().counts(now), Some("secret"));
        // What changes nothing writes nothing.
        std::fs::remove_file(&path).unwrap();
        file.update(|_| ()).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_written_over() {
        let var = tempfile::tempdir().unwrap();
        let file = ChangeRecordFile::below(var.path());
        let path = var.path().join(FILE);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        for bad in [&b"{"[..], &[0xff], b"{\"version\":9}"] {
            std::fs::write(&path, bad).unwrap();
            let now = ChangeTime { boot: "b", up_ms: 1, wall_s: 1 };
            assert!(file.update(|record| record.begin(change("x"), now)).is_err());
            assert_eq!(std::fs::read(&path).unwrap(), bad);
        }
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_record_that_could_not_be_read_again_is_not_written() {
        let var = tempfile::tempdir().unwrap();
        let file = ChangeRecordFile::below(var.path());
        file.update(|record| record.last_number = 1).unwrap();
        let large = DocumentText("x".repeat(usize::try_from(BYTES_MAX).unwrap()));
        let refused = file.update(|record| record.confirmed = Some(large)).unwrap_err();
        assert!(refused.to_string().ends_with("it is larger than 8 MiB"), "{refused}");
        let record = file.read().unwrap();
        assert_eq!((record.last_number, record.confirmed), (1, None));
    }

    #[test]
    fn two_writers_come_one_after_the_other() {
        let var = tempfile::tempdir().unwrap();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let file = ChangeRecordFile::below(var.path());
                std::thread::spawn(move || {
                    for _ in 0..20 {
                        file.update(|record| record.last_number += 1).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(ChangeRecordFile::below(var.path()).read().unwrap().last_number, 80);
    }
}
