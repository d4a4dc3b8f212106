//! Carries out pod workers' effects: one or several driver calls for each effect, and one answer.
//!
//! In: an [`Effect`] with its deadline. Out: exactly one [`PodEvent::EffectDone`] for each effect: the result, the
//! deadline, a cancellation, or the end of the node. Invariants: no call is in progress after its deadline; pulls are
//! bounded (serializeImagePulls, maxParallelImagePulls); when the node stops, calls that change the runtime get a
//! moment to finish, so that the next incarnation starts clean.

mod carry_out;
pub mod claims;
mod csi;
mod csi_expand;
mod csi_tear_down;
mod disks;
mod flex;
mod growth;
mod network_disks;
mod nfs;
pub(crate) mod programs;
mod pull;
mod resize;
mod results;
mod volumes;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agent_core::allocation::Allocations;
use agent_core::lifecycle_hooks::HookAction;
use agent_core::pleg::PlegEvent;
use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_worker::PodEvent;
use agent_core::pod_worker::effect::{Effect, EffectResult};
use agent_core::probe::{ProbeCall, ProbeId};
use agent_core::resource_managers::ManagerRecords;
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::ids::PodKey;
use agent_types::kill::TerminatingRecord;
use agent_types::machine::EffectId;
use agent_types::time::Mono;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use claims::{NoClaims, PodClaimsDriver};
pub use resize::ContainerAmounts;
pub(crate) use volumes::answer as volume_answer;

use results::{ResultSender, gave_up, log, of_disk};

use crate::devices::DevicePlugins;
use crate::images::Images;
use crate::images::credential_plugins::Plugins;
use crate::images::image_uses::ImageUses;
use crate::images::pull_records::PullRecords;
use crate::images::pulls::Pulls;
use crate::node::container_manager::PodCgroups;
use crate::pods::pod_dirs::{PodDirs, chain};
use crate::pods::pod_values::Sources;
use crate::pods::probes_and_hooks::Handlers;
use crate::runtime::inspect::Observer;
use crate::runtime::shim_groups::SharedShims;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;
use crate::tasks::keyed_locks::KeyedLocks;
use crate::tasks::mailbox::Sender;
use crate::tasks::stops::AgentStops;
use crate::volumes::local_volumes::LocalVolumes;
use crate::volumes::ownership::Ownership;

/// Parts of an executor.
pub struct Deps<R, I> {
    /// CRI RuntimeService.
    pub runtime: Arc<R>,
    /// ImageService with pulls, records and credentials.
    pub images: Images<I>,
    /// Probes and hooks.
    pub handlers: Arc<dyn Handlers>,
    /// Resources of running containers.
    pub amounts: Arc<dyn ContainerAmounts>,
    /// Groups of pods that share a shim.
    pub shims: SharedShims,
    /// The pods' directories.
    pub dirs: Arc<PodDirs>,
    /// Values of Secrets, ConfigMaps and tokens.
    pub sources: Arc<dyn Sources>,
    /// Pods' cgroups; `None` where pods have none of their own.
    pub cgroups: Option<PodCgroups>,
    /// Device plugins.
    pub plugins: DevicePlugins,
    /// Resource claims.
    pub claims: Arc<dyn PodClaimsDriver>,
    /// PLEG; the executor sends the containers' states that an effect observed.
    pub pleg: Sender<PlegEvent>,
    /// Counters.
    pub metrics: Metrics,
    /// The node's tasks.
    pub tasks: Tasks,
}

/// Drivers and shared tables of effects; clones share them.
pub struct Executor<R, I> {
    runtime: Arc<R>,
    images: Arc<I>,
    handlers: Arc<dyn Handlers>,
    amounts: Arc<dyn ContainerAmounts>,
    shims: SharedShims,
    observer: Observer<R>,
    dirs: Arc<PodDirs>,
    sources: Arc<dyn Sources>,
    records: PullRecords,
    uses: ImageUses,
    plugins: Arc<Plugins>,
    pulls: Arc<Pulls>,
    cgroups: Option<PodCgroups>,
    device_plugins: DevicePlugins,
    claims: Arc<dyn PodClaimsDriver>,
    tasks: Tasks,
    metrics: Metrics,
    pleg: Sender<PlegEvent>,
    mutating: Arc<AtomicUsize>,
    abandon: CancellationToken,
    /// Locks by the path at which a disk is mounted.
    disks: Arc<KeyedLocks<String>>,
    local_volumes: LocalVolumes,
    ownership: Ownership,
}

