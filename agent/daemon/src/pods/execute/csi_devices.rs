//! Block devices of CSI drivers are taken from a pod: the node lets go, then the driver.
//!
//! In: a pod. Out: calls of drivers. Invariant: whatever is linked below the pod's directory is unpublished before the link
//! goes, also if nobody heard the end of its publication.

use agent_core::pod_worker::effect::EffectError;
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::ids::PodUid;
use agent_volumes::csi::{VolumeData, unregistered};
use futures_util::future::join_all;

use super::csi::refusal;
use super::{Executor, error, gave_up};

const STOPS: &str = "the agent stops";

/// Has drivers let go of all devices of a pod. One that does not keeps no other one back.
pub(super) async fn tear_down<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
) -> Result<(), EffectError> {
    let (at, of) = (executor.dirs.clone(), uid.clone());
    let devices = executor.tasks.blocking_of_pod(uid, move || at.devices(&of)).await;
    let all = devices.ok_or_else(|| gave_up(STOPS))?.map_err(error)?;
    let released =
        join_all(all.iter().map(|(volume, data)| let_go(executor, uid, volume, data.as_ref()))).await;
    released.into_iter().collect()
}

async fn let_go<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
    volume: &str,
    data: Option<&VolumeData>,
) -> Result<(), EffectError> {
    let node = executor.sources.csi();
    let _alone = match data {
        Some(data) => Some(node.volumes.alone(&data.key()).await),
        None => None,
    };
    let (at, of, name) = (executor.dirs.clone(), uid.clone(), volume.to_owned());
    let left = executor.tasks.blocking_of_pod(uid, move || at.leave_device(&of, &name)).await;
    left.ok_or_else(|| gave_up(STOPS))?.map_err(error)?;
    // Without a word about whose it is no driver was asked for it.
    if let Some(data) = data {
        let Some(endpoint) = node.registered.endpoint(&data.driver) else {
            return Err(refusal(unregistered("blockMapper.UnmapPodDevice", &data.driver)));
        };
        let target = executor.dirs.device_target(uid, volume);
        // Also if it fails it may no longer be there.
        node.volumes.unpublished(&target.display().to_string());
        let released = agent_plugins::unpublish(&endpoint, &data.handle, &target).await;
        released.map_err(|e| refusal(format!("blockMapper.UnmapPodDevice failed: {e}")))?;
    }
    let (at, of, name) = (executor.dirs.clone(), uid.clone(), volume.to_owned());
    let released = executor.tasks.blocking_of_pod(uid, move || at.release_device(&of, &name)).await;
    released.ok_or_else(|| gave_up(STOPS))?.map_err(error)
}
