//! The files of pull records, in upstream's layout: `<root>/image_manager/{pulling,pulled}`.
//!
//! In: pulls that begin and end, images that pods want to use. Out: changed files, access. Blocking.
//! [`agent_core::images::pull_records`] decides; its `changes` has the order that survives a kill. Invariant: a change is made only
//! after the one before it is on disk.

use std::io;
use std::path::{Path, PathBuf};

use agent_core::images::pull_records::changes::{self, FileChange, OnDisk, PullsUnderWay};
use agent_core::images::pull_records::{
    Check, FILE_PREFIX, ImagePullState, Intent, PULLED, PULLING, Policy, Record, RecordError, check,
    file_name,
};
use agent_linux::files::{self, Durability, FilesError};
use agent_types::credential::{Credential, Source};
use agent_types::failure::Class;
use agent_types::runtime::image::ImageInfo;
use agent_types::time::Wall;

use crate::pods::pod_dirs::chain;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// A record of many Secrets is some ten thousand bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Number of records: intents of pulls, and pulled images.
pub type Sizes = (usize, usize);

/// The records of a node. One task has them: [`super::PullRecords`].
#[derive(Debug)]
pub struct RecordFiles {
    pub(super) pulling: PathBuf,
    pub(super) pulled: PathBuf,
    policy: Policy,
    under_way: PullsUnderWay,
}

impl RecordFiles {
    /// Records below `--root-dir`.
    #[must_use]
    pub fn new(root: &Path, policy: Policy) -> RecordFiles {
        let (pulling, pulled) = (root.join(PULLING), root.join(PULLED));
        RecordFiles { pulling, pulled, policy, under_way: PullsUnderWay::default() }
    }

    /// True if an earlier run left no records.
    #[must_use]
    pub fn are_empty(&self) -> bool {
        self.sizes() == (0, 0)
    }

