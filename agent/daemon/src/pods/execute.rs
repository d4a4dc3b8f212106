//! Carries out pod workers' effects: one or several driver calls for each effect, and one answer.
//!
//! In: an [`Effect`] with its deadline. Out: exactly one [`PodEvent::EffectDone`] for each effect: the result, the
//! deadline, a cancellation, or the end of the node. Invariants: no call is in progress after its deadline; pulls are
//! bounded (serializeImagePulls, maxParallelImagePulls); when the node stops, calls that change the runtime get a
//! moment to finish, so that the next incarnation starts clean.

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
use agent_core::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult, ImageUser};
use agent_core::probe::{ProbeCall, ProbeId};
use agent_core::resource_managers::ManagerRecords;
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_kubelet_api::logs::retention::RemovedLog;
use agent_types::failure::{Class, DriverError};
use agent_types::ids::PodKey;
use agent_types::kill::TerminatingRecord;
use agent_types::machine::EffectId;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::runtime::status::user_namespaces;
use agent_types::time::Mono;
use agent_volumes::Work;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use claims::{NoClaims, PodClaimsDriver};
pub use resize::ContainerAmounts;
pub(crate) use volumes::answer as volume_answer;

use crate::devices::DevicePlugins;
use crate::images::Images;
use crate::images::credential_plugins::Plugins;
use crate::images::image_uses::ImageUses;
use crate::images::pull_records::PullRecords;
use crate::images::pulls::Pulls;
use crate::node::container_manager::PodCgroups;
use crate::pods::pod_dirs::{PodDirs, ResourcesOwner, chain};
use crate::pods::pod_values::Sources;
use crate::pods::probes_and_hooks::Handlers;
use crate::runtime::inspect::Observer;
use crate::serving::metrics::Metrics;
use crate::serving::metrics::claims::{PREPARE, UNPREPARE};
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

/// Sends an effect's result. A sender that is dropped without a result sends that the call was given up, so there is
/// always exactly one result.
struct ResultSender {
    id: EffectId,
    to: Sender<PodEvent>,
    tasks: Tasks,
    given: bool,
}

impl ResultSender {
    fn give(mut self, result: EffectResult) {
        self.send(result);
    }

    fn send(&mut self, result: EffectResult) {
        self.given = true;
        let completed_at = self.tasks.now().mono;
        self.to.send(PodEvent::EffectDone { id: self.id, completed_at, result });
    }
}