impl<R, I> Clone for Executor<R, I> {
    fn clone(&self) -> Self {
        Executor {
            runtime: self.runtime.clone(),
            images: self.images.clone(),
            handlers: self.handlers.clone(),
            amounts: self.amounts.clone(),
            shims: self.shims.clone(),
            observer: self.observer.clone(),
            dirs: self.dirs.clone(),
            sources: self.sources.clone(),
            records: self.records.clone(),
            uses: self.uses.clone(),
            plugins: self.plugins.clone(),
            pulls: self.pulls.clone(),
            cgroups: self.cgroups.clone(),
            device_plugins: self.device_plugins.clone(),
            claims: self.claims.clone(),
            tasks: self.tasks.clone(),
            metrics: self.metrics.clone(),
            pleg: self.pleg.clone(),
            mutating: self.mutating.clone(),
            abandon: self.abandon.clone(),
            disks: self.disks.clone(),
            local_volumes: self.local_volumes.clone(),
            ownership: self.ownership.clone(),
        }
    }
}

impl<R: Runtime, I: ImageService> Executor<R, I> {
    /// An executor without effects in progress.
    #[must_use]
    pub fn new(deps: Deps<R, I>) -> Executor<R, I> {
        let Deps {
            runtime,
            images,
            handlers,
            amounts,
            shims,
            dirs,
            sources,
            cgroups,
            plugins: device_plugins,
            claims,
            ..
        } = deps;
        let (pleg, metrics, tasks) = (deps.pleg, deps.metrics, deps.tasks);
        let Images { service: images, pulls, records, plugins } = images;
        Executor {
            observer: Observer::new(runtime.clone(), dirs.clone(), tasks.clone()),
            runtime,
            images,
            handlers,
            amounts,
            shims,
            dirs,
            sources,
            records,
            uses: ImageUses::default(),
            plugins,
            cgroups,
            device_plugins,
            claims,
            pulls: Arc::new(Pulls::new(pulls)),
            tasks,
            metrics,
            pleg,
            mutating: Arc::default(),
            abandon: CancellationToken::new(),
            disks: Arc::default(),
            local_volumes: LocalVolumes::default(),
            ownership: Ownership::default(),
        }
    }

    /// Paths of mounted volumes of type `local`.
    #[must_use]
    pub fn local_volumes(&self) -> LocalVolumes {
        self.local_volumes.clone()
    }

    /// The images that effects have asked for.
    #[must_use]
    pub fn image_uses(&self) -> ImageUses {
        self.uses.clone()
    }

    /// Records of pulls.
    #[must_use]
    pub fn records(&self) -> PullRecords {
        self.records.clone()
    }

    /// The observer that effects inspect pods with.
    #[must_use]
    pub fn observer(&self) -> Observer<R> {
        self.observer.clone()
    }

    /// Starts an effect. `cancel` drops the call; the answer is then `DeadlineExceeded`.
    pub fn start(
        &self,
        key: &PodKey,
        id: EffectId,
        effect: Effect,
        deadline: Option<Mono>,
        cancel: CancellationToken,
        to: Sender<PodEvent>,
    ) {
        let answer = ResultSender::new(id, to, &self.tasks);
        let mutates = effect.changes_runtime();
        let counted = mutates.then(|| MutationCount::new(&self.mutating));
        // When the node stops, a call without changes ends at once; a call that changes the runtime may finish until it
        // is abandoned.
        let end = if mutates { self.abandon.clone() } else { self.tasks.stop().clone() };
        let (this, key) = (self.clone(), key.clone());
        let task = async move {
            let verb = effect.verb();
            let waits = waits(&effect);
            let started = this.tasks.now().mono;
            let work = Box::pin(this.within(deadline, this.carry_out(&key, effect)));
            let result = tokio::select! {
                // Every branch can be dropped at any await; the result then says that the outcome is unknown.
                biased;
                () = end.cancelled() => Err(AgentStops.into()),
                () = cancel.cancelled() => Err(gave_up("cancelled")),
                result = work => result,
            };
            let took_ms = this.tasks.now().mono.since(started).as_millis();
            if waits && result.is_err() && !this.tasks.stop().is_cancelled() {
                this.metrics.sleep_cut_short();
            }
            log(&key, id, verb, took_ms, &result);
            drop(counted);
            answer.give(result);
        };
        self.tasks.finish(task);
    }

