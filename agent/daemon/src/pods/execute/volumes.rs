//! Set-up of volumes: fetches their contents, then writes them.
//!
//! In: a [`SetUp`]. Out: the volume, or an error. Invariant: the set-up requests every object and token that the volume
//! names, and no other.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, Mounted};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_linux::volumes::{SetFsGroup, VolumeError, env_file};
use agent_types::failure::Class;
use agent_types::ids::PodKey;
use agent_types::objects::{ObjectRef, Objects};
use agent_types::time::Wall;
use agent_volumes::env_file::{EnvFile, EnvFiles};
use agent_volumes::network_disk::NetworkDisk;
use agent_volumes::payload::{self, Payload, SourceValues};
use agent_volumes::sub_path::SubPath;
use agent_volumes::{FileSource, SetUp, Work};
use tokio::sync::OwnedMutexGuard;

use super::{Executor, csi, disks, flex, network_disks, nfs};
use crate::pods::pod_dirs::chain;
use crate::tasks::stops::AgentStops;
use crate::volumes::ownership::OwnershipProgress;

/// Shortest time to the renewal of a token. If the clocks of node and API server differ, a new token may already be due
/// (upstream looks once a minute).
pub(super) const RENEW_MIN: Duration = Duration::from_secs(60);

/// Sets a volume up.
pub(super) async fn set_up<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    volume: SetUp,
) -> EffectResult {
    // First wait for the change of group that is under way.
    if let Some(going) = executor.ownership.wait(&executor.tasks, &key.uid, &volume.name).await {
        return Ok(giving(&volume, going));
    }
    let now = executor.tasks.now().wall;
    let (files, renew) = match &volume.work {
        Work::Csi(inline) => return csi::set_up(executor, key, &volume, inline).await,
        Work::Flex(work) => return flex::set_up(executor, key, &volume, work).await,
        Work::Nfs(work) => return nfs::set_up(executor, key, &volume, work).await,
        Work::Files { sources, projected, .. } => collect(executor, sources, *projected).await?,
        Work::Bind(work) => {
            let work = work.clone();
            return disks::set_up(executor, key, volume, work).await;
        }
        Work::NetworkDisk(disk) => {
            let disk = NetworkDisk::clone(disk);
            return network_disks::set_up(executor, key, volume, disk).await;
        }
        Work::EmptyDir { .. } | Work::HostPath(_) | Work::Device(_) => (Payload::new(), None),
    };
    let (at, uid) = (executor.dirs.clone(), key.uid.clone());
    let reread = matches!(volume.work, Work::Files { .. }).then(|| executor.sources.reread_after()).flatten();
    let done =
        executor.tasks.blocking_of_pod(&key.uid, move || at.set_up_volume(&uid, &volume, &files, now)).await;
    let warning = answer(done)?;
    let renew_after = renew.map(|at| at.since(now).max(RENEW_MIN));
    let renew_after = [renew_after, reread].into_iter().flatten().min();
    Ok(EffectOk::Volume(Mounted { renew_after, warning, ..Mounted::default() }))
}

/// Sets up a directory of this node or a mounted disk; `shared` is the part that several pods may use. If the change of
/// the files' group takes long, the result is that it is under way. `alone` is held until that work has ended.
pub(super) async fn set_up_bind<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    volume: SetUp,
    shared: &str,
    alone: Option<OwnedMutexGuard<()>>,
) -> Result<Result<Option<String>, EffectOk>, EffectError> {
    let (at, uid, now) = (executor.dirs.clone(), key.uid.clone(), executor.tasks.now().wall);
    let Some(_) = volume.fs_group.filter(|_| matches!(volume.work, Work::Bind(_))) else {
        let work = move || {
            let _alone = alone;
            at.set_up_volume(&uid, &volume, &Payload::new(), now)
        };
        return answer(executor.tasks.blocking_of_pod(&key.uid, work).await).map(Ok);
    };
    let of = volume.clone();
    let work = move |give: SetFsGroup<'_>| {
        let _alone = alone;
        at.set_up_bind(&uid, &of, give)
    };
    given(executor, key, &volume, shared, work).await
}