    /// Number of records: intents of pulls, and pulled images.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let count = |at: &PathBuf| files::visible_names(at).map_or(0, |names| names.len());
        (count(&self.pulling), count(&self.pulled))
    }

    /// Settles the intents of an earlier run: an image that has an intent and is on the node was pulled, with unknown
    /// credentials.
    ///
    /// # Errors
    /// A directory cannot be made or read. Damaged files are logged and left.
    pub fn settle(&mut self, images: &[ImageInfo], now: Wall) -> Result<(), FilesError> {
        for directory in [&self.pulling, &self.pulled] {
            files::make_dir(directory, DIR_MODE)?;
        }
        for intent in read_all(&self.pulling, Intent::parse)? {
            let Some(found) = changes::made_by(&intent, images) else { continue };
            let known = self.known(&intent.image, found.id.as_str());
            self.make(&changes::settled(&intent, found.id.as_str(), &known, now))?;
        }
        Ok(())
    }

    /// Removes the records of images that are gone. `images` is the list of the node, requested at `until`; records of
    /// a later time stay.
    ///
    /// # Errors
    /// The directory cannot be read, or a file cannot be removed.
    pub fn prune(&mut self, images: &[ImageInfo], until: Wall) -> Result<(), FilesError> {
        for record in read_all(&self.pulled, Record::parse)? {
            if changes::is_of_gone_image(&record, images, until) {
                remove(&self.pulled.join(file_name(&record.image_ref)))?;
            }
        }
        Ok(())
    }

    /// Whether a pod that names the image `image` and has these credentials may use `image_ref`, which is on the node.
    pub fn check(&mut self, image: &str, image_ref: &str, credentials: &[Credential], now: Wall) -> Check {
        let (check, record) = check(&self.policy, image, &self.known(image, image_ref), credentials, now);
        if let Some(record) = record
            && let Err(error) = self.make(&[FileChange::WriteRecord(record)])
        {
            tracing::warn!(image, error = %chain(&error), "who may use the image is not remembered");
        }
        check
    }

    /// True if the access to `image_ref` depends on the pod's service account.
    #[must_use]
    pub fn has_accounts(&self, image: &str, image_ref: &str) -> bool {
        matches!(self.known(image, image_ref), ImagePullState::Pulled(record) if record.has_accounts(image))
    }

    /// Records that a pull is about to begin.
    ///
    /// # Errors
    /// The intent cannot be written: the image must not be pulled.
    pub fn begin(&mut self, image: &str) -> Result<(), FilesError> {
        self.make(&[PullsUnderWay::before_pull(image)])?;
        self.under_way.begun(image);
        Ok(())
    }

    /// Records that the pull failed.
    pub fn failed(&mut self, image: &str) {
        match self.make(&self.under_way.after_failure(image)) {
            Ok(()) => self.under_way.ended(image),
            Err(error) => {
                tracing::warn!(image, error = %chain(&error), "the record of a pull's beginning is left");
            }
        }
    }

    /// Records that the agent gave up a pull; its intent stays.
    pub fn abandoned(&mut self, image: &str) {
        self.under_way.ended(image);
    }

    /// Records that the pull made `image_ref`, with a credential of `source`, or without any credential of a pod.
    pub fn pulled(&mut self, image: &str, image_ref: &str, source: Option<&Source>, now: Wall) {
        let record = self.record(image_ref);
        match self.make(&self.under_way.after_pull(image, image_ref, source, record, now)) {
            Ok(()) => self.under_way.ended(image),
            // The intent stays: the image is not free for every pod, and the next run makes its record.
            Err(error) => tracing::error!(image, error = %chain(&error), "the end of a pull is not recorded"),
        }
    }

    /// Makes the changes in order, up to the first that fails.
    fn make(&self, changes: &[FileChange]) -> Result<(), FilesError> {
        changes.iter().try_for_each(|change| match change {
            FileChange::WriteIntent(intent) => write(&self.pulling, &intent.image, &intent.to_bytes()),
            FileChange::WriteRecord(record) => write(&self.pulled, &record.image_ref, &record.to_bytes()),
            FileChange::RemoveIntent(image) => remove(&self.pulling.join(file_name(image))),
        })
    }

    fn known(&self, image: &str, image_ref: &str) -> ImagePullState {
        let by_record = self.under_way.by_record(image, image_ref, self.record(image_ref));
        let intent = || read(&self.pulling.join(file_name(image)), Intent::parse);
        by_record.unwrap_or_else(|| changes::by_intent(image, &intent()))
    }

    fn record(&self, image_ref: &str) -> OnDisk<Record> {
        read(&self.pulled.join(file_name(image_ref)), Record::parse)
    }
}

type Parse<T> = fn(&[u8]) -> Result<T, RecordError>;

/// The log has the error of a file that cannot be read or parsed.
fn read<T>(path: &Path, parse: Parse<T>) -> OnDisk<T> {
    let bytes = match files::read_capped(path, FILE_BYTES_MAX) {
        Err(e) if e.class() == Class::NotFound => return OnDisk::Absent,
        Err(error) => {
            tracing::error!(error = %chain(&error), "a record of pulled images cannot be read");
            return OnDisk::Unreadable;
        }
        Ok(bytes) => bytes,
    };
    match parse(&bytes) {
        Ok(parsed) => OnDisk::Parsed(parsed),
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "a record of pulled images is not used");
            OnDisk::Unreadable
        }
    }
}

fn read_all<T>(directory: &Path, parse: Parse<T>) -> Result<Vec<T>, FilesError> {
    let mut names = files::visible_names(directory)?;
    names.retain(|name| name.starts_with(FILE_PREFIX) && !name.ends_with(".tmp"));
    let parsed = |name: &String| match read(&directory.join(name), parse) {
        OnDisk::Parsed(parsed) => Some(parsed),
        OnDisk::Absent | OnDisk::Unreadable => None,
    };
    Ok(names.iter().filter_map(parsed).collect())
}

/// Writes the file about `image` durably.
fn write(directory: &Path, image: &str, contents: &[u8]) -> Result<(), FilesError> {
    files::make_dir(directory, DIR_MODE)?;
    files::write_atomic(&directory.join(file_name(image)), contents, FILE_MODE, Durability::Synced)
}

fn remove(path: &Path) -> Result<(), FilesError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FilesError { operation: "unlink", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
