//! What a node keeps: the trust documents that followed the image's, and the last document of each channel.
//!
//! ```text
//! <directory>/trust/<n>.json         as fetched
//! <directory>/channels/<name>.json   as fetched
//! ```
//! Invariants: a kept trust document counts only if its chain from the image's is whole, so a planted one does not; files are
//! replaced whole and are on disk when a call returns.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use orlop_config::release::{
    ChannelDocument, DOCUMENT_BYTES_MAX, DocumentError, TrustDocument, channel_path, trust_path,
};
use orlop_files::{Durability, replace};

use super::directory::{is_absence, read_bounded};
use super::signatures::RingSignatures;
use super::survey::UpdateError;

/// Everybody may read what everybody can fetch.
const MODE: u32 = 0o644;

/// The store of a node.
#[derive(Clone, Debug)]
pub struct UpdateStore {
    directory: PathBuf,
    trust: TrustDocument,
}

impl UpdateStore {
    /// Opens the store in `directory`, which need not be there yet. `image_trust` is the trust document of the image.
    ///
    /// # Errors
    /// [`UpdateError::NotConfigured`] if the image has none; else it is damaged.
    pub fn open(directory: &Path, image_trust: &Path) -> Result<UpdateStore, UpdateError> {
        let text = match read_bounded(image_trust) {
            Err(e) if is_absence(&e) => return Err(UpdateError::NotConfigured(image_trust.to_owned())),
            Err(source) => return Err(UpdateError::Read { path: image_trust.to_owned(), source }),
            Ok(text) => text,
        };
        let trust = TrustDocument::first(&text, &RingSignatures)
            .map_err(|error| UpdateError::document(image_trust.display().to_string(), error))?;
        let mut store = UpdateStore { directory: directory.to_owned(), trust };
        while let Some(next) = store.kept_trust()? {
            store.trust = next;
        }
        Ok(store)
    }

    /// The newest trust document.
    #[must_use]
    pub fn trust(&self) -> &TrustDocument {
        &self.trust
    }

    // A file that does not follow is passed over: the source has the good one.
    fn kept_trust(&self) -> Result<Option<TrustDocument>, UpdateError> {
        let path = self.directory.join(trust_path(self.trust.next_number()));
        let Some(text) = read_kept(&path)? else { return Ok(None) };
        let next = self.trust.next(&text, &RingSignatures);
        Ok(next.map_err(|error| passed_over(&path, &error)).ok())
    }

    /// Takes the trust document that follows, and keeps it.
    ///
    /// # Errors
    /// It does not follow (with `place` as its origin), or cannot be written; then the one before it still counts.
    pub fn follow_trust(&mut self, place: &str, text: &[u8]) -> Result<(), UpdateError> {
        let next = self
            .trust
            .next(text, &RingSignatures)
            .map_err(|error| UpdateError::document(place.to_owned(), error))?;
        self.write(&trust_path(next.number), text)?;
        self.trust = next;
        Ok(())
    }

    /// The last document of a channel that was kept. One that is damaged does not count, nor one whose keys were replaced: who had
    /// stolen them may have signed it with the highest sequence there is, and no good document could follow.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn seen(&self, channel: &str) -> Result<Option<ChannelDocument>, UpdateError> {
        let path = self.directory.join(channel_path(channel));
        let Some(text) = read_kept(&path)? else { return Ok(None) };
        let document = ChannelDocument::read(&self.trust, channel, &text, &RingSignatures);
        Ok(document.map_err(|error| passed_over(&path, &error)).ok())
    }

    /// Keeps the document of a channel.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn keep_channel(&self, channel: &str, text: &[u8]) -> Result<(), UpdateError> {
        self.write(&channel_path(channel), text)
    }

    fn write(&self, path: &str, text: &[u8]) -> Result<(), UpdateError> {
        let path = self.directory.join(path);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)
                .map_err(|source| UpdateError::Directory { path: directory.to_owned(), source })?;
        }
        // After a power cut the node must not take an older document than before.
        replace(&path, text, MODE, Durability::Synced).map_err(UpdateError::Keep)
    }
}

fn read_kept(path: &Path) -> Result<Option<Vec<u8>>, UpdateError> {
    match read_bounded(path) {
        Ok(text) if text.len() > DOCUMENT_BYTES_MAX => Ok(None),
        Ok(text) => Ok(Some(text)),
        // What is no file does not count either.
        Err(e) if is_absence(&e) || e.kind() == ErrorKind::InvalidInput => Ok(None),
        Err(source) => Err(UpdateError::Read { path: path.to_owned(), source }),
    }
}

fn passed_over(path: &Path, error: &DocumentError) {
    tracing::warn!(path = %path.display(), %error, "a kept document of updates does not count any more");
}
