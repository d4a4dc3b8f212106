//! Records of pulled images: one task has the files, and everybody else asks it.
//!
//! ```text
//! effects (look, pull) ─┐
//! image collector ──────┼─► mailbox ─► one task: RecordFiles, one request at a time on a thread ─► answers
//! every five minutes ───┘
//! ```
//! In: images before and after they are pulled, images that pods want to use. Out: files below `<root>/image_manager`; whether a pod
//! may use an image. Invariants: requests are carried out in the order of their sending; the intent is on disk before a pull
//! begins, and is removed only after the pull's record is there, so that the agent never mistakes an image whose pull outlived it for
//! a preloaded one; requests that wait hold no thread; the end of a pull is recorded also if no caller waits for it.
//! The watchdog does not ask this task: a disk that hangs is no reason to restart the agent.
//! [`agent_core::images::pull_records`] decides.

mod files;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_core::images::pull_records::{Check, Policy};
use agent_kubelet_api::drivers::ImageService;
use agent_linux::files::FilesError;
use agent_types::credential::{Credential, Source};
use agent_types::ids::ImageId;
use agent_types::runtime::image::ImageInfo;
use agent_types::time::Wall;
use tokio::sync::oneshot;

use crate::pods::pod_dirs::chain;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};

pub use files::{RecordFiles, Sizes};

/// Period of the pruning, as upstream's image collection.
const PRUNE_EVERY: Duration = Duration::from_secs(5 * 60);

/// A request to the task that has the files; it sends its own answer.
struct Request(Box<dyn FnOnce(&mut RecordFiles) + Send>);

impl Coalesce for Request {
    fn relation(&self, _: &Self) -> Relation {
        Relation::Independent
    }
}

/// The way to the records of the node; clones lead to the same task.
#[derive(Clone)]
pub struct PullRecords {
    to: Sender<Request>,
    is_off: bool,
}

/// Answer to a pod that wants to use an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageAccess {
    /// Whether the pod may use the image.
    pub check: Check,
    /// The credentials of the pod's service account may change that.
    pub by_account: bool,
}

impl PullRecords {
    /// Starts the task that has the records below `--root-dir`.
    #[must_use]
    pub fn start(root: &Path, policy: Policy, tasks: &Tasks) -> PullRecords {
        let is_off = policy.is_off();
        let (to, inbox) = tasks.mailbox();
        tasks.start(carry_out(RecordFiles::new(root, policy), inbox, tasks.clone()));
        PullRecords { to, is_off }
    }

    /// True if the policy needs no records: every pod may use every image.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// The answer of the task; `None` when the node stops.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut RecordFiles) -> T + Send + 'static,
    ) -> Option<T> {
        let (to, answer) = oneshot::channel();
        self.to.send(Request(Box::new(move |files| {
            // An answer without a waiting caller is dropped.
            let _ = to.send(work(files));
        })));
        answer.await.ok()
    }

    /// True if an earlier run left no records.
    pub async fn are_empty(&self) -> bool {
        self.ask(|files| files.are_empty()).await.unwrap_or(true)
    }

    /// Number of records.
    pub async fn sizes(&self) -> Option<Sizes> {
        self.ask(|files| files.sizes()).await
    }

    /// Whether a pod that names the image `image` and has these credentials may use `image_ref`, which is on the node.
    pub async fn check(
        &self,
        image: String,
        image_ref: ImageId,
        credentials: Vec<Credential>,
        now: Wall,
    ) -> ImageAccess {
        let checked = self.ask(move |files| {
            let check = files.check(&image, image_ref.as_str(), &credentials, now);
            let by_account = !check.may_use() && files.has_accounts(&image, image_ref.as_str());
            ImageAccess { check, by_account }
        });
        checked.await.unwrap_or(ImageAccess { check: Check::MustAuthenticate, by_account: false })
    }

    /// Records that a pull of `image` is about to begin; `None` when the node stops.
    ///
    /// # Errors
    /// The intent cannot be written: the image must not be pulled.
    pub async fn begin(&self, image: String) -> Option<(Result<PullInProgress, FilesError>, Sizes)> {
        let own = self.clone();
        let begun = self.ask(move |files| {
            let begun = files.begin(&image).map(|()| PullInProgress { records: own, image: Some(image) });
            (begun, files.sizes())
        });
        begun.await
    }

    /// Removes the records of images that are gone. `images` is the list of the node, requested at `until`.
    pub async fn prune(&self, images: Vec<ImageInfo>, until: Wall) {
        if let Some(Err(error)) = self.ask(move |files| files.prune(&images, until)).await {
            tracing::warn!(error = %chain(&error), "records of images that are gone stay");
        }
    }
}

/// Carries out requests, one after the other. A thread is taken for the time of one request only.
async fn carry_out(mut files: RecordFiles, mut inbox: Inbox<Request>, tasks: Tasks) {
    loop {
        let Request(work) = inbox.recv().await;
        let done = tasks.blocking(move || {
            work(&mut files);
            files
        });
        let Some(back) = done.await else { return };
        files = back;
    }
}

/// A pull whose intent is on disk. Dropped before its end, it leaves the intent there: the runtime may go on pulling.
pub struct PullInProgress {
    records: PullRecords,
    image: Option<String>,
}

impl PullInProgress {
    /// Records the end: the image and the source of the credential that pulled it, or a failure.
    pub async fn end(mut self, outcome: Result<(ImageId, Option<Source>), ()>, now: Wall) -> Option<Sizes> {
        let image = self.image.take()?;
        let ended = self.records.ask(move |files| {
            match outcome {
                Ok((id, source)) => files.pulled(&image, id.as_str(), source.as_ref(), now),
                Err(()) => files.failed(&image),
            }
            files.sizes()
        });
        ended.await
    }
}

impl Drop for PullInProgress {
    fn drop(&mut self) {
        if let Some(image) = self.image.take() {
            self.records.to.send(Request(Box::new(move |files| files.abandoned(&image))));
        }
    }
}

/// Settles the pulls of an earlier run. If the runtime does not list its images, the next run settles them; until then
/// no pod has access to those images by record.
pub async fn settle<I: ImageService>(images: &I, records: &PullRecords, tasks: &Tasks) {
    if records.is_off() || records.are_empty().await {
        return;
    }
    let list = match images.list_images().await {
        Ok(list) => list,
        Err(error) => {
            tracing::warn!(%error, "pulls that an earlier run began are not settled");
            return;
        }
    };
    let now = tasks.now().wall;
    if let Some(Err(error)) = records.ask(move |files| files.settle(&list, now)).await {
        tracing::warn!(error = %chain(&error), "pulls that an earlier run began are not settled");
    }
}

/// Removes the records of images that are gone, as often as upstream collects images.
pub async fn follow_images<I: ImageService>(
    images: Arc<I>,
    records: PullRecords,
    metrics: Metrics,
    tasks: Tasks,
) {
    while !records.is_off() {
        let asked = tasks.now();
        if !records.are_empty().await {
            match images.list_images().await {
                Ok(list) => records.prune(list, asked.wall).await,
                Err(error) => tracing::debug!(%error, "images not listed; records of pulled images stay"),
            }
        }
        if let Some((intents, pulled)) = records.sizes().await {
            metrics.pull_records(intents, pulled);
        }
        tasks.wait_until(asked.mono.after(PRUNE_EVERY)).await;
    }
}

#[cfg(test)]
mod tests;
