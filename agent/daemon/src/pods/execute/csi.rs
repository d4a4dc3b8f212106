//! Volumes of CSI drivers: staged for all pods of the node, published before a pod's containers, unpublished after them.
//!
//! In: a [`CsiVolume`]. Out: calls of the driver, each with upstream's time limit. Invariants: it is written down whose the
//! volume is before the driver is asked; every volume that is written down is unpublished before its directory goes, also one
//! whose publication nobody heard the end of; a volume that has to be attached is not touched before the API server says that
//! it is in use here and attached. Volumes are given back by `crate::volumes::csi::stages`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, Mounted};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_linux::volumes::Give;
use agent_types::failure::Class;
use agent_types::ids::{PodKey, PodUid};
use agent_types::objects::{ObjectRef, Objects, look_up};
use agent_types::time::Wall;
use agent_volumes::attach::{Attached, Fits, Held};
use agent_volumes::csi::request::{Capabilities, Given};
use agent_volumes::csi::source::SecretRef;
use agent_volumes::csi::{CsiVolume, Persistent, Terms, VolumeData, no_secret, unregistered};
use agent_volumes::{Resize, SetUp, selinux};
use futures_util::future::join_all;

use super::volumes::{RENEW_MIN, answer, given};
use super::{Executor, csi_devices, error, gave_up};
use crate::pods::pod_dirs::chain;
use crate::volumes::csi::volumes::Published;

/// How often a driver that wants to be asked again is, and a claim is looked at (upstream: between 60 and 90 s).
pub(super) const AGAIN: Duration = Duration::from_secs(75);
/// What one pod alone may have, and another one has (upstream's words).
const IN_USE: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

/// One volume of one pod on its way.
pub(super) struct Job<'a, R, I> {
    pub(super) executor: &'a Executor<R, I>,
    key: &'a PodKey,
    pub(super) set_up: &'a SetUp,
    pub(super) csi: &'a CsiVolume,
    /// Where its driver publishes it.
    pub(super) target: String,
    terms: Terms,
}

/// Publishes a volume, and stages it first if it is the node's first pod that has it.
pub(super) async fn set_up<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    set_up: &SetUp,
    csi: &CsiVolume,
) -> EffectResult {
    let target = match csi.block {
        Some(_) => executor.dirs.device_target(&key.uid, &csi.volume).display().to_string(),
        None => set_up.path.clone(),
    };
    if executor.sources.csi().volumes.is_settled(&target) {
        // What is mounted stays so, whatever can be reached now.
        return Ok(Job { executor, key, set_up, csi, target, terms: Terms::default() }.look_again().await);
    }
    let object = executor.sources.csi_driver(csi.driver.clone()).await.map_err(refusal)?;
    let terms = csi.terms(object.as_ref()).map_err(refusal)?;
    let csi = &csi.on(&terms);
    let job = Job { executor, key, set_up, csi, target, terms };
    match &csi.persistent {
        None => job.inline().await,
        Some(persistent) => job.persistent(persistent).await,
    }
}

/// What was done for a volume before it is published.
#[derive(Default)]
struct Ready {
    /// Where it is staged.
    staging: Option<String>,
    /// What the driver's controller says for the node.
    attached: BTreeMap<String, String>,
    /// That it is the pod's was not written down before.
    new: bool,
}

