//! Records of pulled images on disk, in upstream's layout.
//!
//! In: images before and after they are pulled, images that pods want to use. Out: files below `<root>/image_manager`;
//! whether a pod may use an image. Invariants: the intent is on disk before a pull begins, and is removed only after
//! the pull's record is there, so that the agent never mistakes an image whose pull outlived it for a preloaded one; a
//! lock serialises all operations. Blocking; see [`agent_core::images::pull_records`] for the decisions.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::images::pull_records::{
    Access, FILE_PREFIX, ImagePullState, Intent, PULLED, PULLING, Policy, Record, RecordError, access,
    file_name,
};
use agent_kubelet_api::drivers::ImageService;
use agent_linux::files::{self, Durability, FilesError};
use agent_types::credential::{Credential, Source};
use agent_types::failure::Class;
use agent_types::lock::Lock;
use agent_types::runtime::image::ImageInfo;
use agent_types::time::Wall;

use crate::pods::pod_dirs::chain;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// A record of many Secrets is some ten thousand bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Period of the pruning, as upstream's image collection.
const PRUNE_EVERY: Duration = Duration::from_secs(5 * 60);

/// Access of a pod to an image on the node, in upstream's words ([`Check::label`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The policy does not require credentials for the image.
    PolicyAllowed,
    /// A pull with the pod's credentials is on record.
    RecordFound,
    /// The pod may use the image only after a pull with its own credentials.
    MustAuthenticate,
}

impl Check {
    /// True if the pod may use the image.
    #[must_use]
    pub fn may_use(self) -> bool {
        self != Check::MustAuthenticate
    }

    /// `result` of `kubelet_imagemanager_image_mustpull_checks_total`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Check::PolicyAllowed => "credentialPolicyAllowed",
            Check::RecordFound => "credentialRecordFound",
            Check::MustAuthenticate => "mustAuthenticate",
        }
    }
}

/// The records of a node.
#[derive(Debug)]
pub struct PullRecords {
    pulling: PathBuf,
    pulled: PathBuf,
    policy: Policy,
    /// Number of pulls under way, by the image name in the pod.
    under_way: Lock<BTreeMap<String, u32>>,
}

impl PullRecords {
    /// Records below `--root-dir`.
    #[must_use]
    pub fn new(root: &Path, policy: Policy) -> PullRecords {
        let (pulling, pulled) = (root.join(PULLING), root.join(PULLED));
        PullRecords { pulling, pulled, policy, under_way: Lock::default() }
    }