impl Drop for ResultSender {
    fn drop(&mut self) {
        if !self.given {
            self.send(Err(gave_up("the call was given up")));
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
        let answer = ResultSender { id, to, tasks: self.tasks.clone(), given: false };
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
        let answer = ResultSender { id, to, tasks: self.tasks.clone(), given: false };
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

    async fn carry_out(&self, key: &PodKey, effect: Effect) -> EffectResult {
        match effect {
            Effect::CreatePodDirs { log_directory, dirs, files, log_of } => {
                let (at, uid) = (self.dirs.clone(), key.uid.clone());
                let made = self.tasks.blocking_of_pod(&key.uid, move || {
                    at.create(&uid, &log_directory, &dirs, &files)?;
                    let Some(log_of) = log_of else { return Ok(EffectOk::Done) };
                    at.newest_log(&log_of).map(|newest_log| EffectOk::Files { newest_log })
                });
                made.await.ok_or(AgentStops)?.map_err(error)
            }
            Effect::RemovePodDirs { keep_logs } => {
                self.ownership.end(&key.uid).await;
                let (at, whole) = (self.dirs.clone(), key.clone());
                of_disk(self.tasks.blocking_of_pod(&key.uid, move || at.remove(&whole, keep_logs)).await)
            }
            Effect::ResolveClaim { claim } => {
                Ok(EffectOk::Claim(self.sources.claim(claim).await.map(Box::new)))
            }
            Effect::SetUpVolume { volume } => {
                let (name, plugin, began) = (volume.name.clone(), volume.plugin, self.tasks.now().mono);
                let migrated = matches!(&volume.work, Work::Csi(csi) if csi.is_migrated());
                let result = volumes::set_up(self, key, *volume).await;
                let took = self.tasks.now().mono.since(began);
                // A volume that waits for its attachment, for `volumesInUse` or for its change of ownership is not
                // mounted yet, and its set-up has not failed.
                let waits = matches!(
                    result,
                    Ok(EffectOk::Unattached { .. } | EffectOk::Unprocessed { .. } | EffectOk::Giving { .. })
                );
                if !waits {
                    self.metrics.volume_set_up(&key.uid, &name, plugin, migrated, took, result.is_ok());
                }
                result
            }
            Effect::FetchObjects { objects } => volumes::fetch(self, objects).await,
            Effect::EnsureCgroup { cgroup, actuates } => {
                let Some(cgroups) = &self.cgroups else { return Err(no_cgroups()) };
                cgroups.ensure(&cgroup).await.map_err(error)?;
                if let Some(own) = actuates {
                    resize::remember(self, key, ResourcesOwner::Pod, *own).await?;
                }
                Ok(EffectOk::Done)
            }
            Effect::RemoveCgroup => {
                let Some(cgroups) = &self.cgroups else { return Err(no_cgroups()) };
                done_or_error(cgroups.remove(&key.uid).await)
            }
            Effect::MapUsers { handler } => self.map_users(key, handler.as_deref()).await,
            Effect::ReadEnvFiles { files } => volumes::read_env_files(self, key, files).await,
            Effect::MountSubPaths { parts } => volumes::mount_sub_paths(self, key, parts).await,
            Effect::PreStartDevices { calls } => {
                let called = self.device_plugins.pre_start(&calls).await;
                called
                    .map(|()| EffectOk::Done)
                    .map_err(|message| EffectError { class: Class::Invalid, message })
            }
            Effect::PrepareClaims { claims } => {
                let work = claims::prepare(&*self.claims, *claims);
                claims::counted(&self.metrics, &self.tasks, PREPARE, work).await
            }
            Effect::FindClaims { claims } => claims::find(&*self.claims, *claims).await,
            Effect::UnprepareClaims => {
                let work = claims::unprepare(&*self.claims, &key.uid);
                claims::counted(&self.metrics, &self.tasks, UNPREPARE, work).await
            }
            Effect::TearDownVolumes => {
                // A change of ownership holds directories open.
                self.ownership.end(&key.uid).await;
                let (at, uid) = (self.dirs.clone(), key.uid.clone());
                let has_flex =
                    self.tasks.blocking_of_pod(&key.uid, move || at.may_have_flex(&uid)).await == Some(true);
                // A CSI driver that hangs does not delay the FlexVolume drivers, and the reverse.
                let (csi, flex) =
                    tokio::join!(csi_tear_down::tear_down(self, &key.uid), flex::tear_down(self, &key.uid));
                csi.and(flex)?;
                let (at, uid) = (self.dirs.clone(), key.uid.clone());
                let looked =
                    move || (has_flex || at.may_have_network_disks(&uid), at.tear_down_volumes(&uid));
                let (shared, result) = self.tasks.blocking_of_pod(&key.uid, looked).await.unzip();
                if shared == Some(true) {
                    // Shared volumes may be free now.
                    self.sources.csi().volumes.look_again();
                }
                let result = of_disk(result);
                if result.is_ok() {
                    self.metrics.volumes_gone(&key.uid);
                    self.local_volumes.forget(&key.uid);
                    disks::release(self).await?;
                }
                result
            }
            Effect::Inspect => self.inspect(key).await,
            Effect::InspectImage { image, user } => {
                self.wants_image(&image).await;
                pull::look(self, key, &image, user).await
            }
            Effect::PullImage { image, user } => {
                self.wants_image(&image).await;
                let pulled = self.pull(key, &image, user).await;
                self.wants_image(&image).await;
                pulled
            }
            Effect::RunSandbox { config } => {
                let began = self.tasks.now().mono;
                let made = self.runtime.run_sandbox(&config).await;
                let took = self.tasks.now().mono.since(began);
                let own_users = config.security.users.is_some();
                self.metrics.sandbox(&key.uid, &config.runtime_handler, own_users, took, made.is_ok());
                made.map(EffectOk::Sandbox).map_err(runtime_error)
            }
            Effect::StopSandbox { sandbox } => done_or_error(self.runtime.stop_sandbox(&sandbox).await),
            Effect::RemoveSandbox { sandbox } => done_or_error(self.runtime.remove_sandbox(&sandbox).await),
            Effect::CreateContainer { sandbox, config, sandbox_config, actuates } => {
                resize::remember(self, key, ResourcesOwner::Container(config.name.clone()), *actuates)
                    .await?;
                let mounted: Vec<_> = config.mounts.iter().filter_map(|m| m.image.as_ref()).collect();
                for image in mounted.iter().map(|mount| &mount.id).chain([&config.image]) {
                    self.wants_image(image.as_str()).await;
                }
                let made = self.runtime.create_container(&sandbox, &config, &sandbox_config).await;
                let failure = made.as_ref().err().map(|e| e.message.as_str());
                self.metrics.images_mounted(&mounted, failure);
                made.map(EffectOk::Container).map_err(runtime_error)
            }
            Effect::StartContainer { container } => {
                self.runtime.start_container(&container).await.map(|()| EffectOk::Done).map_err(runtime_error)
            }
            Effect::StopContainer { container, grace_s } => {
                done_or_error(self.runtime.stop_container(&container, grace_s).await)
            }
            Effect::RemoveContainer { container, log } => {
                if let Some(log) = log.clone() {
                    self.remove_logs(key, log).await;
                }
                self.runtime.remove_container(&container).await.map_err(error)?;
                if let Some(log) = log {
                    self.remove_last_words(key, log);
                }
                Ok(EffectOk::Done)
            }
            Effect::Resize { steps } => resize::resize(self, key, steps).await,
            Effect::SetCpus { cpus } => resize::set_cpus(self, cpus).await,
            Effect::RunHook { call, .. } => {
                let ended = self.handlers.hook(&call).await;
                if let Ok(Some(_)) = &ended {
                    self.metrics.hook_fell_back();
                }
                ended
                    .map(|fell_back| EffectOk::Hook { fell_back })
                    .map_err(|message| EffectError { class: Class::Invalid, message })
            }
        }
    }

    async fn pull(&self, key: &PodKey, image: &str, user: ImageUser) -> EffectResult {
        let began = self.tasks.now().mono;
        self.metrics.pulling(key);
        let result = pull::pull(self, key, image, user).await;
        let bytes = match &result {
            Ok(EffectOk::Image(Some(image))) => Some(image.size_bytes),
            _ => None,
        };
        self.metrics.pulled(key, bytes, self.tasks.now().mono.since(began));
        result
    }

    /// Asks the runtime for the handler's features each time: that is rare, and a replaced runtime is noticed.
    async fn map_users(&self, key: &PodKey, handler: Option<&str>) -> EffectResult {
        if let Some(handler) = handler {
            let status = self.runtime.status().await.map_err(error)?;
            user_namespaces(&status.handlers, handler)
                .map_err(|message| EffectError { class: Class::Invalid, message })?;
        }
        let (at, uid) = (self.dirs.clone(), key.uid.clone());
        let mapped = self.tasks.blocking(move || at.map_users(&uid)).await;
        mapped.ok_or(AgentStops)?.map(EffectOk::Users).map_err(runtime_error)
    }

    /// Removes the logs before the container: if the agent stops between the two, the next agent finds the container
    /// and with it the path of its logs. A log that cannot be removed does not keep its container.
    async fn remove_logs(&self, key: &PodKey, log: RemovedLog) {
        let at = self.dirs.clone();
        if let Some(Err(error)) = self.tasks.blocking(move || at.remove_logs(&log)).await {
            tracing::warn!(pod = %key.name, namespace = %key.namespace, %error, "logs of a removed container stay");
        }
    }

    /// Removes the termination message after the container: the message is shown as long as the container exists. The
    /// effect does not wait for the removal, because files may be large.
    fn remove_last_words(&self, key: &PodKey, log: RemovedLog) {
        let (at, key, tasks) = (self.dirs.clone(), key.clone(), self.tasks.clone());
        self.tasks.start(async move {
            let uid = key.uid.clone();
            let remove = move || at.remove_last_words(&uid, &log);
            if let Some(Err(error)) = tasks.blocking_of_pod(&key.uid, remove).await {
                tracing::warn!(
                    pod = %key.name, namespace = %key.namespace, %error,
                    "termination messages of a removed container stay until the pod goes"
                );
            }
        });
    }

    async fn inspect(&self, key: &PodKey) -> EffectResult {
        let as_of = self.tasks.now().mono;
        let (found, observation) = self.observer.inspect(&key.uid).await.map_err(error)?;
        let snapshot = PodSnapshot {
            pod: found.unwrap_or_else(|| key.clone()),
            as_of,
            sandboxes: observation.sandboxes,
            containers: observation.containers,
            actuated: observation.actuated,
        };
        // The snapshot also answers PLEG's own inspection.
        self.pleg.send(PlegEvent::Inspected(Arc::new(snapshot.clone())));
        Ok(EffectOk::Snapshot(Box::new(snapshot)))
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

fn done_or_error(result: Result<(), DriverError>) -> EffectResult {
    result.map(|()| EffectOk::Done).map_err(error)
}

/// Result of work on a disk; `None`: no effect waits for the result any more.
fn of_disk(done: Option<Result<(), DriverError>>) -> EffectResult {
    done_or_error(done.ok_or(AgentStops)?)
}

fn error(e: DriverError) -> EffectError {
    EffectError { class: e.class, message: e.to_string() }
}

/// Error text of statuses: the runtime's own message without the name of the call, as upstream has it. The log names
/// the call.
fn runtime_error(e: DriverError) -> EffectError {
    EffectError { class: e.class, message: e.message }
}

fn no_cgroups() -> EffectError {
    let message = "pods have no cgroups of their own here (cgroupsPerQOS: false)".to_owned();
    EffectError { class: Class::Invalid, message }
}

impl From<AgentStops> for EffectError {
    fn from(stops: AgentStops) -> EffectError {
        gave_up(&stops.to_string())
    }
}

fn gave_up(why: &str) -> EffectError {
    EffectError { class: Class::DeadlineExceeded, message: why.to_owned() }
}

fn log(key: &PodKey, id: EffectId, verb: &'static str, took_ms: u128, result: &EffectResult) {
    match result {
        Ok(_) => {
            tracing::debug!(pod = %key.name, namespace = %key.namespace, uid = %key.uid, effect = id.0, verb, took_ms, "effect done")
        }
        Err(e) => tracing::warn!(
            pod = %key.name, namespace = %key.namespace, uid = %key.uid, effect = id.0, verb, took_ms,
            class = ?e.class, error = %e.message, "effect failed"
        ),
    }
}

#[cfg(test)]
mod tests;
