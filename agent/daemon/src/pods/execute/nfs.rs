//! Mount of a directory of an NFS server.
//!
//! In: a [`SetUp`] with its [`Nfs`]. Out: the mount, or the error of mount(8). Invariants: mount(8) runs as a child
//! that is killed at its time limit, so a server that is away blocks only its own volume; no lock is held meanwhile;
//! the remains of a failed attempt are removed before the error is returned. Upstream: pkg/volume/nfs SetUpAt.

use std::path::PathBuf;
use std::time::Duration;

use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, Mounted};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::failure::Class;
use agent_types::ids::PodKey;
use agent_volumes::SetUp;
use agent_volumes::nfs::{self, Nfs};

use crate::tasks::stops::AgentStops;

use super::volumes::answer;
use super::{Executor, programs};

/// The time that mount.nfs itself tries. All attempts together have an effect's time ([`agent_volumes::NFS_TIME`]).
const MOUNT_LIMIT: Duration = Duration::from_secs(120);

/// Mounts it, unless it is there.
pub(super) async fn set_up<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    volume: &SetUp,
    work: &Nfs,
) -> EffectResult {
    let (at, uid, of, what) = (executor.dirs.clone(), key.uid.clone(), volume.clone(), work.clone());
    let prepared = executor.tasks.blocking_of_pod(&key.uid, move || at.prepare_nfs(&uid, &of, &what)).await;
    let attempts = answer(prepared)?;
    if attempts.is_empty() {
        return Ok(done());
    }
    let mut failure = String::new();
    let began = executor.tasks.now().mono;
    for arguments in &attempts {
        let left = MOUNT_LIMIT.saturating_sub(executor.tasks.now().mono.since(began));
        match mount(arguments, left).await {
            Ok(()) => return Ok(done()),
            Err((why, words)) => {
                failure = nfs::failed(&why, arguments, &words);
                if !nfs::is_other_version(&words) {
                    break;
                }
            }
        }
    }
    let path = PathBuf::from(&volume.path);
    let abandoned =
        executor.tasks.blocking_of_pod(&key.uid, move || agent_linux::volumes::nfs::abandon(&path)).await;
    match abandoned {
        None => return Err(AgentStops.into()),
        Some(Err(error)) => tracing::warn!(%key, %error, "what a failed mount left is not gone"),
        Some(Ok(())) => {}
    }
    Err(EffectError { class: Class::Retryable { after_ms: 0 }, message: failure })
}

fn done() -> EffectOk {
    EffectOk::Volume(Mounted::default())
}

/// Runs mount(8); the error is its end and its output.
async fn mount(arguments: &[String], limit: Duration) -> Result<(), (String, String)> {
    match tokio::time::timeout(limit, programs::run("mount", arguments)).await {
        Ok(ended) => ended.map_err(|failed| (failed.why, failed.words)),
        Err(_) => Err((format!("killed after {} s", limit.as_secs()), String::new())),
    }
}
