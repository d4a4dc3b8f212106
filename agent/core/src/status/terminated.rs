//! The last status of a pod without running or future containers: every container ended, a terminal phase.
//!
//! In: the pod, its newest status. Out: that status, ended. Pure. Invariant: the resulting phase is terminal,
//! except for a static pod, which may run again. Upstream: `TerminatePod`, `hasPodInitialized` and
//! `initializedContainers` of pkg/kubelet/status/status_manager.go.

use agent_types::pod;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

use super::Phase;

const LOST: &str = "ContainerStatusUnknown";
const LOST_MESSAGE: &str = "The container could not be located when the pod was terminated";

/// `status` of `pod` once none of its containers can run any more. A container without a known end counts as
/// failed, because its success is unknown. Containers behind an unfinished init container stay waiting. Of a container only the
/// state changes, not `ready` and `started`, as upstream.
#[must_use]
pub fn terminated_status(pod: &Pod, status: &PodStatus) -> PodStatus {
    let mut out = status.clone();
    if has_initialized(pod, status) {
        out.container_statuses.iter_mut().flatten().for_each(end);
    }
    let ephemeral = out.ephemeral_container_statuses.iter_mut().flatten();
    ephemeral.filter(|c| has_started(c)).for_each(end);
    let init = out.init_container_statuses.iter_mut().flatten();
    let mut init: Vec<&mut ContainerStatus> = init.collect();
    // The first one had its turn in any case.
    let started = init.iter().rposition(|c| has_started(c)).map_or(1, |last| last + 1);
    init.iter_mut().take(started).for_each(|c| end(c));
    if Phase::end(&out).is_none() && !pod::is_static(pod) {
        out.phase = Some(Phase::Failed.as_str().to_owned());
    }
    out
}

fn end(container: &mut ContainerStatus) {
    let state = container.state.get_or_insert_default();
    if state.terminated.is_none() {
        let terminated = ContainerStateTerminated {
            exit_code: 137,
            reason: Some(LOST.to_owned()),
            message: Some(LOST_MESSAGE.to_owned()),
            ..ContainerStateTerminated::default()
        };
        *state = ContainerState { terminated: Some(terminated), ..ContainerState::default() };
    }
}

/// It left its first waiting.
fn has_started(container: &ContainerStatus) -> bool {
    let left = |s: &ContainerState| s.running.is_some() || s.terminated.is_some();
    container.state.as_ref().is_some_and(left) || container.last_state.as_ref().is_some_and(left)
}

/// Its regular containers were started, or were about to be.
fn has_initialized(p: &Pod, status: &PodStatus) -> bool {
    if pod::init_containers(p).is_empty() || status.container_statuses.iter().flatten().any(has_started) {
        return true;
    }
    let Some(last) = status.init_container_statuses.iter().flatten().last() else { return false };
    if pod::init_containers(p).last().is_some_and(pod::is_sidecar) {
        return last.started == Some(true);
    }
    let done =
        |s: Option<&ContainerState>| s.and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0);
    done(last.state.as_ref()) || done(last.last_state.as_ref())
}
