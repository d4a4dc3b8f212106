//! Pulls that begin and end: the changes of their files, in the order that survives a kill.
//!
//! ```text
//! begin ─► intent written ─► counted ─► the runtime pulls ─┬─ pulled ──► record written ─► intent removed
//!                                                          ├─ failed ────────────────────► intent removed
//!                                                          └─ abandoned: the intent stays
//! the next run: intent, and its image is on the node ───────────────────► record written ─► intent removed
//! ```
//! In: beginnings and ends of pulls, the files as they are read. Out: [`FileChange`]s, the state of an image. Invariants: a pull begins
//! after its intent is on disk; the intent is removed after the record is on disk, and with the last of several pulls;
//! so a kill between any two changes never leaves a pulled image that looks preloaded. The caller makes the changes one
//! after the other and stops at the first that fails. Upstream: pkg/kubelet/images/pullmanager.

use std::collections::BTreeMap;

use agent_types::credential::Source;
use agent_types::runtime::image::ImageInfo;
use agent_types::time::Wall;

use super::{ImagePullState, Intent, Record};

/// A file about an image, as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnDisk<T> {
    /// The file does not exist.
    Absent,
    /// The file cannot be read or parsed.
    Unreadable,
    /// The file's contents.
    Parsed(T),
}

/// One change of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// Writes the intent, durably.
    WriteIntent(Intent),
    /// Writes the record, durably.
    WriteRecord(Record),
    /// Removes the intent for this image, as a pod spells it.
    RemoveIntent(String),
}

/// The pulls under way in this run of the agent: their number by the image name in the pod.
#[derive(Clone, Debug, Default)]
pub struct PullsUnderWay(BTreeMap<String, u32>);

impl PullsUnderWay {
    /// The change before a pull: after it, [`PullsUnderWay::begun`] counts the pull, and the runtime may pull.
    #[must_use]
    pub fn before_pull(image: &str) -> FileChange {
        FileChange::WriteIntent(Intent::new(image))
    }

    /// The intent is on disk, and the pull begins.
    pub fn begun(&mut self, image: &str) {
        *self.0.entry(image.to_owned()).or_insert(0) += 1;
    }

    /// The changes after a failed pull.
    #[must_use]
    pub fn after_failure(&self, image: &str) -> Vec<FileChange> {
        let others = self.0.get(image).is_some_and(|pulls| *pulls > 1);
        if others { Vec::new() } else { vec![FileChange::RemoveIntent(image.to_owned())] }
    }

    /// The changes after a pull that made `image_ref`, with a credential of `source`, or without any credential of a pod. `record`
    /// is the present record of `image_ref`.
    #[must_use]
    pub fn after_pull(
        &self,
        image: &str,
        image_ref: &str,
        source: Option<&Source>,
        record: OnDisk<Record>,
        now: Wall,
    ) -> Vec<FileChange> {
        let before = match record {
            OnDisk::Parsed(record) if record.image_ref == image_ref => record,
            OnDisk::Parsed(_) | OnDisk::Absent | OnDisk::Unreadable => Record::new(image_ref, now),
        };
        let record = before.with(image, source, now).map(FileChange::WriteRecord);
        record.into_iter().chain(self.after_failure(image)).collect()
    }

    /// A pull is over: the changes after it are made, or the agent gave it up. The runtime may finish a pull that was given up, so
    /// its intent stays until the image is pulled again or the next run settles it.
    ///
    /// A pull with a change that failed is not over: the image counts as being pulled until the agent ends.
    pub fn ended(&mut self, image: &str) {
        match self.0.get_mut(image) {
            Some(pulls) if *pulls > 1 => *pulls -= 1,
            _ => drop(self.0.remove(image)),
        }
    }

    /// The state of an image by its record and the pulls of this run; `None`: its intent decides ([`by_intent`]).
    #[must_use]
    pub fn by_record(&self, image: &str, image_ref: &str, record: OnDisk<Record>) -> Option<ImagePullState> {
        match record {
            OnDisk::Parsed(record) if record.image_ref == image_ref => Some(ImagePullState::Pulled(record)),
            OnDisk::Unreadable => Some(ImagePullState::Unreadable),
            OnDisk::Parsed(_) | OnDisk::Absent => {
                self.0.contains_key(image).then_some(ImagePullState::Pulling)
            }
        }
    }
}

/// The state of an image that has no record and is not being pulled.
#[must_use]
pub fn by_intent(image: &str, intent: &OnDisk<Intent>) -> ImagePullState {
    match intent {
        OnDisk::Parsed(intent) if intent.image == image => ImagePullState::Pulling,
        OnDisk::Unreadable => ImagePullState::Unreadable,
        OnDisk::Parsed(_) | OnDisk::Absent => ImagePullState::Preloaded,
    }
}

/// The image that the pull of an earlier run made, if it is on the node.
#[must_use]
pub fn made_by<'i>(intent: &Intent, images: &'i [ImageInfo]) -> Option<&'i ImageInfo> {
    let has_name =
        |image: &&ImageInfo| image.repo_tags.iter().chain(&image.repo_digests).any(|n| *n == intent.image);
    images.iter().find(has_name)
}

/// The changes for an intent of an earlier run whose image `image_ref` is on the node in the state `known`: the credentials of its
/// pull are unknown.
#[must_use]
pub fn settled(intent: &Intent, image_ref: &str, known: &ImagePullState, now: Wall) -> Vec<FileChange> {
    let record = (*known == ImagePullState::Pulling).then(|| Record::new(image_ref, now));
    let removed = FileChange::RemoveIntent(intent.image.clone());
    record.map(FileChange::WriteRecord).into_iter().chain([removed]).collect()
}

/// True if the record's image is gone. `images` is the list of the node, requested at `until`; records of a later time stay.
#[must_use]
pub fn is_of_gone_image(record: &Record, images: &[ImageInfo], until: Wall) -> bool {
    images.iter().all(|image| image.id.as_str() != record.image_ref) && record.is_before(until)
}

#[cfg(test)]
mod tests;
