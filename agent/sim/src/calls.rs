//! Calls to the runtime and the disk, on their way there and back.

use std::fmt;
use std::sync::Arc;

use agent_core::allocation::Allocations;
use agent_core::pleg::PlegEvent;
use agent_core::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult};
use agent_core::resource_managers::ManagerRecords;
use agent_types::ids::{PodKey, PodUid};
use agent_types::kill::TerminatingRecord;
use agent_types::machine::EffectId;
use agent_types::time::Mono;

use crate::trace::{brief, brief_result, brief_snapshot};

/// A request to the runtime or to the disk.
#[derive(Clone)]
pub(crate) enum Ask {
    Effect { key: PodKey, id: EffectId, effect: Effect },
    Persist { id: EffectId, record: TerminatingRecord },
    Allocated(Arc<Allocations>, Box<ManagerRecords>),
    Inspect(PodUid),
    Relist,
}

impl Ask {
    /// True if another process carries the request out, which may not notice that the agent died.
    pub(crate) fn is_remote(&self) -> bool {
        let local = |e: &Effect| {
            matches!(
                e,
                Effect::CreatePodDirs { .. }
                    | Effect::RemovePodDirs { .. }
                    | Effect::ResolveClaim { .. }
                    | Effect::SetUpVolume { .. }
                    | Effect::TearDownVolumes
                    | Effect::FetchObjects { .. }
                    | Effect::ReadEnvFiles { .. }
                    | Effect::MountSubPaths { .. }
                    | Effect::PreStartDevices { .. }
                    | Effect::AllocateDevices { .. }
                    | Effect::PrepareClaims { .. }
                    | Effect::FindClaims { .. }
                    | Effect::UnprepareClaims
                    // Several short calls, each of which the agent sends itself.
                    | Effect::Resize { .. }
                    | Effect::SetCpus { .. }
            )
        };
        matches!(self, Ask::Effect { effect, .. } if !local(effect))
    }

    /// True if the request uses the runtime's connection and changes the runtime.
    pub(crate) fn is_of_the_runtime(&self) -> bool {
        self.is_remote() && matches!(self, Ask::Effect { effect, .. } if effect.changes_runtime())
    }

    pub(crate) fn mutates(&self) -> bool {
        match self {
            Ask::Effect { effect, .. } => !matches!(
                effect,
                Effect::Inspect
                    | Effect::InspectImage { .. }
                    | Effect::FetchObjects { .. }
                    | Effect::ResolveClaim { .. }
                    | Effect::ReadEnvFiles { .. }
                    | Effect::FindClaims { .. }
                    | Effect::MapUsers { .. }
            ),
            Ask::Persist { .. } | Ask::Allocated(..) => true,
            Ask::Inspect(_) | Ask::Relist => false,
        }
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ask::Effect { key, id, effect } => write!(f, "{} #{} {}", key.uid, id.0, brief(effect)),
            Ask::Persist { id, record } => write!(f, "{} #{} persist", record.pod.uid, id.0),
            Ask::Allocated(all, _) => write!(f, "record of {} allocations", all.len()),
            Ask::Inspect(uid) => write!(f, "{uid} pleg inspect"),
            Ask::Relist => f.write_str("pleg relist"),
        }
    }
}

/// A call on its way to the runtime and back.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) incarnation: u32,
    pub(crate) ask: Ask,
    pub(crate) issued: Mono,
    pub(crate) deadline: Option<Mono>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (agent {})", self.ask, self.incarnation)
    }
}

impl fmt::Debug for CallAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallAnswer::Recorded(written) => write!(f, "recorded {written}"),
            CallAnswer::Worker(result) => f.write_str(&brief_result(result)),
            CallAnswer::Pleg(PlegEvent::Inspected(s)) => f.write_str(&brief_snapshot(s)),
            CallAnswer::Pleg(PlegEvent::Listed { result, .. }) => {
                write!(f, "{:?}", result.as_ref().map(Vec::len))
            }
            CallAnswer::Pleg(event) => write!(f, "{event:?}"),
        }
    }
}

/// The answer to a request.
#[derive(Clone)]
pub(crate) enum CallAnswer {
    Worker(EffectResult),
    Recorded(bool),
    Pleg(PlegEvent),
}

/// An error as the answer to `call`.
pub(crate) fn refused(call: &Call, error: EffectError) -> CallAnswer {
    match &call.ask {
        Ask::Effect { .. } | Ask::Persist { .. } => CallAnswer::Worker(Err(error)),
        Ask::Allocated(..) => CallAnswer::Recorded(false),
        Ask::Inspect(uid) => CallAnswer::Pleg(PlegEvent::InspectFailed { uid: uid.clone() }),
        Ask::Relist => CallAnswer::Pleg(PlegEvent::Listed { as_of: call.issued, result: Err(error.message) }),
    }
}

/// The answer of an effect that succeeded.
pub(crate) fn answered_effect(ok: EffectOk) -> CallAnswer {
    CallAnswer::Worker(Ok(ok))
}
