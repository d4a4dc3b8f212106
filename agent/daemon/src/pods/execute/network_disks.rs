//! Volumes on network disks (`iscsi`, `fc`): attached, then mounted once for all pods of the node or kept as a block
//! device, then bound to the pod.
//!
//! In: a [`SetUp`] with its [`NetworkDisk`]. Out: the volume, or an error. Invariants: a failure does not unmount a
//! volume that the pod uses; a volume that the cluster attaches is not touched before the Node lists it; one task at a
//! time works on a disk. `crate::volumes::csi::volume_table` detaches disks.

use std::path::PathBuf;

use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, Mounted};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_linux::volumes::network_disk as on_disk;
use agent_types::failure::Class;
use agent_types::ids::PodKey;
use agent_volumes::attach::Attached;
use agent_volumes::bind::{Bind, Device};
use agent_volumes::network_disk::NetworkDisk;
use agent_volumes::network_disk::iscsi::Chap;
use agent_volumes::network_disk::source::Target;
use agent_volumes::{SetUp, Work, selinux};

use super::csi::refusal;
use super::volumes::{answer, set_up_bind};
use super::{Executor, disks};
use crate::tasks::stops::AgentStops;
use crate::volumes::network_disks::attach;

/// Makes it the pod's, unless it is.
pub(super) async fn set_up<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    mut volume: SetUp,
    disk: NetworkDisk,
) -> EffectResult {
    let (node, of) = (executor.sources.csi(), disk.key());
    let attached = node.volumes.wish(&key.uid, &of, true).await;
    let (at, uid, set_up, what) = (executor.dirs.clone(), key.uid.clone(), volume.clone(), disk.clone());
    let has =
        executor.tasks.blocking_of_pod(&key.uid, move || at.has_network_disk(&uid, &set_up, &what)).await;
    if !answer(has)? {
        if node.attaches && attached != Attached::Yes {
            return Ok(EffectOk::Unattached { full: false });
        }
        let _turn = node.volumes.turn(&of).await.ok_or(AgentStops)?;
        if !disk.block {
            let (root, record) = (executor.dirs.root().to_owned(), disk.record());
            let (uid, label) = (key.uid.clone(), disk.label.clone());
            let fits = move || Ok(on_disk::fit_label(&root, &record, &uid, label.as_deref())?);
            if let Some(there) = answer(executor.tasks.blocking(fits).await)? {
                let wanted = disk.label.as_deref().unwrap_or_default();
                return Ok(EffectOk::Unprocessed { why: selinux::conflict(&disk.volume, &there, wanted) });
            }
        }
        volume.work = work(executor, &disk).await?;
        let done = set_up_bind(executor, key, volume.clone(), &disk.global, None).await;
        let done =
            done.map_err(|e| failed(&disk, agent_volumes::SET_UP, agent_volumes::MAP_BLOCK_VOLUME, e))?;
        if let Err(giving) = done {
            return Ok(giving);
        }
    }
    if !disk.block {
        executor.local_volumes.mounted(&key.uid, &volume.name, PathBuf::from(&volume.path));
    }
    let labelled = match disk.label {
        Some(_) => {
            let label =
                executor.tasks.blocking_of_pod(&key.uid, move || Ok(on_disk::label_of(&volume)?)).await;
            answer(label)?.is_some()
        }
        None => false,
    };
    Ok(EffectOk::Volume(Mounted { labelled, ..Mounted::default() }))
}

/// Attaches the disk. Returns how to give it to the pod.
async fn work<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    disk: &NetworkDisk,
) -> Result<Work, EffectError> {
    let waits = |why: &str| {
        let error = EffectError { class: Class::Retryable { after_ms: 0 }, message: why.to_owned() };
        failed(disk, agent_volumes::WAIT_FOR_ATTACH, "MapVolume.WaitForAttach", error)
    };
    let (root, record) = (executor.dirs.root().to_owned(), disk.record());
    let prepared =
        executor.tasks.blocking_of_volume(&disk.global, move || Ok(on_disk::prepare(&root, &record)?)).await;
    let mounted = answer(prepared)? && !disk.block;
    let bound = |bind: Bind| {
        // Mount options belong to the disk, and the bind mount inherits them.
        let source = disk.global.clone();
        Work::Bind(Bind { source, options: Vec::new(), ..bind })
    };
    if mounted {
        return Ok(bound(disk.bind("")));
    }
    let chap = chap(executor, disk).await.map_err(|why| waits(&why))?;
    let device =
        attach(disk, chap, &executor.sources.csi(), &executor.tasks).await.map_err(|why| waits(&why))?;
    tracing::info!(volume = disk.volume, device, "a disk of another machine is here");
    if disk.block {
        let (global, one_pod) = (disk.global.clone(), disk.one_pod);
        return Ok(Work::Device(Device { source: device, global, one_pod }));
    }
    let bind = disk.bind(&device);
    let done = disks::mount(executor, &bind).await;
    match done.map_err(|e| failed(disk, agent_volumes::MOUNT_DEVICE, agent_volumes::MOUNT_DEVICE, e))? {
        true => Ok(bound(bind)),
        false => Err(waits(&format!("{device} is no block device"))),
    }
}

/// The credentials for the target.
async fn chap<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    disk: &NetworkDisk,
) -> Result<Chap, String> {
    if !matches!(&disk.target, Target::Iscsi(iscsi) if iscsi.wants_secret()) {
        return Ok(Chap::new());
    }
    let named = disk.secret.clone().filter(|s| !s.name.is_empty() && !s.namespace.is_empty());
    let secret = named.ok_or("CHAP enabled but secret name or namespace is empty")?;
    let found = executor.sources.secret(secret.clone()).await;
    let found = found
        .map_err(|why| format!("couldn't get secret {}/{} error: {why}", secret.namespace, secret.name))?;
    Ok(found
        .data
        .into_iter()
        .map(|(key, value)| (key, String::from_utf8_lossy(&value).into_owned()))
        .collect())
}

/// The words of a step, of a file system or of a block device.
fn failed(disk: &NetworkDisk, step: &str, of_device: &str, e: EffectError) -> EffectError {
    let step = if disk.block { of_device } else { step };
    EffectError {
        message: agent_volumes::step_failed(step, &disk.volume, &e.message),
        ..refusal(String::new())
    }
}