    /// True if the policy needs no records: every pod may use every image.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.policy.is_off()
    }

    /// True if an earlier run left no records.
    #[must_use]
    pub fn are_empty(&self) -> bool {
        let is_empty = |at: &PathBuf| files::visible_names(at).map_or(true, |names| names.is_empty());
        [&self.pulling, &self.pulled].into_iter().all(is_empty)
    }

    /// Settles the intents of an earlier run: an image that has an intent and is on the node was pulled, with unknown
    /// credentials.
    ///
    /// # Errors
    /// A directory cannot be made or read. Damaged files are logged and left.
    pub fn settle(&self, images: &[ImageInfo], now: Wall) -> Result<(), FilesError> {
        let _one = self.under_way.lock();
        for directory in [&self.pulling, &self.pulled] {
            files::make_dir(directory, DIR_MODE)?;
        }
        for intent in read_all(&self.pulling, Intent::parse)? {
            let is_it =
                |i: &&ImageInfo| i.repo_tags.iter().chain(&i.repo_digests).any(|name| *name == intent.image);
            let Some(found) = images.iter().find(is_it) else { continue };
            if self.known(found.id.as_str(), &intent.image, 0) == ImagePullState::Pulling {
                self.write(&Record::new(found.id.as_str(), now))?;
            }
            remove(&self.pulling.join(file_name(&intent.image)))?;
        }
        Ok(())
    }

    /// Removes the records of images that are gone. `images` is the list of the node, requested at `until`; records of
    /// a later time stay.
    ///
    /// # Errors
    /// The directory cannot be read, or a file cannot be removed.
    pub fn prune(&self, images: &[ImageInfo], until: Wall) -> Result<(), FilesError> {
        let _one = self.under_way.lock();
        for record in read_all(&self.pulled, Record::parse)? {
            let is_there = images.iter().any(|i| i.id.as_str() == record.image_ref);
            if !is_there && record.is_before(until) {
                remove(&self.pulled.join(file_name(&record.image_ref)))?;
            }
        }
        Ok(())
    }

    /// Whether a pod that names the image `image` and has these credentials may use `image_ref`, which is on the node.
    pub fn check(&self, image: &str, image_ref: &str, credentials: &[Credential], now: Wall) -> Check {
        let under_way = self.under_way.lock();
        let pulls = under_way.get(image).copied().unwrap_or(0);
        let known = self.known(image_ref, image, pulls);
        match access(&self.policy, image, &known, credentials) {
            Access::Allowed => Check::PolicyAllowed,
            Access::Granted => Check::RecordFound,
            Access::MustPull => Check::MustAuthenticate,
            Access::GrantedBy(origin) => {
                if let ImagePullState::Pulled(record) = &known
                    && let Some(record) = record.with(image, Some(&Source::Secret(origin)), now)
                    && let Err(error) = self.write(&record)
                {
                    tracing::warn!(image, error = %chain(&error), "who may use the image is not remembered");
                }
                Check::RecordFound
            }
        }
    }

    /// Number of records: intents of pulls, and pulled images.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        let count = |at: &PathBuf| files::visible_names(at).map_or(0, |names| names.len());
        (count(&self.pulling), count(&self.pulled))
    }

    /// True if the access to `image_ref` depends on the pod's service account.
    #[must_use]
    pub fn has_accounts(&self, image: &str, image_ref: &str) -> bool {
        let _one = self.under_way.lock();
        matches!(self.known(image_ref, image, 0), ImagePullState::Pulled(record) if record.has_accounts(image))
    }

    /// Records that a pull is about to begin.
    ///
    /// # Errors
    /// The intent cannot be written: the image must not be pulled.
    pub fn begin(&self, image: &str) -> Result<(), FilesError> {
        let mut under_way = self.under_way.lock();
        let path = self.pulling.join(file_name(image));
        files::make_dir(&self.pulling, DIR_MODE)?;
        files::write_atomic(&path, &Intent::new(image).to_bytes(), FILE_MODE, Durability::Synced)?;
        *under_way.entry(image.to_owned()).or_insert(0) += 1;
        Ok(())
    }

    /// Records that the pull failed.
    pub fn failed(&self, image: &str) {
        self.end(&mut self.under_way.lock(), image);
    }

    /// Records that the agent gave up a pull. The runtime may finish the pull: the intent stays until the image is
    /// pulled again or the next run settles it.
    pub fn abandoned(&self, image: &str) {
        let mut under_way = self.under_way.lock();
        if !one_of_several(&mut under_way, image) {
            under_way.remove(image);
        }
    }

    /// Records that the pull made `image_ref`, with a credential of `source`, or without any credential of a pod.
    pub fn pulled(&self, image: &str, image_ref: &str, source: Option<&Source>, now: Wall) {
        let mut under_way = self.under_way.lock();
        let known = self.known(image_ref, image, 1);
        let before = match known {
            ImagePullState::Pulled(record) => record,
            _ => Record::new(image_ref, now),
        };
        let Some(record) = before.with(image, source, now) else { return self.end(&mut under_way, image) };
        match self.write(&record) {
            Ok(()) => self.end(&mut under_way, image),
            // The intent stays: the image is not free for every pod, and the next run makes its record.
            Err(error) => {
                tracing::error!(image, error = %chain(&error), "what was pulled is not recorded");
            }
        }
    }

    fn end(&self, under_way: &mut BTreeMap<String, u32>, image: &str) {
        if one_of_several(under_way, image) {
            return;
        }
        match remove(&self.pulling.join(file_name(image))) {
            Ok(()) => drop(under_way.remove(image)),
            Err(error) => {
                tracing::warn!(image, error = %chain(&error), "the record of a pull's beginning is left");
            }
        }
    }

    fn known(&self, image_ref: &str, image: &str, pulls: u32) -> ImagePullState {
        match read(&self.pulled.join(file_name(image_ref)), Record::parse) {
            Some(Ok(record)) if record.image_ref == image_ref => return ImagePullState::Pulled(record),
            Some(Err(())) => return ImagePullState::Unreadable,
            _ => {}
        }
        if pulls > 0 {
            return ImagePullState::Pulling;
        }
        match read(&self.pulling.join(file_name(image)), Intent::parse) {
            Some(Ok(intent)) if intent.image == image => ImagePullState::Pulling,
            Some(Err(())) => ImagePullState::Unreadable,
            _ => ImagePullState::Preloaded,
        }
    }

    fn write(&self, record: &Record) -> Result<(), FilesError> {
        files::make_dir(&self.pulled, DIR_MODE)?;
        let path = self.pulled.join(file_name(&record.image_ref));
        files::write_atomic(&path, &record.to_bytes(), FILE_MODE, Durability::Synced)
    }
}

