//! FlexVolume volumes: set-up, change of group, tear-down.
//!
//! In: a [`SetUp`] with its [`Flex`]; a pod to tear down. Out: the volume, or an error. Invariants: a failure does not
//! unmount a volume that the pod uses; a volume that the cluster attaches is not touched before the Node lists it; one
//! task at a time works on a volume that pods share, and tasks of different drivers do not wait for each other.
//! `agent_volumes::flex` decides on the calls, `crate::volumes::flex` makes them; `crate::volumes::csi::volume_table` cleans
//! up volumes that no pod uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, Mounted};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_linux::volumes::flex::{FlexPodVolume, FlexVolumeState};
use agent_linux::volumes::{SetFsGroup, flex as on_disk};
use agent_types::ids::{PodKey, PodUid};
use agent_volumes::attach::Attached;
use agent_volumes::flex::answer::{Capabilities, Refusal};
use agent_volumes::flex::call::Call;
use agent_volumes::flex::mounting::{Attachment, ExistingMounts, Mounting, MountingStep};
use agent_volumes::flex::{Flex, Record, Release, release};
use agent_volumes::{Resize, SetUp, SetUpError, claim};
use futures_util::future::join_all;

use crate::tasks::stops::AgentStops;

use super::csi::{AGAIN, refusal};
use super::growth::{self, Refused};
use super::results::error;
use super::volumes::{answer, given};
use super::{Executor, disks};

/// Upstream's message for a volume that only one pod may use.
const IN_USE: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

/// Mounts the volume, unless it is mounted.
pub(super) async fn set_up<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    volume: &SetUp,
    flex: &Flex,
) -> EffectResult {
    let node = executor.sources.csi();
    let in_use = node.flex.has_set_up(&volume.path);
    let may_grow = flex.claim.as_ref().is_some_and(|claim| !claim.read_only);
    let capabilities = match node.flex.find(&flex.driver, &executor.tasks).await {
        Ok(capabilities) => capabilities,
        // A mounted volume stays mounted.
        Err(why) if in_use => {
            tracing::debug!(volume = flex.volume, why, "nobody knows what a driver can");
            let again = may_grow.then_some(AGAIN);
            return Ok(done(Capabilities::default(), None, again));
        }
        Err(why) => {
            return Ok(EffectOk::Unprocessed { why: claim::no_plugin(&flex.volume, &why).to_string() });
        }
    };
    if in_use && !may_grow {
        return Ok(done(capabilities, None, None));
    }
    let of = flex.key();
    let attached = match capabilities.attach {
        true => node.volumes.wish(&key.uid, &of, node.attaches).await,
        false => Attached::Yes,
    };
    let seen = match in_use {
        true => FlexVolumeState { mounted: true, ready: true, ..FlexVolumeState::default() },
        false => look(executor, key, volume, flex).await?,
    };
    if !(seen.mounted && seen.ready) {
        if node.attaches && attached != Attached::Yes {
            return Ok(EffectOk::Unattached { full: false });
        }
        if seen.others {
            return Err(refusal(IN_USE.to_owned()));
        }
        let _turn = match capabilities.attach {
            true => Some(node.volumes.turn(&of).await.ok_or(AgentStops)?),
            false => None,
        };
        if let Err(other) = mount(executor, key, volume, flex, capabilities).await? {
            return Ok(other);
        }
    }
    node.flex.set_up(&volume.path);
    if capabilities.metrics {
        executor.local_volumes.mounted(&key.uid, &volume.name, PathBuf::from(&volume.path));
    }
    let Some(claim) = flex.claim.as_ref().filter(|_| capabilities.grows) else {
        return Ok(done(capabilities, None, None));
    };
    let _turn = node.volumes.turn(&of).await.ok_or(AgentStops)?;
    let resize = growth::grow(executor, claim, in_use, async |growth| {
        let device = device(executor, flex).await.map_err(|e| Refused::Later(e.message))?;
        let call = flex.expand_fs(&device, &volume.path, (growth.had, growth.bytes));
        let refused = |why| Refused::Final { why, infeasible: false, in_use: false };
        match node.flex.call(&flex.driver, &call).await {
            Ok(_) => Ok(()),
            Err(Refusal::Failed(why)) => Err(refused(why)),
            Err(Refusal::NotSupported) if device.is_empty() => {
                Err(refused(format!("driver {} makes nothing larger", flex.driver.name())))
            }
            Err(Refusal::NotSupported) => disks::grow(executor, &flex.bind(&device)).await,
        }
    });
    let resize = growth::or_keep(resize.await, &flex.volume, in_use)?;
    // There is no watch on claims: look again later whether the claim has grown.
    Ok(done(capabilities, resize, may_grow.then_some(AGAIN)))
}

