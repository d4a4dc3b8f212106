//! Records of operations on the state partition: a file for each, the newest few.
//!
//! Invariants: a record is whole and synced, or the older one is there; files of other names are left alone; a damaged one is removed
//! and said; at most [`RECORDS_MAX`] stay; one thread writes at a time, also after its caller has given it up. Everything here blocks.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_linux::files::{Durability, FilesError, make_dir, read_capped, visible_names, write_atomic};
use agent_types::failure::Class;
use agent_types::lock::Lock;
use orlop_config::error_chain::chain;

use super::record::OperationRecord;
use super::request::is_identifier;

/// The directory, below the root directory. The server's unit may write there.
const DIRECTORY: &str = "var/lib/orlop/api/operations";
/// Ending of the files.
const ENDING: &str = ".json";
/// Records that are kept: the newest.
pub(super) const RECORDS_MAX: usize = 50;
/// A record is not longer, bytes.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// The directory of the records.
#[derive(Clone, Debug)]
pub(super) struct OperationStore {
    directory: PathBuf,
    /// A disk that hangs keeps later writes waiting: none overtakes an earlier one.
    writes: Arc<Lock<()>>,
}

impl OperationStore {
    pub(super) fn new(root: &Path) -> OperationStore {
        OperationStore { directory: root.join(DIRECTORY), writes: Arc::default() }
    }

    /// All records, the oldest first. Those that are too many are removed.
    ///
    /// # Errors
    /// The directory or a file cannot be read.
    pub(super) fn load(&self) -> Result<Vec<OperationRecord>, FilesError> {
        let names = match visible_names(&self.directory) {
            Err(error) if error.class() == Class::NotFound => return Ok(Vec::new()),
            names => names?,
        };
        let mut records: Vec<OperationRecord> = Vec::new();
        for id in names.iter().filter_map(|name| name.strip_suffix(ENDING)).filter(|id| is_identifier(id)) {
            let bytes = read_capped(&self.file(id), RECORD_BYTES_MAX)?;
            match serde_json::from_slice::<OperationRecord>(&bytes) {
                Ok(record) if record.id == id => records.push(record),
                Ok(_) => self.remove(id, "it is the record of another operation"),
                Err(error) => self.remove(id, &error.to_string()),
            }
        }
        // Text of RFC 3339 in UTC is in order; identifiers of one client are, too.
        records.sort_by(|a, b| (&a.accepted_at, &a.id).cmp(&(&b.accepted_at, &b.id)));
        let too_many = records.len().saturating_sub(RECORDS_MAX);
        for record in records.drain(..too_many) {
            self.forget(&record.id);
        }
        Ok(records)
    }

    /// Writes a record and syncs it.
    ///
    /// # Errors
    /// The disk's words; the older record is there.
    pub(super) fn keep(&self, record: &OperationRecord) -> Result<(), FilesError> {
        let _turn = self.writes.lock();
        make_dir(&self.directory, 0o700)?;
        // Words and numbers always have a JSON form.
        let text = serde_json::to_vec(record).unwrap_or_default();
        write_atomic(&self.file(&record.id), &text, 0o600, Durability::Synced)
    }

    /// Removes a record, if there is one.
    pub(super) fn forget(&self, id: &str) {
        let _turn = self.writes.lock();
        match std::fs::remove_file(self.file(id)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(id, %error, "the record of an operation is not removed");
            }
            _ => {}
        }
    }

    fn remove(&self, id: &str, why: &str) {
        tracing::warn!(id, why, "a damaged record of an operation is removed");
        self.forget(id);
    }

    fn file(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}{ENDING}"))
    }
}

/// The words of an error of the disk.
pub(super) fn disk_words(error: &FilesError) -> String {
    chain(error)
}

#[cfg(test)]
mod tests {
    use agent_types::time::Mono;

    use super::*;
    use crate::operations::record::{OperationPhase, OperationVerb};

    fn record(number: usize) -> OperationRecord {
        OperationRecord {
            id: format!("01936f2e-0000-7abc-8def-{number:012x}"),
            what: OperationVerb::Reboot,
            by: "uid 0".to_owned(),
            phase: OperationPhase::Finished,
            accepted_at: format!("2026-11-30T09:{:02}:{:02}Z", number / 60, number % 60),
            ended_at: String::new(),
            boot_id_before: "b".to_owned(),
            boot_id_after: String::new(),
            due: Mono(0),
            unrecorded: false,
            pods: None,
            failure: None,
            message: String::new(),
        }
    }

    #[test]
    fn records_come_back_in_their_order_and_only_the_newest_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = OperationStore::new(dir.path());
        assert_eq!(store.load().unwrap(), []);
        for number in (0..RECORDS_MAX + 3).rev() {
            store.keep(&record(number)).unwrap();
        }
        let loaded = store.load().unwrap();
        assert_eq!((loaded.len(), &loaded[0]), (RECORDS_MAX, &record(3)));
        assert!(!store.file(&record(2).id).exists());
        store.keep(&OperationRecord { phase: OperationPhase::Failed, ..record(9) }).unwrap();
        assert_eq!(store.load().unwrap()[6].phase, OperationPhase::Failed);
    }

    #[test]
    fn damaged_files_are_removed_and_others_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = OperationStore::new(dir.path());
        store.keep(&record(1)).unwrap();
        std::fs::copy(store.file(&record(1).id), store.file(&record(2).id)).unwrap();
        std::fs::write(store.file(&record(3).id), "{").unwrap();
        std::fs::write(store.directory.join("about.json"), "{").unwrap();
        assert_eq!(store.load().unwrap(), [record(1)]);
        assert!(!store.file(&record(2).id).exists() && !store.file(&record(3).id).exists());
        assert!(store.directory.join("about.json").exists());
    }

    #[test]
    fn a_disk_that_takes_nothing_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("var/lib/orlop/api")).unwrap();
        std::fs::write(dir.path().join(DIRECTORY), "no directory").unwrap();
        let error = OperationStore::new(dir.path()).keep(&record(1)).unwrap_err();
        assert!(!disk_words(&error).is_empty());
    }
}
