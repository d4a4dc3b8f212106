//! The driver calls of each effect.
//!
//! In: an [`Effect`]. Out: its result. One branch for each effect: the branch makes the driver calls, or hands the effect to
//! the module of its subject (`volumes`, `pull`, `resize`, `claims`, …).

use std::sync::Arc;

use agent_core::lifecycle_hooks;
use agent_core::pleg::PlegEvent;
use agent_core::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult, ImageUser};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_kubelet_api::logs::retention::RemovedLog;
use agent_types::failure::Class;
use agent_types::ids::PodKey;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::runtime::status::user_namespaces;
use agent_volumes::Work;

use super::results::{done_or_error, error, no_cgroups, of_disk, runtime_error};
use super::{Executor, claims, csi_tear_down, disks, flex, pull, resize, volumes};
use crate::pods::pod_dirs::ResourcesOwner;
use crate::serving::metrics::claims::{PREPARE, UNPREPARE};
use crate::tasks::stops::AgentStops;

impl<R: Runtime, I: ImageService> Executor<R, I> {
    /// Carries out one effect. The caller bounds its time; a call that is dropped may have been applied.
    pub(super) async fn carry_out(&self, key: &PodKey, effect: Effect) -> EffectResult {
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
            Effect::AllocateDevices { .. } => {
                let message = "the pod manager allocates devices".to_owned();
                Err(EffectError { class: Class::Invalid, message })
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
            Effect::RunSandbox { mut config } => {
                let starting = self.shims.place(&mut config).await;
                let began = self.tasks.now().mono;
                let made = self.runtime.run_sandbox(&config).await;
                if let Ok(sandbox) = &made {
                    starting.made(sandbox);
                }
                let took = self.tasks.now().mono.since(began);
                let own_users = config.security.users.is_some();
                self.metrics.sandbox(&key.uid, &config.runtime_handler, own_users, took, made.is_ok());
                made.map(EffectOk::Sandbox).map_err(runtime_error)
            }
            Effect::StopSandbox { sandbox } => done_or_error(self.runtime.stop_sandbox(&sandbox).await),
            Effect::RemoveSandbox { sandbox } => done_or_error(self.runtime.remove_sandbox(&sandbox).await),
            Effect::CreateContainer { sandbox, config, mut sandbox_config, actuates } => {
                resize::remember(self, key, ResourcesOwner::Container(config.name.clone()), *actuates)
                    .await?;
                let mounted: Vec<_> = config.mounts.iter().filter_map(|m| m.image.as_ref()).collect();
                for image in mounted.iter().map(|mount| &mount.id).chain([&config.image]) {
                    self.wants_image(image.as_str()).await;
                }
                self.shims.join(&sandbox, &mut sandbox_config).await.map_err(runtime_error)?;
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
                ended.map(|fell_back| EffectOk::Hook { fell_back }).map_err(|failure| {
                    let message = lifecycle_hooks::failure_message(&call, key, &failure);
                    EffectError { class: Class::Invalid, message }
                })
            }
        }
    }

    async fn pull(&self, key: &PodKey, image: &str, user: ImageUser) -> EffectResult {
        let began = self.tasks.now().mono;
        self.metrics.pulling(key);
        let result = pull::pull(self, key, image, user).await;
        let bytes = match &result {
            Ok(EffectOk::Pulled { image, .. }) => Some(image.size_bytes),
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
