//! Volumes of type `local`: a directory, or a disk that is formatted if blank, checked and mounted first.
//!
//! In: a [`SetUp`] with its [`Bind`]. Out: the volume, or an error. Invariants: one task at a time works on a disk, so
//! that no task unmounts a disk that another one is about to bind; programs run as children within the effect's time,
//! and are killed at its end; a disk that no pod uses is unmounted. The decisions are `agent_volumes::disk`'s.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, Mounted};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_linux::files::FilesError;
use agent_linux::volumes::disk as on_disk;
use agent_types::failure::Class;
use agent_types::ids::PodKey;
use agent_volumes::bind::{Bind, OfClaim};
use agent_volumes::disk::{self, Content, DiskStep};
use agent_volumes::{Resize, SetUp, Work};
use tokio::time::timeout;

use super::Executor;
use super::csi::AGAIN;
use super::growth::{self, Refused};
use super::programs::{self, Failed};
use super::volumes::{answer, set_up_bind};
use crate::pods::pod_dirs::chain;
use crate::tasks::stops::AgentStops;

/// How long a pod waits silently while another pod's task works on the same disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// Mounts it, unless it is there.
pub(super) async fn set_up<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    mut volume: SetUp,
    work: Bind,
) -> EffectResult {
    // The other task may walk through the disk for as long as there are files.
    let Ok(alone) = timeout(PATIENCE, executor.disks.alone(&work.disk.global)).await else {
        let message = format!("{} is being set up for another pod; it is tried again", work.source);
        return Err(EffectError { class: Class::Retryable { after_ms: 0 }, message });
    };
    if let Some(claim) = work.claim.as_ref().filter(|claim| !claim.read_only)
        && executor.local_volumes.has(&key.uid, &volume.name)
    {
        let of = work.clone();
        if answer(executor.tasks.blocking_of_pod(&key.uid, move || Ok(on_disk::is_one(&of))).await)? {
            // A mounted disk stays mounted; a repeated set-up only looks at the claim.
            let resize = grown(executor, claim, &work, true).await?;
            return Ok(EffectOk::Volume(Mounted { renew_after: Some(AGAIN), resize, ..Mounted::default() }));
        }
    }
    let is_disk = mount(executor, &work).await?;
    if is_disk {
        // Mount options belong to the disk, and the bind mount inherits them.
        let source = work.disk.global.clone();
        volume.work = Work::Bind(Bind { source, options: Vec::new(), ..work.clone() });
    }
    let (name, path) = (volume.name.clone(), PathBuf::from(&volume.path));
    let shared = if is_disk { work.disk.global.clone() } else { work.source.clone() };
    // The lock is held until the walk through the disk has ended: until then no pod uses the disk, and it must not be
    // unmounted.
    let warning = match set_up_bind(executor, key, volume, &shared, Some(alone)).await? {
        Ok(warning) => warning,
        Err(giving) => return Ok(giving),
    };
    let claim = work.claim.as_ref().filter(|_| is_disk);
    let again = executor.local_volumes.has(&key.uid, &name);
    let resize = match claim {
        Some(claim) => grown(executor, claim, &work, claim.read_only && again).await?,
        None => None,
    };
    executor.local_volumes.mounted(&key.uid, &name, path);
    // There is no watch on claims: look again later whether the claim has grown.
    let renew_after = claim.filter(|claim| !claim.read_only).map(|_| AGAIN);
    Ok(EffectOk::Volume(Mounted { renew_after, warning, resize, labelled: false }))
}

/// Grows the file system on a disk to the size of its claim's volume, if that has grown.
async fn grown<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    claim: &OfClaim,
    work: &Bind,
    in_use: bool,
) -> Result<Option<Resize>, EffectError> {
    // The disk is mounted at a directory of the PersistentVolume's name.
    let volume = work.disk.global.rsplit('/').next().unwrap_or_default();
    let resize = growth::grow(executor, claim, in_use, async |_| grow(executor, work).await).await;
    growth::or_keep(resize, volume, in_use)
}