impl<R: Runtime, I: ImageService> Job<'_, R, I> {
    /// The words of a step.
    fn failed(&self, step: &str, why: &str) -> EffectError {
        let step = match step {
            agent_volumes::WAIT_FOR_ATTACH if self.csi.block.is_some() => "MapVolume.WaitForAttach",
            agent_volumes::MOUNT_DEVICE | agent_volumes::SET_UP if self.csi.block.is_some() => {
                agent_volumes::SET_UP_DEVICE
            }
            step => step,
        };
        refusal(agent_volumes::step_failed(step, &self.csi.volume, why))
    }

    async fn inline(&self) -> EffectResult {
        let endpoint = self.executor.sources.csi().registered.endpoint(&self.csi.driver);
        let endpoint = endpoint.ok_or_else(|| refusal(unregistered("mounter.SetUpAt", &self.csi.driver)))?;
        let secrets = match &self.csi.secret {
            Some(secret) => watched_secret(self.executor, secret).await.map_err(refusal)?,
            None => BTreeMap::new(),
        };
        let driver = agent_plugins::capabilities(&endpoint).await.map_err(|e| refusal(e.words()))?;
        self.publish(&endpoint, driver, Ready::default(), secrets).await
    }

    async fn persistent(&self, persistent: &Persistent) -> EffectResult {
        let (executor, key) = (self.executor, self.csi.key());
        let node = executor.sources.csi();
        node.volumes.want(&self.key.uid, &key, self.terms.attach);
        let attached = if self.terms.attach {
            if node.volumes.is_attached(&key) != Attached::Yes {
                return Ok(EffectOk::Unattached { full: self.finds_no_room().await });
            }
            self.attached().await.map_err(|why| self.failed(agent_volumes::WAIT_FOR_ATTACH, &why))?
        } else {
            BTreeMap::new()
        };
        let device = |why: String| self.failed(agent_volumes::MOUNT_DEVICE, &why);
        let endpoint = node.registered.endpoint(&self.csi.driver);
        let endpoint =
            endpoint.ok_or_else(|| device(unregistered("attacher.MountDevice", &self.csi.driver)))?;
        let driver = agent_plugins::capabilities(&endpoint).await.map_err(|e| device(e.words()))?;
        let publish_secrets = self.secret(None, persistent.publish_secret.as_ref()).await;
        let publish_secrets = publish_secrets.map_err(refusal)?;

        let _alone = node.volumes.alone(&key).await;
        if persistent.one_pod || self.terms.labels {
            let held = self.held().await?;
            if persistent.one_pod && held.pods.iter().any(|pod| *pod != self.key.uid) {
                return Err(self.failed(agent_volumes::SET_UP, IN_USE));
            }
            match held.fits(&self.key.uid, self.csi.label()) {
                Fits::No(there) if self.terms.labels => {
                    let why = selinux::conflict(&self.csi.volume, &there, self.csi.label());
                    return Ok(EffectOk::Unprocessed { why });
                }
                Fits::Anew if self.terms.labels => self.unstage(&endpoint).await.map_err(device)?,
                _ => {}
            }
        }
        if !driver.stages {
            let ready = Ready { attached, ..Ready::default() };
            return self.publish(&endpoint, driver, ready, publish_secrets).await;
        }
        // It is this pod's from here on: nobody gives it back under it.
        let new = self.prepare().await?;
        let staging = self.stage(&endpoint, driver, persistent, &attached).await;
        if let Err((_, true)) = &staging
            && new
        {
            self.release().await;
        }
        let staging = Some(staging.map_err(|(why, _)| device(why))?);
        self.publish(&endpoint, driver, Ready { staging, attached, new }, publish_secrets).await
    }

    /// What the driver's controller says of the volume and this node.
    async fn attached(&self) -> Result<BTreeMap<String, String>, String> {
        let (handle, name) = (&self.csi.handle, self.csi.attachment());
        let found = self.executor.sources.attachment(name.clone()).await;
        let found = found
            .map_err(|why| format!("volume {handle} has GET error for volume attachment {name}: {why}"))?;
        let attached = self.csi.attached(&found)?;
        attached.ok_or_else(|| format!("volume {handle} is not attached for volume attachment {name}"))
    }

    /// The volume has waited long, and its driver says that it has no room for it on this node. Before that is the answer the
    /// cluster knows how much room there is: the pod's successor must not come here.
    async fn finds_no_room(&self) -> bool {
        if !(self.csi.overdue && self.terms.recounts) {
            return false;
        }
        let name = self.csi.attachment();
        let full = match self.executor.sources.attachment(name.clone()).await {
            Ok(found) => CsiVolume::finds_no_room(&found),
            Err(why) => {
                tracing::debug!(
                    volume = self.csi.handle,
                    attachment = name,
                    why,
                    "VolumeAttachment is not read"
                );
                false
            }
        };
        if full {
            tracing::info!(
                driver = self.csi.driver,
                volume = self.csi.handle,
                "the node has no room for a volume"
            );
            self.executor.sources.csi().limits.ask(&self.csi.driver).await;
            self.executor.metrics.no_room_for_volume();
        }
        full
    }

    /// What the disk holds of the volume.
    async fn held(&self) -> Result<Held, EffectError> {
        let at = self.executor.dirs.clone();
        let Some(read) = self.executor.tasks.blocking(move || at.csi_on_disk()).await else {
            return Err(gave_up("the agent stops"));
        };
        Ok(read.map_err(error)?.remove(&self.csi.key()).unwrap_or_default())
    }

    /// Has the driver let go of what it staged for pods that are gone, with another label.
    async fn unstage(&self, endpoint: &Path) -> Result<(), String> {
        let (dirs, key, handle) = (self.executor.dirs.clone(), self.csi.key(), self.csi.key().handle);
        // Also if it fails it may no longer be what it was.
        self.executor.sources.csi().volumes.set_staged(&key, false);
        let unstaged = agent_plugins::unstage(endpoint, &key.handle, &dirs.stage_of(&key)).await;
        unstaged.map_err(|e| e.words())?;
        let done = self.executor.tasks.blocking_of_volume(&handle, move || dirs.unstaged(&key)).await;
        done.ok_or("the agent stops")?.map_err(|e| chain(&e))
    }

    /// Where the volume is ready for pods. The error says also whether the driver has done with it.
    async fn stage(
        &self,
        endpoint: &Path,
        driver: Capabilities,
        persistent: &Persistent,
        attached: &BTreeMap<String, String>,
    ) -> Result<String, (String, bool)> {
        let (executor, key) = (self.executor, self.csi.key());
        let node = executor.sources.csi();
        if node.volumes.is_staged(&key) {
            return Ok(self.staging());
        }
        let secrets = self.secret(Some("NodeStageSecretRef"), persistent.stage_secret.as_ref()).await;
        let secrets = secrets.map_err(|why| (why, true))?;
        let (at, of, data) = (executor.dirs.clone(), key.clone(), self.csi.staged_data(&self.terms));
        let device = self.device();
        let prepared = executor.tasks.blocking_of_volume(&key.handle, move || match device {
            Some(volume) => at.prepare_device_stage(&volume),
            None => at.prepare_stage(&of, &data),
        });
        let prepared = prepared.await;
        let (path, new) = answer(prepared).map_err(|e| (e.message, false))?;
        let path = path.display().to_string();
        let request = self.csi.stage(&path, (driver, self.set_up.fs_group), attached.clone(), secrets);
        match agent_plugins::stage(endpoint, &request).await {
            Ok(()) => {
                node.volumes.set_staged(&key, true);
                Ok(path)
            }
            Err(e) => {
                tracing::warn!(driver = key.driver, volume = key.handle, error = %e, "volume is not staged");
                if new && e.is_final() {
                    let (at, of) = (executor.dirs.clone(), key.clone());
                    // If it cannot be removed the driver is asked to let go.
                    let device = self.device();
                    let unstaged = executor.tasks.blocking_of_volume(&key.handle, move || match device {
                        Some(volume) => at.device_unstaged(&volume),
                        None => at.unstaged(&of),
                    });
                    let _ = unstaged.await;
                }
                Err((e.words(), e.is_final()))
            }
        }
    }

    /// Name of its PersistentVolume, if it is a block device.
    fn device(&self) -> Option<String> {
        self.csi.block.as_ref().map(|_| self.csi.volume.clone())
    }

    /// Where it is staged, if it is.
    pub(super) fn staging(&self) -> String {
        let dirs = &self.executor.dirs;
        let path = match self.device() {
            Some(volume) => dirs.device_stage(&volume),
            None => dirs.stage_of(&self.csi.key()),
        };
        path.display().to_string()
    }

    /// It is written down that the pod has the volume; true if that was not so.
    async fn prepare(&self) -> Result<bool, EffectError> {
        let executor = self.executor;
        let (at, uid, target) = (executor.dirs.clone(), self.key.uid.clone(), self.target.clone());
        let (data, device) = (self.csi.data(&self.terms), self.device());
        let prepared = executor.tasks.blocking_of_pod(&self.key.uid, move || match device {
            Some(volume) => at.prepare_device(&uid, &volume, &data),
            None => at.prepare_target(&uid, &target, &data),
        });
        answer(prepared.await)
    }

    /// What is published stays what it is for as long as the pod has it.
    async fn keep(&self) -> Result<(), EffectError> {
        let Some(volume) = self.device() else { return Ok(()) };
        let (at, uid) = (self.executor.dirs.clone(), self.key.uid.clone());
        let kept = answer(
            self.executor.tasks.blocking_of_pod(&self.key.uid, move || at.keep_device(&uid, &volume)).await,
        );
        kept.map_err(|e| self.failed(agent_volumes::MAP_BLOCK_VOLUME, &e.message))
    }

    /// The driver holds nothing of it for the pod.
    async fn release(&self) {
        let executor = self.executor;
        let (at, uid, target) = (executor.dirs.clone(), self.key.uid.clone(), self.target.clone());
        let device = self.device();
        // If it cannot be removed the driver is asked to let go when the pod's volumes are taken away.
        let released = executor.tasks.blocking_of_pod(&self.key.uid, move || match device {
            Some(volume) => at.release_device(&uid, &volume),
            None => at.release_target(&uid, Path::new(&target)),
        });
        let _ = released.await;
    }

    async fn publish(
        &self,
        endpoint: &Path,
        driver: Capabilities,
        ready: Ready,
        secrets: BTreeMap<String, String>,
    ) -> EffectResult {
        let (executor, target, group) = (self.executor, &self.target, self.set_up.fs_group);
        let volumes = executor.sources.csi().volumes;
        let now = executor.tasks.now().wall;
        let (tokens, renew) = tokens(executor, &self.terms).await.map_err(refusal)?;
        let (in_use, staging) = (volumes.is_published(target), ready.staging.clone());
        // Its files are, or were, on their way to their group: it is published.
        let is_walked = executor.ownership.has(&self.key.uid, &self.set_up.name);
        if (self.terms.again || !in_use) && !is_walked {
            let mut request = self.csi.publish(target, &self.terms, &tokens, secrets, (driver, group));
            (request.staging, request.attached) = (ready.staging, ready.attached);
            let new = self.prepare().await? || ready.new;
            if let Err(e) = agent_plugins::publish(endpoint, &request).await {
                let (driver, volume) = (&self.csi.driver, &self.csi.handle);
                tracing::warn!(driver, volume, error = %e, "volume is not published");
                if new && e.is_final() {
                    self.release().await;
                }
                let why = e.words();
                return Err(match self.csi.block {
                    Some(_) => self.failed(agent_volumes::MAP_POD_DEVICE, &why),
                    None => refusal(why),
                });
            }
            self.keep().await?;
        }
        if (self.terms.again || !in_use || is_walked)
            && let Some(group) =
                group.filter(|_| !driver.gives_groups && self.csi.node_gives_group(&self.terms))
            && let Err(giving) = self.give(group).await?
        {
            return Ok(giving);
        }
        let resize = match self.expand(endpoint, driver, staging.as_deref(), in_use).await {
            Ok(grown) => grown,
            // Containers have it: they may go on as they are.
            Err(why) if in_use => Some(Resize::Failed(why)),
            Err(why) => {
                let step = match self.csi.block {
                    Some(_) => "MapVolume.MarkVolumeAsMounted failed while expanding volume",
                    None => "MountVolume.Setup failed while expanding volume",
                };
                return Err(refusal(format!("{step} for volume {:?} : {why}", self.csi.volume)));
            }
        };
        let key = self.csi.key();
        let of = Published {
            pod: self.key.uid.clone(),
            name: self.set_up.name.clone(),
            key,
            again: self.terms.again,
        };
        volumes.published(target, of);
        let renew = renew.map(|at| at.since(now).max(RENEW_MIN));
        // Nobody tells of a claim that has grown.
        let again = (self.terms.again || self.may_grow(driver)).then_some(AGAIN);
        let renew_after = [renew, again].into_iter().flatten().min();
        let labelled = !self.csi.label().is_empty();
        Ok(EffectOk::Volume(Mounted { renew_after, warning: None, resize, labelled }))
    }

    /// What is published becomes the group's.
    async fn give(&self, group: u32) -> Result<Result<Option<String>, EffectOk>, EffectError> {
        let executor = self.executor;
        let (at, uid, target) = (executor.dirs.clone(), self.key.uid.clone(), self.target.clone());
        let by_root = self.csi.by_root;
        let work = move |give: Give<'_>| at.give_target(&uid, &target, group, by_root, give).map(|()| None);
        let key = self.csi.key();
        let shared = format!("{}/{}", key.driver, key.handle);
        given(executor, self.key, self.set_up, &shared, work).await
    }

    /// A Secret of a PersistentVolume; `what` is the field that names it.
    pub(super) async fn secret(
        &self,
        what: Option<&str>,
        secret: Option<&SecretRef>,
    ) -> Result<BTreeMap<String, String>, String> {
        let Some(secret) = secret else { return Ok(BTreeMap::new()) };
        let found = self.executor.sources.secret(secret.clone()).await;
        found
            .map(|found| text(found.data))
            .map_err(|why| no_secret(what, &secret.namespace, &secret.name, &why))
    }
}