fn done(can: Capabilities, resize: Option<Resize>, renew_after: Option<Duration>) -> EffectOk {
    EffectOk::Volume(Mounted { resize, renew_after, labelled: !can.relabels, ..Mounted::default() })
}

/// The device of the attached volume; empty if there is none.
async fn device<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    flex: &Flex,
) -> Result<String, EffectError> {
    let node = executor.sources.csi();
    if node.attaches {
        return Ok(node.volumes.device(&flex.key()).await);
    }
    let (root, like) = (executor.dirs.root().to_owned(), flex.record(false));
    let found = executor.tasks.blocking(move || Ok(on_disk::record_like(&root, &like)?)).await;
    Ok(answer(found)?.and_then(|record| record.device).unwrap_or_default())
}

async fn look<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    volume: &SetUp,
    flex: &Flex,
) -> Result<FlexVolumeState, EffectError> {
    let (at, uid, of, what) = (executor.dirs.clone(), key.uid.clone(), volume.clone(), flex.clone());
    answer(executor.tasks.blocking_of_pod(&key.uid, move || at.look_flex(&uid, &of, &what)).await)
}

/// Takes the steps that [`Mounting`] names. If no driver supports the volume, or its files are still changing their
/// group, that is the effect's result.
async fn mount<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    volume: &SetUp,
    flex: &Flex,
    capabilities: Capabilities,
) -> Result<Result<(), EffectOk>, EffectError> {
    let node = executor.sources.csi();
    let secret = secret(executor, flex).await?;
    let attachment = match capabilities.attach {
        true => attachment(executor, flex).await?,
        false => Attachment::Cluster(String::new()),
    };
    let seen = look(executor, key, volume, flex).await?;
    let on = || (executor.dirs.clone(), key.uid.clone(), volume.clone(), flex.clone());
    let ((at, uid, of, what), global) = (on(), capabilities.attach && !seen.global);
    answer(
        executor.tasks.blocking_of_pod(&key.uid, move || at.prepare_flex(&uid, &of, &what, global)).await,
    )?;
    let here = ExistingMounts { global: seen.global, pod: seen.mounted };
    let mut way =
        Mounting::new(flex, (capabilities, attachment, here), &volume.path, (volume.fs_group, &secret));
    loop {
        match way.step() {
            MountingStep::Call(call) => way.answered(node.flex.call(&flex.driver, &call).await),
            MountingStep::WriteDown(device) => {
                let record = Record { device: Some(device), ..flex.record(false) };
                way.done(write(executor, record).await.map_err(|e| e.message));
            }
            MountingStep::MountDevice(device) => way.done(mount_device(executor, flex, &device).await),
            MountingStep::Bind => {
                let (at, uid, of, what) = on();
                let bound =
                    executor.tasks.blocking_of_pod(&key.uid, move || at.bind_flex(&uid, &of, &what)).await;
                way.done(answer(bound).map_err(|e| e.message));
            }
            MountingStep::Done => break,
            MountingStep::Failed(why) => {
                let (at, uid, of, _) = on();
                answer(executor.tasks.blocking_of_pod(&key.uid, move || at.abandon_flex(&uid, &of)).await)?;
                return match why {
                    SetUpError::Unprocessed(why) => Ok(Err(EffectOk::Unprocessed { why })),
                    SetUpError::Failed(why) => Err(refusal(why)),
                };
            }
        }
    }
    let gives = capabilities.fs_group && !flex.read_only;
    let ((at, uid, of, what), group) = (on(), volume.fs_group.filter(|_| gives));
    let finish = move |give: SetFsGroup<'_>| at.finish_flex(&uid, &of, &what, group, give).map(|()| None);
    let shared = if capabilities.attach { &flex.global } else { &volume.path };
    if let Err(giving) = given(executor, key, volume, shared, finish).await? {
        return Ok(Err(giving));
    }
    tracing::info!(driver = flex.driver.name(), volume = flex.volume, uid = %key.uid, "a driver's volume is here");
    Ok(Ok(()))
}

