//! The phase of a pod from its container statuses (contract 6.5).
//!
//! In: specification and statuses. Out: [`Phase`]. Upstream: getPhase in pkg/kubelet/kubelet_pods.go.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::containers::Statuses;
use crate::pod_actions::{Ended, Slot, SlotKind, may_restart_all, restarts};
use crate::types::pod;

/// `status.phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Accepted, not everything has started yet.
    Pending,
    /// At least one container runs, starts or restarts.
    Running,
    /// All containers ended well and none comes back.
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

/// The phase; `terminating` means that no container will be started again.
#[must_use]
pub fn phase(p: &Pod, statuses: &Statuses, terminating: bool) -> Phase {
    let initialized = statuses.regular.iter().any(started_once);
    let init = init_state(p, statuses, initialized);
    if init == InitState::Failed {
        return Phase::Failed;
    }
    let mut n = Count::default();
    for (index, spec) in pod::containers(p).iter().enumerate() {
        let slot = Slot { kind: SlotKind::Regular, index, name: spec.name.clone() };
        count(p, &slot, statuses.regular.iter().find(|s| s.name == spec.name), &mut n);
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

fn started_once(s: &ContainerStatus) -> bool {
    let in_state = s.state.as_ref().is_some_and(|x| x.running.is_some() || x.terminated.is_some());
    in_state || s.last_state.as_ref().is_some_and(|x| x.terminated.is_some())
}

#[derive(PartialEq, Eq)]
enum InitState {
    Done,
    Pending,
    Failed,
}

fn init_state(p: &Pod, statuses: &Statuses, initialized: bool) -> InitState {
    let mut result = InitState::Done;
    for (index, spec) in pod::init_containers(p).iter().enumerate() {
        let found = statuses.init.iter().find(|s| s.name == spec.name);
        let state = found.and_then(|s| s.state.as_ref());
        if pod::is_sidecar(spec) {
            let started = found.is_some_and(|s| s.started == Some(true));
            if !started && !initialized {
                result = InitState::Pending;
            }
            continue;
        }
        if may_restart_all(p) && state.is_some_and(|s| s.running.is_some()) {
            result = InitState::Pending;
            continue;
        }
        let ended = state.and_then(|s| s.terminated.as_ref()).or_else(|| {
            let waiting_after = found.and_then(|s| s.last_state.as_ref());
            waiting_after.and_then(|s| s.terminated.as_ref())
        });
        match ended {
            Some(t) if t.exit_code == 0 => {}
            // It comes again with all others: nothing has failed.
            Some(t) if t.reason.as_deref() == Some(super::reset::RESTARTING_ALL) => {}
            Some(t) => {
                let slot = Slot { kind: SlotKind::Init, index, name: spec.name.clone() };
                if !restarts(p, &slot, spec, Ended::Failed(t.exit_code)) {
                    return InitState::Failed;
                }
                result = InitState::Pending;
            }
            None if initialized => {}
            None => result = InitState::Pending,
        }
    }
    result
}

fn count(p: &Pod, slot: &Slot, found: Option<&ContainerStatus>, n: &mut Count) {
    let Some(state) = found.and_then(|s| s.state.as_ref()) else {
        n.unknown += 1;
        return;
    };
    let last = found.and_then(|s| s.last_state.as_ref()).and_then(|s| s.terminated.as_ref());
    let ended = match (&state.running, &state.terminated, &state.waiting) {
        (Some(_), _, _) => {
            n.running += 1;
            return;
        }
        (_, Some(t), _) => t,
        (_, _, Some(_)) => match last {
            Some(t) => t,
            None => {
                n.waiting += 1;
                return;
            }
        },
        (None, None, None) => {
            n.unknown += 1;
            return;
        }
    };
    n.stopped += 1;
    let how = if ended.exit_code == 0 { Ended::Succeeded } else { Ended::Failed(ended.exit_code) };
    if how == Ended::Succeeded {
        n.succeeded += 1;
    }
    let waits = state.waiting.is_some();
    if waits || slot.spec(p).is_some_and(|spec| restarts(p, slot, &spec, how)) {
        n.restarting += 1;
    }
}
