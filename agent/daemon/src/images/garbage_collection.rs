//! Collects unused images: every five minutes, and at once when the eviction manager needs space; in the
//! second case dead containers, too.
//!
//! ```text
//! timer ─┐
//! ask ───┴─► Collector (one task) ─► ListImages, ListContainers, ImageFsInfo, statvfs ─► ImageGc ─► RemoveImage, one by one
//!                └─► pod manager ─► workers of pods that are over ─► RemoveContainer
//! ```
//! In: images and containers of the runtime, the configuration. Out: removals, node events, a metric, removed
//! pull records of removed images. Invariants: one collection at a time; an image that a pod needed recently
//! stays ([`crate::images::image_uses`]); no state is on disk, ages begin again with the agent. The decisions
//! are in [`agent_core::images::gc`]; docs/internals/gc.md. Upstream: pkg/kubelet/images/image_gc_manager.go.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_core::events::Fact;
use agent_core::images::gc::{
    Candidate, FREE_DISK_SPACE_FAILED, IMAGE_GC_FAILED, INVALID_DISK_CAPACITY, ImageGc, InvalidCapacity,
    Policy,
};
use agent_core::pod_manager::ManagerEvent;
use agent_kubelet_api::drivers::{ImageService, ImagesInUse, Statistics};
use agent_linux::disk_use;
use agent_linux::files::FilesError;
use agent_types::event::EventKind;
use agent_types::failure::DriverError;
use orlop_config::kubelet::KubeletConfiguration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::images::image_uses::ImageUses;
use crate::images::pull_records::PullRecords;
use crate::node::node_events::NodeEvents;
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;

/// Upstream's `ImageGCPeriod`, also that of detection.
const EVERY: Duration = Duration::from_mins(5);
/// Event: dead containers could not be removed.
const CONTAINER_GC_FAILED: &str = "ContainerGCFailed";
/// How long the removal of dead containers may take before the collector reports a failure.
const CONTAINERS_MAX: Duration = Duration::from_secs(30);
/// Each requester waits for its reply, so more than one request is queued only after a requester gave up.
const REQUESTS_MAX: usize = 4;

/// The thresholds and ages of the configuration.
#[must_use]
pub fn policy(kubelet: &KubeletConfiguration) -> Policy {
    let percent = |value: i32| u8::try_from(value.clamp(0, 100)).unwrap_or(100);
    let maximum = kubelet.image_maximum_gc_age.to_std();
    Policy {
        high_percent: percent(kubelet.image_gc_high_threshold_percent),
        low_percent: percent(kubelet.image_gc_low_threshold_percent),
        minimum_age: kubelet.image_minimum_gc_age.to_std(),
        maximum_age: (!maximum.is_zero()).then_some(maximum),
    }
}