/// Runs the change of a volume's group. If it takes long, the result is that it is under way.
pub(super) async fn given<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    volume: &SetUp,
    shared: &str,
    work: impl FnOnce(SetFsGroup<'_>) -> Result<Option<String>, VolumeError> + Send + 'static,
) -> Result<Result<Option<String>, EffectOk>, EffectError> {
    let done = executor.ownership.run(&executor.tasks, &key.uid, &volume.name, shared, work).await?;
    Ok(done.map_err(|going| giving(volume, going)))
}

fn giving(volume: &SetUp, going: OwnershipProgress) -> EffectOk {
    EffectOk::Giving { path: volume.path.clone(), entries: going.entries, took: going.took }
}

/// Reads files of volumes; which of them cannot be read is part of the answer.
pub(super) async fn read_env_files<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    files: BTreeSet<EnvFile>,
) -> EffectResult {
    let read = executor.tasks.blocking_of_pod(&key.uid, move || {
        files.into_iter().map(|file| (file.clone(), env_file::read(&file))).collect::<EnvFiles>()
    });
    Ok(EffectOk::EnvFiles(read.await.ok_or(AgentStops)?))
}

/// Mounts parts of volumes.
pub(super) async fn mount_sub_paths<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    parts: Vec<SubPath>,
) -> EffectResult {
    let (at, uid) = (executor.dirs.clone(), key.uid.clone());
    let done = executor.tasks.blocking_of_pod(&key.uid, move || at.mount_sub_paths(&uid, &parts)).await;
    answer(done).map(|()| EffectOk::Done)
}

pub(crate) fn answer<T>(done: Option<Result<T, VolumeError>>) -> Result<T, EffectError> {
    match done {
        None => Err(AgentStops.into()),
        Some(Err(VolumeError::Refused(message))) => Err(EffectError { class: Class::Invalid, message }),
        Some(Err(VolumeError::Files(e))) => Err(EffectError { class: e.class(), message: chain(&e) }),
        Some(Ok(done)) => Ok(done),
    }
}

/// The known contents of objects.
pub(super) async fn fetch<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    objects: BTreeSet<ObjectRef>,
) -> EffectResult {
    let mut known = Objects::new();
    for object in objects {
        let fetched = executor.sources.fetch(object.clone()).await;
        known.insert(object, fetched);
    }
    Ok(EffectOk::Objects(known))
}

/// The files, and the renewal time of the first token among them.
async fn collect<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    sources: &[FileSource],
    projected: bool,
) -> Result<(Payload, Option<Wall>), EffectError> {
    let mut known = SourceValues::default();
    let mut renew: Option<Wall> = None;
    for source in sources {
        match source {
            FileSource::Known(_) => {}
            FileSource::Object { object, .. } => {
                let fetched = executor.sources.fetch(object.clone()).await;
                known.objects.insert(object.clone(), fetched);
            }
            FileSource::Token { token, .. } => {
                let answer = executor.sources.token(token.clone()).await;
                if let Ok(held) = &answer {
                    renew = Some(renew.map_or(held.renew, |at| at.min(held.renew)));
                }
                known.tokens.insert(token.clone(), answer.map(|held| held.text));
            }
            FileSource::Anchors { .. } => {
                let all = ObjectRef::trust_bundles();
                // The answer comes from a watch, so a second request costs nothing.
                let fetched = executor.sources.fetch(all.clone()).await;
                known.objects.insert(all, fetched);
            }
            FileSource::Certificate { of, .. } => {
                known.certificates.insert(of.clone(), executor.sources.certificate(of));
            }
        }
    }
    let files = payload::payload(sources, projected, &known);
    let files = files.map_err(|message| EffectError { class: Class::Retryable { after_ms: 0 }, message })?;
    Ok((files, renew))
}