/// Grows the file system on a mounted disk to the size of the disk.
pub(super) async fn grow<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    work: &Bind,
) -> Result<(), Refused> {
    let (root, of) = (executor.dirs.root().to_owned(), work.clone());
    let seen =
        answer(executor.tasks.blocking_of_volume(&work.disk.global, move || on_disk::look(&root, &of)).await);
    let seen = seen.map_err(|e| Refused::Later(e.message))?;
    let content = seen.map_or(Content::Unknown, |seen| seen.content);
    let refused = |why: String| Refused::Final { why, infeasible: false, in_use: false };
    let (program, arguments) = disk::grow(work, content).map_err(refused)?;
    programs::run(&program, &arguments).await.map_err(|failed| {
        let Failed { why, words, .. } = failed;
        tracing::warn!(disk = work.source, program, why, words, "a file system is not made larger");
        let said = if words.is_empty() { why } else { words };
        refused(format!("resize of device {} failed: {program}: {}", work.source, said.trim()))
    })
}

/// Mounts a disk at the node's mount point; false if the source is not a disk.
pub(super) async fn mount<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    work: &Bind,
) -> Result<bool, EffectError> {
    let (root, of) = (executor.dirs.root().to_owned(), work.clone());
    let on = |step: fn(&std::path::Path, &Bind) -> Result<(), FilesError>| {
        let (root, of) = (root.clone(), of.clone());
        executor.tasks.blocking_of_volume(&work.disk.global, move || step(&root, &of).map_err(Into::into))
    };
    let mut checked = false;
    loop {
        let (place, which) = (root.clone(), of.clone());
        let seen = answer(
            executor.tasks.blocking_of_volume(&work.disk.global, move || on_disk::look(&place, &which)).await,
        )?;
        let Some(seen) = seen else { return Ok(false) };
        let next = disk::next(&of, seen, checked)
            .map_err(|message| EffectError { class: Class::Invalid, message })?;
        let command = match &next {
            DiskStep::Nothing => return Ok(true),
            DiskStep::Format(command) => {
                tracing::info!(disk = of.source, command = command.0, "a blank disk is formatted");
                answer(on(on_disk::begin).await)?;
                command
            }
            DiskStep::Mount(command) => {
                answer(on(on_disk::make_place).await)?;
                command
            }
            DiskStep::Check(command) => command,
        };
        let (program, arguments) = command;
        let failure = programs::run(program, arguments).await.err().and_then(|failed| {
            let Failed { code, why, words, .. } = failed;
            tracing::warn!(disk = of.source, program, why, words, "no success");
            disk::failure(&of, &next, code, if words.is_empty() { &why } else { &words })
        });
        let ended = match next {
            // Whichever way it ended: after a failure an operator may put data there that are no half of a mkfs.
            DiskStep::Format(_) => answer(on(on_disk::finish).await),
            _ => Ok(()),
        };
        if let Some(message) = failure {
            return Err(EffectError { class: Class::Retryable { after_ms: 0 }, message });
        }
        ended?;
        checked = true;
    }
}

/// Unmounts disks that no pod uses. A disk that stays mounted is tried again with the next pod that ends, and at the
/// next start.
pub(super) async fn release<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
) -> Result<(), EffectError> {
    let root: PathBuf = executor.dirs.root().to_owned();
    let at = root.clone();
    let both = move || {
        let (mounted, begun) = (on_disk::all(&at)?, on_disk::all_begun(&at)?);
        Ok::<_, FilesError>(mounted.into_iter().chain(begun).collect::<BTreeSet<String>>())
    };
    let all = executor.tasks.blocking(both).await.ok_or(AgentStops)?;
    let all = all.unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "disks of volumes are not known");
        BTreeSet::new()
    });
    for volume in all {
        let global = disk::global(&root.to_string_lossy(), &volume);
        // Another task has the lock, so a pod is about to use the disk.
        let Some(_alone) = executor.disks.try_alone(&global) else { continue };
        let (at, name) = (root.clone(), volume.clone());
        let place = PathBuf::from(&global);
        let release = move || {
            if on_disk::release(&at, &name)? {
                on_disk::forget(&at, &place)?;
            }
            Ok::<_, FilesError>(())
        };
        let released = executor.tasks.blocking_of_volume(&global, release).await.ok_or(AgentStops)?;
        if let Err(error) = released {
            tracing::warn!(volume, error = chain(&error), "a disk that no pod has is still mounted");
        }
    }
    Ok(())
}
