//! Events of a pod's containers between two statuses.
//!
//! In: the previous status, the current status. Out: attempts to start, failures, ends. Invariants: an
//! instance ends once; events from before this incarnation do not count again. Upstream: `startContainer` of
//! pkg/kubelet/kuberuntime/kuberuntime_container.go, `updateStatusInternal` of
//! pkg/kubelet/status/status_manager.go.

use agent_types::api_time;
use agent_types::pod::status_at;
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

/// Waiting reasons of an attempt that failed before the container was created.
const NOT_MADE: &[&str] = &[
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
    "CreateContainerConfigError",
    "CreateContainerError",
];
/// Waiting reasons of an attempt that failed after the container was created.
const NOT_STARTED: &[&str] = &["RunContainerError", "PostStartHookError"];

/// One event of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Attempts to start containers of this type.
    Tried {
        /// `container`, `init_container` or `ephemeral_container`.
        kind: &'static str,
        /// Number of attempts.
        times: u32,
    },
    /// An attempt failed.
    Failed {
        /// List of the container, as in the label `container_type`.
        kind: &'static str,
        /// The status's reason, from a bounded set.
        code: &'static str,
    },
    /// A container ended.
    Ended {
        /// List of the container, as in the label `container_type`.
        kind: &'static str,
        /// Its exit code.
        exit_code: i32,
        /// The status's reason.
        reason: &'a str,
    },
}

/// Events up to `new`; `old` is `None` if this incarnation, which began at `began`, has no earlier status.
#[must_use]
pub fn changes<'a>(old: Option<&PodStatus>, new: &'a PodStatus, began: Wall) -> Vec<Change<'a>> {
    let mut found = Vec::new();
    for (kind, list) in lists(new) {
        let before =
            old.map(|old| lists(old).into_iter().find(|(k, _)| *k == kind).map_or(&[][..], |(_, l)| l));
        for (index, container) in list.iter().enumerate() {
            let known = before.map(|list| status_at(list, index, &container.name));
            of_container(kind, known, container, began, &mut found);
        }
    }
    found
}

fn lists(status: &PodStatus) -> [(&'static str, &[ContainerStatus]); 3] {
    [
        ("init_container", status.init_container_statuses.as_deref().unwrap_or_default()),
        ("container", status.container_statuses.as_deref().unwrap_or_default()),
        ("ephemeral_container", status.ephemeral_container_statuses.as_deref().unwrap_or_default()),
    ]
}

/// `before` is `None` without an earlier status of the pod, `Some(None)` without one of the container.
fn of_container<'a>(
    kind: &'static str,
    before: Option<Option<&ContainerStatus>>,
    now: &'a ContainerStatus,
    began: Wall,
    found: &mut Vec<Change<'a>>,
) {
    let known = before.flatten();
    // Whole seconds: an end in the second of the start counts.
    let is_new = |at: Option<Wall>| {
        before.is_some() || at.is_some_and(|at| at.0.saturating_add(1_000_000_000) > began.0)
    };
    let instance = now.container_id.as_deref();
    if instance.is_some_and(|id| known.and_then(|c| c.container_id.as_deref()) != Some(id))
        && is_new(since(now))
    {
        let restarts = now.restart_count.saturating_sub(known.map_or(now.restart_count, |c| c.restart_count));
        found.push(Change::Tried { kind, times: u32::try_from(restarts).unwrap_or(0).max(1) });
    }
    let reason = waiting(now);
    if reason != known.and_then(waiting) {
        let code_of = |codes: &[&'static str]| codes.iter().find(|code| Some(**code) == reason).copied();
        if let Some(code) = code_of(NOT_MADE) {
            found.push(Change::Tried { kind, times: 1 });
            found.push(Change::Failed { kind, code });
        } else if let Some(code) = code_of(NOT_STARTED) {
            found.push(Change::Failed { kind, code });
        }
    }
    let told: Vec<&str> = known.into_iter().flat_map(ended).filter_map(id).collect();
    for end in ended(now) {
        let finished = end.finished_at.as_ref().map(api_time::wall);
        if !id(end).is_some_and(|id| told.contains(&id)) && is_new(finished) {
            let reason = end.reason.as_deref().unwrap_or_default();
            found.push(Change::Ended { kind, exit_code: end.exit_code, reason });
        }
    }
}

fn waiting(status: &ContainerStatus) -> Option<&str> {
    status.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

/// When the instance that is shown began.
fn since(status: &ContainerStatus) -> Option<Wall> {
    let state = status.state.as_ref()?;
    let running = state.running.as_ref().and_then(|r| r.started_at.as_ref());
    running.or_else(|| state.terminated.as_ref()?.started_at.as_ref()).map(api_time::wall)
}

/// Instances that are shown as ended.
fn ended(status: &ContainerStatus) -> impl Iterator<Item = &ContainerStateTerminated> {
    [&status.last_state, &status.state].into_iter().filter_map(|state| state.as_ref()?.terminated.as_ref())
}

fn id(end: &ContainerStateTerminated) -> Option<&str> {
    end.container_id.as_deref()
}