/// The Secret's values for the driver; the Secret must be of the driver's type.
async fn secret<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    flex: &Flex,
) -> Result<BTreeMap<String, Vec<u8>>, EffectError> {
    let Some(named) = flex.secret.clone() else { return Ok(BTreeMap::new()) };
    let words = format!("couldn't get secret {}/{} err: ", named.namespace, named.name);
    let found = executor.sources.secret(named).await.map_err(|why| refusal(format!("{words}{why}")))?;
    if found.kind != flex.driver.name() {
        return Err(refusal(format!("{words}cannot get secret of type {}", flex.driver.name())));
    }
    Ok(found.data)
}

/// Records that the volume is about to be on this node. Returns whether the cluster or the node attaches it.
async fn attachment<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    flex: &Flex,
) -> Result<Attachment, EffectError> {
    let node = executor.sources.csi();
    let record = flex.record(node.attaches);
    let (root, like) = (executor.dirs.root().to_owned(), record.clone());
    let found = executor.tasks.blocking(move || Ok(on_disk::record_like(&root, &like)?)).await;
    // The node's settings may have changed since the record.
    let same = answer(found)?.filter(|found| found.attached_by == record.attached_by);
    let device = match same {
        Some(found) => found.device,
        None => {
            write(executor, record).await?;
            None
        }
    };
    Ok(match node.attaches {
        true => Attachment::Cluster(node.volumes.device(&flex.key()).await),
        false => Attachment::Node(device),
    })
}

async fn write<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    record: Record,
) -> Result<(), EffectError> {
    let root = executor.dirs.root().to_owned();
    answer(executor.tasks.blocking(move || Ok(on_disk::write(&root, &record)?)).await)
}

/// Mounts the device itself if the driver does not: formats a blank device, checks it, mounts it.
async fn mount_device<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    flex: &Flex,
    device: &str,
) -> Result<(), String> {
    match disks::mount(executor, &flex.bind(device)).await.map_err(|e| e.message)? {
        true => Ok(()),
        false => Err(format!("{device} is no block device")),
    }
}

/// Unmounts all FlexVolume volumes of a pod. A driver that fails does not delay the others.
pub(super) async fn tear_down<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
) -> Result<(), EffectError> {
    let (at, of) = (executor.dirs.clone(), uid.clone());
    let held = executor.tasks.blocking_of_pod(uid, move || at.flex_held(&of)).await;
    let all = held.ok_or(AgentStops)?.map_err(error)?;
    let released = join_all(all.iter().map(|held| let_go(executor, uid, held))).await;
    released.into_iter().collect()
}

async fn let_go<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
    held: &FlexPodVolume,
) -> Result<(), EffectError> {
    let drivers = executor.sources.csi().flex;
    let path = held.path.display().to_string();
    // After a failed call, too, the volume may be gone.
    drivers.forget(&path);
    let found = drivers.find(&held.driver, &executor.tasks).await;
    let there = found.as_ref().map(drop).map_err(String::as_str);
    let asked = match release(there, held.mounted, held.asked) {
        Release::Ask => drivers.call(&held.driver, &Call::unmount(&path)).await,
        Release::Own => Err(Refusal::NotSupported),
        Release::Wait(why) => Err(Refusal::Failed(why)),
    };
    let name = Path::new(&path).file_name().unwrap_or_default().to_string_lossy();
    let ended = drivers.or_own(asked, &path, &executor.tasks).await;
    let ended = match ended {
        // Mounts do not survive a reboot, and a driver may fail without one.
        Err(why) if held.before_boot && !held.mounted => {
            tracing::info!(
                driver = held.driver.name(),
                path,
                why,
                "nothing is mounted since the machine began anew"
            );
            Ok(())
        }
        ended => ended,
    };
    ended.map_err(|why| refusal(format!("UnmountVolume.TearDown failed for volume {name:?} : {why}")))?;
    let (at, of, what) = (executor.dirs.clone(), uid.clone(), held.path.clone());
    let done = executor.tasks.blocking_of_pod(uid, move || at.release_flex(&of, &what)).await;
    done.ok_or(AgentStops)?.map_err(error)
}

#[cfg(test)]
mod tests;