/// Reason why the collector freed nothing, or too little.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The runtime did not list images or containers.
    #[error("look at images")]
    Look(#[source] DriverError),
    /// The runtime did not name its image filesystem.
    #[error("the runtime names no image filesystem")]
    NoFilesystem,
    /// The usage of the image filesystem cannot be read.
    #[error("look at the image filesystem")]
    Disk(#[source] FilesError),
    /// The image filesystem reports no size.
    #[error(transparent)]
    Capacity(#[from] InvalidCapacity),
    /// Some of the chosen images could not be removed.
    #[error("removed images of {freed_bytes} bytes, {failed} could not be removed")]
    Removal {
        /// Size of the removed images.
        freed_bytes: u64,
        /// Number of images that could not be removed.
        failed: usize,
        /// The first failure.
        #[source]
        first: DriverError,
    },
    /// All removable images are removed, and the disk is still too full.
    #[error("{0}")]
    Insufficient(String),
    /// The runtime did not remove all dead containers.
    #[error("dead containers of pods that are over are still there after {} s", CONTAINERS_MAX.as_secs())]
    Containers,
    /// The agent is ending.
    #[error("the agent is ending")]
    Ending,
}

/// Handles for the removal of dead containers of terminated pods.
#[derive(Clone, Debug)]
pub struct UnusedContainers {
    /// The pod manager, which knows the terminated pods.
    pub(crate) manager: Sender<ManagerEvent>,
    /// Counts the pod manager's reports that the containers are gone.
    pub(crate) deleted: watch::Receiver<u64>,
}

/// Objects to collect at once.
#[derive(Clone, Copy, Debug)]
enum CollectTarget {
    Images,
    Containers,
}

type CollectReply = oneshot::Sender<Result<u64, CollectError>>;

/// Sends requests to the collector; clones send to the same collector.
#[derive(Clone, Debug)]
pub struct GarbageCollection(mpsc::Sender<(CollectTarget, CollectReply)>);

/// The requests that a collector receives. Requesters may exist before the collector.
#[derive(Debug)]
pub struct Requests(mpsc::Receiver<(CollectTarget, CollectReply)>);

/// The two ends.
#[must_use]
pub fn requests() -> (GarbageCollection, Requests) {
    let (sender, requests) = mpsc::channel(REQUESTS_MAX);
    (GarbageCollection(sender), Requests(requests))
}

impl GarbageCollection {
    /// Removes every image that no container uses and that no pod asked for lately, also below the thresholds. Images
    /// that the agent first saw less than `imageMinimumGCAge` ago stay. Returns the size of the removed images as the
    /// runtime reports it, bytes.
    ///
    /// # Errors
    /// The runtime does not answer, or does not remove the images.
    pub async fn delete_unused_images(&self) -> Result<u64, CollectError> {
        self.ask(CollectTarget::Images).await
    }

    /// Removes containers and sandboxes of terminated pods whose end the API server has, with their logs. The workers
    /// of deleted pods remove their containers anyway.
    ///
    /// # Errors
    /// Some of them are still there after 30 s. The event `ContainerGCFailed` reports this, and the workers keep
    /// trying.
    pub async fn delete_unused_containers(&self) -> Result<(), CollectError> {
        self.ask(CollectTarget::Containers).await.map(drop)
    }

    async fn ask(&self, want: CollectTarget) -> Result<u64, CollectError> {
        let (answer, answered) = oneshot::channel();
        self.0.send((want, answer)).await.map_err(|_| CollectError::Ending)?;
        answered.await.unwrap_or(Err(CollectError::Ending))
    }
}

/// Dependencies of a collector.
pub struct Surroundings<I> {
    /// CRI.
    pub images: Arc<I>,
    /// Images that effects have asked for.
    pub uses: ImageUses,
    /// Records of pulls.
    pub records: PullRecords,
    /// Events and metrics.
    pub node_events: NodeEvents,
    /// The node's tasks.
    pub tasks: Tasks,
    /// Containers of terminated pods.
    pub containers: UnusedContainers,
}

/// Starts the collector.
pub fn start<I: ImageService + ImagesInUse + Statistics>(
    policy: Policy,
    around: Surroundings<I>,
    Requests(requests): Requests,
) {
    let tasks = around.tasks.clone();
    if policy.is_off() {
        tracing::info!(
            "images are not collected on a timer: imageGCHighThresholdPercent is 100, imageMaximumGCAge 0"
        );
    }
    let gc = ImageGc::new(policy, tasks.now().mono);
    tasks.start(follow(Collector { policy, gc, around, failed_before: false }, requests));
}

async fn follow<I: ImageService + ImagesInUse + Statistics>(
    mut collector: Collector<I>,
    mut requests: mpsc::Receiver<(CollectTarget, CollectReply)>,
) {
    let tasks = collector.around.tasks.clone();
    let mut next = tasks.now().mono;
    loop {
        tokio::select! {
            // A request that is not received stays in the queue; dropping the timer loses nothing.
            Some((want, answer)) = requests.recv() => {
                let freed = match want {
                    CollectTarget::Images => collector.delete_unused().await,
                    CollectTarget::Containers => collector.delete_unused_containers().await.map(|()| 0),
                };
                // The requester may have stopped waiting.
                let _ = answer.send(freed);
            }
            () = tasks.wait_until(next) => {
                next = tasks.now().mono.after(EVERY);
                collector.round().await;
            }
        }
    }
}

struct Collector<I> {
    policy: Policy,
    gc: ImageGc,
    around: Surroundings<I>,
    failed_before: bool,
}

impl<I: ImageService + ImagesInUse + Statistics> Collector<I> {
    async fn round(&mut self) {
        let result = self.collect().await;
        let Err(error) = result else {
            self.failed_before = false;
            return;
        };
        if std::mem::replace(&mut self.failed_before, true) {
            self.warn(IMAGE_GC_FAILED, chain(&error));
        } else {
            tracing::warn!(error = %chain(&error), "images not collected");
        }
    }

    async fn collect(&mut self) -> Result<(), CollectError> {
        self.detect().await?;
        if self.policy.is_off() {
            return Ok(());
        }
        let old = self.gc.by_age(self.now());
        // A failure here must not prevent the collector from freeing space.
        let aged = self.remove(old, u64::MAX, "age").await.map(drop);
        self.free_space().await.and(aged)
    }

    async fn free_space(&mut self) -> Result<(), CollectError> {
        let mounted = self.around.images.image_filesystem().await.map_err(CollectError::Look)?;
        let path = PathBuf::from(mounted.ok_or(CollectError::NoFilesystem)?.mountpoint);
        let at = self.around.tasks.now().wall;
        let disk = self.around.tasks.blocking(move || disk_use::filesystem(&path, at)).await;
        let disk = disk.ok_or(CollectError::Ending)?.map_err(CollectError::Disk)?;
        let need =
            self.gc.need(&disk).inspect_err(|error| self.warn(INVALID_DISK_CAPACITY, error.to_string()))?;
        let Some(need) = need else { return Ok(()) };
        tracing::info!(
            used_percent = need.used_percent,
            wanted_bytes = need.wanted_bytes,
            "the image filesystem is over the high threshold; removing unused images"
        );
        let candidates = self.gc.for_space(self.now());
        let freed = self.remove(candidates, need.wanted_bytes, "space").await?;
        if freed < need.wanted_bytes {
            let message = need.unmet(freed);
            self.warn(FREE_DISK_SPACE_FAILED, message.clone());
            return Err(CollectError::Insufficient(message));
        }
        Ok(())
    }

    async fn delete_unused(&mut self) -> Result<u64, CollectError> {
        self.detect().await?;
        let candidates = self.gc.for_space(self.now());
        self.remove(candidates, u64::MAX, "space").await
    }

    async fn delete_unused_containers(&mut self) -> Result<(), CollectError> {
        let UnusedContainers { manager, deleted } = &mut self.around.containers;
        deleted.mark_unchanged();
        manager.send(ManagerEvent::DeleteUnused);
        match timeout(CONTAINERS_MAX, deleted.changed()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(CollectError::Ending),
            Err(_) => {
                self.warn(CONTAINER_GC_FAILED, CollectError::Containers.to_string());
                Err(CollectError::Containers)
            }
        }
    }

    /// Lists images first: an image from which a container is created meanwhile then counts as used.
    async fn detect(&mut self) -> Result<(), CollectError> {
        let images = self.around.images.list_images().await.map_err(CollectError::Look)?;
        let used = self.around.images.images_in_use().await.map_err(CollectError::Look)?;
        self.gc.detect(self.now(), &images, &used, &self.around.uses.since());
        Ok(())
    }

    /// Removes images in this order until `wanted_bytes` are freed; a failure does not stop the loop.
    async fn remove(
        &mut self,
        candidates: Vec<Candidate>,
        wanted_bytes: u64,
        reason: &'static str,
    ) -> Result<u64, CollectError> {
        let (mut freed, mut failed, mut first, mut gone) = (0_u64, 0, None, false);
        for candidate in candidates {
            if freed >= wanted_bytes {
                break;
            }
            let Candidate { id, names, size_bytes } = candidate;
            let names = names.into_iter().chain([id.to_string()]).collect();
            let Some(turn) = self.around.uses.remove(names, self.now()) else { continue };
            let removed = self.around.images.remove_image(id.as_str()).await;
            drop(turn);
            match removed {
                Ok(()) => {
                    tracing::info!(image = %id, size_bytes, reason, "image removed");
                    freed = freed.saturating_add(size_bytes);
                    gone = true;
                    self.gc.removed(&id);
                    self.around.node_events.metrics().image_collected(reason);
                }
                Err(error) => {
                    failed += 1;
                    first.get_or_insert(error);
                }
            }
        }
        if gone {
            self.forget().await;
        }
        match first {
            Some(first) => Err(CollectError::Removal { freed_bytes: freed, failed, first }),
            None => Ok(freed),
        }
    }

    /// Removes the pull records of removed images. `pull_records::follow_images` repeats a removal that fails.
    async fn forget(&self) {
        let (records, until) = (self.around.records.clone(), self.around.tasks.now().wall);
        if records.is_off() || records.are_empty().await {
            return;
        }
        match self.around.images.list_images().await {
            Ok(images) => records.prune(images, until).await,
            Err(error) => tracing::debug!(%error, "images not listed; records of pulled images stay"),
        }
    }

    fn warn(&self, reason: &'static str, message: String) {
        self.around.node_events.of_node(Fact::of_node(EventKind::Warning, reason, message));
    }

    fn now(&self) -> agent_types::time::Mono {
        self.around.tasks.now().mono
    }
}

#[cfg(test)]
mod tests;
