//! Tear-down of a pod's CSI volumes: file systems and block devices.
//!
//! In: a pod. Out: calls of drivers; removed records. Invariants: every volume with a record or a link below the pod's
//! directory is unpublished before its record is removed, even if the end of its publication is unknown; the module
//! decides nothing: [`Unpublishing`] names the next step, the owner of the table of stages grants turns.

use std::path::{Path, PathBuf};

use agent_core::pod_worker::effect::EffectError;
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::ids::PodUid;
use agent_volumes::csi::VolumeData;
use agent_volumes::csi::failures::Failure;
use agent_volumes::csi::unpublishing::{UnpublishStep, Unpublishing};
use futures_util::future::join_all;

use super::Executor;
use super::csi::{failure, of_disk, refusal};
use super::results::error;
use crate::tasks::stops::AgentStops;
use crate::volumes::csi::volumes::Turn;

/// Unpublishes all recorded volumes of a pod. A driver that fails does not delay the others.
pub(super) async fn tear_down<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
) -> Result<(), EffectError> {
    let (at, of) = (executor.dirs.clone(), uid.clone());
    let Some(targets) = executor.tasks.blocking_of_pod(uid, move || at.targets(&of)).await else {
        return Err(AgentStops.into());
    };
    let all = targets.map_err(error)?;
    let released = join_all(all.iter().map(|(target, data)| files_go(executor, uid, target, data))).await;
    released.into_iter().collect::<Result<(), EffectError>>()?;
    devices_go(executor, uid).await?;
    executor.sources.csi().volumes.forget(uid);
    Ok(())
}

/// Unpublishes all block devices of a pod.
async fn devices_go<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
) -> Result<(), EffectError> {
    let (at, of) = (executor.dirs.clone(), uid.clone());
    let devices = executor.tasks.blocking_of_pod(uid, move || at.devices(&of)).await;
    let all = devices.ok_or(AgentStops)?.map_err(error)?;
    let released =
        join_all(all.iter().map(|(volume, data)| device_goes(executor, uid, volume, data.as_ref()))).await;
    released.into_iter().collect()
}

async fn files_go<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
    target: &Path,
    data: &VolumeData,
) -> Result<(), EffectError> {
    let leaving = Leaving { executor, uid, target, data: Some(data), device: None, turn: None };
    leaving.go(Unpublishing::of_files(data)).await
}

async fn device_goes<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
    volume: &str,
    data: Option<&VolumeData>,
) -> Result<(), EffectError> {
    let target = executor.dirs.device_target(uid, volume);
    let leaving = Leaving { executor, uid, target: &target, data, device: Some(volume), turn: None };
    leaving.go(Unpublishing::of_device(data)).await
}

/// The tear-down of one volume of one pod.
struct Leaving<'a, R, I> {
    executor: &'a Executor<R, I>,
    uid: &'a PodUid,
    target: &'a Path,
    data: Option<&'a VolumeData>,
    /// Name of the PersistentVolume, if it is a block device.
    device: Option<&'a str>,
    /// The volume's turn, from its grant to the end of the tear-down.
    turn: Option<Turn>,
}

impl<R: Runtime, I: ImageService> Leaving<'_, R, I> {
    async fn go(mut self, mut way: Unpublishing) -> Result<(), EffectError> {
        let (node, tasks) = (self.executor.sources.csi(), &self.executor.tasks);
        let mut endpoint = PathBuf::new();
        loop {
            let (at, of, target) = (self.executor.dirs.clone(), self.uid.clone(), self.target.to_owned());
            let device = self.device.unwrap_or_default().to_owned();
            match (way.step(), self.data) {
                (UnpublishStep::Turn, Some(data)) => {
                    self.turn = node.volumes.turn(&data.key()).await;
                    way.done(self.turn.as_ref().map(drop).ok_or_else(|| failure(AgentStops.into())));
                }
                (UnpublishStep::Leave, _) => {
                    let left = tasks.blocking_of_pod(self.uid, move || at.leave_device(&of, &device));
                    way.done(of_disk(left.await));
                }
                (UnpublishStep::Driver, Some(data)) => {
                    let found = node.registered.endpoint(&data.driver);
                    way.found(found.is_some());
                    endpoint = found.unwrap_or_default();
                }
                (UnpublishStep::Unpublished, _) => {
                    // After a failed call, too, the volume may be gone.
                    node.volumes.unpublished(&target.display().to_string());
                    way.done(Ok(()));
                }
                (UnpublishStep::Unpublish, Some(data)) => {
                    let released = agent_plugins::unpublish(&endpoint, &data.handle, self.target).await;
                    way.called(released.map_err(|e| e.to_string()));
                }
                (UnpublishStep::Release, _) => {
                    let is_device = self.device.is_some();
                    let released = tasks.blocking_of_pod(self.uid, move || match is_device {
                        true => at.release_device(&of, &device),
                        false => at.release_target(&of, &target),
                    });
                    way.done(of_disk(released.await));
                }
                (UnpublishStep::Turn | UnpublishStep::Driver | UnpublishStep::Unpublish, None) => {
                    return Err(refusal("nothing says whose volume it is".to_owned()));
                }
                (UnpublishStep::Done, _) => return Ok(()),
                (UnpublishStep::Failed(Failure { class, message }), _) => {
                    return Err(EffectError { class, message });
                }
            }
        }
    }
}
