//! The phase of a pod from its container statuses.
//!
//! In: specification and statuses. Out: [`Phase`]. Upstream: `getPhase` of pkg/kubelet/kubelet_pods.go.

use agent_types::pod::{self, named};
use agent_types::runtime::view::{Slot, SlotKind};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus,
};

use super::reset::RESTARTING_ALL;
use crate::pod_actions::ended::{ContainerExit, restarts};
use crate::status::previous::Statuses;

/// `status.phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Accepted, not everything has started yet.
    Pending,
    /// At least one container runs, starts or restarts.
    Running,
    /// All containers ended well and none starts again.
    Succeeded,
    /// All containers ended, at least one badly.
    Failed,
}

impl Phase {
    /// The API's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
        }
    }

    /// Reads the API's word.
    #[must_use]
    pub fn parse(text: &str) -> Option<Phase> {
        [Phase::Pending, Phase::Running, Phase::Succeeded, Phase::Failed]
            .into_iter()
            .find(|p| p.as_str() == text)
    }

    /// Reads the API's word if it is a phase without return.
    #[must_use]
    pub fn terminal(text: &str) -> Option<Phase> {
        Phase::parse(text).filter(|p| p.is_terminal())
    }

    /// The end in a status, if it has one.
    #[must_use]
    pub fn end(status: &PodStatus) -> Option<Phase> {
        status.phase.as_deref().and_then(Phase::terminal)
    }

    /// Succeeded or Failed.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

#[derive(Default)]
struct Count {
    waiting: usize,
    running: usize,
    stopped: usize,
    succeeded: usize,
    restarting: usize,
    unknown: usize,
}

/// The phase; `terminating` means that no container will be started again, `initialized` that a regular container was
/// made in the sandbox that the pod has.
#[must_use]
pub fn phase(p: &Pod, statuses: &Statuses, terminating: bool, initialized: bool) -> Phase {
    let mut n = Count::default();
    let init = init_state(p, statuses, initialized, &mut n);
    if init == InitState::Failed {
        return Phase::Failed;
    }
    for (index, spec) in pod::containers(p).iter().enumerate() {
        let slot = Slot { kind: SlotKind::Regular, index, name: spec.name.clone() };
        count(p, &slot, spec, named(&statuses.regular, &spec.name), &mut n);
    }
    if init == InitState::Pending || n.waiting > 0 {
        return Phase::Pending;
    }
    if n.running > 0 && n.unknown == 0 {
        return Phase::Running;
    }
    if n.running == 0 && n.stopped > 0 && n.unknown == 0 {
        let over = if n.stopped == n.succeeded { Phase::Succeeded } else { Phase::Failed };
        if terminating && !pod::is_static(p) {
            return over;
        }
        return if n.restarting > 0 { Phase::Running } else { over };
    }
    Phase::Pending
}

#[derive(PartialEq, Eq)]
enum InitState {
    Done,
    Pending,
    Failed,
}

/// What a container is in, and how it ended if it waits after that or is over.
enum ContainerPhase<'a> {
    Running,
    Ended(&'a ContainerStateTerminated),
    WaitsAfter(&'a ContainerStateTerminated),
    Waits,
    Unknown,
}

fn seen(status: Option<&ContainerStatus>) -> ContainerPhase<'_> {
    let Some(status) = status else { return ContainerPhase::Unknown };
    match status.state.as_ref() {
        Some(s) if s.running.is_some() => ContainerPhase::Running,
        Some(ContainerState { terminated: Some(t), .. }) => ContainerPhase::Ended(t),
        Some(s) if s.waiting.is_some() => {
            let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
            last.map_or(ContainerPhase::Waits, ContainerPhase::WaitsAfter)
        }
        _ => ContainerPhase::Unknown,
    }
}

/// Counts sidecars; regular init containers only decide how far the pod has come.
fn init_state(p: &Pod, statuses: &Statuses, initialized: bool, n: &mut Count) -> InitState {
    let mut result = InitState::Done;
    for (index, spec) in pod::init_containers(p).iter().enumerate() {
        let found = pod::status_at(&statuses.init, index, &spec.name);
        let pending = if pod::is_sidecar(spec) {
            sidecar(found, n) && !initialized
        } else {
            match seen(found) {
                ContainerPhase::Running | ContainerPhase::Waits | ContainerPhase::Unknown => true,
                ContainerPhase::Ended(t) | ContainerPhase::WaitsAfter(t) => {
                    let slot = Slot { kind: SlotKind::Init, index, name: spec.name.clone() };
                    if t.exit_code != 0 && !comes_back(p, &slot, spec, t) {
                        return InitState::Failed;
                    }
                    false
                }
            }
        };
        if pending {
            result = InitState::Pending;
        }
    }
    result
}

/// True if it has not come up yet; one that ended counts for nothing.
fn sidecar(found: Option<&ContainerStatus>, n: &mut Count) -> bool {
    match seen(found) {
        ContainerPhase::Running => {
            n.running += 1;
            found.is_none_or(|s| s.started != Some(true))
        }
        ContainerPhase::Ended(_) | ContainerPhase::WaitsAfter(_) => false,
        ContainerPhase::Waits => {
            n.waiting += 1;
            true
        }
        ContainerPhase::Unknown => {
            n.unknown += 1;
            true
        }
    }
}

fn count(p: &Pod, slot: &Slot, spec: &Container, found: Option<&ContainerStatus>, n: &mut Count) {
    match seen(found) {
        ContainerPhase::Running => n.running += 1,
        ContainerPhase::Waits => n.waiting += 1,
        ContainerPhase::Unknown => n.unknown += 1,
        ContainerPhase::Ended(t) => {
            n.stopped += 1;
            n.succeeded += usize::from(t.exit_code == 0);
            n.restarting += usize::from(comes_back(p, slot, spec, t));
        }
        ContainerPhase::WaitsAfter(t) => {
            n.stopped += 1;
            n.restarting += usize::from(comes_back(p, slot, spec, t));
        }
    }
}

fn comes_back(p: &Pod, slot: &Slot, spec: &Container, ended: &ContainerStateTerminated) -> bool {
    let how =
        if ended.exit_code == 0 { ContainerExit::Succeeded } else { ContainerExit::Failed(ended.exit_code) };
    ended.reason.as_deref() == Some(RESTARTING_ALL) || restarts(p, slot, spec, how)
}