/// The driver's tokens, and when the first of them is to be renewed.
async fn tokens<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    terms: &Terms,
) -> Result<(Vec<Given>, Option<Wall>), String> {
    let (mut given, mut renew) = (Vec::new(), None::<Wall>);
    for token in &terms.tokens {
        let held = executor.sources.token(token.clone()).await?;
        // Only a driver that wants to be asked again hears of the next one.
        if terms.again {
            renew = Some(renew.map_or(held.renew, |at| at.min(held.renew)));
        }
        given.push(Given { audience: token.audience.clone(), text: held.text, ends: held.ends });
    }
    Ok((given, renew))
}

async fn watched_secret<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    secret: &ObjectRef,
) -> Result<BTreeMap<String, String>, String> {
    let known = Objects::from([(secret.clone(), executor.sources.fetch(secret.clone()).await)]);
    let found = look_up(&known, secret, false)
        .map_err(|why| no_secret(None, &secret.namespace, &secret.name, &why))?;
    Ok(text(found.map(|found| found.data.clone()).unwrap_or_default()))
}

fn text(data: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, String> {
    data.into_iter().map(|(k, v)| (k, String::from_utf8_lossy(&v).into_owned())).collect()
}

/// Has drivers let go of all that is written down of a pod. One that does not keeps no other one back.
pub(super) async fn tear_down<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
) -> Result<(), EffectError> {
    let (at, of) = (executor.dirs.clone(), uid.clone());
    let Some(targets) = executor.tasks.blocking_of_pod(uid, move || at.targets(&of)).await else {
        return Err(gave_up("the agent stops"));
    };
    let all = targets.map_err(error)?;
    let released = join_all(all.iter().map(|(target, data)| let_go(executor, uid, target, data))).await;
    released.into_iter().collect::<Result<(), EffectError>>()?;
    csi_devices::tear_down(executor, uid).await?;
    executor.sources.csi().volumes.forget(uid);
    Ok(())
}

async fn let_go<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
    target: &Path,
    data: &VolumeData,
) -> Result<(), EffectError> {
    let node = executor.sources.csi();
    // An inline volume is one pod's: nobody else is at it.
    let _alone = if data.is_persistent() { Some(node.volumes.alone(&data.key()).await) } else { None };
    let Some(endpoint) = node.registered.endpoint(&data.driver) else {
        return Err(refusal(unregistered("Unmounter.TearDownAt", &data.driver)));
    };
    // Also if it fails it may no longer be there.
    node.volumes.unpublished(&target.display().to_string());
    let released = agent_plugins::unpublish(&endpoint, &data.handle, target).await;
    released.map_err(|e| refusal(format!("kubernetes.io/csi: Unmounter.TearDownAt failed: {e}")))?;
    let (at, of, target) = (executor.dirs.clone(), uid.clone(), target.to_path_buf());
    let Some(done) = executor.tasks.blocking_of_pod(uid, move || at.release_target(&of, &target)).await
    else {
        return Err(gave_up("the agent stops"));
    };
    done.map_err(error)
}

pub(super) fn refusal(message: String) -> EffectError {
    EffectError { class: Class::Retryable { after_ms: 0 }, message }
}
