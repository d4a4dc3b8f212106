//! Enlarges the file system of a claim's volume to the size of the volume.
//!
//! In: a claim, the driver that can do it. Out: the claim's new status, or the error. Invariant: the driver
//! gets a call only if the claim is smaller than its volume, the pod may write to it, and the controller is done. The decisions are in
//! `agent_volumes::csi::expand`.

use agent_core::pod_worker::effect::EffectError;
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::api::ObjectName;
use agent_types::event::ClaimId;
use agent_volumes::Resize;
use agent_volumes::bind::OfClaim;
use agent_volumes::csi::expand::{self, Growth};

use super::Executor;
use super::csi::refusal;

/// Why it was not made larger.
pub(super) enum Refused {
    /// The driver was not called yet, or may still be working: try again.
    Later(String),
    /// The volume does not grow, and a repeated call does not help.
    Final {
        /// Reason of the failure.
        why: String,
        /// The driver cannot grow the volume to this size.
        infeasible: bool,
        /// The driver cannot grow the volume while it is in use; the volume stays usable.
        in_use: bool,
    },
}

/// Grows the volume with `larger` if needed; `None`: no call was made.
pub(super) async fn grow<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    of: &OfClaim,
    in_use: bool,
    larger: impl AsyncFnOnce(Growth) -> Result<(), Refused>,
) -> Result<Option<Resize>, String> {
    let sources = &executor.sources;
    let named = ObjectName { namespace: of.namespace.as_str().into(), name: of.name.as_str().into() };
    let failed = |step: &str, why: &str| format!("mountVolume.NodeExpandVolume {step} : {why}");
    let (mut claim, volume) = match sources.claimed(named.clone()).await {
        Ok(found) => found,
        Err(why) if in_use => {
            tracing::debug!(claim = of.name, why, "it is not known whether a claim has grown");
            return Ok(None);
        }
        Err(why) => return Err(failed("get PVC failed", &why)),
    };
    let uid = claim.metadata.uid.clone().unwrap_or_default();
    if of.read_only {
        let told = !in_use && expand::is_larger(&claim, &volume);
        return Ok(told.then(|| Resize::ReadOnly { claim: ClaimId { name: of.name.clone(), uid } }));
    }
    let Some(growth) = expand::needed(&claim, &volume) else { return Ok(None) };
    if growth.announced {
        let patched = sources.patch_claim(named.clone(), expand::began(&claim)).await;
        claim = patched.map_err(|why| failed("failed to mark node expansion in progress", &why))?;
    }
    match larger(growth.clone()).await {
        Ok(()) => {}
        Err(Refused::Later(why)) => return Err(why),
        Err(Refused::Final { why, infeasible, in_use }) => {
            if growth.recorded {
                let words = expand::refused(&why, infeasible || growth.unwanted, executor.tasks.now().wall);
                if let Err(why) = sources.patch_claim(named, words).await {
                    tracing::warn!(claim = of.name, why, "the claim does not say that it is not larger");
                }
            }
            return if in_use { Ok(None) } else { Err(why) };
        }
    }
    tracing::info!(claim = of.name, bytes = growth.bytes, "volume is larger");
    let done = Resize::Done { node: of.node.clone(), claim: ClaimId { name: of.name.clone(), uid } };
    let patched = sources.patch_claim(named, expand::done(&claim, &growth)).await;
    patched.map(|_| Some(done)).map_err(|why| failed("update pvc status failed", &why))
}

/// A volume that did not grow is an error, unless containers use it already: they may go on.
pub(super) fn or_keep(
    grown: Result<Option<Resize>, String>,
    volume: &str,
    in_use: bool,
) -> Result<Option<Resize>, EffectError> {
    match grown {
        Err(why) if in_use => Ok(Some(Resize::Failed(why))),
        grown => grown.map_err(|why| {
            let words = "MountVolume.Setup failed while expanding volume";
            refusal(format!("{words} {volume:?} : {why}"))
        }),
    }
}