/// Counts one pull of the image less if other pulls of it are under way; false if it is the last one.
fn one_of_several(under_way: &mut BTreeMap<String, u32>, image: &str) -> bool {
    let others = under_way.get_mut(image).filter(|pulls| **pulls > 1);
    others.map(|pulls| *pulls -= 1).is_some()
}

type Parse<T> = fn(&[u8]) -> Result<T, RecordError>;

/// `None`: the file does not exist. The log has the error of a file that cannot be read or parsed.
fn read<T>(path: &Path, parse: Parse<T>) -> Option<Result<T, ()>> {
    let bytes = match files::read_capped(path, FILE_BYTES_MAX) {
        Err(e) if e.class() == Class::NotFound => return None,
        Err(error) => {
            tracing::error!(error = %chain(&error), "a record of pulled images cannot be read");
            return Some(Err(()));
        }
        Ok(bytes) => bytes,
    };
    Some(parse(&bytes).map_err(|error| {
        tracing::error!(path = %path.display(), %error, "a record of pulled images is not used");
    }))
}

fn read_all<T>(directory: &Path, parse: Parse<T>) -> Result<Vec<T>, FilesError> {
    let mut names = files::visible_names(directory)?;
    names.retain(|name| name.starts_with(FILE_PREFIX) && !name.ends_with(".tmp"));
    Ok(names.iter().filter_map(|name| read(&directory.join(name), parse)?.ok()).collect())
}

fn remove(path: &Path) -> Result<(), FilesError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FilesError { operation: "unlink", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Settles the pulls of an earlier run. If the runtime does not list its images, the next run settles them; until then
/// no pod has access to those images by record.
pub async fn settle<I: ImageService>(images: &I, records: &Arc<PullRecords>, tasks: &Tasks) {
    if records.is_off() || records.are_empty() {
        return;
    }
    let list = match images.list_images().await {
        Ok(list) => list,
        Err(error) => {
            tracing::warn!(%error, "pulls that an earlier run began are not settled");
            return;
        }
    };
    let (records, now) = (records.clone(), tasks.now().wall);
    if let Some(Err(error)) = tasks.blocking(move || records.settle(&list, now)).await {
        tracing::warn!(error = %chain(&error), "pulls that an earlier run began are not settled");
    }
}

/// Removes the records of images that are gone, as often as upstream collects images.
pub async fn follow_images<I: ImageService>(
    images: Arc<I>,
    records: Arc<PullRecords>,
    metrics: Metrics,
    tasks: Tasks,
) {
    while !records.is_off() {
        let asked = tasks.now();
        if !records.are_empty() {
            match images.list_images().await {
                Ok(list) => forget(&records, list, asked.wall, &tasks).await,
                Err(error) => tracing::debug!(%error, "images not listed; records of pulled images stay"),
            }
        }
        let counted = records.clone();
        if let Some((intents, pulled)) = tasks.blocking(move || counted.sizes()).await {
            metrics.pull_records(intents, pulled);
        }
        tasks.wait_until(asked.mono.after(PRUNE_EVERY)).await;
    }
}

async fn forget(records: &Arc<PullRecords>, images: Vec<ImageInfo>, until: Wall, tasks: &Tasks) {
    let records = records.clone();
    if let Some(Err(error)) = tasks.blocking(move || records.prune(&images, until)).await {
        tracing::warn!(error = %chain(&error), "records of images that are gone stay");
    }
}

#[cfg(test)]
mod tests;
