//! Ends shims that the runtime has lost, and what dead shims have left.
//!
//! ```text
//! timer ─► agent_linux::shims (/proc) ─► LostShims ─► their children, then themselves, are killed
//! ```
//! In: the runtime's socket. Out: ended processes. Invariants: shims that the runtime knows are left alone; a pod's
//! process that poses as a shim, with an address on a file system whose server is away, blocks only the thread of this
//! check, never one of the node's own. Decisions are in [`agent_types::runtime::lost_shims`]; docs/internals/gc.md.

use std::path::PathBuf;

use agent_linux::files::FilesError;
use agent_linux::shims::{self, ShimKillResult};
use agent_types::runtime::lost_shims::{Kind, LostShims, Shim};

use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// Looks for them until the node stops.
pub async fn follow(socket: PathBuf, tasks: Tasks) {
    let mut lost = LostShims::default();
    loop {
        let at = socket.clone();
        match tasks.blocking_shims(move || shims::without_bundle(&at)).await {
            Some(Ok(found)) => {
                for shim in lost.look(tasks.now().mono, found) {
                    let at = socket.clone();
                    let ended = tasks.blocking_shims(move || (shims::end(&shim, &at), shim)).await;
                    ended.into_iter().for_each(|(ended, shim)| say(&shim, ended));
                }
            }
            // A runtime that is down has no socket: suspects are checked again when it is back.
            Some(Err(error)) => tracing::debug!(error = %chain(&error), "shims not looked at"),
            None => return,
        }
        let next = lost.next(tasks.now().mono);
        tasks.wait_until(next).await;
    }
}

fn say(shim: &Shim, ended: Result<ShimKillResult, FilesError>) {
    let Shim { kind, pid, id, .. } = shim;
    match ended {
        Ok(ShimKillResult::Nothing) => {}
        Ok(ShimKillResult::Shim) if *kind == Kind::Unstarted => {
            tracing::warn!(pid, id, "what a dead shim had left of a container in the making was ended");
        }
        Ok(ShimKillResult::Shim) if *kind == Kind::Orphan => {
            tracing::warn!(pid, id, "a container that a dead shim had left running was ended");
        }
        Ok(ShimKillResult::Shim) => {
            tracing::warn!(pid, sandbox = id, "a shim that the runtime had forgotten was ended");
        }
        Ok(ShimKillResult::Children(count)) => {
            tracing::warn!(
                pid,
                sandbox = id,
                count,
                "what a shim that the runtime had forgotten held was ended"
            );
        }
        Err(error) => {
            tracing::warn!(pid, id, error = %chain(&error), "a shim that the runtime has forgotten stays");
        }
    }
}
