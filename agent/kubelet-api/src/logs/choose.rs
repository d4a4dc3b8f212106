//! Selects the instance of a container whose log was requested.

use agent_types as types;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

/// Why there is no log; each is a 400 with these words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoLog(String);

/// The CRI id (without `containerd://`) of the instance: the previous one, or the current one, or the last
/// one if the current one has not started.
///
/// # Errors
/// There is no such instance; the text is upstream's.
pub fn choose(pod: &str, container: &str, status: &PodStatus, previous: bool) -> Result<String, NoLog> {
    let is = |words: &str| Err(NoLog(format!("container {container:?} in pod {pod:?} is {words}")));
    let found = types::pod::container_statuses(status).find(|s| s.name == container);
    let Some(ContainerStatus { state, last_state, container_id, .. }) = found else {
        return is("not available");
    };
    let id_of = |full: Option<&String>| {
        let id = types::pod::runtime_id(full.map_or("", String::as_str));
        (!id.is_empty()).then(|| id.to_owned())
    };
    let terminated = last_state.as_ref().and_then(|s| s.terminated.as_ref());
    let last = terminated.and_then(|t| id_of(t.container_id.as_ref()));
    if previous {
        return last.ok_or_else(|| {
            NoLog(format!("previous terminated container {container:?} in pod {pod:?} not found"))
        });
    }
    let state = state.as_ref();
    if state.is_some_and(|s| s.running.is_some()) {
        return id_of(container_id.as_ref()).map_or_else(|| is("not available"), Ok);
    }
    if let Some(now) = state.and_then(|s| s.terminated.as_ref()) {
        return id_of(now.container_id.as_ref()).or(last).map_or_else(|| is("terminated"), Ok);
    }
    if terminated.is_some() {
        return last.map_or_else(|| is("terminated"), Ok);
    }
    match state.and_then(|s| s.waiting.as_ref()) {
        Some(waiting) => match waiting.reason.as_deref().unwrap_or("") {
            "ErrImagePull" => is("waiting to start: image can't be pulled"),
            "ImagePullBackOff" => is("waiting to start: trying and failing to pull image"),
            reason => is(&format!("waiting to start: {reason}")),
        },
        None => is("waiting to start - no logs yet"),
    }
}
