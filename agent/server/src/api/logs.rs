//! `/containerLogs/<namespace>/<pod>/<container>`: which log, what of it, and its pieces as they come.

use agent_kubelet_api::logs::{LogOptions, OptionsError, choose};
use agent_types::time::Wall;
use hyper::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{LogRequest, NodeApi, decoded, pairs};
use crate::body::{Body, json as json_answer, streamed, text};

/// `now`, and whether one of the two outputs may be asked for alone.
pub(super) type LogContext = (Wall, bool);

pub(super) async fn answer<N: NodeApi>(
    node: &N,
    rest: &[&str],
    query: &str,
    given: LogContext,
) -> Response<Body> {
    let request = match find(node, rest, query, given) {
        Ok(request) => request,
        Err(response) => return response,
    };
    match node.open_log(request).await {
        Ok(pieces) => streamed(pieces),
        Err(problem) => text(StatusCode::BAD_REQUEST, problem),
    }
}

fn message(status: StatusCode, words: &str) -> Response<Body> {
    json_answer(status, &json!({ "message": words }))
}

#[allow(clippy::result_large_err)] // the error is the answer
fn find<N: NodeApi>(
    node: &N,
    rest: &[&str],
    query: &str,
    (now, split): LogContext,
) -> Result<LogRequest, Response<Body>> {
    let missing = |what: &str| message(StatusCode::BAD_REQUEST, &format!("Missing {what}."));
    let name = |at: usize| rest.get(at).and_then(|segment| decoded(segment, false)).unwrap_or_default();
    let (namespace, pod, container) = (name(0), name(1), name(2));
    if rest.len() > 3 {
        return Err(text(StatusCode::NOT_FOUND, "404 page not found\n"));
    }
    for (value, what) in [(&pod, "podID"), (&container, "container name"), (&namespace, "podNamespace")] {
        if value.is_empty() {
            return Err(missing(what));
        }
    }
    let query = pairs(query);
    let query = query.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let options = LogOptions::from_query(query, now).map_err(|error| {
        let status = match error {
            OptionsError::Undecodable => StatusCode::BAD_REQUEST,
            OptionsError::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        };
        message(status, &error.to_string())
    })?;
    let not_found = |words: String| text(StatusCode::NOT_FOUND, format!("{words}\n"));
    let (found, status) =
        node.pod(&namespace, &pod).ok_or_else(|| not_found(format!("pod {pod:?} does not exist")))?;
    if !names(&found).any(|name| name == container) {
        return Err(not_found(format!("container {container:?} not found in pod {pod:?}")));
    }
    if let Some(stream) = options.stream.filter(|_| !split) {
        let words = format!(
            "unable to return the given log stream: {:?}. Please enable PodLogsQuerySplitStreams feature gate in kubelet",
            stream.name()
        );
        return Err(text(StatusCode::BAD_REQUEST, format!("{words}\n")));
    }
    let container_id = choose(&pod, &container, &status, options.previous)
        .map_err(|why| text(StatusCode::BAD_REQUEST, why.to_string()))?;
    let uid = found.metadata.uid.clone().unwrap_or_default();
    Ok(LogRequest { uid, container, container_id, options })
}

/// Names of all containers of a pod.
pub(super) fn names(pod: &Pod) -> impl Iterator<Item = &str> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.name.as_str());
        spec.containers.iter().chain(init).map(|c| c.name.as_str()).chain(ephemeral)
    })
}