    /// Runs a probe. After `cancel` there is no result.
    pub fn probe(&self, id: ProbeId, call: ProbeCall, cancel: CancellationToken, to: Sender<PodEvent>) {
        let handlers = self.handlers.clone();
        self.tasks.start(async move {
            tokio::select! {
                // The probe can be dropped at any await: a probe changes nothing.
                biased;
                () = cancel.cancelled() => {}
                outcome = handlers.probe(&call) => {
                    to.send(PodEvent::ProbeDone { id, outcome });
                }
            }
        });
    }

    /// Writes a terminating record durably, then sends the result.
    pub fn persist(&self, id: EffectId, record: TerminatingRecord, to: Sender<PodEvent>) {
        let answer = ResultSender::new(id, to, &self.tasks);
        let this = self.clone();
        self.tasks.finish(async move {
            let dirs = this.dirs.clone();
            let key = record.pod.clone();
            let done = this.tasks.blocking(move || dirs.persist(&record)).await;
            let result = of_disk(done);
            log(&key, id, "persist", 0, &result);
            answer.give(result);
        });
    }

    /// Writes the managers' states and what pods were given durably, then answers. The states come first: a pod without allocation
    /// is admitted again, and finds its parts.
    pub fn record_allocations(
        &self,
        all: Arc<Allocations>,
        managers: Box<ManagerRecords>,
        to: Sender<ManagerEvent>,
    ) {
        let this = self.clone();
        self.tasks.finish(async move {
            let dirs = this.dirs.clone();
            let write = move || dirs.record_managers(&managers).and_then(|()| dirs.record_allocated(&all));
            let written = this.tasks.blocking(write).await;
            if let Some(Err(error)) = &written {
                tracing::error!(error = %chain(error), "what pods were given is not recorded; it is tried again");
            }
            to.send(ManagerEvent::Recorded(matches!(written, Some(Ok(())))));
        });
    }

    /// Waits at most `within` for calls that change the runtime; true if none was given up.
    pub async fn settle(&self, within: Duration) -> bool {
        // All tasks of the node are being stopped: only such calls and short file operations still run.
        let settled = self.tasks.drain(within).await && self.mutating.load(Ordering::Acquire) == 0;
        self.abandon.cancel();
        settled
    }

    /// Records that a pod is about to use the image. Waits while the image is being removed; afterwards the image stays
    /// for the time that the creation of a container takes.
    async fn wants_image(&self, image: &str) {
        self.uses.ask(image, || self.tasks.now().mono).await;
    }

    async fn within(&self, deadline: Option<Mono>, call: impl Future<Output = EffectResult>) -> EffectResult {
        let Some(deadline) = deadline else { return call.await };
        let left = deadline.since(self.tasks.now().mono);
        if left.is_zero() {
            return Err(gave_up("its deadline passed before it began"));
        }
        timeout(left, call).await.unwrap_or_else(|_| Err(gave_up("no answer before its deadline")))
    }
}

struct MutationCount(Arc<AtomicUsize>);

impl MutationCount {
    fn new(counter: &Arc<AtomicUsize>) -> MutationCount {
        counter.fetch_add(1, Ordering::AcqRel);
        MutationCount(counter.clone())
    }
}

impl Drop for MutationCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// True for sleep hooks, whose calls only wait.
fn waits(effect: &Effect) -> bool {
    matches!(effect, Effect::RunHook { call, .. } if matches!(call.action, HookAction::Sleep { .. }))
}

#[cfg(test)]
mod tests;
